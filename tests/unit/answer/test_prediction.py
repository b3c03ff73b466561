"""A study of known laws is projected as it would have gone on; whole training, cost, other networks."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from scipy.special import stdtrit
from typer.testing import CliRunner

from tests.made import Made, write_study
from worldsize.analysis.projection.bare import NOTE_BETWEEN, NOTE_ONE_RUN
from worldsize.analysis.projection.choice import speedup_of
from worldsize.answer.predict.predict import Prediction, doublings, predict, to_dict
from worldsize.answer.predict.question import Question, parse_network
from worldsize.answer.predict.throughput_at import CROWDED, OTHER_BATCH
from worldsize.answer.results import Results
from worldsize.cli.main import app
from worldsize.errors import InputError
from worldsize.report.document import document
from worldsize.report.words.answers import choice_prose
from worldsize.spec.study import TrialSpec

WEAK = """\
name: weak
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [32, 128]}
probe: {repeats: 3}
"""
UNTIL = "{until: {metric: accuracy, at_least: 0.9, max_epochs: 60}, lr_rule: linear}"
TRAINED = f"""\
name: trained
workload: digits
axes: {{workers: [1, 2, 4], batch_per_worker: [64]}}
train: {UNTIL}
repeats: 2
"""


def said(prediction: Prediction) -> str:
    return " ".join(prose.text for prose in choice_prose(prediction))


def times(trial: TrialSpec) -> dict[str, float]:
    compute, exchange = compute_and_exchange(trial.workers, trial.samples_per_worker_step)
    return {"data": 1e-4, "forward": compute / 3, "backward": compute * 2 / 3, "communication": exchange}


def compute_and_exchange(workers: int, batch: int) -> tuple[float, float]:
    """Computing slows a little with neighbors; an exchange of a few ms, whose threads share 16 cores."""
    threads = max(1, 2 * workers / 16)
    compute = (2e-3 + 1e-4 * batch) * (1 + 0.02 * (workers - 1))
    return compute, 1e-3 * math.log2(workers) * threads**2


def step_s(workers: int, batch: int) -> float:
    return 1e-4 + sum(compute_and_exchange(workers, batch))


@pytest.fixture
def weak(tmp_path: Path) -> Results:
    return write_study(tmp_path / "weak", WEAK, Made(times=times))


def accuracy(trial: TrialSpec, steps: int) -> float:
    """Reaches 0.9 after 400 * (1 + 256 / B) steps."""
    needed = 400 * (1 + 256 / trial.global_batch)
    return 0.9 * (1 - math.exp(-3 * steps / needed)) / (1 - math.exp(-3))


@pytest.fixture
def trained(tmp_path: Path) -> Results:
    return write_study(tmp_path / "trained", TRAINED, Made(times=times, accuracy=accuracy))


def test_counts_never_run(weak: Results) -> None:
    found = predict(weak, Question(workers=(8, 16)))
    assert [(option.workers, option.measured) for option in found.options] == [
        (1, True),
        (2, True),
        (4, True),
        (8, False),
        (16, False),
    ]
    batch = found.setting.batch_per_worker
    for option in found.options:
        truth = option.workers * batch / step_s(option.workers, batch)
        assert option.samples_per_s.value == pytest.approx(truth, rel=0.12)
        assert option.samples_per_s.low < option.samples_per_s.value < option.samples_per_s.high
        assert option.wall_s is None
    assert doublings(weak) == (8, 16, 32)


def test_a_batch_never_run(weak: Results) -> None:
    found = predict(weak, Question(workers=(4, 8), batch_per_worker=64))
    assert not any(option.measured for option in found.options)
    at_four = next(option for option in found.options if option.workers == 4)
    assert at_four.step_s.value == pytest.approx(step_s(4, 64), rel=0.08)


def test_a_batch_never_run_lies_between_those_that_were_beyond_the_node_too(weak: Results) -> None:
    """Where only the link inside a node was probed, the exchange across nodes is not free."""
    at = {}
    for batch in (32, 64, 128):
        asked = Question(workers=(8,), batch_per_worker=batch, workers_per_node=2)
        at[batch] = {option.workers: option for option in predict(weak, asked).options}
    for workers in (2, 4, 8):
        rates = [at[batch][workers].samples_per_s.value for batch in (32, 64, 128)]
        assert rates == sorted(rates)
    assert at[64][8].samples_per_s.value < 2.1 * at[64][4].samples_per_s.value
    assert at[64][8].samples_per_s.relative_width > at[128][8].samples_per_s.relative_width
    assert at[64][1].workers == 1  # a base to tell speedups against


def test_the_noise_of_what_was_measured_is_in_what_is_projected(tmp_path: Path) -> None:
    def noisy(trial: TrialSpec) -> dict[str, float]:
        shake = (0.8, 1.0, 1.25)[trial.repeat] if trial.workers > 1 else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    results = write_study(tmp_path / "noisy", WEAK, Made(times=noisy))
    for question in (
        Question(workers=(8,)),
        Question(workers=(8,), workers_per_node=4),
        Question(workers=(8,), batch_per_worker=64),
        Question(workers=(8,), network=parse_network("dgx-h100")),
    ):
        projected = predict(results, question).options[-1].samples_per_s
        assert projected.relative_width > 0.5, question
    found = predict(results, Question(workers=(8,)))
    assert results.answer.verdict == "not enough evidence"
    assert found.doubt is not None
    assert said(found).startswith("Not enough evidence to recommend a number of workers. With ")
    assert to_dict(found)["choice"]["verdict"] == "not enough evidence"


def test_intervals_of_few_repeats_are_narrowed_by_students_t(tmp_path: Path) -> None:
    """From 90 to 80 %: by 0.49 with two repeats, by 0.65 with three. Normal noise would make it 0.78."""
    for repeats, shakes in ((2, (0.95, 1.05)), (3, (0.95, 1.0, 1.05))):

        def noisy(trial: TrialSpec, shakes: tuple[float, ...] = shakes) -> dict[str, float]:
            return {name: value * shakes[trial.repeat] for name, value in times(trial).items()}

        text = WEAK.replace("repeats: 3", f"repeats: {repeats}").replace("[32, 128]", "[64]")
        results = write_study(tmp_path / str(repeats), text, Made(times=noisy))
        rows = {row.setting.workers: row.samples_per_s for row in results.rows}
        measured = [option for option in predict(results, Question(workers=(8,))).options if option.measured]
        assert len(measured) == 3
        narrower = stdtrit(repeats - 1, 0.9) / stdtrit(repeats - 1, 0.95)
        for option in measured:
            low, high = option.samples_per_s.ends
            lower, higher = rows[option.workers].ends
            assert math.log(high / low) / math.log(higher / lower) == pytest.approx(narrower, rel=1e-3)


def test_measured_speedups_are_those_of_the_table(weak: Results) -> None:
    found = predict(weak, Question(workers=(8,)))
    rows = {row.setting.workers: row for row in weak.rows if row.setting.batch_per_worker == 128}
    for option in found.options:
        if option.measured:
            here, there = speedup_of(option, found.base), rows[option.workers].speedup
            assert here.value == there.value
            assert there.ends[0] <= here.ends[0] <= here.ends[1] <= there.ends[1]
            assert here.has_interval == there.has_interval == (option.workers > 1)
    assert not speedup_of(found.base, found.base).has_interval


def test_batches_beyond_the_data_are_refused_or_not_recommended(weak: Results) -> None:
    samples = weak.facts.train_samples
    with pytest.raises(InputError, match="more than the 12000 training samples"):
        predict(weak, Question(workers=(4,), batch_per_worker=samples + 1))
    found = predict(weak, Question(workers=(1024,)))
    assert not found.options[-1].learns
    assert "more than the 12,000 training samples" in found.options[-1].notes[-1]
    assert found.choice.knee.workers < 1024


def test_a_target_that_no_model_has_is_refused(trained: Results) -> None:
    for target, rule in ((1.5, "is at most 1"), (-1.0, "lies between 0 and 1")):
        with pytest.raises(InputError, match=rule):
            predict(trained, Question(workers=(8,), goal=target))


def test_learning_better_than_the_best_is_not_learning_less(tmp_path: Path) -> None:
    """The smaller the batch, the better: what is expected below those that were trained lies above the best."""
    text = """\
