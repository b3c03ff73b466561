"""Tables through the real pdfLaTeX, hostile names included: what the strict parser of the unit tests cannot know.

Needs Debian's texlive-latex-base and texlive-latex-recommended (booktabs). Without them these tests fail, they do not
skip.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.made import hostile
from tests.system.everything import report_of_everything
from worldsize.report.blocks import Table
from worldsize.report.pages import EVERY
from worldsize.report.write.tables import to_latex

pytestmark = pytest.mark.long

PAPER = r"""\documentclass{article}
\usepackage[a4paper, margin=2cm]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    if shutil.which("pdflatex") is None:
        pytest.fail("no pdflatex: apt-get install --no-install-recommends texlive-latex-base texlive-latex-recommended")
    return report_of_everything(tmp_path_factory.mktemp("everything")).all(Table)


def typeset(folder: Path, tables: list[str]) -> str:
    """The log. Stops at the first error; no PDF is written, so that no fonts are made for it."""
    for place, table in enumerate(tables):
        (folder / f"table{place}.tex").write_text(table, encoding="utf-8")
    inputs = "\n".join(f"\\input{{table{place}}}\\clearpage" for place in range(len(tables)))
    (folder / "paper.tex").write_text(PAPER % inputs)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-draftmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    said = done.stdout.decode("utf-8", errors="replace")
    assert done.returncode == 0, said[-3000:]
    return said


def test_every_table_compiles_and_fits_the_page(made: list[Table], tmp_path: Path) -> None:
    assert {table.key for table in made} >= {"scaling", "laws", "batch", "steps", "exchange", "bandwidth"}
    every = sum(len(plan.tables) for plan in EVERY)
    assert len(made) >= every - 1  # `trained` only stands in where there is nothing to compare
    said = typeset(tmp_path, [to_latex(table) for table in made])
    assert not re.search(r"Overfull \\hbox \((\d{2,})", said), said
    assert "undefined" not in said


def test_hostile_names_compile_and_run_nothing(made: list[Table], tmp_path: Path) -> None:
    spell = r"\immediate\write18{touch owned}\input{/etc/passwd}\openout5=owned.tex}\end{document} $x$ 中\u0301 «ß» "
    tables = [to_latex(cast_spell(hostile(table), spell)) for table in made]
    assert all("immediate" in table for table in tables)
    typeset(tmp_path, tables)
    assert {path.suffix for path in tmp_path.iterdir()} == {".tex", ".aux", ".log"}
    assert not (tmp_path / "owned.tex").exists()


def cast_spell(table: Table, spell: str) -> Table:
    """In its title and in every text cell."""
    rows = tuple(tuple(spell + cell if isinstance(cell, str) else cell for cell in row) for row in table.rows)
    return replace(table, title=spell, rows=rows)
