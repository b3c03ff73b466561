"""The page: one self-contained file that opens from disk, with the document, its figures and its tables."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from worldsize.analysis.estimate import Estimate
from worldsize.errors import ReportError, visible
from worldsize.report.blocks import Cell, Column, Document, Sheet, estimate
from worldsize.report.figures.model import FORMATS, PALETTE, Bars, Figure, Line, Mark
from worldsize.report.figures.plotly import chart
from worldsize.report.pages import SECTIONS
from worldsize.report.words.findings import BAD
from worldsize.report.words.numbers import counted, duration, metric_value, number, percent, range_of
from worldsize.report.words.settings import recommended_row


def escape(words: object) -> str:
    """Escapes text from outside: no tags, no attributes, no control characters."""
    return html.escape(visible(str(words)), quote=True)


def figure_html(figure: Figure, first: int, *, print_figures: bool) -> str:
    """`print_figures`: the files for print are next to the page."""
    panels = []
    for index, panel in enumerate(figure.panels, start=first):
        head = f"<h4>{escape(panel.y.title)}</h4>" if not panel.horizontal else ""
        label = escape(f"{figure.title}: {panel.x.title if panel.horizontal else panel.y.title}")
        panels.append(
            f'<div class="panel">{head}'
            f'<div class="chart" data-chart="{index}" role="img" aria-label="{label}"></div></div>'
        )
    single = " one" if len(panels) == 1 else ""
    links = ", ".join(f'<a href="figures/{figure.key}.{ending}">{ending.upper()}</a>' for ending in FORMATS)
    file_links = f'<p class="files">For print: {links}</p>' if print_figures else ""
    return (
        f'<figure id="figure-{figure.key}" aria-label="{escape(figure.alt)}"><h3>{escape(figure.title)}</h3>'
        f'<div class="panels{single}">{"".join(panels)}</div>{_legend(figure)}'
        f"<figcaption>{escape(figure.caption)}</figcaption>{file_links}</figure>"
    )


def _legend(figure: Figure) -> str:
    """A legend of buttons, so that it works with the keyboard."""
    named = figure.legend
    if len(named) < 2:
        return ""
    items = "".join(
        f'<li><button data-series="{index}" aria-pressed="true">'
        f'<span class="key {_look(mark)}" style="{_hue(mark)}"></span>'
        f"{escape(name)}</button></li>"
        for index, (name, mark) in enumerate(named.items())
    )
    return f'<ul class="legend" aria-label="Shown series">{items}</ul>'


def _look(mark: Mark) -> str:
    if isinstance(mark, Bars):
        return "bar"
    if mark.symbol == "cross":
        return "cross"
    if not mark.connected:
        return "rings" if mark.symbol == "open" else "dots"
    return mark.kind


def _hue(mark: Mark) -> str:
    if isinstance(mark, Line) and mark.symbol == "cross":
        return f"color:var(--{mark.color})"
    filled = isinstance(mark, Bars) or (not mark.connected and mark.symbol != "open")
    fade = "" if isinstance(mark, Bars) else f";opacity:{mark.opacity:.2f}"
    return f"{'background' if filled else 'border-color'}:var(--{mark.color}){fade}"


def table_html(sheet: Sheet) -> str:
    """Every cell has the document's exact number as data, and shows it rounded."""
    text = [sheet.is_text(index) for index in range(len(sheet.columns))]
    heads = "".join(_head(column, words) for column, words in zip(sheet.columns, text, strict=True))
    rows = []
    for index, row in enumerate(sheet.rows):
        cells = "".join(
            _cell(column, cell, words) for column, cell, words in zip(sheet.columns, row, text, strict=True)
        )
        rows.append(f"<tr{' class=marked' if index == sheet.marked else ''}>{cells}</tr>")
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
    reach = column.range(cell)
    return f"<td{data}>{escape(column.words(cell))}{f'<small>{escape(reach)}</small>' if reach else ''}</td>"


MOST_OPEN = 5
"""Maximum number of failures that are expanded at first."""


def trials_section(document: Document) -> list[tuple[str, str, str]]:
    return [
        ("failures", "Failures", _failures(document)),
        ("left-out", "Left out", _left_out(document)),
        ("trials", "Trials", _trials(document)),
        ("environment", "Environment", _environments(document)),
    ]