name: better
workload: digits
axes: {workers: [1, 2], batch_per_worker: [64, 128, 256]}
train: {epochs: 2, lr_rule: none}
repeats: 2
"""
    better = Made(times=times, accuracy=lambda trial, _: 0.99 - 0.03 * math.log2(trial.global_batch / 64))
    found = predict(write_study(tmp_path / "better", text, better), Question(workers=(1, 2), batch_per_worker=32))
    first = found.options[0]
    assert first.metric is not None
    assert first.metric.high > 0.99
    assert first.learns


def test_a_node_that_was_never_left_widens_and_is_said(weak: Results) -> None:
    inside, outside = (predict(weak, Question(workers=(8,), workers_per_node=per)) for per in (16, 4))
    widths = [each.options[-1].samples_per_s.relative_width for each in (inside, outside)]
    assert widths[1] > 1.3 * widths[0]
    assert "node-never-left" in [finding.code for finding in outside.findings]
    assert outside.options[-1].parts is None


def test_workers_that_shared_a_core_were_on_one_node(tmp_path: Path) -> None:
    text = WEAK + "oversubscribe: true\n"
    crowded = write_study(tmp_path / "crowded", text, Made(times=times, environment={"device": "cpu", "cores": 2}))
    at = {option.workers: option for option in predict(crowded, Question(workers=(8,))).options}
    assert {workers: option.nodes for workers, option in at.items()} == {1: 1, 2: 1, 4: 1, 8: 2}


def test_threads_that_take_turns_are_in_doubt(weak: Results) -> None:
    """16 cores: two threads of each of 8 workers exchange at once, those of 16 workers do not."""
    at = {option.workers: option for option in predict(weak, Question(workers=(8, 12, 16))).options}
    downs = [math.log(at[n].samples_per_s.value / at[n].samples_per_s.low) for n in (8, 12, 16)]
    assert downs[2] > downs[1] + 0.02 > downs[0] + 0.04
    assert [CROWDED in at[n].notes for n in (8, 12, 16)] == [False, True, True]


def test_full_nodes_stay_crowded_beyond_the_first(weak: Results) -> None:
    """4 workers of 16 places were measured: two full nodes are not better off than one."""
    at = {option.workers: option for option in predict(weak, Question(workers=(16, 32))).options}
    each = [at[n].samples_per_s.value / n for n in (16, 32)]
    assert each[1] < 1.03 * each[0]
    assert CROWDED in at[32].notes
    assert at[32].samples_per_s.relative_width > at[16].samples_per_s.relative_width


def test_what_to_measure_next(weak: Results) -> None:
    findings = predict(weak, Question(workers=(64,))).findings
    assert [(each.code, each.numbers["workers"]) for each in findings if each.code.startswith("measure")] == [
        ("measure-next", 16)
    ]


def test_a_declared_network(weak: Results) -> None:
    slow, fast = (
        predict(weak, Question(workers=(16,), network=parse_network(text)))
        for text in ("4 x 1GB/s, 10Mbit/s/node", "4 x 100GB/s, 100GB/s")
    )
    assert slow.options[-1].step_s.value > 2 * fast.options[-1].step_s.value
    assert slow.choice.limit is not None
    with pytest.raises(InputError, match="no rate across nodes"):
        predict(weak, Question(workers=(16,), network=parse_network("4 x 1GB/s")))


def test_the_whole_training(trained: Results) -> None:
    """steps * step + start + preparation + evaluations: all of them."""
    found = predict(trained, Question(workers=(8,), price=3.6))
    for option in found.options:
        assert option.steps is not None
        assert option.wall_s is not None
        needed = 400 * (1 + 256 / option.global_batch)
        assert option.steps.value == pytest.approx(needed, rel=0.25)
        assert option.overhead_s is not None
        assert option.overhead_s > 6
        assert option.wall_s.value == pytest.approx(
            option.steps.value * option.step_s.value + option.overhead_s, rel=1e-6
        )
        assert option.cost is not None
        assert option.cost.value == pytest.approx(option.workers * option.wall_s.value * 0.001)
    assert said(found).startswith("Use ")


def test_another_target_than_the_study_had(trained: Results) -> None:
    hard, easy = (predict(trained, Question(workers=(8,), goal=target)) for target in (0.9, 0.5))
    assert hard.options[0].wall_s is not None
    assert easy.options[0].wall_s is not None
    assert easy.options[0].wall_s.value < hard.options[0].wall_s.value
    never = predict(trained, Question(workers=(8,), goal=0.999))
    assert never.options[0].wall_s is None


def test_the_command(weak: Results, trained: Results) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["predict", str(weak.folder.path), "--workers", "8,16"])
    assert shown.exit_code == 0, shown.output
    assert "~16" in shown.output
    told = runner.invoke(app, ["predict", str(trained.folder.path), "--workers", "8", "--price", "2.5", "--json"])
    assert told.exit_code == 0, told.output
    (parsed,) = json.loads(told.output)
    assert [option["workers"] for option in parsed["options"]] == [1, 2, 4, 8]
    assert parsed["level"] == 0.8


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--workers", "8,x", "'x' is not a number of workers"),
        ("--workers", "0", "'0' is not a number of workers"),
        ("--deadline", "soon", "'soon' is not a duration"),
        ("--network", "fast", 'network "fast" is neither a preset'),
        ("--price", "inf", "'inf' is not a finite number"),
        ("--price", "-1", "'-1' is negative"),
        ("--until", "good", "'good' is not a finite number"),
    ],
)
def test_what_cannot_be_asked(weak: Results, option: str, value: str, said: str) -> None:
    answer = CliRunner().invoke(app, ["predict", str(weak.folder.path), option, value])
    assert answer.exit_code == 2
    assert f"Invalid value for '{option}': {said}" in answer.output


def test_a_strong_study_keeps_its_global_batch(tmp_path: Path) -> None:
    text = "name: strong\nworkload: digits\naxes: {workers: [1, 2, 4], global_batch: [128]}\nprobe: {repeats: 2}\n"
    results = write_study(tmp_path / "strong", text, Made(times=times))
    found = predict(results, Question(workers=(8,)))
    assert [option.workers for option in found.options] == [1, 2, 4, 8]
    assert found.choice.limit is None or found.choice.limit.code != "limit-compute"  # nobody shares anything here
    assert doublings(results) == (8, 16, 32)
    with pytest.raises(InputError, match="does not divide the global batch of 128 evenly; use 8, 16, 32, 64"):
        predict(results, Question(workers=(8, 24)))
    assert {option.global_batch for option in found.options} == {128}
    truth = 128 / step_s(8, 16)
    assert found.options[-1].samples_per_s.value == pytest.approx(truth, rel=0.25)
    with pytest.raises(InputError, match="leave out --batch"):
        predict(results, Question(workers=(8,), batch_per_worker=16))


def test_counts_that_no_longer_learn_are_not_recommended(tmp_path: Path) -> None:
    """Faster and faster, and worse and worse: what the study's own answer rejects, a projection must not advise."""
    text = TRAINED.replace(UNTIL, "{epochs: 3}")
    lost = {1: 0.95, 2: 0.7, 4: 0.5}
    results = write_study(tmp_path / "lost", text, Made(times=times, accuracy=lambda trial, _: lost[trial.workers]))
    found = predict(results, Question(workers=(8, 16)))
    assert results.answer.row is not None
    assert found.choice.knee.workers == results.answer.row.setting.workers == 1
    assert [option.learns for option in found.options][:3] == [True, False, False]
    assert found.options[1].metric is not None
    assert found.options[1].metric.value == pytest.approx(0.7)
    assert found.options[1].metric_measured
    shown = CliRunner().invoke(app, ["predict", str(results.folder.path), "--workers", "8,16"]).output
    assert "the model learned less" in " ".join(shown.split())
    told = document(results)
    assert [entry["workers"] for entry in told["pareto"]] == [1]
    assert not [one for one in told["words"]["beyond"] if one["code"].startswith("limit")]  # the answer says why


