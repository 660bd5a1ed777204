"""Data directories as commands make them: the six line files, where they come from, and what was left out."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.data.line_files import SIDES, SPLITS
from utils.files import write_json, write_whole

PAIR_FILES = tuple(f"{split}.{side}" for split in SPLITS for side in SIDES)
PROVENANCE, DROPPED = "provenance.json", "dropped.jsonl"
DATA_FILES = (*PAIR_FILES, DROPPED)


def sha256_of(path: Path) -> str:
    """A file's SHA-256 as hexadecimal digits.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def size_and_digest(path: Path) -> dict[str, Any]:
    """A file's {"bytes", "sha256"}."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def write_dropped(folder: Path, entries: Iterable[Mapping[str, str | None]]) -> None:
    """List what was left out, one JSON object a line."""
    lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    write_whole(folder / DROPPED, "".join(lines))


def write_provenance(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write down where the data files of a folder come from, with their SHA-256; returns all that is written."""
    files = {name: size_and_digest(folder / name) for name in DATA_FILES if (folder / name).exists()}
    provenance = {**facts, "files": files}
    write_json(folder / PROVENANCE, provenance)
    return provenance


def read_provenance(folder: Path, name: str) -> dict[str, Any] | None:
    """What is written down about the set `name` in a folder; None where the folder holds no data.

    Raises:
        InputError: data are there that were not made as this set, or that were changed since.
    """
    path = folder / PROVENANCE
    found = [file for file in DATA_FILES if (folder / file).exists()]
    if not (found or path.exists()):
        return None
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
        digests = {file: record["sha256"] for file, record in provenance["files"].items()}
        ours = provenance["request"]["set"] == name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ours = False
    if not ours:
        raise InputError(
            f"{folder} holds {', '.join(found or [PROVENANCE])} from elsewhere: move them away, or name another folder"
        )
    for file in found:
        if sha256_of(folder / file) != digests.get(file):
            raise InputError(
                f"{folder / file} was changed since it was written: move it away, or delete it to build it anew"
            )
    return provenance


@contextmanager
def building_in(folder: Path) -> Iterator[Path]:
    """Yields an empty folder for a set that is being built: inside the set's folder, or beside it where there is none.

    So both are on one disk. It is removed in the end, and what a run that was killed left in it is removed first.
    """
    building = (folder if folder.is_dir() else folder.parent) / f".{folder.name}.building"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def put_in_place(building: Path, folder: Path) -> None:
    """Move a set that is whole, with its provenance, to its folder. What else lies there stays.

    Where there is no such folder yet, that is one step. Otherwise the old files are deleted before the new ones come,
    and every file that is there is one that the provenance lists: a run that is killed leaves a set that lacks files,
    never a mixture of two.

    Raises:
        InputError: a folder is in the way.
        OSError: files cannot be moved there.
    """
    if not folder.exists():
        building.rename(folder)
        return
    for name in (PROVENANCE, *DATA_FILES):
        if (folder / name).is_dir():
            raise InputError(f"{folder / name}: a folder is in the way of the file of this name")
    for name in DATA_FILES:
        (folder / name).unlink(missing_ok=True)
    for name in (PROVENANCE, *DATA_FILES):
        if (building / name).exists():
            (building / name).replace(folder / name)
