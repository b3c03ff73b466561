"""Export a study for other tools. Each format gets one folder, written completely or not at all."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from worldsize import __version__
from worldsize.answer.results import Results, as_results
from worldsize.errors import InputError, OutputError
from worldsize.folder.files import read_json, replace_folder, write_json

MARK = "export.json"
"""The list of files in an exported folder. A folder with any other file is never replaced."""
NEEDS = {
    "csv": (),
    "parquet": ("pyarrow",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}
"""The packages that each format needs."""


def check_formats(formats: str | Sequence[str]) -> tuple[str, ...]:
    """Return the formats, given as a list or as `csv,mlflow`, without duplicates. Each must be known and installed."""
    names = formats.split(",") if isinstance(formats, str) else formats
    checked = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not checked:
        raise InputError(f"no export format given; choose any of {', '.join(NEEDS)}")
    for name in checked:
        if name not in NEEDS:
            raise InputError(f"{name!r} is not an export format; choose any of {', '.join(NEEDS)}")
        missing = [module for module in NEEDS[name] if importlib.util.find_spec(module) is None]
        if missing:
            raise InputError(
                f"{name} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
                f"installed; run `pip install 'worldsize[{name}]'`"
            )
    return checked


def export(
    study: Results | Path | str,
    formats: str | Sequence[str] = "csv",
    folder: Path | str | None = None,
    *,
    steps: bool = False,
) -> list[Path]:
    """Export a study to "csv", "parquet", "tensorboard" or "mlflow", each into a folder of its own below `folder`.

    Default: `export` in the study folder. `steps` adds every step of every rank.
    """
    results = as_results(study)
    wanted = check_formats(formats)
    return list(export_study(results, wanted, Path(folder or results.folder.path / "export"), steps=steps))


def export_study(results: Results, formats: Sequence[str], out: Path, *, steps: bool = False) -> Iterator[Path]:
    """Write out/FORMAT for each format and yield it once it is complete. An earlier export there is replaced."""
    for name in formats:
        _check_ours(out / name)
    out.mkdir(parents=True, exist_ok=True)
    for name in formats:
        target = out / name
        stage = Path(tempfile.mkdtemp(dir=out, prefix=f".{name}."))
        try:
            _writer(name, target)(results, stage, steps)
            write_json(
                stage / MARK,
                {
                    "format": name,
                    "study": results.spec.name,
                    "folder": str(results.folder.path),
                    "trials": len(results.trials),
                    "records": len(results.records),
                    "steps": steps,
                    "worldsize": __version__,
                    "files": sorted(_contents(stage)),
                },
            )
            replace_folder(stage, target)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        yield target


Writer = Callable[[Results, Path, bool], None]
"""Takes the results, the folder to write into, and whether to include every step."""


def _writer(name: str, target: Path) -> Writer:
    """Return the writer of a format. Its library is imported only when needed."""
    if name in ("csv", "parquet"):
        from worldsize.exports.tables import write_tables

        return partial(write_tables, suffix=name)
    if name == "tensorboard":
        from worldsize.exports.tensorboard import write_tensorboard

        return write_tensorboard
    from worldsize.exports.mlflow import write_mlflow

    return partial(write_mlflow, artifacts=target / "artifacts")


def _check_ours(target: Path) -> None:
    """Refuse to replace files that an export did not write."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise OutputError(f"{target} exists and is not a folder; choose another --out")
    if foreign := sorted(_contents(target) - _exported(target)):
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{target} contains {foreign[0]}{more}, not written by an export; move it, or choose another --out"
        )


def _contents(folder: Path) -> set[str]:
    """Return the files, links and empty folders inside a folder, as relative paths."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


def _exported(target: Path) -> set[str]:
    """Return the files that an earlier export wrote there, according to its list."""
    try:
        mark = read_json(target / MARK) if (target / MARK).is_file() else {}
    except ValueError:
        mark = {}
    files = mark.get("files") if isinstance(mark, dict) else None
    return {MARK, *map(str, files)} if isinstance(files, list) else set()
