"""What the guides name exists: studies can be read, keys and names are real ones, every optimizer is listed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from worldsize.spec.base import _model_in
from worldsize.spec.file import StudyFile
from worldsize.spec.optimizer import USUAL_LR, USUAL_MOMENTUM, OptimizerName
from worldsize.spec.study import StudySpec

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = "\n".join(
    path.read_text(encoding="utf-8") for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
)
STUDIES = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```yaml\n(name: .*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


def names_in(page: Path) -> set[str]:
    """What stands in backquotes, outside blocks of code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("text", STUDIES)
def test_a_study_in_a_guide_can_be_read(text: str) -> None:
    StudyFile(text, "guide").spec()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    """Links between pages of the site, and their anchors, are also checked by `make docs`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_guides_have_studies() -> None:
    assert len(STUDIES) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_keys_in_a_guide_are_real(page: Path) -> None:
    for name in names_in(page):
        if re.fullmatch(r"(axes|probe|train|pretrain|workload|run_on)(\.[a-z_]+)+", name):
            model: type[BaseModel] | None = StudySpec
            for part in name.split("."):
                assert model is not None, name
                assert part in model.model_fields, f"{page.name} names the key {name}"
                model = _model_in(model.model_fields[part].annotation)


def test_names_in_the_design_are_in_the_code() -> None:
    names = names_in(ROOT / "docs/design.md")
    words = {word for name in names for word in re.findall(r"\b(?:[A-Z][A-Z_]{3,}|[A-Z][a-z]+[A-Z]\w+)\b", name)}
    assert len(words) > 10
    assert not sorted(
        word for word in words if not re.search(rf"\b{word}\b", CODE) and not (ROOT / f"{word}.md").exists()
    )


def test_every_optimizer_has_its_defaults_and_is_listed() -> None:
    optimizers = set(get_args(OptimizerName))
    assert set(USUAL_LR) == optimizers
    assert set(USUAL_MOMENTUM) <= optimizers
    for page in ("learning.md", "studies.md"):
        assert optimizers <= names_in(ROOT / "docs" / page), page
