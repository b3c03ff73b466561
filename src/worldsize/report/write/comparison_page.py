"""Studies compared, as a separate page: no script, no figure, the style of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from worldsize.answer.comparison import StudyComparison
from worldsize.errors import OutputError
from worldsize.folder.files import write_atomic
from worldsize.report.sections.comparison import comparison_page
from worldsize.report.write.page import escape, page_text, palette

LISTS = {
    "only": "In one study alone",
    "configuration": "What was asked for differs",
    "environment": "Where they ran",
    "notes": "How this was judged",
}


MARK = '<meta name="generator" content="worldsize compare">'
"""Marks every comparison page, so that only such a page is ever replaced."""


def write_comparison(comparison: StudyComparison, path: Path) -> None:
    """Raises OutputError if the path exists and is not a comparison page."""
    if path.is_symlink() or (path.exists() and not _ours(path)):
        raise OutputError(f"{path} exists and is not a page written by `worldsize compare`; give another --page")
    write_atomic(path, compare_html(comparison_page(comparison)).encode())


def _ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(2_000)


def compare_html(page: dict[str, Any]) -> str:
    """Everything that the terminal shows, without shortening."""
    studies = "".join(f'<p class="eyebrow">{escape(line)}</p>' for line in page["studies"])
    caution = f'<p class="caution">{escape(page["caution"])}</p>' if page["caution"] else ""
    tables = "".join(_table(table) for table in page["tables"])
    lists = "".join(_list(title, page[key]) for key, title in LISTS.items() if page[key])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>worldsize: studies compared</title>
<style>
{palette()}
{page_text("page.css")}
.frame {{ grid-template-columns: minmax(0, 62rem); }}
</style>
</head>
<body>
<div class="frame">
<main>
{studies}
<p class="answer" role="heading" aria-level="1">{escape(page["answer"])}</p>
{caution}{tables}{lists}
</main>
</div>
</body>
</html>
"""


def _table(table: dict[str, Any]) -> str:
    head = "".join(
        f'<th scope="col"{_text(index)}>{escape(words)}</th>' for index, words in enumerate(table["headers"])
    )
    rows = "".join(
        f"<tr{' class=marked' if mark else ''}>"
        + "".join(f"<td{_text(index)}>{escape(cell)}</td>" for index, cell in enumerate(row))
        + "</tr>"
        for row, mark in zip(table["rows"], table["significant"], strict=True)
    )
    title = table["title"][:1].upper() + table["title"][1:]
    return (
        f'<h2>{escape(title)}</h2><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table["title"])}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _text(index: int) -> str:
    return ' class="text"' if index == 0 else ""


def _list(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<h2>{escape(title)}</h2><ul class="findings">{items}</ul>'
