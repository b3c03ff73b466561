"""Overview of all studies in a folder, for `worldsize status` without a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from worldsize.answer.results import Results, load
from worldsize.errors import WorldsizeError, visible
from worldsize.folder.lock import lock_holder
from worldsize.report.words.headline import headline
from worldsize.report.words.numbers import counted
from worldsize.report.write.console import ACCENT
from worldsize.report.write.terminal import Paragraph


@dataclass(frozen=True, kw_only=True)
class StudyOverview:
    """The state of a study and its answer so far."""

    name: str
    folder: str
    running: bool = False
    trials: int = 0
    ended: int = 0
    """Number of trials that have ended, including failed ones."""
    failed: int = 0
    answer: str = ""
    """The first sentence of the answer. Empty if nothing has been measured."""
    error: str = ""
    """Why the folder cannot be read."""

    @property
    def state(self) -> str:
        """`finished`, `running, 5 of 12 trials`, `5 of 12 trials, 1 failed`."""
        if self.error:
            return "unreadable"
        if self.ended == self.trials and not self.running:
            progress = ["finished"]
        else:
            progress = [*(["running"] if self.running else []), f"{self.ended} of {counted(self.trials, 'trial')}"]
        return ", ".join([*progress, *([f"{self.failed} failed"] if self.failed else [])])


def studies_in(root: Path) -> list[StudyOverview]:
    """Return the studies whose folders are directly inside `root`, by name of the folder."""
    if not root.is_dir():
        return []
    return [_overview(folder) for folder in sorted(root.iterdir()) if (folder / "study.yaml").is_file()]


def _overview(folder: Path) -> StudyOverview:
    try:
        results = load(folder)
        return StudyOverview(
            name=results.spec.name,
            folder=str(folder),
            running=lock_holder(folder) is not None,
            trials=len(results.trials),
            ended=len(results.trials) - len(results.left()),
            failed=len(results.failed()),
            answer=_answer(results),
        )
    except (WorldsizeError, OSError) as error:  # one unreadable folder must not hide the others
        return StudyOverview(name=folder.name, folder=str(folder), error=str(error))


def _answer(results: Results) -> str:
    if not results.rows and not results.largest:
        return ""
    answers = [prose.text for prose in headline(results, None) if prose.role in ("answer", "doubt")]
    return answers[0] if answers else ""


def overview_view(studies: list[StudyOverview], root: Path) -> Group:
    """Show the state and the answer of each study; if there are none, say how to run one."""
    if not studies:
        return Group(
            Text(f"No studies in {visible(str(root))} yet. `worldsize run` runs the built-in quickstart study.")
        )
    width = max(len(visible(study.folder)) for study in studies)
    parts: list[RenderableType] = []
    for study in studies:
        named = f", {visible(study.name)}" if study.name != Path(study.folder).name and not study.error else ""
        head = f"{visible(study.folder):<{width}}"
        parts.append(Text.assemble((head, f"bold {ACCENT}"), f"  {study.state}{named}"))
        if text := study.answer or visible(study.error).partition("\n")[0]:
            parts.append(Paragraph(text, indent=2))
    return Group(*parts, Text("`worldsize status FOLDER` shows one study in detail.", style="dim"))
