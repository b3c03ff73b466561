"""Figures and tables as HTML."""

from __future__ import annotations

import html

from worldsize.errors import visible
from worldsize.report.marks import FORMATS, Bars, Figure, Line, Mark
from worldsize.report.sheet import Cell, Column, Sheet


def escape(words: object) -> str:
    """Text from outside as text: no tag, no attribute, no character that steers."""
    return html.escape(visible(str(words)), quote=True)


def figure_html(figure: Figure, first: int, *, printed: bool) -> str:
    """`printed`: its files lie beside the page."""
    panels = []
    for place, panel in enumerate(figure.panels, start=first):
        head = f"<h4>{escape(panel.y.title)}</h4>" if not panel.across else ""
        label = escape(f"{figure.title}: {panel.x.title if panel.across else panel.y.title}")
        panels.append(
            f'<div class="panel">{head}'
            f'<div class="chart" data-chart="{place}" role="img" aria-label="{label}"></div></div>'
        )
    one = " one" if len(panels) == 1 else ""
    links = ", ".join(f'<a href="figures/{figure.key}.{ending}">{ending.upper()}</a>' for ending in FORMATS)
    files = f'<p class="files">For print: {links}</p>' if printed else ""
    return (
        f'<figure id="figure-{figure.key}" aria-label="{escape(figure.alt)}"><h3>{escape(figure.title)}</h3>'
        f'<div class="panels{one}">{"".join(panels)}</div>{_legend(figure)}'
        f"<figcaption>{escape(figure.caption)}</figcaption>{files}</figure>"
    )


def _legend(figure: Figure) -> str:
    """Buttons, so that the keyboard reaches them."""
    named = figure.legend
    if len(named) < 2:
        return ""
    items = "".join(
        f'<li><button data-series="{place}" aria-pressed="true">'
        f'<span class="key {_look(mark)}" style="{_hue(mark)}"></span>'
        f"{escape(name)}</button></li>"
        for place, (name, mark) in enumerate(named.items())
    )
    return f'<ul class="legend" aria-label="Shown series">{items}</ul>'


def _look(mark: Mark) -> str:
    if isinstance(mark, Bars):
        return "bar"
    if mark.symbol == "cross":
        return "cross"
    if not mark.joined:
        return "rings" if mark.symbol == "open" else "dots"
    return mark.kind


def _hue(mark: Mark) -> str:
    if isinstance(mark, Line) and mark.symbol == "cross":
        return f"color:var(--{mark.colour})"
    filled = isinstance(mark, Bars) or (not mark.joined and mark.symbol != "open")
    fade = "" if isinstance(mark, Bars) else f";opacity:{mark.fade:.2f}"
    return f"{'background' if filled else 'border-color'}:var(--{mark.colour}){fade}"


def table_html(sheet: Sheet) -> str:
    """Every cell carries the document's own number; what is read is that number, rounded."""
    text = [sheet.is_text(place) for place in range(len(sheet.columns))]
    heads = "".join(_head(column, words) for column, words in zip(sheet.columns, text, strict=True))
    rows = []
    for place, row in enumerate(sheet.rows):
        cells = "".join(
            _cell(column, cell, words) for column, cell, words in zip(sheet.columns, row, text, strict=True)
        )
        rows.append(f"<tr{' class=marked' if place == sheet.marked else ''}>{cells}</tr>")
    links = ", ".join(
        f'<a href="tables/{sheet.key}.{ending}">{name}</a>'
        for ending, name in (("csv", "CSV"), ("md", "Markdown"), ("tex", "LaTeX"))
    )
    return (
        f'<div class="sheet" id="table-{sheet.key}"><h3>{escape(sheet.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(sheet.title)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="note">{escape(sheet.note)}</p><p class="files">As {links}</p></div>'
    )


def _head(column: Column, text: bool) -> str:
    unit = f"<small>{escape(column.unit)}</small>" if column.unit else ""
    return f'<th scope="col"{" class=text" if text else ""}>{escape(column.title)}{unit}</th>'


def _cell(column: Column, cell: Cell, text: bool) -> str:
    if text:
        return f'<td class="text">{escape(column.words(cell))}</td>'
    data = "".join(
        f' data-{name}="{value!r}"'
        for name, value in (("value", cell.value), ("low", cell.low), ("high", cell.high))
        if value is not None
    )
    reach = column.reach(cell)
    return f"<td{data}>{escape(column.words(cell))}{f'<small>{escape(reach)}</small>' if reach else ''}</td>"
