"""Batches that do not fit, in real launches under a limit of memory: a result, agreed on by all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import worldsize
from tests.system.wide import ROOM, imported_bytes, run_wide
from worldsize.answer.evidence import Evidence
from worldsize.report.views.answer import answer_blocks
from worldsize.report.views.status import status_view
from worldsize.report.write.console import console
from worldsize.report.write.terminal import to_terminal


@pytest.fixture(scope="module")
def held_bytes() -> int:
    return imported_bytes()


def shown(view: Any) -> str:
    output = console()
    with output.capture() as captured:
        output.print(view)
    return captured.get()


def test_where_one_rank_is_out_of_memory_all_step_back(tmp_path: Path, held_bytes: int) -> None:
    less = held_bytes + ROOM - 60e6
    search = "{largest: true, first: 16, stop_early: false}"
    found = run_wide(tmp_path, held_bytes + ROOM, search, PLANTED_LIMIT=f"1:{less:.0f}")
    results = worldsize.load(tmp_path / "study")
    (record,) = results.records.values()
    assert record.outcome == "finished"
    full = [each for each in record.tries if each.outcome == "out_of_memory"]
    fitting = [each for each in record.tries if each.outcome == "finished"]
    assert (1,) in [each.ranks for each in full]  # rank 0 had room, and went on with none of it
    assert all(1 in each.ranks for each in full)
    assert max(each.batch_per_worker for each in fitting) < min(each.batch_per_worker for each in full)
    # Every try that fits was measured, on both ranks, and all of them were told as they happened.
    assert all(len(each.spans) == 2 and each.samples_per_s and each.memory_bytes for each in fitting)
    told = [event for event in results.folder.events(record.trial) if event["event"] == "try"]
    assert [event["batch_per_worker"] for event in told] == [each.batch_per_worker for each in record.tries]
    (answer,) = found["largest_batch"]
    assert answer["fits"] == max(each.batch_per_worker for each in fitting)
    assert answer["too_large"] == min(each.batch_per_worker for each in full)
    assert answer["too_large"] - answer["fits"] <= max(1, 0.05 * answer["fits"])
    assert 16 <= answer["enough"] <= answer["fits"]
    assert results.answer.row is not None
    assert results.answer.row.setting.batch_per_worker == answer["enough"]
    assert "largest-batch-memory" in [finding["code"] for finding in found["answer"]["findings"]]
    text = " ".join(shown(to_terminal(answer_blocks(Evidence(results), details=False))).split())
    assert text.startswith(f"Use a batch of {answer['enough']} per worker.")
    assert f"A batch of {answer['fits']} fits ({answer['too_large']} runs out of memory)." in text
    assert f"{answer['too_large']} out of memory" in text


def test_a_listed_batch_that_does_not_fit_is_a_result(tmp_path: Path, held_bytes: int) -> None:
    found = run_wide(tmp_path, held_bytes + ROOM, "[16, 1024]")
    outcomes = {name.split("-")[2]: outcome for name, outcome in found["trials"].items()}
    assert outcomes == {"b16": "finished", "b1024": "out_of_memory"}
    results = worldsize.load(tmp_path / "study")
    assert results.failed() == []
    (record,) = [record for record in results.records.values() if record.outcome == "out_of_memory"]
    assert record.failure is not None
    assert "allocate memory" in record.failure.error
    # Never tried again; the launch that it ended was followed by one for what was left, if anything was.
    launches = [json.loads((launch / "launch.json").read_text())["trials"] for launch in results.folder.launches()]
    assert sum(record.trial in trials for trials in launches) == 1
    assert "out-of-memory" in [finding["code"] for finding in found["answer"]["findings"]]
    assert "1 finished, 1 out of memory, 0 left of 2" in shown(status_view(results, None, None))
    text = shown(to_terminal(answer_blocks(Evidence(results), details=True)))
    assert "A batch of 1,024 per worker does not fit into memory with 2 workers" in text
