"""What a run has decoded so far, on disk, so that it can be broken off and go on.

`.<split>_progress/` in the run's directory holds `run.json`, which says what run it is, `done.jsonl` with what earlier
attempts had decoded, and `rank<N>.jsonl` with what each process adds. Each line is an article.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from bart.files import replacing
from utils.cli import unwritable

logger = logging.getLogger(__name__)


@dataclass
class Decoded:
    """What became of an article.

    Attributes:
        texts: its sequences as texts of one line, best first.
        tokens: ids generated for the best one, after the start token.
    """

    texts: list[str]
    tokens: int


class Journal:
    """The finished articles of a run under way.

    One process calls `resume`, then each calls `open` and adds what it has done, and one calls `remove` once the
    results are written.
    """

    def __init__(self, save_dir: Path, split: str) -> None:
        self.folder = save_dir / f".{split}_progress"
        self.file: TextIO | None = None

    def resume(self, identity: Mapping[str, Any]) -> dict[int, Decoded]:
        """The articles that an earlier attempt at the same run has finished; those of another run are thrown away.

        Args:
            identity: all that bears on what an article becomes; JSON.

        Raises:
            InputError: the folder cannot be written.
        """
        identity = json.loads(json.dumps(identity))
        record = self.folder / "run.json"
        done: dict[int, Decoded] = {}
        try:
            if self.folder.exists() and (other := _difference(record, identity)) is not None:
                logger.warning("%s is of another run (%s): decoding all articles anew", self.folder, other)
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.folder.glob("*.jsonl")):
                done |= _read(path)
            with replacing(self.folder / "done.jsonl") as temporary:
                temporary.write_text("".join(_line(index, entry) for index, entry in done.items()), encoding="utf-8")
            with replacing(record) as temporary:
                temporary.write_text(json.dumps(identity))
        except OSError as error:
            raise unwritable(f"save_dir {self.folder.parent}", error) from None
        return done

    def open(self, rank: int) -> None:
        """Begin this process's own file; what an earlier attempt wrote there is in `done.jsonl`."""
        self.folder.mkdir(parents=True, exist_ok=True)  # on another machine it may be another folder
        # Line by line, so that a process that is killed loses nothing that it has finished.
        self.file = (self.folder / f"rank{rank}.jsonl").open("w", encoding="utf-8", buffering=1)

    def add(self, index: int, entry: Decoded) -> None:
        """Note a finished article."""
        self.file.write(_line(index, entry))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def remove(self) -> None:
        """Nothing is left to go on with."""
        shutil.rmtree(self.folder)


def _line(index: int, entry: Decoded) -> str:
    return json.dumps({"index": index, **asdict(entry)}) + "\n"


def _read(path: Path) -> dict[int, Decoded]:
    """The articles of a file but for a line that was broken off."""
    done = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            row = json.loads(line)
            done[row["index"]] = Decoded(row["texts"], row["tokens"])
        except (ValueError, TypeError, KeyError):
            continue
    return done


def _difference(record: Path, identity: Mapping[str, Any]) -> str | None:
    """What tells the run of a record from this one, None if nothing does."""
    try:
        theirs = json.loads(record.read_text())
    except (OSError, ValueError):
        return "run.json is missing or damaged"
    if not isinstance(theirs, dict):
        return "run.json is damaged"
    for name in [*identity, *theirs]:
        if theirs.get(name) != identity.get(name):
            return f"its {name} is {theirs.get(name)!r}, this run's is {identity.get(name)!r}"
    return None


def model_identity(name: str | os.PathLike[str]) -> dict[str, Any]:
    """What tells one model from another: its path, and size and time of its files; a Hub name is taken at its word."""
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    stats = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()}
    return {"model": str(path.resolve()) if files else str(name), "model_files": stats}
