#!/usr/bin/env python3
"""Draw the answer of a study folder as it looks in a terminal: the picture of the README.

python tools/terminal_picture.py runs/quickstart docs/images/quickstart.svg
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from worldsize.report.terminal import answer_view
from worldsize.results import load

BLANK = "&#160;"
TEXT = re.compile(r'x="([\d.]+)"([^>]*) textLength="([\d.]+)"([^>]*)>((?:&#160;)+)([^<&][^<]*)<')


def without_leading_blanks(match: re.Match[str]) -> str:
    """Some programs drop blanks at the beginning of a text and lose the columns: its place says the same."""
    x, between, length, rest, blanks, text = match.groups()
    count = len(blanks) // len(BLANK)
    shift = float(length) * count / (count + len(text.replace(BLANK, " ")))
    return f'x="{float(x) + shift:.1f}"{between} textLength="{float(length) - shift:.1f}"{rest}>{text}<'


if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True, markup=False, highlight=False)
    console.print("$ make run", style="bold green")
    console.print(answer_view(load(folder)))
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = console.export_svg(title="worldsize", theme=MONOKAI)
    # No fonts from elsewhere: the picture must show itself without a network.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    target.write_text(TEXT.sub(without_leading_blanks, picture), encoding="utf-8")
    print(target)
