"""The sentences about learning: known summaries in, whole sentences out."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.analysis.test_learning import repeats, trained
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import Goal, VariantRanking, summaries, variant_rankings
from worldsize.analysis.speed.recommend import Finding
from worldsize.report.words.answers import contest_sentence
from worldsize.report.words.findings import finding_sentence
from worldsize.report.words.numbers import below, full
from worldsize.spec.training import UntilSpec

UNTIL = UntilSpec(metric="accuracy", at_least=0.9)


def contest(*curves: object, target: Goal | None = None) -> VariantRanking:
    found = summaries(curves, higher_is_better=True, target=target)  # type: ignore[arg-type]
    (only,) = variant_rankings(found, higher_is_better=True, by_target=target is not None)
    return only


def test_the_best_of_each_and_what_is_within_the_noise() -> None:
    sgd = repeats([0.90, 0.91, 0.92], "sgd rate 0.5")
    adam = repeats([0.905, 0.908, 0.921], "adam rate 0.001", family="adam")
    slow = repeats([0.80, 0.81, 0.82], "adadelta rate 1", family="adadelta")
    said = contest_sentence(contest(*sgd, *adam, *slow), "accuracy")
    assert said.startswith("Best of what was trained: adam rate 0.001, test accuracy 0.9113 (0.8970 to 0.9257); then ")
    assert "sgd rate 0.5, -0.001333 (" in said
    assert said.count("within the noise") == 1
    assert said.endswith("adadelta rate 1, -0.1013 (-0.1073 to -0.09541).")


def test_no_interval_is_shown_where_there_is_none_to_see() -> None:
    assert full(Estimate(value=1.5, low=1.4, high=1.6), " x") == "1.50 x (1.40 to 1.60)"
    assert full(Estimate(value=1.5, n=1), " x") == "1.50 x"
    assert full(Estimate(value=0.0, low=0.0, high=0.0), " ms") == "0.0 ms"
    assert below(Estimate(value=1.5, low=1.4, high=1.6)) == "1.50\n1.40–1.60"
    assert below(Estimate(value=1.5, n=1)) == "1.50"


def test_steps_to_a_target_are_compared_as_a_ratio() -> None:
    fast = [trained([0.5, 0.9], repeat=r, variant="momentum 0.9 rate 0.1", family="momentum") for r in range(2)]
    slow = [trained([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9], repeat=r, variant="sgd rate 0.1") for r in range(2)]
    said = contest_sentence(contest(*fast, *slow, target=Goal(value=0.9, at_least=True)), "accuracy", UNTIL)
    assert said.startswith("Fewest steps to accuracy of at least 0.9: momentum 0.9 rate 0.1, 200 (184 to 218); then ")
    assert "sgd rate 0.1, 4.00 x as many" in said


def test_one_run_each_leaves_the_noise_unknown() -> None:
    said = contest_sentence(contest(*repeats([0.9], "a", family="a"), *repeats([0.8], "b", family="b")), "accuracy")
    assert said.endswith("b, -0.1. One run each: the noise is unknown.")


def test_a_miss_and_a_loss_are_worded() -> None:
    good = repeats([0.95, 0.95], "sgd rate 0.1")
    lost = [trained([0.1], repeat=r, variant="b", family="b", outcome="diverged", final=None) for r in range(2)]
    late = [trained([0.5, 0.6], repeat=r, variant="c", family="c") for r in range(2)]
    said = contest_sentence(contest(*good, *lost, *late, target=Goal(value=0.9, at_least=True)), "accuracy", UNTIL)
    assert said.endswith("; then c (reached it in 0 of 2); then b (2 of 2 diverged).")


def test_nothing_learned_is_said() -> None:
    lost = [trained([0.1], outcome="diverged", final=None, variant=name, family=name) for name in ("a", "b")]
    assert contest_sentence(contest(*lost), "accuracy") == "Nothing that was trained learned."


def test_what_a_rule_wins_back_is_worded() -> None:
    numbers = {"batch": 2048, "factor": 16, "lost": 0.3426, "percent": 89.1, "low": 88.0, "high": 90.2}
    names = {"metric": "accuracy", "unscaled": "nesterov", "variant": "lars"}
    assert finding_sentence(Finding(code="large-batch", numbers=numbers, names=names)) == (
        "At 16 x the batch (2048) and equal epochs, nesterov loses 0.343 of accuracy; "
        "lars wins back 89 % of it (88 to 90)."
    )


def test_a_finding_about_one_setting_says_which() -> None:
    numbers = {"workers": 2, "rank": 1, "extra_ms": 3.0}
    one = Finding(code="straggler", numbers=numbers)
    sentence = finding_sentence(one)
    assert sentence.startswith("Rank 1 of 2 computes")
    fields: dict[str, int | str] = {"batch_per_worker": 1024, "accumulation": 2, "strategy": "zero", "place": "t4"}
    assert finding_sentence(replace(one, where=fields)) == f"With zero, in 2 parts, on t4, batch 1,024: {sentence}"
    assert finding_sentence(replace(one, where={"workers": 1})) == f"With 1 worker: {sentence}"
