"""The inputs of `prepare`: tables, pairs of text files, a set of the Hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bart.errors import InputError
from utils.data.parallel_text import SIDES, paired
from utils.data.places import HUB_NAME, TABLES, suffix_of
from utils.data.published import load_from_hub, opening
from utils.data.rows import READERS
from utils.data.splits import SPLITS
from utils.data.tables import Fields, Row, open_dataset, open_rows

logger = logging.getLogger(__name__)


class Input(NamedTuple):
    """Rows, and where they come from.

    Attributes:
        split: the split that the input is; None where it is yet to be split.
        name: that of its file or files, or of its set with the commit that was found.
        rows: reads the rows when they are taken, once.
    """

    split: str | None
    name: str
    rows: Iterator[Row]


def inputs_of(names: Sequence[str], fields: Fields, keep_splits: bool) -> list[Input]:
    """Open the inputs of these names.

    Args:
        names: files of one kind, text files in pairs; or the name of one set of the Hub.
        fields: the columns of documents and summaries; None for those that published sets have.
        keep_splits: keep the splits of a set that has all of them.

    Raises:
        InputError: something is missing or of another kind. What is malformed in a file raises it when that is read.
    """
    paths = [Path(name).expanduser() for name in names]
    kinds = {suffix_of(path) if suffix_of(path) in TABLES else "text" for path in paths}
    if len(names) == 1 and kinds == {"text"} and not paths[0].exists() and HUB_NAME.fullmatch(names[0]):
        return _set_inputs(names[0], fields, keep_splits)
    for path in paths:
        if not path.is_file():
            raise InputError(f"--input {path}: no such file")
    if len(kinds) > 1:
        raise InputError(f"--input takes files of one kind, got {' and '.join(sorted(kinds))}")
    if kinds == {"text"}:
        return _text_inputs(paths, fields)
    with opening(f"--input {' '.join(names)}"):
        return [Input(None, str(path), open_rows(path, fields, str(path))) for path in paths]


def _text_inputs(paths: Sequence[Path], fields: Fields) -> list[Input]:
    if any(field is not None for field in fields):
        raise InputError(f"--source_field and --target_field are of tables; {paths[0]} is a text file, without fields")
    if len(paths) % 2:
        raise InputError(
            f"--input {' '.join(map(str, paths))}: text files come in pairs, a.source b.target; tables end in "
            f"{', '.join(READERS)}, or in these and .gz, or in .parquet"
        )
    inputs = []
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        if suffix_of(source) == ".target" or suffix_of(target) == ".source":
            raise InputError(f"--input {source} {target}: of each pair the source comes first, then its target")
        inputs.append(Input(None, f"{source} {target}", _text_rows(source, target)))
    return inputs


def _text_rows(source: Path, target: Path) -> Iterator[Row]:
    for number, pair in enumerate(paired(source, target), 1):
        yield Row.of(f"{source}:{number}", dict(zip(SIDES, pair, strict=True)), SIDES)


def _set_inputs(name: str, fields: Fields, keep_splits: bool) -> list[Input]:
    with opening(f"--input {name}: no such file here, and as a set of the Hub it"):
        splits, commit = load_from_hub(name, streaming=False)
    kept = keep_splits and splits.keys() >= set(SPLITS)
    if keep_splits and not kept and len(splits) > 1:
        raise InputError(
            f"--input {name} has the splits {', '.join(splits)}, not all of {', '.join(SPLITS)}: give --split_ratio to "
            "split all its examples anew"
        )
    if kept and (unused := splits.keys() - set(SPLITS)):
        logger.warning("%s: not used are the splits %s", name, ", ".join(sorted(unused)))
    inputs = []
    for split in SPLITS if kept else splits:
        table = open_dataset(splits[split].to_iterable_dataset(), f"{commit}/{split}", fields)
        inputs.append(Input(split if kept else None, table.name, table.rows()))
    return inputs