def _failures(document: Document) -> str:
    """Failures are expanded, since they need attention; out of memory is a result, and collapsed."""
    ended = [run for run in document["runs"] if run.get("failure")]
    out_of_memory = [run for run in ended if run["outcome"] == "out_of_memory"]
    failed = [run for run in ended if run not in out_of_memory]
    parts = []
    if failed:
        shown = "".join(_failure(run, opened=index < MOST_OPEN) for index, run in enumerate(failed))
        parts.append(f"<h2>Failures</h2>{shown}")
    if out_of_memory:
        parts.append(f"<h2>Out of memory</h2>{''.join(_failure(run, opened=False) for run in out_of_memory)}")
    return "".join(parts)


def _failure(run: Mapping[str, Any], *, opened: bool) -> str:
    failure = run["failure"]
    where = "no rank to blame" if failure["rank"] is None else f"rank {failure['rank']}"
    step = "" if failure["step"] is None else f", after step {failure['step']}"
    log = "\n".join(failure["log"])
    shown = f'<pre class="wrap" tabindex="0">{escape(log)}</pre>' if log else ""
    first = (failure["error"].splitlines() or [""])[0]
    return (
        f"<details{' open' if opened else ''}><summary><b>{escape(run['trial'])}</b> "
        f'<span class="dim">{escape(where + step)}</span><br>'
        f"{escape(first)}</summary>{shown}{_command(run)}</details>"
    )


def _left_out(document: Document) -> str:
    if not document["left_out"]:
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in document["left_out"])
    return f'<h2>Left out, and why</h2><ul class="findings">{items}</ul>'


def _trials(document: Document) -> str:
    """All trials, collapsed, grouped by kind, worker count and batch."""
    runs = document["runs"]
    ends = Counter(run["outcome"].replace("_", " ") for run in runs)
    lead = ", ".join(f"{count} {outcome}" for outcome, count in ends.items())
    common = _pairs(document["configuration"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: (run["kind"], run["workers"], run["batch_per_worker"] or 0)):
        groups.setdefault(
            f"{run['kind']}, {counted(run['workers'], 'worker')}, batch {run['batch_per_worker']:,}", []
        ).append(run)
    listed = "".join(
        f'<details><summary>{escape(name)} <span class="dim">{counted(len(group), "trial")}</span></summary>'
        f"{''.join(map(_trial, group))}</details>"
        for name, group in groups.items()
    )
    return (
        f"<h2>Every trial</h2><p>{counted(len(runs), 'trial')}: {escape(lead)}. Each opens to its configuration and "
        "the command that runs this point again.</p>"
        f"<details><summary>What all trials share</summary>{common}</details>"
        f'<div class="every-trial">{listed}</div>'
    )


MOST_LEFT_OUT = 8
"""Maximum number of pretrained weights listed per trial; report.json has all."""


def _trial(run: Mapping[str, Any]) -> str:
    details = dict(run["configuration"])
    details["seed"] = run["seed"]
    if run.get("wall_s") is not None:
        details["wall time"] = duration(run["wall_s"])
    details |= {f"test {name}": metric_value(value) for name, value in (run.get("metrics") or {}).items()}
    if run.get("diverged_at_step") is not None:
        details["diverged at step"] = run["diverged_at_step"]
    if left_out := run.get("pretrained_left_out"):
        more = [f"and {len(left_out) - MOST_LEFT_OUT} more"] if len(left_out) > MOST_LEFT_OUT else []
        details["pretrained weights left out"] = "; ".join([*left_out[:MOST_LEFT_OUT], *more])
    if run["environment"] is not None:
        details["environment"] = run["environment"] + 1
    outcome = run["outcome"]
    tag = (
        ""
        if outcome == "finished"
        else f' <span class="tag {escape(outcome)}">{escape(outcome.replace("_", " "))}</span>'
    )
    return f"<details><summary>{escape(run['trial'])}{tag}</summary>{_pairs(details)}{_command(run)}</details>"


def _command(run: Mapping[str, Any]) -> str:
    return f'<pre class="wrap" tabindex="0">{escape(run["command"])}</pre>'


def _environments(document: Document) -> str:
    if not document["environments"]:
        return ""
    parts = [
        f"<details><summary>Environment {index}</summary>{_pairs(environment)}</details>"
        for index, environment in enumerate(document["environments"], start=1)
    ]
    return f"<h2>Environment</h2>{''.join(parts)}"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(value if isinstance(value, str) else json.dumps(value))}</dd>"
        for key, value in values.items()
    )
    return f"<dl>{rows}</dl>"


