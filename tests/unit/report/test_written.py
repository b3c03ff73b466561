"""Reports, exports and comparison pages share folders with files of the user's: those are never replaced or removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made import Made, write_study
from worldsize.answer.comparison import compare_studies
from worldsize.answer.results import Results, load
from worldsize.cli.main import app
from worldsize.errors import OutputError
from worldsize.exports.study import export_study
from worldsize.report.write.publish import publish, write_comparison
from worldsize.report.write.written import MANIFEST, write_files

STUDY = "{name: s, workload: digits, axes: {workers: [1, 2], batch_per_worker: [100]}, repeats: 2}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return write_study(tmp_path_factory.mktemp("study"), STUDY, Made(times=lambda _: {"forward": 0.01}))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_what_an_earlier_call_wrote_is_replaced_or_removed(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": b"1", "in/b.txt": b"1", "in/c.txt": b"1"}, last="a.txt")
    (tmp_path / "in" / "mine.txt").write_text("mine")
    (tmp_path / "in" / "c.txt").write_text("replaced by hand")
    write_files(tmp_path, {"a.txt": b"2"}, last="a.txt")
    kept = {name: content for name, content in tree(tmp_path).items() if name != MANIFEST}
    assert kept == {"a.txt": b"2", "in/mine.txt": b"mine", "in/c.txt": b"replaced by hand"}


def test_a_file_in_the_way_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"a\.txt exists and was not written by worldsize; move it"):
        write_files(tmp_path, {"b.txt": b"1", "a.txt": b"1"}, last="a.txt")
    assert tree(tmp_path) == {"a.txt": b"mine"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "a.txt").write_text("mine")
    folder.mkdir()
    (folder / "in").symlink_to(outside)
    with pytest.raises(OutputError, match="in is a link or a file, not a folder"):
        write_files(folder, {"in/a.txt": b"1"}, last="in/a.txt")
    (folder / "in").unlink()
    (folder / "b.txt").symlink_to(outside / "a.txt")
    with pytest.raises(OutputError, match=r"b\.txt exists and was not written"):
        write_files(folder, {"b.txt": b"1"}, last="b.txt")
    (folder / "b.txt").unlink()
    # The folder that an earlier call wrote into has become a link to one with a file of the same name and content.
    write_files(folder, {"in/a.txt": b"mine", "b.txt": b""}, last="b.txt")
    (folder / "in" / "a.txt").unlink()
    (folder / "in").rmdir()
    (folder / "in").symlink_to(outside)
    write_files(folder, {"b.txt": b""}, last="b.txt")
    assert tree(outside) == {"a.txt": b"mine"}


@pytest.mark.parametrize(
    "content",
    ["mine", "[]", '{"files": []}', '{"files": {"../x": "0"}}', '{"files": {"/x": "0"}}', '{"files": {"a": 1}}'],
)
def test_a_list_of_files_that_is_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(OutputError, match="was not written by worldsize, or has been edited"):
        write_files(tmp_path, {"a.txt": b"1"}, last="a.txt")
    assert tree(tmp_path) == {MANIFEST: content.encode()}


def test_a_call_killed_in_between_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    write_files(tmp_path, {"a.txt": b"1"}, last="a.txt")
    with monkeypatch.context() as patch:
        patch.setattr("worldsize.report.write.written.write_atomic", die)
        with pytest.raises(KeyboardInterrupt):
            write_files(tmp_path, {"b.txt": b"2", "c.txt": b"2"}, last="c.txt")
    (tmp_path / "b.txt").write_bytes(b"2")  # it got as far as this one
    write_files(tmp_path, {"c.txt": b"3"}, last="c.txt")
    assert tree(tmp_path).keys() == {"c.txt", MANIFEST}


def test_a_report_beside_files_of_the_user(results: Results, tmp_path: Path) -> None:
    """What made the issue: figures and tables of somebody's paper, and a link to a folder elsewhere."""
    mine = {"figures/mine.svg": b"svg", "tables/mine.tex": b"tex", "tables/notes.md": b"md", "figures/old.pdf": b"pdf"}
    for name, content in mine.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    publish(results, tmp_path, printed=False)
    publish(results, tmp_path, printed=False)
    assert {name: tree(tmp_path)[name] for name in mine} == mine
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "tables").symlink_to(tmp_path / "tables")
    before = tree(tmp_path)
    ended = CliRunner().invoke(app, ["report", str(results.folder.path), "--out", str(linked)])
    assert isinstance(ended.exception, OutputError)
    assert ended.exception.exit_code == 2
    assert tree(tmp_path) == before


def test_an_export_folder_with_a_file_of_the_user(results: Results, tmp_path: Path) -> None:
    list(export_study(results, ["csv"], tmp_path))
    (tmp_path / "csv" / "notes.txt").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"csv contains notes\.txt, not written by an export; move it"):
        list(export_study(results, ["csv"], tmp_path))
    assert tree(tmp_path) == before
    (tmp_path / "csv" / "notes.txt").unlink()
    list(export_study(results, ["csv"], tmp_path))
    assert "notes.txt" not in json.loads((tmp_path / "csv" / "export.json").read_text())["files"]


def test_a_comparison_page_replaces_only_its_own_kind(results: Results, tmp_path: Path) -> None:
    found = compare_studies(results, load(shutil.copytree(results.folder.path, tmp_path / "other")))
    page = tmp_path / "page.html"
    write_comparison(found, page)
    write_comparison(found, page)
    page.write_text("<html>mine</html>")
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nowhere.html")
    for path in (page, link, tmp_path):
        with pytest.raises(OutputError, match=r"exists and is not a page written by `worldsize compare`"):
            write_comparison(found, path)
    assert page.read_text() == "<html>mine</html>"
    assert link.is_symlink()
    assert not (tmp_path / "nowhere.html").exists()


def test_a_copied_study_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yaml").symlink_to(tmp_path / "nowhere.yaml")
    ended = CliRunner().invoke(app, ["new", "quickstart"])
    assert isinstance(ended.exception, OutputError)
    assert not (tmp_path / "nowhere.yaml").exists()
