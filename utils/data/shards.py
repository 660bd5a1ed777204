"""Shards for pretraining: their manifest, and their examples, streamed to train on or held in memory.

They are read as arrays, ten times faster than by `utils.data.rows`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bart.errors import InputError, brief
from bart.files import sha256_of
from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.app.errors import RunError
from utils.app.machine import is_first_here
from utils.data.batches import TokenPairs
from utils.data.noise import Noise
from utils.data.shard_format import DENOISING, FORMAT, MANIFEST, MLM_NSP, ROWS, TOKENIZER, ShardRow
from utils.data.tokenized import TokenizedTexts

MAKE = "python -m utils.corpora.make_shards"
HELD_OUT_SEED = 0  # of the noise of validation
_AT_ONCE = 512  # held-out examples that are corrupted together


@dataclass(frozen=True)
class Shard:
    """A Parquet file of examples."""

    file: str
    bin: int  # tokens of the longest example of its bin, `<s>` and `</s>` included
    examples: int  # the number of its rows that are used, the first ones
    sha256: str
    first: int  # the number of its first example in the split
    rows: int  # of each of its row groups, but the last one may have fewer


@dataclass(frozen=True)
class Manifest:
    """The manifest of a directory of shards."""

    directory: Path
    sequence_length: int  # tokens of the longest example, special ones included
    task: str  # that they are for, a key of SPECIAL
    vocabulary: str  # SHA-256 of the JSON of the tokenizer whose ids the examples are
    splits: Mapping[str, Sequence[Shard]]  # in the order in which their examples are numbered
    values: Mapping[str, Any]  # the whole of it, as JSON has it

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """Read the manifest; one process of a machine checks that every shard is there in its whole length."""
        folder = Path(directory)
        path = folder / MANIFEST
        if not path.exists():
            raise InputError(f"--data_dir {folder}: no {MANIFEST} there; {MAKE} writes it when all shards are made")
        try:
            values = json.loads(path.read_bytes())
            stored_format = values["format"]
            rows = int(values.get("rows", ROWS))  # manifests did not name them as long as they were always as many
            splits = {split: list(_numbered(shards, rows)) for split, shards in values["splits"].items()}
            task = str(values.get("task", DENOISING))  # manifests did not name it as long as it was the only one
            manifest = cls(folder, int(values["sequence_length"]), task, str(values["vocabulary"]), splits, values)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: not a manifest of shards ({type(error).__name__}: {brief(error)})") from None
        if stored_format != FORMAT:
            raise InputError(f"{path}: its format is {stored_format!r}; allowed: {FORMAT}")
        for shard in (shard for shards in splits.values() for shard in shards if is_first_here()):
            manifest._check(shard)
        if not manifest.shards("train"):
            raise InputError(f"{path}: the train split has no examples")
        return manifest

    def _check(self, shard: Shard) -> None:
        path = self.directory / shard.file
        try:
            footer = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: the shard is missing, cut off or damaged ({brief(error)})") from None
        if footer.num_rows != shard.examples:
            raise InputError(f"{path}: the shard has {footer.num_rows} examples; {MANIFEST} says {shard.examples}")
        sizes = {footer.row_group(number).num_rows for number in range(footer.num_row_groups - 1)}
        if sizes - {shard.rows}:
            raise InputError(f"{path}: the shard has row groups of {min(sizes)} examples; {MANIFEST} says {shard.rows}")
        columns = ["ids", "sentences", *(["label"] if self.task == MLM_NSP else ())]
        if missing := {*columns} - set(footer.schema.to_arrow_schema().names):
            raise InputError(f"{path}: the shard lacks the column {min(missing)}; allowed: {', '.join(columns)}")

    def check(self, tokenizer: PretrainedTokenizer, sequence_length: int | None = None) -> None:
        """Check that these shards are for a vocabulary and, where it is given, for a length."""
        if sequence_length not in (None, self.sequence_length):
            raise InputError(f"--max_source_length is {sequence_length}; the shards have {self.sequence_length}")
        text = tokenizer.to_json()
        is_same = hashlib.sha256(text.encode()).hexdigest() == self.vocabulary
        # Another version of the library may write the same tokenizer in other words.
        if not is_same and type(tokenizer).from_pretrained(self.directory / TOKENIZER).to_json() != text:
            raise InputError(f"{self.directory}: its shards are of another vocabulary, that in {TOKENIZER} there")

    def shards(self, split: str, limit: int = -1) -> list[Shard]:
        """The shards of a split with examples: all, or the first `limit` of these, of which each bin has its share."""
        shards = [shard for shard in self.splits.get(split, ()) if shard.examples]
        total = sum(shard.examples for shard in shards)
        if not 0 <= limit < total:
            return shards
        used, seen = [], 0
        for members in _by_bin(shards).values():
            before, seen = seen, seen + sum(shards[member].examples for member in members)
            left = seen * limit // total - before * limit // total
            for member in members:
                used.append(replace(shards[member], examples=min(left, shards[member].examples)))
                left -= used[-1].examples
        return [shard for shard in used if shard.examples]


def _numbered(shards: Sequence[Mapping[str, Any]], rows: int) -> Iterator[Shard]:
    first = 0
    for shard in shards:
        yield Shard(str(shard["file"]), int(shard["bin"]), int(shard["examples"]), str(shard["sha256"]), first, rows)
        first += int(shard["examples"])


def _by_bin(shards: Sequence[Shard]) -> dict[int, list[int]]:
    """The numbers of the shards of each bin."""
    bins: dict[int, list[int]] = {}
    for number, shard in enumerate(shards):
        bins.setdefault(shard.bin, []).append(number)
    return bins


def read_shards(directory: Path, shards: Iterable[Shard]) -> Iterator[ShardRow]:
    """Read all rows of shards that are used, one after another."""
    for shard in shards:
        for group in range(-(-shard.examples // shard.rows)):
            yield from read_row_group(directory, shard, group)


def read_row_group(directory: Path, shard: Shard, group: int) -> list[ShardRow]:
    """Read those rows of the row group of this number that are used, and compare its checksums.

    The first process of a machine compares the digests of whole shards, each once.
    """
    path, first = directory / shard.file, group * shard.rows
    try:
        if is_first_here() and _sha256_of(path) != shard.sha256:
            raise RunError(f"{path}: the shard is damaged: its SHA-256 is not the one in {MANIFEST}")
        # Pre-buffering would start threads.
        with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
            table = file.read_row_group(group, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: the shard cannot be read ({brief(error)})") from error
    labels = table["label"].to_pylist() if "label" in table.column_names else [0] * len(table)
    numbers = range(shard.first + first, shard.first + shard.examples)
    return [
        ShardRow(*row) for row in zip(_lists(table["ids"]), _lists(table["sentences"]), labels, numbers, strict=False)
    ]


_sha256_of = lru_cache(maxsize=None)(sha256_of)


def _lists(column: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """The values of each row of a column of lists."""
    lists = column.combine_chunks()
    values = lists.values.to_numpy()
    return (values[start:end] for start, end in pairwise(lists.offsets.to_numpy().tolist()))


class StreamedShards:
    """The shards of a split, and the noise that makes examples of their rows, anew in every epoch.

    `bins` has the numbers of the shards of each bin, and `counts` its examples, as far as the limit allows.
    """

    def __init__(self, manifest: Manifest, noise: Noise, limit: int = -1, split: str = "train") -> None:
        self.directory, self.noise = manifest.directory, noise
        self.shards = manifest.shards(split, limit)
        self.bins = list(_by_bin(self.shards).values())
        self.counts = [sum(self.shards[number].examples for number in members) for members in self.bins]
        digest = hashlib.sha256(json.dumps([asdict(shard) for shard in self.shards]).encode())
        self.identity = {"shards": digest.hexdigest(), "corruption": noise.identity}

    def __len__(self) -> int:
        return sum(self.counts)


class ShardExamples(TokenPairs):
    """Held-out examples in memory, with noise that is the same whatever the seed of the run."""

    def __init__(self, manifest: Manifest, split: str, noise: Noise, limit: int = -1) -> None:
        fixed = copy(noise)
        fixed.seed = HELD_OUT_SEED
        shards = StreamedShards(manifest, fixed, limit, split)
        if not len(shards):
            raise InputError(f"{manifest.directory}: its {split} split is empty; --val_ratio of {MAKE} fills it")
        sources, targets, records = [], [], read_shards(shards.directory, shards.shards)
        while rows := list(islice(records, _AT_ONCE)):
            pairs = fixed.pairs(rows, 0)
            sources.append(pa.record_batch([pa.array([pair.source for pair in pairs])], ["ids"]))
            targets.append(pa.record_batch([pa.array([pair.target for pair in pairs])], ["ids"]))
        super().__init__(TokenizedTexts(sources), TokenizedTexts(targets), known_by=shards.identity)
