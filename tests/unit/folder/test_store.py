"""Records: whole or not there; any damage is noticed, set aside and named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from worldsize.errors import StoreError
from worldsize.folder.files import read_lines, replace_folder, write_atomic
from worldsize.folder.record import SCHEMA, SPANS, TrialRecord, from_json, to_json
from worldsize.folder.study_folder import StudyFolder, save_array

TRIAL = "0000-w2-b8-probe-r0"


def make_record(folder: StudyFolder, steps: int = 6) -> TrialRecord:
    folder.trial(TRIAL).mkdir(parents=True, exist_ok=True)
    first_span = (np.arange(len(SPANS)) == 0).astype(np.uint32)
    spans = tuple(
        save_array(
            folder.trial(TRIAL) / f"spans-rank{rank:02d}.npy",
            rank,
            np.arange(1, steps + 1, dtype=np.uint32)[:, None] * (10_000 * (rank + 1) * first_span),
        )
        for rank in range(2)
    )
    return TrialRecord(
        trial=TRIAL, outcome="finished", launch="0001-probe-w2", started_at=1.5, wall_s=2.0, spans=spans, warmup_steps=2
    )


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "study")


def test_a_record_reads_back(folder: StudyFolder) -> None:
    record = make_record(folder)
    assert folder.record(TRIAL) is None
    folder.write_record(record)
    assert folder.record(TRIAL) == record
    assert folder.has_record(TRIAL)


def test_steps_come_after_warm_up_in_seconds_a_column_a_rank(folder: StudyFolder) -> None:
    steps = folder.step_s(make_record(folder))
    assert steps == pytest.approx(np.array([[3, 6], [4, 8], [5, 10], [6, 12]]) * 1e-3)


def with_blocks(folder: StudyFolder, rows: list[tuple[float, ...]]) -> TrialRecord:
    """A record of 6 steps, with these blocks."""
    record = make_record(folder)
    blocks = save_array(folder.trial(TRIAL) / "blocks.npy", 0, np.array(rows, dtype=np.float64))
    return record.model_copy(update={"blocks": blocks})


def test_the_first_steps_of_a_block_and_disturbed_blocks_do_not_count(folder: StudyFolder) -> None:
    record = with_blocks(folder, [(0, 2, 1, 10.0, 0), (2, 2, 1, 11.0, 1), (4, 2, 0, 12.0, 0)])
    folder.write_record(record)
    read = folder.record(TRIAL)
    assert read is not None
    counted = folder.counted_steps(read)
    assert counted.steps.tolist() == [1, 4, 5]
    assert counted.blocks is not None
    assert counted.blocks.tolist() == [0, 1, 1]
    assert counted.disturbed == pytest.approx(1 / 3)
    assert folder.step_s(read)[:, 0] == pytest.approx([2e-3, 5e-3, 6e-3])
    busy = with_blocks(folder, [(0, 2, 1, 10.0, 1), (2, 2, 1, 11.0, 1), (4, 2, 0, 12.0, 0)])
    assert folder.counted_steps(busy).steps.tolist() == [1, 3, 4, 5]  # most are disturbed: all count


@pytest.mark.parametrize(
    "row",
    [
        (-1, 2, 0, 0, 0),
        (0, 7, 0, 0, 0),  # more steps than were recorded
        (0, 2, 2, 0, 0),  # none that counts
        (0.5, 2, 0, 0, 0),
        (float("nan"), 2, 0, 0, 0),
        (0, float("inf"), 0, 0, 0),
        (1, 2, 0, 0, 0),  # overlaps the block before it
    ],
)
def test_blocks_that_do_not_fit_the_steps_are_damage(folder: StudyFolder, row: tuple[float, ...]) -> None:
    folder.write_record(with_blocks(folder, [(0, 2, 0, 0, 0), row]))
    with pytest.raises(ValueError, match=r"blocks\.npy does not fit the recorded steps"):
        folder.record(TRIAL)


def test_a_record_cut_anywhere_is_damaged(folder: StudyFolder) -> None:
    text = to_json(make_record(folder)).rstrip()
    for end in range(len(text)):
        with pytest.raises(ValueError):  # noqa: PT011  json's own, or ours: both are ValueErrors
            from_json(text[:end])


def test_a_flipped_bit_is_damage_or_no_change(folder: StudyFolder) -> None:
    record = make_record(folder)
    raw = to_json(record).encode()
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        spoiled = bytearray(raw)
        spoiled[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        try:
            assert from_json(spoiled.decode("utf-8")) == record  # a blank turned into another kind of blank
        except ValueError:
            refused += 1
    assert refused > 250


def test_a_damaged_span_file_damages_the_record(folder: StudyFolder) -> None:
    folder.write_record(make_record(folder))
    path = folder.trial(TRIAL) / "spans-rank01.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"spans-rank01\.npy does not match its checksum"):
        folder.record(TRIAL)
    path.unlink()
    with pytest.raises(ValueError, match=r"spans-rank01\.npy is missing"):
        folder.record(TRIAL)


def test_every_damaged_record_that_is_set_aside_is_kept(folder: StudyFolder) -> None:
    record = make_record(folder)
    kept = []
    for _ in range(2):
        folder.write_record(record)
        kept.append(folder.set_aside(TRIAL, "damaged").name)
    assert kept == ["record.json.damaged", "record.json.damaged1"]
    assert not folder.has_record(TRIAL)


def test_a_record_that_is_set_aside_never_replaces_another(folder: StudyFolder) -> None:
    record, trial = make_record(folder), folder.trial(TRIAL)
    for _ in range(3):
        folder.write_record(record)
        folder.set_aside(TRIAL, "failed")
    (trial / "record.json.failed1").unlink()
    (trial / "record.json.failed2").write_text("kept")
    for name in ("record.json.failed1", "record.json.failed3"):
        folder.write_record(record)
        assert folder.set_aside(TRIAL, "failed").name == name
    assert (trial / "record.json.failed2").read_text() == "kept"


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, exists: bool) -> None:
    stage, target = tmp_path / ".stage", tmp_path / "target"
    (stage / "inner").mkdir(parents=True, mode=0o700)
    (stage / "inner" / "new").write_text("new")
    if exists:
        target.mkdir()
        (target / "old").write_text("old")
    replace_folder(stage, target)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert [path.name for path in target.rglob("*")] == ["inner", "new"]
    assert (target / "inner").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, target = tmp_path / "stage", tmp_path / "target"
    stage.mkdir()
    target.mkdir()
    (target / "old").write_text("old")
    rename = Path.rename

    def fails(path: Path, to: Path) -> Path:
        if path == stage:
            raise OSError("no space left")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no space"):
        replace_folder(stage, target)
    assert (target / "old").read_text() == "old"


def test_a_record_of_a_newer_version_is_not_taken_for_damage(folder: StudyFolder) -> None:
    newer = to_json(make_record(folder)).replace(f'"schema_version": {SCHEMA}', f'"schema_version": {SCHEMA + 1}')
    with pytest.raises(StoreError, match="is from a newer worldsize"):
        from_json(newer)


def test_a_nan_never_reaches_a_record(folder: StudyFolder) -> None:
    record = make_record(folder).model_copy(update={"wall_s": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_record(record)
    assert not list(folder.trial(TRIAL).glob("*record*"))


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_an_event_cut_short_is_no_event(folder: StudyFolder) -> None:
    folder.trial(TRIAL).mkdir(parents=True)
    (folder.trial(TRIAL) / "events.jsonl").write_text(json.dumps({"event": "start"}) + '\n{"event": "pro')
    assert [event["event"] for event in folder.events(TRIAL)] == ["start"]


def test_lines_are_read_on_from_where_the_last_read_ended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_lines(path) == ([], 0)
    path.write_text('{"event": "start"}\nnot JSON\n{"other": 1}\n{"event": "pro')
    events, offset = read_lines(path)
    assert events == [{"event": "start"}]
    assert path.read_bytes()[offset:] == b'{"event": "pro'
    with path.open("a") as file:
        file.write('gress"}\n')
    assert read_lines(path, offset) == ([{"event": "progress"}], path.stat().st_size)


def test_only_the_end_of_endless_lines_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"event": {number}}}\n' for number in range(1000)))
    monkeypatch.setattr("worldsize.folder.files.MOST_TEXT_BYTES", 40)
    events, offset = read_lines(path)
    assert [event["event"] for event in events] == [998, 999]
    assert offset == path.stat().st_size


def test_another_folder_is_not_a_study(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a study folder"):
        StudyFolder.existing(tmp_path)
