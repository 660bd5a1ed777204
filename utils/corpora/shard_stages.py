"""The stages that make shards: functions that processes without torch call, which write files and return numbers.

Dask brings all texts with like hashes together, so that those that repeat others are found, and later all examples of a
shard. What the stages write is a function of the corpus and the options alone: documents are sorted by their hashes,
and examples by keys, made of the seed, the document and the example's place in it, so that shards are shuffled across
the corpus wherever the documents lie. Memory holds the texts of some PIECE bytes, or a shard.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xxhash
from pyarrow import parquet
from tokenizers import Tokenizer

from bart.files import replacing, sha256_of
from utils.corpora.documents import NEAR_EMPTY, Piece, gathered, measured, read_documents
from utils.corpora.segment_pairs import SegmentPairs, TokenizedDocument
from utils.corpora.shard_options import LEAST_SHARDS, MOST_EXAMPLES, MakeShardsOptions, Work
from utils.data.shard_format import MLM_NSP, ROWS, SPECIAL, TOKENIZER, ShardRow
from utils.data.splits import SPLITS
from utils.text.sentences import sentence_parts

SHARD_SPLITS = SPLITS[:2]  # train and val
_CHARACTERS = 1 << 20  # that are tokenised at once
REPEATED = "repeated"
BINARY = pa.large_binary()
# Texts by their hashes, whose beginnings are the keys; or so many documents that could not be read for some fault.
TEXTS = {"key": pa.uint64(), "hash": BINARY, "held_out": pa.bool_(), "text": BINARY, "fault": pa.large_string()}
TEXTS = pa.schema(TEXTS | {"count": pa.int64()})
# The group is a split and a bin, and for Dask the number of the shard; the hash is that of the document.
EXAMPLES = {"group": pa.int32(), "key": pa.uint64(), "hash": BINARY, "ids": BINARY, "sentences": BINARY}
EXAMPLES = pa.schema(EXAMPLES | {"label": pa.uint8()})
StageResult = tuple[dict[str, Any], list[Path]]  # numbers, and the files that were written


def table_of(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    return pa.table([*zip(*rows, strict=True)] or [[]] * len(schema), schema)


def frame(table: pa.Table) -> pd.DataFrame:
    """A table as Dask takes it. Its columns stay Arrow's."""
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def measure(files: Sequence[Piece]) -> list[tuple[Piece, str]]:
    return [*map(measured, files)]


def read_texts(pieces: Sequence[Piece], text_field: str) -> pd.DataFrame:
    """Read the documents of some pieces as rows of TEXTS. The lines of a text are its paragraphs."""
    rows, faults = [], Counter[str]()
    for piece in pieces:
        for document in read_documents(piece, text_field):
            if document.fault:
                faults[document.fault] += 1
            else:
                key = xxhash.xxh3_128_digest(document.text.encode())
                text = "\n".join(document.paragraphs).encode()
                rows.append((int.from_bytes(key[:8], "big"), key, piece.held_out, text, "", 1))
    rows += [(0, b"", False, b"", fault, count) for fault, count in faults.items()]
    return frame(table_of(TEXTS, rows))


def _share_of(row: dict[str, Any], seed: int) -> float:
    """A random number from 0 to 1 of a document, which is held out below --val_ratio; -1 of --val_input."""
    return -1.0 if row["held_out"] else xxhash.xxh3_64_intdigest(row["hash"] + b"val", seed) / (1 << 64)


def packed(text: TokenizedDocument, room: int) -> Iterator[ShardRow]:
    """Gather a document's sentences into examples of at most `room` tokens; longer ones are cut into sentences."""
    start, parts = 0, []
    for begin, end in pairwise(text.bounds):
        if parts and end - start > room:
            yield ShardRow(text.ids[start:begin], parts)
            start, parts = begin, []
        while end - start > room:
            yield ShardRow(text.ids[start : start + room], [room])
            start += room
        parts.append(end - max(start, begin))
    if parts:
        yield ShardRow(text.ids[start:], parts)


