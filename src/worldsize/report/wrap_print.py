"""Words -> lines that fit the width of a figure for print, by the width of their letters."""

from __future__ import annotations

import re

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from worldsize.errors import visible

UNIT = re.compile(r"(\d) (%|(?:s|ms|us|min|h|x|GB|MB)\b)")
"""A number and its unit stay on one line."""


def lines_within(words: str, width_in: float, *, size: float, weight: str = "normal") -> list[str]:
    font = FontProperties(size=size, weight=weight)

    def fits(line: str) -> bool:
        return bool(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0] <= 72 * width_in)

    lines = [""]
    for word in re.split(r"[ \n\t]+", UNIT.sub("\\1\u00a0\\2", visible(words).strip())):
        longer = f"{lines[-1]} {word}".lstrip(" ")
        if fits(longer):
            lines[-1] = longer
        else:
            lines += [word]
            while not fits(lines[-1]):  # a word without end, as a name can be, is broken
                most = next(length for length in range(len(lines[-1]) - 1, 0, -1) if fits(lines[-1][:length]))
                lines[-1:] = [lines[-1][:most], lines[-1][most:]]
    return [line for line in lines if line]
