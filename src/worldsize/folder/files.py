"""Write files atomically, and read and write JSON."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from worldsize.errors import DamagedError, WorldsizeError
from worldsize.folder.record import parsed
from worldsize.machine import MOST_TEXT_BYTES, open_regular, read_regular

ROOM_BYTES = 2**18
"""A disk counts as full if a file of this size cannot be written. A trial can save more than this."""
TEMPORARY = ".tmp"
"""Suffix of the temporary files of `write_atomic`. A killed process leaves them behind."""


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, even if power fails: temporary name, fsync, rename, fsync the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file, or the list of names in a folder, to disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_folder(stage: Path, target: Path) -> None:
    """Replace the folder `target` with `stage`, and make it readable for everybody.

    The old folder is renamed instead of emptied, so that nobody ever sees a mixture of both.
    """
    for path in [stage, *stage.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():
            sync(path)
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    old = aside / target.name
    try:
        if target.exists():
            target.rename(old)
        try:
            stage.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    with damage_named(path):
        return parsed(read_regular(path).decode())


def read_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the events in a file of JSON lines after byte `offset`, and the offset for the next call.

    A last line without a line end, still being written or cut off by a kill, is left for the next call. A missing file
    has no events. Of a file that is too long, only the end is read.
    """
    try:
        with open_regular(path) as file:
            offset = max(offset, os.fstat(file.fileno()).st_size - MOST_TEXT_BYTES)
            file.seek(offset)
            text = file.read(MOST_TEXT_BYTES)
    except FileNotFoundError:
        return [], offset
    text = text[: text.rfind(b"\n") + 1]
    return list(_events(text)), offset + len(text)


def _events(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


Model = TypeVar("Model", bound=BaseModel)
Pid = Annotated[int, Field(gt=0, lt=2**31)]


def write_model(path: Path, model: BaseModel) -> None:
    write_json(path, model.model_dump(mode="json"))


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a file that `write_model` wrote. Raises DamagedError, naming each key that is missing, unknown or wrong."""
    values = read_json(path)
    with damage_named(path):
        try:
            return model.model_validate_json(json.dumps(values, allow_nan=False))
        except ValidationError as error:
            messages = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
            raise ValueError("; ".join(messages)) from None


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn errors caused by the content of `path` into a DamagedError that names the file."""
    try:
        yield
    except WorldsizeError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{path} is damaged or of another version ({type(error).__name__}: {error}); restore it from a copy, or "
            "use a new folder"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_room(folder: Path) -> bool:
    """Whether a file can still be written in this folder. Free space alone does not tell if there is a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if is_disk_full(error):
            return False
        raise
    return True
