"""Every finding that the code can make has a sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.report.words.findings import FINDINGS, IN_THE_ANSWER

SOURCE = Path(__file__).parents[3] / "src/worldsize"
KNOWN = set(FINDINGS)


def code_patterns() -> set[str]:
    """The `code` of each `Finding(...)` in the source as a pattern; parts made at run time match anything."""
    patterns = set()
    for path in [*(SOURCE / "analysis").rglob("*.py"), *(SOURCE / "answer").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                (value,) = (keyword.value for keyword in node.keywords if keyword.arg == "code")
                parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                patterns.add(
                    "".join(
                        re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z_-]+" for part in parts
                    )
                )
    return patterns


def test_every_code_has_a_sentence() -> None:
    patterns = code_patterns()
    assert len(patterns) > 30
    assert not sorted(pattern for pattern in patterns if not any(re.fullmatch(pattern, code) for code in KNOWN))


def test_lists_of_codes_name_known_ones() -> None:
    assert {code for code, kind in FINDINGS.items() if kind.level == "caution"} == set(CAUTIONS)
    assert set(IN_THE_ANSWER) <= set(KNOWN)
