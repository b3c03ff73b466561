"""The sentences about learning: known summaries in, whole sentences out."""

from __future__ import annotations

from dataclasses import replace

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.recommend import Finding
from worldsize.report.words.findings import sentence
from worldsize.report.words.numbers import metric_value
from worldsize.report.words.quantities import EFFICIENCY, SPEEDUP, STEP_TIME, Quantity


def test_what_a_rule_recovers_is_worded() -> None:
    numbers = {"batch": 2048, "factor": 16, "lost": 0.3426, "won_back": Estimate(value=89.1, low=88.0, high=90.2)}
    names = {"metric_name": "accuracy", "unscaled": "nesterov", "variant": "lars"}
    assert sentence(Finding(code="large-batch", numbers=numbers, names=names)) == (
        "With 16 times the batch (2048) and the same number of epochs, nesterov loses 0.3426 in accuracy; "
        "lars recovers 89 % (88 to 90 %) of that."
    )


def test_a_finding_about_one_setting_says_which() -> None:
    one = Finding(code="straggler", numbers={"workers": 2, "rank": 1, "extra_ms": 3.0})
    said = sentence(one)
    assert said.startswith("Rank 1 of 2 computes")
    fields: dict[str, int | str] = {"batch_per_worker": 1024, "accumulation": 2, "strategy": "zero", "place": "t4"}
    assert sentence(replace(one, where=fields)) == f"With zero, 2 accumulation steps, on t4, batch 1,024: {said}"
    assert sentence(replace(one, where={"workers": 1})) == f"With 1 worker: {said}"


def test_a_quantity_says_the_same_everywhere() -> None:
    wide, alone = Estimate(value=1.291, low=1.07, high=1.56, n=3), Estimate(value=1.291, n=1)
    assert (SPEEDUP.text(1.291), SPEEDUP.said(1.291), SPEEDUP.range(wide)) == ("1.29", "1.29x", "1.07–1.56")
    assert SPEEDUP.full(wide) == "1.29x (1.07x to 1.56x)"
    assert (SPEEDUP.full(alone), SPEEDUP.range(alone)) == ("1.29x", "")
    assert STEP_TIME.full(Estimate(value=0.0174, low=0.0162, high=0.018)) == "17.4 ms (16.2 to 18.0 ms)"
    assert EFFICIENCY.said(0.0951) == "9.5 %"
    loss = Quantity(key="gap", title="gap", digits=metric_value)
    assert loss.range(Estimate(value=-0.1, low=-0.2, high=0.1)) == "-0.2000 to 0.1000"
    assert (STEP_TIME.text(None), STEP_TIME.text("auto"), STEP_TIME.text(0)) == ("", "auto", "0")
