#!/usr/bin/env python3
"""Draw the answer of a study folder as it looks in a terminal: the picture of the README.

python tools/terminal_picture.py runs/quickstart docs/images/quickstart.svg
"""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from worldsize.report.terminal import answer_view
from worldsize.study import load

if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True, markup=False, highlight=False)
    console.print("$ make run", style="bold green")
    console.print(answer_view(load(folder)))
    target.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(target), title="worldsize", theme=MONOKAI)
    print(target)
