"""The stages that make shards: functions that processes without torch call, which write files and return numbers.

Dask brings all texts with like hashes together, so that those that repeat others are found, and later all examples of a
shard. What the stages write is a function of the corpus and the options alone: documents are sorted by their hashes,
and examples by keys, made of the seed, the document and the example's place in it, so that shards are shuffled across
the corpus wherever the documents lie. Memory holds the texts of some PIECE bytes, or a shard.
"""

from __future__ import annotations

import gzip
import heapq
import os
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import parquet
from tokenizers import Tokenizer

from bart.files import replacing, sha256_of
from utils.corpora.documents import BLOCK, NEAR_EMPTY, Document, Piece, TextFile, gathered, read_documents, reading
from utils.corpora.segment_pairs import SegmentPairs, ShardExample, TokenizedDocument
from utils.corpora.shard_options import LEAST_SHARDS, MOST_EXAMPLES, MakeShardsOptions, Work
from utils.data.shard_format import MLM_NSP, ROWS, SPECIAL, TOKENIZER
from utils.data.splits import SPLITS
from utils.text.sentences import sentence_parts

SHARD_SPLITS = SPLITS[:2]  # train and val
_CHARACTERS = 1 << 20  # that are tokenised at once
REPEATED = "repeated"
TEXTS = pa.schema(
    {
        "key": pa.uint64(),  # the beginning of the hash, by which texts are brought together
        "hash": pa.large_binary(),
        "held_out": pa.bool_(),
        "text": pa.large_binary(),
        "fault": pa.large_string(),  # the reason why so many documents could not be read; empty for a text
        "count": pa.int64(),
    }
)
EXAMPLES = pa.schema(
    {
        "group": pa.int32(),  # a split and a bin; for Dask the shard
        "key": pa.uint64(),
        "hash": pa.large_binary(),  # of the document
        "ids": pa.large_binary(),
        "sentences": pa.large_binary(),
        "label": pa.uint8(),
    }
)
KeyedExample = tuple[int, int, bytes, ShardExample]  # with the number of its split, its key and its document's hash
StageResult = tuple[dict[str, Any], list[Path]]  # numbers, and the files that were written


class PlannedShard(NamedTuple):
    name: str
    group: int  # of its examples: a split and a bin


def frame(schema: pa.Schema, columns: Any = None) -> pd.DataFrame:
    """A table as Dask takes it, whose columns stay Arrow's; without any row by default."""
    table = schema.empty_table() if columns is None else pa.table(columns, schema)
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def digests(files: Sequence[TextFile]) -> list[str]:
    """A digest of each file."""
    found = []
    for file in files:
        content = xxhash.xxh3_128()
        with reading(file.place) as opened:
            while block := opened.read(BLOCK):
                content.update(block)
        found.append(content.hexdigest())
    return found


def unpack(work: Work, name: str, file: TextFile) -> StageResult:
    """Unpack a file, which can then be cut into pieces."""
    path = work.path("unpacked", f"{name}-{file.name[:-3]}")
    with reading(file.place) as packed, replacing(path) as temporary, temporary.open("wb") as unpacked:
        shutil.copyfileobj(gzip.GzipFile(fileobj=packed), unpacked, BLOCK)
    return {"place": str(path), "size": path.stat().st_size}, [path]


def read_texts(pieces: Sequence[Piece], text_field: str) -> pd.DataFrame:
    """Read all documents of some pieces, as rows of TEXTS, whose paragraphs are lines."""
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
    return frame(TEXTS, [*zip(*rows, strict=True)] if rows else None)


def _share_of(key: bytes, work: Work) -> float:
    """A random number from 0 to 1 of a document with this hash, which is held out below --val_ratio."""
    return xxhash.xxh3_64_intdigest(key + b"val", work.options.seed) / (1 << 64)


def packed(text: TokenizedDocument, room: int) -> Iterator[ShardExample]:
    """Gather a document's sentences into examples of at most `room` tokens; longer ones are cut into sentences."""
    start, parts = 0, []
    for begin, end in pairwise(text.bounds):
        if parts and end - start > room:
            yield ShardExample(text.ids[start:begin], parts)
            start, parts = begin, []
        while end - start > room:
            yield ShardExample(text.ids[start : start + room], [room])
            start += room
        parts.append(end - max(start, begin))
    if parts:
        yield ShardExample(text.ids[start:], parts)