def test_learning_less_within_the_noise_excludes_no_count_from_a_projection(tmp_path: Path) -> None:
    """As in the answer of the study: a count that may only have had bad seeds is told as that."""
    metrics = {1: (0.974, 0.975), 2: (0.95, 0.961), 4: (0.70, 0.71)}
    noisy = Made(times=times, accuracy=lambda trial, _: metrics[trial.workers][trial.repeat])
    results = write_study(tmp_path / "unclear", TRAINED.replace(UNTIL, "{epochs: 3}"), noisy)
    found = predict(results, Question(workers=(8,)))
    assert results.answer.row is not None
    assert results.answer.row.setting.workers == 2
    assert [option.learns for option in found.options][:3] == [True, True, False]
    assert "learning-unclear" in [finding.code for finding in results.answer.findings]
    assert any("the model may learn less" in note for note in found.options[1].notes)


def test_one_batch_says_little_about_another(tmp_path: Path) -> None:
    text = WEAK.replace("[32, 128]", "[64]")
    results = write_study(tmp_path / "one", text, Made(times=times))
    for batch, workers in ((4, 8), (256, 8), (1, 1)):
        option = next(
            each
            for each in predict(results, Question(workers=(workers,), batch_per_worker=batch)).options
            if each.workers == workers
        )
        truth = workers * batch / step_s(workers, batch)
        assert option.samples_per_s.low < truth < option.samples_per_s.high
        assert not option.measured
        assert any("one batch was measured" in note for note in option.notes)


