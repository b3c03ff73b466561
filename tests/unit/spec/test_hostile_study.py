"""Study files that would hang the program or fill the memory: each is refused with its line, and nothing is written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.made import study_set
from tests.unit.cli.test_cli import call
from worldsize.errors import InputError
from worldsize.machine import Machine
from worldsize.spec.file import DEEPEST, MOST_BYTES, MOST_VALUES, StudyFile, builtin_studies, dump_yaml
from worldsize.spec.study import MOST_TRIALS
from worldsize.study.study import Study

HERE = Machine(cores=4, gpus=0)
STUDY = """\
name: hostile
workload: digits
axes: {workers: [1], batch_per_worker: [100]}
train: {epochs: 1}
"""
SEARCH = "{search: [0.001, 0.9], points: 1000}"


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """A reader that hangs fails; it does not hang the tests."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("still reading after 20 s"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def aliases(levels: int, each: int = 9) -> str:
    """Lists of lists of lists ...: each**levels values in so many lines."""
    lines = [f"a0: &a0 [{', '.join(['x'] * each)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * each)}]" for level in range(1, levels)]
    return "\n".join(lines)


def merged(levels: int) -> str:
    lines = ["a0: &a0 {x0: 1}"]
    lines += [f"a{level}: &a{level} {{<<: *a{level - 1}, x{level}: 1}}" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (aliases(10), rf"line 9: there are more than {MOST_VALUES:,} values after expanding aliases"),
        (merged(300), rf"line \d+: there are more than {MOST_VALUES:,} values"),
        (f"small: [{'1,' * MOST_VALUES}1]", rf"line 5: there are more than {MOST_VALUES:,} values"),
        ("small: &a {x: *a}", r"line 5: the alias \*a refers to a list or mapping that contains it"),
        (f"small: {'[' * 3000}{']' * 3000}", rf"line 5: lists and mappings are nested more than {DEEPEST} levels deep"),
        (
            "small:\n" + "\n".join(" " * level + "a:" for level in range(1, 300)),
            rf"nested more than {DEEPEST} levels deep",
        ),
        (f"{'? ' * 45}a", "line 5: a key must be text of at most 200 characters"),
        (f"{'k' * 1000}: 1", "line 5: a key must be text of at most 200 characters"),
        (f"repeats: {10**30}", r"line 5: the whole number 100000000000\.\.\. does not fit into 64 bits"),
        (f"seed: {'9' * 6000}", r"line 5: the whole number 999999999999\.\.\. does not fit into 64 bits"),
        (f"seed: 0x{'f' * 8000}", r"line 5: the whole number 0xffff\S+ does not fit into 64 bits"),
        ("small: {a: !!binary aGVsbG8=}", "line 5: .* is neither text, nor a finite number"),
        ("repeats: 1000000000", f"2,000,000,000 trials .*, more than the limit of {MOST_TRIALS:,}; use fewer"),
        ("probe: {repeats: 999999}", f"1,000,002 trials .*, more than the limit of {MOST_TRIALS:,}"),
        ("repeats: 1000000001", "line 5: repeats=1000000001: .* use a value of at most 1000000000"),
        (
            "threads_per_worker: 99999999999",
            "line 5: threads_per_worker=99999999999: .* use a value of at most 1000000000",
        ),
    ],
    ids=lambda value: value[:24],
)
def test_what_would_never_end_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Study.from_text(STUDY + text, machine=HERE)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[100]}",
            f"[100], optimizer: {{lr: {SEARCH}, momentum: {SEARCH}, weight_decay: {SEARCH}}}}}",
            "combinations of values",
        ),
        ("[1]", str(list(range(1, 2001))), "trials"),
        ("epochs: 1", "epochs: 1000000000", "use a value of at most 1000000"),
        ("digits", '{name: digits, model: "a\\e[31mb"}', r"line 2: workload\.model=.* at most 200 printable"),
        ("digits", '{name: digits, model: "a\\u202eb"}', r"line 2: workload\.model=.* at most 200 printable"),
        ("digits", '{name: digits, model: "a\\nb"}', r"line 2: workload\.model=.* at most 200 printable"),
        ("epochs: 1", 'until: {metric: "a\\x9bb", at_least: 1.0}', r"train\.until\.metric=.* at most 200 printable"),
    ],
)
def test_what_multiplies_without_end_or_steers_a_terminal_is_refused(old: str, new: str, said: str) -> None:
    text = STUDY.replace(old, new) + "repeats: 30\n"
    with pytest.raises(InputError, match=said):
        Study.from_text(text, machine=Machine(cores=5000, gpus=0))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("²=1", 'unknown key "²"'),
        ("axes.workers.²=1", "the list has 1 entries"),
        ("axes.workers.१=1", "the list has 1 entries"),
        (f"axes.workers.{'9' * 150}=1", "the list has 1 entries"),
        (f"axes.workers.{'9' * 5000}=1", "the key has 5013 characters, more than the limit of 200"),
        (f"{'a.' * 5000}a=1", "the key has 10001 characters"),
        (f"small={'[' * 3000}", f"nested more than {DEEPEST} levels deep"),
        (f"repeats={'9' * 5000}", "does not fit into 64 bits"),
        ("axes.workers=&a [*a]", r"the alias \*a refers to a list"),
    ],
    ids=lambda value: value[:24],
)
def test_options_have_the_same_limits(option: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        study_set(STUDY, option, machine=HERE)
    assert len(str(refused.value)) < 500


def test_a_file_of_megabytes_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large.yaml").write_text(STUDY + "# comment\n" * 400_000)
    assert call("plan", "large.yaml", monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"large.yaml has 4,000,096 bytes; the limit is {MOST_BYTES:,} bytes" in said
    with pytest.raises(InputError, match=f"more than the limit of {MOST_BYTES:,}; shorten it"):
        Study.from_text(STUDY + "#" * MOST_BYTES, machine=HERE)


def test_pipes_devices_and_folders_are_no_study_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is not a plain file"):
            StudyFile.read(path)


def test_a_link_to_a_study_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "there.yaml").write_text(STUDY)
    (tmp_path / "here.yaml").symlink_to(tmp_path / "there.yaml")
    assert StudyFile.read(tmp_path / "here.yaml").spec().name == "hostile"


def test_nothing_is_written_for_a_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bomb.yaml").write_text(STUDY + aliases(10))
    assert call("run", "bomb.yaml", monkeypatch=monkeypatch) == 2
    assert "error: bomb.yaml, line 9: " in capsys.readouterr().err
    assert list(Path().iterdir()) == [Path("bomb.yaml")]


def test_aliases_and_merges_of_people_still_work() -> None:
    text = STUDY.replace("{epochs: 1}", "&short {epochs: 1}") + "small: {train: {<<: *short, warmup_epochs: 0.5}}\n"
    assert Study.from_text(text, machine=HERE).spec.small == {"train": {"epochs": 1, "warmup_epochs": 0.5}}


def test_what_is_stored_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults make a study longer: it is held against the limit with them."""
    monkeypatch.setattr("worldsize.spec.file.MOST_BYTES", 4000)
    rates = ", ".join(f"{{lr: 0.{number}}}" for number in range(10, 60))
    text = STUDY.replace("[100]}", f"[100], optimizer: [{rates}]}}")
    assert len(text) < 2000
    with pytest.raises(InputError, match=r"with its defaults filled in, the study has .* bytes, more than the limit"):
        StudyFile(text, "study").spec()


@pytest.mark.parametrize("path", builtin_studies().values(), ids=lambda path: path.stem)
def test_built_in_studies_are_far_from_every_limit(path: Path) -> None:
    stored = dump_yaml(StudyFile.read(path).spec())
    assert len(stored) < MOST_BYTES / 20
    StudyFile(stored, "stored").spec()


def test_a_study_of_thousands_of_trials_is_planned_in_seconds() -> None:
    """What looks for doubles and problems is no square of their number."""
    text = STUDY.replace("[1]", str(list(range(1, 51)))).replace("[100]", str(list(range(1, 51))))
    study = Study.from_text(text + "repeats: 1\n", machine=Machine(cores=100, gpus=0))
    assert len(study.plan.trials) == 5000