def make_examples(work: Work, name: str, val_ratio: float, texts: pd.DataFrame) -> StageResult:
    """Cut texts with hashes of a range, but those that repeat others, into examples, and write these.

    `lowest` is the least share below which a document that gives examples is held out, or, of pairs, two.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    bins, task = work.options.bins, work.options.task
    table = pa.Table.from_pandas(texts, preserve_index=False)
    faults = table.group_by("fault").aggregate([("count", "sum")]).to_pydict()
    dropped = Counter(dict(zip(faults["fault"], faults["count_sum"], strict=True)))
    readable = dropped.pop("", 0)
    table = table.filter(pc.equal(table["fault"], ""))
    table = table.sort_by([("hash", "ascending"), ("held_out", "ascending"), ("text", "descending")])
    documents = {row["hash"]: row for row in table.to_pylist()}  # the last of those that repeat each other
    counts, shares, rows = Counter[str](), [], []
    for split, key, hashed, example in _examples(work, documents.values(), val_ratio, counts, shares):
        group = split * len(bins) + bisect_left(bins, len(example.ids) + SPECIAL[task])
        sentences = np.array(example.parts, np.uint16).tobytes()
        rows.append((group, key, hashed, example.ids.tobytes(), sentences, example.label))
    path = work.path("examples", f"{name}.arrow")
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), EXAMPLES) as file:
        file.write_table(pa.table([*zip(*rows, strict=True)], EXAMPLES) if rows else EXAMPLES.empty_table())
    dropped += Counter({REPEATED: readable - len(documents), NEAR_EMPTY: len(documents) - counts["kept"]})
    first = heapq.nsmallest(least := 1 + (task == MLM_NSP), shares)
    return {
        "documents": readable,
        "kept": counts["kept"],
        "short": counts["short"],
        "dropped": dropped,
        "lowest": first[-1] if len(first) == least else None,
        "groups": np.bincount([row[0] for row in rows], minlength=len(SHARD_SPLITS) * len(bins)).tolist(),
    }, [path]


def _examples(
    work: Work, documents: Iterable[dict[str, Any]], val_ratio: float, counts: Counter[str], shares: list[float]
) -> Iterator[KeyedExample]:
    """Yield the examples of documents; count those kept, and examples too short, and note the shares of those kept."""
    options = work.options
    tokenizer, pairs = _tokenizer(work.folder, work.vocabulary), SegmentPairs(options)
    for group in gathered(documents, lambda row: len(row["text"]), _CHARACTERS):
        hashes = [row["hash"] for row in group]
        shared = [-1.0 if row["held_out"] else _share_of(row["hash"], work) for row in group]
        splits = [int(share < val_ratio) for share in shared]
        sentences = [sentences_of(Document(row["text"].decode().split("\n"))) for row in group]
        encoded = iter(tokenizer.encode_batch_fast(list(chain.from_iterable(sentences)), add_special_tokens=False))
        texts = []
        for of_document in sentences:
            rows = [next(encoded).ids for _ in of_document]
            ids = np.fromiter(chain.from_iterable(rows), work.kind)
            texts.append(TokenizedDocument(ids, [0, *accumulate(map(len, rows))]))
        if options.task == MLM_NSP:
            examples = pairs(texts, hashes, splits)
        else:
            examples = [[*packed(text, options.room)] for text in texts]
        for key, split, share, of_document in zip(hashes, splits, shared, examples, strict=True):
            long_enough = [len(example.ids) >= options.min_tokens for example in of_document]
            counts["kept"] += any(long_enough)
            counts["short"] += long_enough.count(False)
            if any(long_enough) and share >= 0:
                shares.append(share)
            for chunk, example in enumerate(of_document):
                if long_enough[chunk]:
                    number = xxhash.xxh3_64_intdigest(key + chunk.to_bytes(4, "little"), options.seed)
                    yield split, number, key, example


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, vocabulary: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER / "tokenizer.json"))
    # A text that holds "<mask>" must not become the token.
    tokenizer.encode_special_tokens = True
    return tokenizer


def sentences_of(document: Document) -> list[str]:
    """The sentences of a document: each begins with the blank before it, and joined they are its text."""
    paragraphs = [*document.paragraphs[:1], *(f" {paragraph}" for paragraph in document.paragraphs[1:])]
    return [sentence for paragraph in paragraphs for sentence in sentence_parts(paragraph)]


def plan_shards(options: MakeShardsOptions, totals: Sequence[int]) -> list[PlannedShard]:
    """Divide so many examples of each group into shards, one behind the other."""
    shards = []
    for group, total in enumerate(totals):
        split, longest = SHARD_SPLITS[group // len(options.bins)], options.bins[group % len(options.bins)]
        number = -(-total // MOST_EXAMPLES)
        if split == SHARD_SPLITS[0]:
            number = min(total, options.shards or max(number, LEAST_SHARDS))
        shards += [PlannedShard(f"{split}/{longest}-{place:05d}.parquet", group) for place in range(number)]
    return shards


def read_examples(name: str, work: Work, numbers: Sequence[int]) -> pd.DataFrame:
    """Read examples, with the number of a shard, of which each group has so many, in place of that of their group."""
    table = pa.ipc.open_file(str(work.path("examples", name))).read_all()
    groups, keys = table["group"].to_numpy(), table["key"].to_numpy()
    of_group = np.array(numbers, np.uint64)[groups]
    shards = (np.cumsum(numbers) - numbers)[groups] + ((keys >> 32) * of_group >> 32).astype(int)
    return frame(EXAMPLES, table.set_column(0, EXAMPLES.field("group"), pa.array(shards, pa.int32())).columns)


def write_shard(work: Work, name: str, examples: pd.DataFrame) -> StageResult:
    """Write a shard, if it has examples, and return its facts for the manifest."""
    if examples.empty:
        return {"examples": 0}, []
    rows = pa.Table.from_pandas(examples, preserve_index=False).sort_by([("key", "ascending"), ("hash", "ascending")])
    ids = _lists(rows["ids"], work.kind)
    columns = {"ids": ids, "sentences": _lists(rows["sentences"], "uint16")}
    if work.options.task == MLM_NSP:
        columns["label"] = rows["label"]
    path = work.folder / name
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        parquet.write_table(pa.table(columns), temporary, row_group_size=ROWS, compression="zstd", use_dictionary=False)
        digest = sha256_of(temporary)
    return {"examples": len(rows), "tokens": len(ids.values), "sha256": digest}, [path]


def _lists(column: pa.ChunkedArray, kind: str) -> pa.ListArray:
    """The numbers whose bytes a column has."""
    array = pa.concat_arrays(column.chunks)
    _, offsets, values = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1] // np.dtype(kind).itemsize
    return pa.ListArray.from_arrays(bounds.astype(np.int32), np.frombuffer(values, kind))