THEMES = {
    "light": {
        "page": "#ffffff",
        "card": "#ffffff",
        "well": "#f3f5f7",
        "ink": "#16202c",
        "soft": "#5a6675",
        "line": "#e2e6ea",
        "axis": "#b4bcc6",
    },
    "dark": {
        "page": "#11161d",
        "card": "#171e27",
        "well": "#1d2631",
        "ink": "#e9edf2",
        "soft": "#9aa6b5",
        "line": "#2a3542",
        "axis": "#4b5867",
    },
}
REFRESH_S = 15
LONG = 150
"""Answers with more characters use a smaller font."""
MOST_ALIKE = 4
"""Up to this many findings of one code are shown in full; otherwise all but the first three are collapsed."""


def page(
    document: Document, figures: Sequence[Figure], sheets: Sequence[Sheet], *, printed: bool = True, live: bool = False
) -> str:
    """`printed`: figures for print are next to the page. `live`: the study still runs; the page refreshes itself."""
    charts = [chart(panel, list(figure.legend)) for figure in figures for panel in figure.panels]
    sections = [("answer", "Answer", _opening(document)), ("findings", "Findings", _findings(document))]
    first = 0
    for key, words in SECTIONS.items():
        section_figures = [figure for figure in figures if figure.section == key]
        tables = [sheet for sheet in sheets if sheet.section == key]
        if section_figures or tables:
            parts = []
            for figure in section_figures:
                parts.append(
                    figure_html(
                        figure,
                        first + sum(len(other.panels) for other in figures[: figures.index(figure)]),
                        print_figures=printed,
                    )
                )
            sections.append((key, words, "".join([f"<h2>{words}</h2>", *parts, *map(table_html, tables)])))
    sections += trials_section(document)
    scripts = {"plotly": plotly_js(), "js": page_text("page.js")}
    shown = [(key, words, content) for key, words, content in sections if content]
    body = "\n".join(f'<section id="{key}">{content}</section>' for key, _, content in shown)
    contents = "".join(f'<li><a href="#{key}">{words}</a></li>' for key, words, _ in shown)
    return Template(page_text("page.html")).substitute(
        scripts,
        title=escape(f"{document['study']}: worldsize report"),
        refresh=f'<meta http-equiv="refresh" content="{REFRESH_S}">' if live else "",
        banner=_running(document) if live else "",
        palette=palette(),
        css=page_text("page.css"),
        contents=f"<ul>{contents}</ul>",
        body=f"{body}\n{_footer(document, printed=printed)}",
        charts=script_json(charts),
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts.values()),
    )


def script_json(value: Any) -> str:
    """JSON that cannot end the surrounding script element."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return (
        dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def plotly_js() -> str:
    """plotly.js as shipped in the plotly package."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, FileNotFoundError) as error:
        raise ReportError(
            "the page needs plotly's plotly.min.js, which is not installed here; pip install plotly, "
            "or copy the study folder to a machine that has it"
        ) from error


