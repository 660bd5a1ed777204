"""Data directories as commands make them: six line files, how they were made, and what was left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from bart.errors import InputError
from utils.data.line_files import SIDES, SPLITS
from utils.data.tables import Row
from utils.errors import unwritable
from utils.files import write_json, write_whole

PAIR_FILES = tuple(f"{split}.{side}" for split in SPLITS for side in SIDES)
PROVENANCE, DROPPED = "provenance.json", "dropped.jsonl"


class DataWriter:
    """Writes the examples of a data directory, and lists the rows that are none. `making` gives one.

    Attributes:
        written: split -> examples so far.
        dropped: {"split", "example" (the row's name), "reason"} of each row that was left out.
        facts: goes into provenance.json.
    """

    def __init__(self, files: Mapping[str, BinaryIO], facts: Mapping[str, Any]) -> None:
        self.written = dict.fromkeys(SPLITS, 0)
        self.dropped: list[dict[str, str | None]] = []
        self.facts = dict(facts)
        self._files = files

    def add(self, split: str | None, row: Row) -> None:
        """Write a row or, if it is no example, list it."""
        fault = row.fault
        if fault is None:
            try:
                lines = [f"{text}\n".encode() for text in (row.source, row.target)]
            except UnicodeEncodeError:
                fault = "unpaired surrogate"
        if fault is not None:
            self.dropped.append({"split": split, "example": row.name, "reason": fault})
            return
        assert split is not None
        for side, line in zip(SIDES, lines, strict=True):
            self._files[f"{split}.{side}"].write(line)
        self.written[split] += 1

    def reasons(self) -> dict[str, int]:
        """Why rows were left out, the most frequent reason first, and how many."""
        return dict(Counter(entry["reason"] for entry in self.dropped).most_common())


@contextmanager
def making(folder: Path, facts: Mapping[str, Any]) -> Iterator[DataWriter]:
    """Yield a writer of a data directory, which is in its place when it is whole, and not before.

    Args:
        facts: says how it is made, for provenance.json.

    Raises:
        InputError: something is in the folder already, a split has no examples, or the folder cannot be written.
        RunError: the disk is full.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(
            f"{folder} is there already and was not made by this command with these options: move it away, or name "
            "another folder"
        )
    place = folder.absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as temporary:
            building = Path(temporary, "data")  # the temporary folder itself is closed to other users
            building.mkdir()
            with ExitStack() as stack:
                data = DataWriter(
                    {name: stack.enter_context((building / name).open("wb")) for name in PAIR_FILES}, facts
                )
                yield data
            reasons = data.reasons()
            if empty := [split for split, count in data.written.items() if not count]:
                told = "".join(f", {count:,} dropped: {reason}" for reason, count in reasons.items())
                raise InputError(f"{folder}: no examples for {' and '.join(empty)}{told}")
            write_json(building / PROVENANCE, {**data.facts, "examples": data.written, "dropped": reasons})
            lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in data.dropped)
            write_whole(building / DROPPED, "".join(lines))
            building.rename(place)
    except OSError as error:
        raise unwritable(str(folder), error) from None
    print(f"{folder}: {', '.join(f'{count:,} {split}' for split, count in data.written.items())} examples")
    if reasons:
        print(f"  {len(data.dropped):,} rows dropped, listed in {folder / DROPPED}")
        for reason, count in reasons.items():
            print(f"  {count:>10,}  {reason}")


def is_made(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Whether the folder is a whole data directory that was made as these facts say; if so, a line says it."""
    try:
        found = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        made = all(found[name] == value for name, value in facts.items())
    except (OSError, ValueError, LookupError, TypeError):
        return False
    made = made and all((folder / name).is_file() for name in PAIR_FILES)
    if made:
        print(f"{folder}: is there already")
    return made
