"""Writes the report of a study: the page, the document, figures and tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worldsize.report.document import Document, document
from worldsize.report.figures import figures
from worldsize.report.marks import Figure
from worldsize.report.page import page
from worldsize.report.sheet_files import to_csv, to_latex, to_markdown
from worldsize.report.sheets import sheets
from worldsize.report.written import write_files
from worldsize.results import Results


@dataclass(frozen=True, kw_only=True)
class Published:
    page: Path
    figures: tuple[str, ...]
    tables: tuple[str, ...]
    size_bytes: int
    without: str = ""
    """What could not be made here, and what would help."""


def publish(results: Results, folder: Path | None = None, *, printed: bool = True, live: bool = False) -> Published:
    """Write the report into `report/` of the study folder, or into `folder`. Of what is there already, only files that
    an earlier report wrote are replaced or removed.

    `printed`: with figures for print, which are most of the work. `live`: the study still runs.
    """
    return publish_document(document(results), folder or results.folder.path / "report", printed=printed, live=live)


def publish_document(found: Document, folder: Path, *, printed: bool = True, live: bool = False) -> Published:
    drawn, tables = figures(found), sheets(found)
    render, without = _printer() if printed else (None, "")
    content = page(found, drawn, tables, printed=render is not None, live=live).encode()
    files = {"report.json": to_json(found).encode(), "index.html": content}
    if render is not None:
        for figure in drawn:
            files |= {f"figures/{name}": image for name, image in render(figure).items()}
    for sheet in tables:
        for ending, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
            files[f"tables/{sheet.key}.{ending}"] = write(sheet).encode()
    write_files(folder, files, last="index.html")  # a page is there with all it speaks of
    return Published(
        page=folder / "index.html",
        figures=tuple(figure.key for figure in drawn),
        tables=tuple(sheet.key for sheet in tables),
        size_bytes=len(content),
        without=without,
    )


def _printer() -> tuple[Callable[[Figure], dict[str, bytes]] | None, str]:
    """matplotlib takes a second to come, and a page is worth having without it."""
    try:
        from worldsize.report.draw_print import rendered
    except ImportError:
        return None, "no figures for print: matplotlib is not installed here (pip install matplotlib)"
    return rendered, ""


def to_json(found: Document) -> str:
    return json.dumps(found, indent=1, allow_nan=False) + "\n"
