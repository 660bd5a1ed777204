"""Data directories as commands make them: six line files, how they were made, and what was left out."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bart.errors import InputError
from bart.files import read_json, write_json
from utils.app.errors import unwritable
from utils.app.output_files import LOCK, difference, held, write_whole
from utils.data.splits import SPLITS
from utils.data.tables import SIDES, Row

PAIR_FILES = tuple(f"{split}.{side}" for split in SPLITS for side in SIDES)
PROVENANCE, DROPPED = "provenance.json", "dropped.jsonl"
COLUMNS = ("source_column", "target_column")  # fields of the former: where the texts stand in a table


def write_data_directory(
    folder: Path, facts: Mapping[str, Any], rows: Iterable[tuple[str | None, Row]], splits: Sequence[str] = SPLITS
) -> None:
    """Write rows, each to its split, to a data directory, whose files take their place when all of them are whole.

    Rows that are no examples, which may have no split, are listed in DROPPED. `facts` tell how it was made, and are
    read behind the last row.
    """
    written = dict.fromkeys(splits, 0)
    dropped: list[dict[str, str | None]] = []
    try:
        with building(folder) as place:
            with ExitStack() as stack:
                names = [f"{split}.{side}" for split in splits for side in SIDES]
                files = {name: stack.enter_context((place / name).open("wb")) for name in names}
                for split, row in rows:
                    if row.fault is not None:
                        dropped.append({"split": split, "example": row.name, "reason": row.fault})
                        continue
                    for side, text in zip(SIDES, (row.source, row.target), strict=True):
                        files[f"{split}.{side}"].write(f"{text}\n".encode())
                    written[split] += 1
            reasons = dict(Counter(row["reason"] for row in dropped).most_common())
            if empty := [split for split, count in written.items() if not count]:
                allowed = "allowed: more examples, or another --split_ratio of utils.corpora.prepare"
                counts = "".join(f", {count:,} dropped: {reason}" for reason, count in reasons.items())
                raise InputError(f"{folder}: no examples for {' and '.join(empty)}{counts}; {allowed}")
            write_json(place / PROVENANCE, {**facts, "examples": written, "dropped": reasons})
            write_whole(place / DROPPED, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in dropped))
    except OSError as error:
        raise unwritable(str(folder), error) from None
    print(f"{folder}: {', '.join(f'{count:,} {split}' for split, count in written.items())} examples")
    if reasons:
        print(f"  {len(dropped):,} dropped, listed in {folder / DROPPED}")
        for reason, count in reasons.items():
            print(f"  {count:>10,}  {reason}")


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files take their place in another one, which must be new or empty.

    It lies in that folder or, where there is none yet, beside it. The next run removes what a killed one has left.
    """
    place = folder.resolve()
    exists = place.is_dir()
    workplace = (place if exists else place.parent) / f".{place.name}.building"
    made = workplace / "data"
    with held(workplace / LOCK, f"{folder}: another run is making it"):
        try:
            # Under the lock, since another run may have made it until then.
            if any(path != workplace for path in place.iterdir()) if place.is_dir() else place.exists():
                raise InputError(
                    f"{folder} is there already and is not overwritten: move it away, or name another folder"
                )
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            yield made
            if exists:  # it may be a mount point, or lie where this user may not rename, so it stays
                # A set without its provenance is not whole.
                for path in sorted(made.iterdir(), key=lambda path: path.name == PROVENANCE):
                    path.rename(place / path.name)
            else:
                made.rename(place)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)


def is_made(folder: Path, facts: Mapping[str, Any], names: Iterable[str] = PAIR_FILES) -> bool:
    """Return true, and print a line, if the folder holds these files of the set, made as facts say."""
    try:
        stored = read_json(folder / PROVENANCE)
    except InputError:
        return False
    if stored.get("set") != facts["set"] or not all((folder / name).is_file() for name in names):
        return False
    if changed := difference({name: stored.get(name) for name in facts}, facts):
        raise InputError(f"{folder} is there already, made otherwise ({changed}): move it away, or name another folder")
    print(f"{folder}: is there already")
    return True
