"""The predictions of a run so far, on disk, so that the run can be broken off and go on.

`.<split>_progress/` in the run's directory holds `run.json`, which says what run it is, and `rank<N>.jsonl` with what
each process has predicted. Each line is an example.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bart.errors import InputError
from bart.files import PathName, read_json, write_json
from bart.hub import resolve
from utils.app.errors import unwritable
from utils.runs.outputs import difference, file_digest, held
from utils.runs.run_directory import CARD
from utils.tasks.task import Prediction

logger = logging.getLogger(__name__)


class Journal:
    """The finished examples of a run under way.

    One process calls `resume`, then each calls `open` and adds what it has done, and one calls `remove` once the
    results are written. All of them call `close` in the end, whatever happens.
    """

    def __init__(self, save_dir: Path, split: str) -> None:
        self.folder = save_dir / f".{split}_progress"
        self.at_end = ExitStack()

    def resume(self, identity: Mapping[str, Any], replace: bool) -> dict[int, Prediction]:
        """The examples that an earlier attempt at the same run has finished.

        Args:
            identity: JSON; all that bears on what is predicted.
            replace: throw away those of another run.

        Raises:
            InputError: another run has left its progress there, or is at work there, or the folder cannot be written.
        """
        record = self.folder / "run.json"
        try:
            lock = self.folder.with_name(f"{self.folder.name}.lock")
            self.at_end.enter_context(held(lock, f"save_dir {lock.parent}: another run is at work there"))
            stored: dict[str, Any] = {}
            with suppress(InputError):  # missing or damaged
                stored = read_json(record)
            mismatch = difference(stored, json.loads(json.dumps(identity))) if stored else "its run.json cannot be read"
            if self.folder.exists() and mismatch:
                problem = f"{self.folder} holds the progress of another run ({mismatch})"
                if not replace:
                    raise InputError(
                        f"{problem}: go on with that one, name another directory, or give --overwrite_output_dir"
                    )
                logger.warning("%s: all examples are predicted anew", problem)
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(record, identity)
            return {number: entry for path in self.folder.glob("*.jsonl") for number, entry in _read(path).items()}
        except OSError as error:
            raise unwritable(f"save_dir {self.folder.parent}", error) from None

    def open(self, rank: int) -> None:
        """Go on with this process's own file."""
        self.folder.mkdir(parents=True, exist_ok=True)  # on another machine it may be another folder
        # Line by line, so that a process that is killed loses nothing that it has finished.
        file = (self.folder / f"rank{rank}.jsonl").open("a", encoding="utf-8", buffering=1)
        self.file = self.at_end.enter_context(file)
        if self.file.tell():
            self.file.write("\n")  # ends a line that was broken off

    def add(self, number: int, entry: Prediction) -> None:
        """Note a finished example."""
        self.file.write(json.dumps({"index": number, **asdict(entry)}) + "\n")

    def close(self) -> None:
        """End this process's part, and let other runs use the directory."""
        self.at_end.close()

    def remove(self) -> None:
        """Delete what is noted: nothing is left to go on with."""
        shutil.rmtree(self.folder)


def _read(path: Path) -> dict[int, Prediction]:
    """The examples of a file, without a line that was broken off."""
    done = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            row = json.loads(line)
            number = row.pop("index")
            done[number] = Prediction(**row)
    return done


def model_identity(name: PathName) -> dict[str, Any]:
    """The values that tell a model from others: its path and its files' digests; of the Hub, its name alone.

    A model card is left out: the scores of another split are written to it.
    """
    path = Path(name)
    if path.is_dir():
        path = resolve(path, ["*.safetensors", "*.bin", "*.pt"])
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digests = {file.name: file_digest(file) for file in files if file.is_file() and file.name != CARD}
    return {"model": str(path.resolve()) if path.exists() else str(name), "model_files": digests}
