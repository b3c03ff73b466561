"""The page: one file that opens from disk, with everything inside: the document, its figures, its tables."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from worldsize.errors import ReportError
from worldsize.report.document import Document
from worldsize.report.draw_page import chart
from worldsize.report.figures import SECTIONS
from worldsize.report.marks import PALETTE, Figure
from worldsize.report.page_parts import escape, figure_html, table_html
from worldsize.report.page_trials import trials_section
from worldsize.report.picks import chosen
from worldsize.report.sheet import Sheet
from worldsize.report.words import duration, metric_value, number, percent

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
"""Characters of an answer beyond which it is set smaller."""
MOST_ALIKE = 4
"""Findings of one code shown in full; of more, all but the first three are folded."""
BAD = (
    "trials-failed",
    "trials-diverged",
    "learning-lost",
    "straggler",
    "overfitting",
    "target-not-reached",
    "too-noisy",
)
"""Findings that say that something is wrong, not only worth knowing."""


def page(
    document: Document, figures: Sequence[Figure], sheets: Sequence[Sheet], *, printed: bool = True, live: bool = False
) -> str:
    """`printed`: figures for print lie beside it. `live`: the study still runs; the page comes back by itself."""
    charts = [chart(panel, list(figure.legend)) for figure in figures for panel in figure.panels]
    sections = [("answer", "Answer", _opening(document)), ("findings", "Findings", _findings(document))]
    first = 0
    for key, words in SECTIONS.items():
        here = [figure for figure in figures if figure.section == key]
        tables = [sheet for sheet in sheets if sheet.section == key]
        if here or tables:
            parts = []
            for figure in here:
                parts.append(
                    figure_html(
                        figure,
                        first + sum(len(other.panels) for other in figures[: figures.index(figure)]),
                        printed=printed,
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
    """JSON that no HTML parser can take for the end of its script."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return (
        dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def plotly_js() -> str:
    """The library as its package ships it, once."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, FileNotFoundError) as error:
        raise ReportError(
            "the page needs plotly's plotly.min.js, which is not installed here; pip install plotly, "
            "or copy the study folder to a machine that has it"
        ) from error


def _digest(script: str) -> str:
    """By which the browser knows our scripts, and runs no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def page_text(name: str) -> str:
    return (files("worldsize.report") / name).read_text(encoding="utf-8")


def palette() -> str:
    def variables(place: int, theme: str) -> str:
        every = {**{name: shades[place] for name, shades in PALETTE.items()}, **THEMES[theme]}
        return "".join(f"--{name}:{value};" for name, value in every.items())

    light, dark = variables(0, "light"), variables(1, "dark")
    # On paper, always the light one; `paper` is set while the charts for it are drawn.
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
        *(f'<p class="caution">{escape(one["text"])}</p>' for one in words["cautions"]),
        *(f'<p class="outlook">{escape(one["text"])}</p>' for one in words["beyond"]),
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


def _tiles(document: Document) -> str:
    """The numbers of the answer, large."""
    row = chosen(document)
    if row is None:
        return ""
    unit = document["unit"]
    pace = {end: value * document["units_per_sample"] for end, value in row["samples_per_s"].items()}
    told = [
        ("workers", f"{row['workers']}", f"batch {row['batch_per_worker']:,} a worker, {row['global_batch']:,} in all"),
        ("throughput", number(pace["value"]), f"{number(pace['low'])} to {number(pace['high'])} {unit}/s"),
    ]
    if row["workers"] > row["baseline_workers"]:
        speedup, efficiency = row["speedup"], row["efficiency"]
        told.append(
            (
                f"speedup against {row['baseline_workers']}",
                f"{number(speedup['value'])} x",
                f"{number(speedup['low'])} to {number(speedup['high'])}",
            )
        )
        told.append(
            (
                "efficiency",
                percent(efficiency["value"]),
                f"{percent(efficiency['low'])} to {percent(efficiency['high'])}",
            )
        )
    told.append(("epoch, steps alone", duration(row_epoch(document)), f"{document['train_samples']:,} samples"))
    if row["metric"] is not None:
        spread = row["metric_low"] is not None
        reach = (
            f"{metric_value(row['metric_low'])} to {metric_value(row['metric_high'])}, {row['metric_repeats']} runs"
            if spread
            else "one run"
        )
        told.append((f"test {document['metric']}", metric_value(row["metric"]), reach))
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in told
    )
    return f'<dl class="tiles">{tiles}</dl>'


def row_epoch(document: Document) -> float:
    row = chosen(document)
    assert row is not None
    return float(document["train_samples"] / row["samples_per_s"]["value"])


def _findings(document: Document) -> str:
    found = document["words"]["findings"]
    if not found:
        return ""
    kinds: dict[str, list[str]] = {}
    for one in found:
        kinds.setdefault(one["code"], []).append(escape(one["text"]))
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