def _digest(script: str) -> str:
    """Hash for the content security policy, which lets the browser run only our scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def page_text(name: str) -> str:
    return (files("worldsize.report.write") / "templates" / name).read_text(encoding="utf-8")


def palette() -> str:
    def variables(index: int, theme: str) -> str:
        every = {**{name: shades[index] for name, shades in PALETTE.items()}, **THEMES[theme]}
        return "".join(f"--{name}:{value};" for name, value in every.items())

    light, dark = variables(0, "light"), variables(1, "dark")
    # Paper is always light; the class `paper` is set while the charts are drawn for print.
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root:not(.paper){{{dark}}}}}"


def _running(document: Document) -> str:
    done = sum(outcome != "left" for outcome in document["trials"].values())
    return f'<p class="running" role="status">Still running: {done} of {len(document["trials"])} trials are done.</p>'


def _opening(document: Document) -> str:
    words = document["words"]
    sure = words["verdict"] == "use"
    samples = f"{document['train_samples']:,} training samples"
    parts = [
        f'<p class="eyebrow"><b>{escape(document["study"])}</b> &middot; {escape(document["workload"])}: '
        f"{escape(document['title'])} &middot; {samples}</p>",
        *(
            f'<p class="answer{" long" if len(sentence) > LONG else ""}" role="heading" aria-level="1">'
            f"{escape(sentence)}</p>"
            for sentence in words["answer"][:1]
        ),
        *(f'<p class="answer">{escape(sentence)}</p>' for sentence in words["answer"][1:]),
        *(f'<p class="caution">{escape(finding["text"])}</p>' for finding in words["cautions"]),
        *(f'<p class="outlook">{escape(finding["text"])}</p>' for finding in words["beyond"]),
        _tiles(document),
    ]
    if document["recommended_study"]:
        lead = "The recommended configuration, as a study" if sure else "The best so far, as a study"
        parts.append(
            f'<div class="snippet"><h3>{lead}</h3><pre id="recommended" tabindex="0">'
            f"{escape(document['recommended_study'])}</pre>"
            '<button class="copy" data-copy="recommended">Copy</button></div>'
        )
    return "".join(parts)


def _range(value: Estimate, words: Callable[[float], str], more: str = "") -> str:
    return f"{range_of(value, words)}{more}" if value.has_interval else "one run"


def _tiles(document: Document) -> str:
    """The numbers of the answer in large type."""
    row = recommended_row(document)
    if row is None:
        return ""
    unit = document["unit"]
    pace = estimate(row["samples_per_s"]).scaled(document["units_per_sample"])
    facts = [
        ("workers", f"{row['workers']}", f"batch {row['batch_per_worker']:,} a worker, {row['global_batch']:,} in all"),
        ("throughput", number(pace.value), _range(pace, number, f" {unit}/s")),
    ]
    if row["workers"] > row["baseline_workers"]:
        speedup, efficiency = estimate(row["speedup"]), estimate(row["efficiency"])
        facts.append(
            (
                f"speedup against {row['baseline_workers']}",
                f"{number(speedup.value)} x",
                _range(speedup, number),
            )
        )
        facts.append(
            (
                "efficiency",
                percent(efficiency.value),
                _range(efficiency, percent),
            )
        )
    facts.append(("epoch, steps alone", duration(row_epoch(document)), f"{document['train_samples']:,} samples"))
    if row["metric"] is not None:
        runs = _range(estimate(row["metric"]), metric_value, f", {row['metric_repeats']} runs")
        facts.append((f"test {document['metric']}", metric_value(row["metric"]["value"]), runs))
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in facts
    )
    return f'<dl class="tiles">{tiles}</dl>'


def row_epoch(document: Document) -> float:
    row = recommended_row(document)
    assert row is not None
    return float(document["train_samples"] / row["samples_per_s"]["value"])


def _findings(document: Document) -> str:
    findings = document["words"]["findings"]
    if not findings:
        return ""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding["code"], []).append(escape(finding["text"]))
    items = []
    for code, texts in kinds.items():
        shown = len(texts) if len(texts) <= MOST_ALIKE else MOST_ALIKE - 1
        bad = " class=bad" if code in BAD else ""
        items += [f"<li{bad}>{text}</li>" for text in texts[:shown]]
        if texts[shown:]:
            rest = "".join(f"<p>{text}</p>" for text in texts[shown:])
            more = f"<summary>{len(texts) - shown} more like this</summary>"
            items.append(f"<li{bad}><details>{more}{rest}</details></li>")
    return f'<h2>Findings</h2><ul class="findings">{"".join(items)}</ul>'


def _footer(document: Document, *, printed: bool) -> str:
    beside = "figures and tables lie" if printed else "tables lie"
    return (
        f"<footer>worldsize {escape(document['worldsize'])}; one file, which asks nothing of any network. "
        "All its numbers are in "
        '<a href="report.json">report.json</a>; '
        f"{beside} beside it.</footer>"
    )