def test_a_projected_row_always_has_an_interval(weak: Results) -> None:
    for option in predict(weak, Question(workers=(1, 2, 8), batch_per_worker=96)).options:
        assert option.samples_per_s.low < option.samples_per_s.value < option.samples_per_s.high


def test_a_target_is_one_of_the_metric_whatever_training_ended_with(tmp_path: Path) -> None:
    text = TRAINED.replace(
        "{metric: accuracy, at_least: 0.9, max_epochs: 60}", "{metric: loss, at_most: 0.1, max_epochs: 60}"
    )
    results = write_study(tmp_path / "loss", text, Made(times=times, accuracy=accuracy))
    told = predict(results, Question(workers=(8,), goal=0.7)).options[0]
    assert told.steps is not None
    # 0.7 of accuracy, not of loss: about half of the way to 0.9.
    needed = 400 * (1 + 256 / 64)
    assert 0.3 * needed < told.steps.value < 0.75 * needed


def test_a_fixed_number_of_steps_is_no_time_of_a_training(tmp_path: Path) -> None:
    text = TRAINED.replace(UNTIL, "{steps: 60}")
    results = write_study(tmp_path / "steps", text, Made(times=times))
    found = predict(results, Question(workers=(8,)))
    assert all(option.wall_s is None for option in found.options)
    assert found.choice.knee.workers >= 4
    assert found.choice.limit is None or found.choice.limit.code != "limit-learning"


