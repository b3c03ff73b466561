"""The answer of a study: one short sentence to what it asks, its evidence, why, and a command to copy."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import worldsize
from tests.golden import STUDIES
from tests.made import Made, write_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.facets import Facet, facets
from worldsize.answer.results import Results
from worldsize.folder.record import Failure
from worldsize.machine import Machine
from worldsize.report.blocks import Prose
from worldsize.report.pages import EVERY, section_plans
from worldsize.report.sections.opening import tiles
from worldsize.report.words.headline import headline
from worldsize.spec.file import StudyFile
from worldsize.spec.study import StudySpec, TrialSpec

SCALING = """\
name: scaling
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [64]}
train: false
repeats: 3
"""


def told(results: Results) -> list[Prose]:
    return headline(results, Evidence(results).outlook)


def study(folder: Path, text: str, exchange_s: float, noise: float = 0.01) -> Results:
    def times(trial: TrialSpec) -> dict[str, float]:
        return {"forward": 0.004, "backward": 0.006, "communication": exchange_s * (trial.workers - 1)}

    return write_study(folder, text, Made(times=times, noise=noise), Machine(cores=16, gpus=0))


def test_more_workers_that_pay(tmp_path: Path) -> None:
    said = told(study(tmp_path / "made", SCALING, exchange_s=0.0003))
    assert [prose.role for prose in said[:2]] == ["answer", "evidence"]
    assert re.fullmatch(r"Use 4 workers: 3\.\d+x as fast as 1 worker\.", said[0].text)
    assert re.fullmatch(
        r"The speedup is between 3\.\d+x and 3\.\d+x \(90 % interval\), which is 9\d % efficient\.", said[1].text
    )


def test_more_workers_that_do_not_pay_and_why(tmp_path: Path) -> None:
    results = study(tmp_path / "made", SCALING, exchange_s=0.02)
    said = told(results)
    assert said[0] == Prose(role="answer", text="Use 1 worker.")
    assert re.fullmatch(
        r"2 workers are 0\.\d+x as fast as 1 \(0\.\d+x to 0\.\d+x\), which is 3\d % efficient\. "
        r"They would be worth using from 1\.33x on\.",
        said[1].text,
    )
    why, following = said[2], said[3]
    assert why.role == "why"
    assert re.search(r"exchanging gradients and waiting for the slowest worker cost \d+ % of the ideal", why.text)
    assert following.command.startswith(f"worldsize run {results.folder.study_file} --set ")
    assert "'axes.batch_per_worker=[64,256]' --dir runs/scaling-larger-batch" in following.command


@pytest.mark.parametrize(("exchange_s", "decidable"), [(0.005, False), (0.0055, True)])
def test_noise_that_leaves_two_counts_open(tmp_path: Path, exchange_s: float, decidable: bool) -> None:
    """2 workers are about 1.33 times as fast, which is just what decides."""
    results = study(tmp_path / "made", SCALING.replace("[1, 2, 4]", "[1, 2]"), exchange_s, noise=0.2)
    said = told(results)
    assert said[0] == Prose(role="doubt", text="Too close to call: 1 or 2 workers.")
    assert re.search(
        r"^2 workers are between \d\.\d+x and \d\.\d+x as fast as 1\. They are worth using from 1\.33x on\. "
        r"Best guess: [12] worker",
        said[1].text,
    )
    if decidable:
        assert re.fullmatch(rf"worldsize run {results.folder.path} --time \d+s", said[2].command)
        assert re.fullmatch(r"about [\d.]+ (s|min|hours?) more would decide", said[2].text)
    else:  # 1.34x is so close to 1.33x that hundreds of runs would not tell them apart
        assert (
            said[2].text == "More repeats would not decide soon: both are about equally good, and 1 worker costs less."
        )


@pytest.fixture(scope="module")
def optimizers(tmp_path_factory: pytest.TempPathFactory) -> Results:
    text, made = STUDIES["optimizers"]
    text = text.replace("workers: [1, 2]", "workers: [1]").replace("repeats: 2", "repeats: 1")
    return write_study(tmp_path_factory.mktemp("optimizers") / "made", text, made, Machine(cores=16, gpus=0))


def test_a_study_of_optimizers_opens_with_the_best(optimizers: Results) -> None:
    said = told(optimizers)
    assert said[0].role == "answer"
    assert re.fullmatch(r"Use \w+ with learning rate [\d.]+\.", said[0].text)
    assert re.match(r"It reaches accuracy 0\.9 in [\d,]+ steps\. Best of the others: \w+ ", said[1].text)
    assert said[-1].command.endswith("--set repeats=3 --dir runs/optimizers-repeats")
    assert not any("worker count" in prose.text for prose in said)


def test_the_large_numbers_are_those_of_the_question(optimizers: Results, tmp_path: Path) -> None:
    shown = tiles(optimizers)
    assert shown is not None
    keys = [tile.quantity.title for tile in shown.tiles]
    assert keys == ["learning rate", "steps to target", "time to target", "test accuracy"]
    speeds = tiles(study(tmp_path / "made", SCALING, exchange_s=0.0003))
    assert speeds is not None
    assert [tile.quantity.key for tile in speeds.tiles][:4] == ["workers", "samples_per_s", "speedup", "efficiency"]


def test_every_place_has_its_answer(tmp_path: Path) -> None:
    text, made = STUDIES["places"]
    said = told(write_study(tmp_path / "made", text, made, Machine(cores=16, gpus=0)))
    answers = [prose.text for prose in said if prose.role == "answer"]
    assert [re.match(r"On (t4|v100): Use \d", text) is not None for text in answers] == [True, True]


def test_a_single_point_tells_what_was_measured(tmp_path: Path) -> None:
    said = told(study(tmp_path / "made", SCALING.replace("[1, 2, 4]", "[2]"), 0.001))
    assert re.fullmatch(r"2 workers process [\d,]+ samples/s \([\d,]+ to [\d,]+ samples/s\)\.", said[0].text)


def test_nothing_measured_yet(tmp_path: Path) -> None:
    results = study(tmp_path / "made", SCALING, 0.001)
    said = told(replace(results, records={}))
    assert said == [Prose(role="doubt", text="No trial has finished yet; run the study.")]


STRATEGIES = """\
name: strategies
workload: digits
axes: {workers: [2], batch_per_worker: [64], strategy: [ddp, zero, powersgd]}
train: false
repeats: 3
"""


def with_strategies(folder: Path, seconds: dict[str, float], noise: float) -> Results:
    def times(trial: TrialSpec) -> dict[str, float]:
        return {"forward": 0.004, "backward": 0.006, "communication": seconds[trial.strategy.name]}

    return write_study(folder, STRATEGIES, Made(times=times, noise=noise, rank_noise=noise), Machine(cores=16, gpus=0))


def test_a_strategy_is_recommended_only_if_it_is_clearly_faster(tmp_path: Path) -> None:
    clear = told(with_strategies(tmp_path / "clear", {"ddp": 0.001, "zero": 0.004, "powersgd": 0.006}, 0.01))
    assert clear[0] == Prose(role="answer", text="Use ddp.")
    assert not any(prose.command for prose in clear)
    close = told(with_strategies(tmp_path / "close", {"ddp": 0.001, "zero": 0.001, "powersgd": 0.03}, 0.05))
    assert close[0].role == "doubt"
    assert re.fullmatch(r"Too close to call: (ddp or zero|zero or ddp)\.", close[0].text)
    assert re.match(r"Best guess: (ddp|zero)\. It processes ", close[1].text)
    assert re.search(r"--set probe\.repeats=\d+ --dir runs/strategies-more-repeats$", close[-1].command)


def test_the_first_tile_is_what_the_study_asks_for(tmp_path: Path) -> None:
    results = with_strategies(tmp_path / "made", {"ddp": 0.001, "zero": 0.004, "powersgd": 0.006}, 0.01)
    shown = tiles(results)
    assert shown is not None
    assert (shown.tiles[0].quantity.key, shown.tiles[0].value) == ("strategy", "ddp")


def test_failed_trials_are_part_of_the_answer(tmp_path: Path) -> None:
    results = study(tmp_path / "made", SCALING.replace("[1, 2, 4]", "[1, 2]"), exchange_s=0.02)
    failure = Failure(rank=1, step=3, error="ValueError: no\nmore", log=())
    records = {
        name: record.model_copy(update={"outcome": "failed", "failure": failure})
        if results.trials[name].workers == 2
        else record
        for name, record in results.records.items()
    }
    said = told(replace(results, records=records))
    assert said[0].role == "doubt"
    failed = next(prose for prose in said if prose.role == "caution")
    assert failed.text == "3 of 6 trials failed. The first failed on rank 1: ValueError: no."
    assert said[-1].command.endswith(" --retry-failed")
    assert said[-1].text.startswith("after fixing the cause; the log is ")


ASKED: dict[str, tuple[Facet, ...]] = {
    "caltech-projection": ("workers",),
    "cifar10-batch": ("largest-batch",),
    "cifar10-large-batch": ("batch", "optimizer"),
    "cifar10-scaling": ("workers", "batch"),
    "fruit-transfer": ("weights",),
    "gpt-scaling": ("workers",),
    "mnist-batch-scaling": ("workers", "batch"),
    "mnist-best": (),
    "mnist-scaling": ("workers",),
    "optimizers-linear": ("optimizer",),
    "optimizers-mnist": ("optimizer",),
    "quickstart": ("workers",),
    "steering-scaling": ("workers",),
    "strategies": ("strategy",),
}


STUDIES_FOLDER = Path(worldsize.__file__).parent / "spec" / "studies"
OPENING = {
    "caltech-projection": "scaling step communication",
    "cifar10-batch": "batch hardware scaling",
    "cifar10-large-batch": "batch learning scaling",
    "cifar10-scaling": "scaling step communication batch learning",
    "fruit-transfer": "learning scaling",
    "gpt-scaling": "scaling step communication",
    "mnist-batch-scaling": "scaling step communication batch learning",
    "mnist-best": "learning scaling",
    "mnist-scaling": "scaling step communication",
    "optimizers-linear": "learning scaling",
    "optimizers-mnist": "learning scaling",
    "quickstart": "scaling step communication",
    "steering-scaling": "scaling step communication",
    "strategies": "scaling step communication learning",
}
"""The sections that the page of each study opens with."""


def specs() -> dict[str, StudySpec]:
    return {path.stem: StudyFile.read(path).spec() for path in sorted(STUDIES_FOLDER.glob("*.yaml"))}


def test_what_the_built_in_studies_ask() -> None:
    assert {name: facets(spec) for name, spec in specs().items()} == ASKED


def test_the_page_of_each_built_in_study_opens_with_what_it_asks() -> None:
    plans = {name: [plan.key for plan in section_plans(spec)] for name, spec in specs().items()}
    assert {name: " ".join(keys[: len(OPENING[name].split())]) for name, keys in plans.items()} == OPENING
    assert all(sorted(keys) == sorted(plan.key for plan in EVERY) for keys in plans.values())
