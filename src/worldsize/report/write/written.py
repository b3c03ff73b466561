"""Write files into a folder and keep a list of them there, so that no other file is ever replaced or removed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from worldsize.errors import OutputError
from worldsize.folder.files import read_json, write_atomic, write_json

MANIFEST = "written.json"


def write_files(folder: Path, files: Mapping[str, bytes], *, last: str) -> None:
    """Write `files`, keyed by path inside `folder`, and remove files that only an earlier call wrote.

    Raise OutputError, before anything is written, if a file that is not on the list is in the way. `last`: the file to
    write last, when all others exist.
    """
    listed = _listed(folder)
    for name in files:
        _check(folder, name, listed)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    # The list is written first: if this process is killed, the next call must not mistake our files for the user's.
    write_json(folder / MANIFEST, {"files": {**listed, **digests}})
    for name in sorted(files, key=lambda name: name == last):
        write_atomic(folder / name, files[name])
    for name in listed.keys() - files.keys():
        _remove(folder, name, listed[name])
    write_json(folder / MANIFEST, {"files": digests})


def _listed(folder: Path) -> dict[str, str]:
    """Return the list of written files: path inside the folder -> SHA-256 of its content."""
    path = folder / MANIFEST
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        files = None if path.is_symlink() or not path.is_file() else read_json(path)["files"]
        if (
            isinstance(files, dict)
            and all(map(_inside, files))
            and all(isinstance(digest, str) for digest in files.values())
        ):
            return files
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise OutputError(f"{path} was not written by worldsize, or has been edited; move it, or choose another folder")


def _inside(name: object) -> bool:
    """Whether a path stays inside the folder. The list may have been tampered with."""
    if not isinstance(name, str):
        return False
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts


def _check(folder: Path, name: str, listed: Mapping[str, str]) -> None:
    """Raise OutputError if writing a file would replace something that is not ours, or follow a link."""
    path = folder / name
    for parent in (folder / above for above in PurePosixPath(name).parents if above.parts):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            raise OutputError(f"{parent} is a link or a file, not a folder; move it, or choose another folder")
    if path.is_symlink() or (path.exists() and (name not in listed or not path.is_file())):
        raise OutputError(f"{path} exists and was not written by worldsize; move it, or choose another folder")


def _remove(folder: Path, name: str, digest: str) -> None:
    """Remove a file, unless it has changed since it was written or is reached through a link."""
    path = folder / name
    links = any((folder / above).is_symlink() for above in PurePosixPath(name).parents if above.parts)
    if links or path.is_symlink() or not path.is_file():
        return
    if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        path.unlink()