def test_questions_without_an_answer_are_said(weak: Results, trained: Results) -> None:
    for question in (
        Question(workers=(8,), goal=0.9),
        Question(workers=(8,), price=2.0),
        Question(workers=(8,), deadline_s=60.0),
    ):
        with pytest.raises(InputError, match="trains nothing"):
            predict(weak, question)
    with pytest.raises(InputError, match="add --price"):
        predict(trained, Question(workers=(8,), budget=1.0))
    asked = ["predict", str(trained.folder.path), "--deadline", "1s", "--price", "1", "--budget", "0.0001"]
    shown = " ".join(CliRunner().invoke(app, asked).output.split())
    assert "No worker count is known to cost" in shown
    assert "No worker count is known to finish within 1 s" in shown


def test_where_the_study_has_no_answer_a_projection_has_none(tmp_path: Path) -> None:
    text = TRAINED.replace(UNTIL, "{epochs: 2}")
    results = write_study(tmp_path / "diverged", text, Made(times=times, largest_rate=0.0))
    assert results.answer.findings[0].code == "nothing-learned"
    found = predict(results, Question(workers=(8,)))
    assert found.choice.knee.workers == 1  # more workers that nobody trained are no way out
    assert to_dict(found)["choice"]["verdict"] == "not enough evidence"
    assert said(found).startswith("Not enough evidence to recommend a number of workers. No setting finished all of")


def test_the_deadline_of_a_training_whose_time_is_not_known_is_not_that_of_an_epoch(tmp_path: Path) -> None:
    text = TRAINED.replace(UNTIL, "{steps: 50}")
    results = write_study(tmp_path / "steps", text, Made(times=times))
    shown = CliRunner().invoke(app, ["predict", str(results.folder.path), "--deadline", "1h"]).output
    assert "No worker count is known to finish within 1 h 00 min." in shown


def test_a_second_node_does_not_make_a_worker_faster(tmp_path: Path) -> None:
    """With this batch one worker ran; what 16 on a node cost each other was seen with another."""
    skip = "skip: [{workers: 4, batch_per_worker: 32}, {workers: 16, batch_per_worker: 32}]"
    text = WEAK.replace("[1, 2, 4]", "[1, 4, 16]") + skip + "\n"
    results = write_study(tmp_path / "other", text, Made(times=times))
    found = predict(results, Question(workers=(16, 32), batch_per_worker=32))
    one, full, two_nodes = found.options
    assert (one.measured, full.measured) == (True, False)
    assert full.step_s.value > 1.5 * one.step_s.value
    assert two_nodes.step_s.value >= 0.99 * full.step_s.value
    assert not [finding for finding in found.findings if finding.code == "projected-from-one-count"]
    assert full.samples_per_s.value == pytest.approx(16 * 32 / step_s(16, 32), rel=0.1)
    assert two_nodes.samples_per_s.relative_width > full.samples_per_s.relative_width
    assert all(OTHER_BATCH in option.notes for option in (full, two_nodes))