def make_examples(work: Work, name: str, val_ratio: float, texts: pd.DataFrame) -> StageResult:
    """Cut the texts of a range of hashes into examples, but those that repeat others.

    `lowest` is the least share below which a document that gives examples is held out, or, of pairs, two.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    bins, least = work.options.bins, 1 + (work.options.task == MLM_NSP)
    documents, dropped, rows, short = {}, Counter[str](), [], 0
    for row in sorted(pa.Table.from_pandas(texts).to_pylist(), key=itemgetter("hash", "held_out", "text")):
        dropped[row["fault"]] += row["count"]
        if not row["fault"]:
            documents[row["hash"]] = row  # the last one of those that repeat each other
    for split, key, hashed, example in _examples(work, [*documents.values()], val_ratio):
        if len(example.ids) < work.options.min_tokens:
            short += 1
            continue
        group = split * len(bins) + bisect_left(bins, len(example.ids) + SPECIAL[work.options.task])
        sentences = np.array(example.sentences, np.uint16).tobytes()
        rows.append((group, key, hashed, example.ids.tobytes(), sentences, example.label))
    path = work.path("examples", f"{name}.arrow")
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), EXAMPLES) as file:
        file.write_table(table_of(EXAMPLES, rows))
    kept = {row[2] for row in rows}
    dropped += Counter({REPEATED: dropped.pop("", 0) - len(documents), NEAR_EMPTY: len(documents) - len(kept)})
    groups = np.bincount([row[0] for row in rows], minlength=len(SHARD_SPLITS) * len(bins)).tolist()
    shares = sorted(share for key in kept if (share := _share_of(documents[key], work.options.seed)) >= 0)
    numbers = {"kept": len(kept), "short": short, "dropped": dropped, "groups": groups}
    return {**numbers, "lowest": shares[least - 1 : least]}, [path]


def _examples(
    work: Work, documents: Iterable[dict[str, Any]], val_ratio: float
) -> Iterator[tuple[int, int, bytes, ShardRow]]:
    """Yield the examples of documents, each with the number of its split, its key, and the hash of its document."""
    options = work.options
    tokenizer, pairs = _tokenizer(work.folder, work.vocabulary), SegmentPairs(options)
    for group in gathered(documents, lambda row: len(row["text"]), _CHARACTERS):
        sentences = [sentences_of(row["text"].decode()) for row in group]
        encoded = iter(tokenizer.encode_batch_fast(list(chain.from_iterable(sentences)), add_special_tokens=False))
        hashes, splits, texts = [], [], []
        for row, of_document in zip(group, sentences, strict=True):
            rows = [next(encoded).ids for _ in of_document]
            if any(rows):  # BERT has no tokens for some characters
                hashes.append(row["hash"])
                splits.append(int(_share_of(row, options.seed) < val_ratio))
                ids = np.fromiter(chain.from_iterable(rows), work.kind)
                texts.append(TokenizedDocument(ids, [*dict.fromkeys(accumulate(map(len, rows), initial=0))]))
        if options.task == MLM_NSP:
            examples = pairs(texts, hashes, splits)
        else:
            examples = [[*packed(text, options.room)] for text in texts]
        for key, split, of_document in zip(hashes, splits, examples, strict=True):
            for chunk, example in enumerate(of_document):
                yield split, xxhash.xxh3_64_intdigest(key + chunk.to_bytes(4, "little"), options.seed), key, example


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, vocabulary: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER / "tokenizer.json"))
    # A text that holds "<mask>" must not become the token.
    tokenizer.encode_special_tokens = True
    return tokenizer


def sentences_of(text: str) -> list[str]:
    """The sentences of a text whose lines are paragraphs: each begins with the blank before it."""
    return [sentence for paragraph in text.replace("\n", "\n ").split("\n") for sentence in sentence_parts(paragraph)]


def plan_shards(options: MakeShardsOptions, totals: Sequence[int]) -> dict[str, int]:
    """Name shards for so many examples of each group; give the group of each, one behind the other."""
    shards = {}
    for group, total in enumerate(totals):
        split, longest = SHARD_SPLITS[group // len(options.bins)], options.bins[group % len(options.bins)]
        number = -(-total // MOST_EXAMPLES)
        if split == SHARD_SPLITS[0]:
            number = min(total, options.shards or max(number, LEAST_SHARDS))
        shards |= {f"{split}/{longest}-{place:05d}.parquet": group for place in range(number)}
    return shards


def read_examples(name: str, work: Work, numbers: Sequence[int]) -> pd.DataFrame:
    """Read examples, with the numbers of their shards, of which each group has so many, in place of their groups."""
    table = pa.ipc.open_file(str(work.path("examples", f"{name}.arrow"))).read_all()
    groups, keys = table["group"].to_numpy(), table["key"].to_numpy()
    of_group = np.array(numbers, np.uint64)[groups]
    shards = (np.cumsum(numbers) - numbers)[groups] + ((keys >> 32) * of_group >> 32).astype(int)
    return frame(pa.table([pa.array(shards, pa.int32()), *table.columns[1:]], EXAMPLES))


def write_shard(work: Work, name: str, examples: pd.DataFrame) -> StageResult:
    """Write a shard, if there is an example for it, and return its facts for the manifest."""
    if examples.empty:
        return {"examples": 0}, []
    rows = pa.Table.from_pandas(examples).sort_by([("key", "ascending"), ("hash", "ascending")])
    columns = {"ids": _lists(rows["ids"], work.kind), "sentences": _lists(rows["sentences"], "uint16")}
    if work.options.task == MLM_NSP:
        columns["label"] = rows["label"]
    path = work.folder / name
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        form = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
        parquet.write_table(pa.table(columns), temporary, row_group_size=ROWS, **form)
        digest = sha256_of(temporary)
    return {"examples": len(rows), "tokens": len(columns["ids"].values), "sha256": digest}, [path]


def _lists(column: pa.ChunkedArray, kind: str) -> pa.ListArray:
    """The lists of numbers whose bytes are in a column."""
    numbers = [np.frombuffer(row, kind) for row in column.to_pylist()]
    return pa.array(numbers, pa.list_(pa.from_numpy_dtype(kind)))
