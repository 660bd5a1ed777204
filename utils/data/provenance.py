"""Where the files of a data directory come from, and what was left out: written beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.data.line_files import SIDES, SPLITS
from utils.evaluation.results import write_whole

PAIR_FILES = tuple(f"{split}.{side}" for split in SPLITS for side in SIDES)
PROVENANCE, DROPPED = "provenance.json", "dropped.jsonl"


def sha256_of(path: Path) -> str:
    """A file's SHA-256 as hexadecimal digits.

    Raises:
        InputError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
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