def test_a_count_that_ran_with_another_batch_is_not_measured_with_this_one(tmp_path: Path) -> None:
    """16 workers on four nodes of 4 ran with the other batch alone."""
    text = WEAK.replace("[1, 2, 4]", "[1, 4, 16]") + "skip: [{workers: 16, batch_per_worker: 32}]\n"
    results = write_study(tmp_path / "nodes", text, Made(times=times))
    question = Question(workers=(12, 16, 32), batch_per_worker=32, workers_per_node=4)
    for option in predict(results, question).options[2:]:
        assert not option.measured
        assert option.samples_per_s.relative_width > 0.2
        assert not {NOTE_ONE_RUN, NOTE_BETWEEN} & set(option.notes)


def test_the_doubts_of_a_study_are_about_its_own_target_and_batch(tmp_path: Path) -> None:
    """Nothing reaches 0.99; all reach 0.8."""
    text = TRAINED.replace("0.9, max_epochs: 60", "0.99, max_epochs: 20")
    results = write_study(tmp_path / "target", text, Made(times=times, accuracy=lambda _, steps: min(steps / 500, 0.9)))
    assert [finding.code for finding in results.answer.findings][:1] == ["nothing-reached"]
    own, same_batch = (predict(results, Question(workers=(8,), batch_per_worker=batch)) for batch in (None, 64))
    for found in (own, same_batch):
        assert found.doubt is not None
        assert found.doubt.code == "nothing-reached"
    lower = predict(results, Question(workers=(8,), goal=0.8))
    assert lower.doubt is None
    assert all(option.learns for option in lower.options)


def test_the_next_count_that_does_not_pay_is_said(tmp_path: Path) -> None:
    """Starting and evaluating take longer than two epochs: more workers save steps, and little time."""
    results = write_study(tmp_path / "short", TRAINED.replace(UNTIL, "{epochs: 2}"), Made(times=times))
    shown = " ".join(CliRunner().invoke(app, ["predict", str(results.folder.path)]).output.split())
    assert "including startup and evaluation, with a batch of" in shown
    assert re.search(r"2 workers would take .*, which saves too little to be worth it\.", shown)
    assert "Why From 1 to 2 workers, startup, data preparation and evaluation do not get shorter" in shown
    # The report's answer is about throughput: what limits that lies in the step.
    told = [each["code"] for each in document(results)["words"]["beyond"]]
    assert "limit-above-the-step" not in told
    assert any(code.startswith("limit-") for code in told)


def test_projected_speedups_are_in_the_json_too(weak: Results) -> None:
    told = to_dict(predict(weak, Question(workers=(8,))))["options"]
    assert [option["speedup"]["value"] for option in told] == sorted(option["speedup"]["value"] for option in told)
    assert told[-1]["speedup"]["low"] < told[-1]["speedup"]["value"] < told[-1]["speedup"]["high"]


def test_networks_and_nodes_together(weak: Results) -> None:
    wide, narrow = (
        predict(weak, Question(workers=(8,), network=parse_network("8 x 10GB/s, 1GB/s"), workers_per_node=per))
        for per in (None, 4)
    )
    assert [each.options[-1].nodes for each in (wide, narrow)] == [1, 2]
    assert narrow.options[-1].step_s.value > wide.options[-1].step_s.value
    assert not [finding for finding in narrow.findings if finding.code.startswith("measure")]
    assert narrow.options[-1].notes[-1].endswith("1GB/s, but 4 workers per node")


def test_a_table_takes_what_it_can_and_refuses_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workers,samples_per_s\n1,100\n2,180\n4,300\n8,450\n")
    runner = CliRunner()
    shown = runner.invoke(app, ["predict", str(path), "--workers", "16,32", "--workers-per-node", "8"]).output
    assert "node size not given" not in shown
    assert shown.index(" 100 %") < shown.index("~16")  # what was measured is there, too
    for option, value in (("--network", "dgx-h100"), ("--price", "3"), ("--batch", "3"), ("--until", "0.9")):
        refused = runner.invoke(app, ["predict", str(path), option, value])
        assert isinstance(refused.exception, InputError)
        assert "needs a study folder" in str(refused.exception)
