"""The stages that make shards: functions that processes without torch call, which write files and return numbers.

What they write is a function of the corpus and the options alone. Examples are sorted by keys, made of the seed, the
document and the example's place in it, so that shards are shuffled across the corpus wherever the documents lie. Memory
holds hashes of all documents, a run of examples, the keys of a split's bin or a shard.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import parquet
from tokenizers import Tokenizer

from bart.files import replacing, sha256_of
from utils.corpora.documents import NEAR_EMPTY, Document, Piece, gathered, read_documents
from utils.corpora.segment_pairs import SegmentPairs, ShardExample, TokenizedDocument
from utils.corpora.shard_options import LEAST_SHARDS, MOST_EXAMPLES, WORK, Work
from utils.data.shard_format import MLM_NSP, ROWS, SPECIAL, TOKENIZER
from utils.data.splits import SPLITS
from utils.text.sentences import sentence_parts

SHARD_SPLITS = SPLITS[:2]  # train and val
_CHARACTERS = 1 << 20  # that are tokenised at once
_TOKENS = 1 << 22  # of a run: examples that are sorted in memory
BYTES = 8  # of UTF-8, for each of --min_tokens, of a document that surely has so many; or a word for each
REPEATED, REPEATS = "repeated", f"{WORK}/repeats.npy"
KeyedExample = tuple[int, int, ShardExample]  # with the number of its split, and its key
StageResult = tuple[dict[str, Any], list[Path]]  # numbers, and the files that were written


class PlannedShard(NamedTuple):
    """A file of shards: the examples of a group (a split and a bin) with keys from `first` to before `end`, if any."""

    name: str
    group: int
    first: int
    end: int | None


def hash_documents(work: Work, number: int, piece: Piece) -> StageResult:
    """Write (N, 2) uint64, a hash of each document of a piece that can be read.

    `lowest` is the least share below which a document that surely gives examples is held out, or, of pairs, two.
    """
    hashes: list[bytes] = []
    shares: list[float] = []
    least = work.options.min_tokens
    dropped: Counter[str] = Counter()
    for document in read_documents(piece, work.options.text_field):
        if document.fault:
            dropped[document.fault] += 1
        else:
            text = document.text.encode()
            hashes.append(xxhash.xxh3_128_digest(text))
            if len(text) >= BYTES * least or len(text.split()) >= least:
                shares.append(_share_of(hashes[-1], work))
    path = work.path("documents", f"{number:06d}.npy")
    _save(path, np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2))
    first = heapq.nsmallest(count := 1 + (work.options.task == MLM_NSP), {*shares})
    lowest = first[-1] if len(first) == count else 0.0
    return {"documents": len(hashes), "dropped": dropped, "lowest": lowest}, [path]


def _share_of(key: bytes, work: Work) -> float:
    """A random number from 0 to 1 of a document with this hash, which is held out below --val_ratio."""
    return xxhash.xxh3_64_intdigest(key + b"val", work.options.seed) / (1 << 64)


def find_repeats(work: Work) -> None:
    """Write the sorted numbers of documents that repeat one with a lower number, through all pieces."""
    hashes = np.concatenate([np.load(path) for path in sorted(work.path("documents", "").glob("*.npy"))])
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # it is stable
    repeats = (hashes[order[1:]] == hashes[order[:-1]]).all(axis=1)
    _save(work.folder / REPEATS, np.sort(order[1:][repeats]))


def _save(path: Path, array: np.ndarray) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


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


def make_examples(work: Work, number: int, piece: Piece, first: int, val_ratio: float) -> StageResult:
    """Cut the documents of a piece, numbered from `first`, that repeat none into examples, and write runs of them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    hashes = np.load(work.path("documents", f"{number:06d}.npy"))
    numbers = np.load(work.folder / REPEATS, mmap_mode="r")
    repeats = {*numbers[slice(*np.searchsorted(numbers, (first, first + len(hashes))))].tolist()}
    readable = (document for document in read_documents(piece, work.options.text_field) if not document.fault)
    fresh = (
        (hashes[place].tobytes(), document) for place, document in enumerate(readable) if first + place not in repeats
    )
    counts, written = Counter[str](), []
    examples = _examples(work, fresh, math.inf if piece.held_out else val_ratio, counts)
    for run in gathered(examples, lambda keyed: len(keyed[2].ids), _TOKENS):
        written.append(work.path("examples", f"{number:06d}-{len(written):06d}.arrow"))
        _write_run(work, written[-1], run)
    dropped = {REPEATED: len(repeats), NEAR_EMPTY: len(hashes) - len(repeats) - counts["kept"]}
    return {"kept": counts["kept"], "dropped": dropped, "short": counts["short"]}, written


def _examples(
    work: Work, documents: Iterable[tuple[bytes, Document]], val_ratio: float, counts: Counter[str]
) -> Iterator[KeyedExample]:
    """Yield the examples of documents, which come with their hashes; count those kept, and examples too short."""
    options = work.options
    tokenizer, pairs = _tokenizer(work.folder, work.vocabulary), SegmentPairs(options)
    for group in gathered(documents, lambda hashed: sum(map(len, hashed[1].paragraphs)), _CHARACTERS):
        hashes = [key for key, _ in group]
        splits = [int(_share_of(key, work) < val_ratio) for key in hashes]
        sentences = [sentences_of(document) for _, document in group]
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
        for key, split, of_document in zip(hashes, splits, examples, strict=True):
            long_enough = [len(example.ids) >= options.min_tokens for example in of_document]
            counts["kept"] += any(long_enough)
            counts["short"] += long_enough.count(False)
            for chunk, example in enumerate(of_document):
                if long_enough[chunk]:
                    yield split, xxhash.xxh3_64_intdigest(key + chunk.to_bytes(4, "little"), options.seed), example


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


def _write_run(work: Work, path: Path, run: Sequence[KeyedExample]) -> None:
    """Write examples, sorted by groups, a split and a bin, and then by their keys."""
    bins = work.options.bins
    splits, keys, examples = zip(*run, strict=True)
    lengths, keys = np.array([len(example.ids) for example in examples]), np.array(keys, np.uint64)
    groups = np.array(splits) * len(bins) + np.searchsorted(bins, lengths + SPECIAL[work.options.task])
    order = np.lexsort((keys, groups))
    sentences = np.fromiter(chain.from_iterable(example.parts for example in examples), np.uint16)
    columns = {
        "group": groups[order].astype(np.uint16),
        "key": keys[order],
        "ids": _lists(np.concatenate([example.ids for example in examples]), lengths).take(order),
        "sentences": _lists(sentences, [len(example.parts) for example in examples]).take(order),
    }
    if work.options.task == MLM_NSP:
        columns["label"] = np.array([example.label for example in examples], np.uint8)[order]
    table = pa.table(columns)
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as file:
        file.write_table(table)


def _lists(values: np.ndarray, lengths: Sequence[int] | np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), values)


def _runs(work: Work) -> Iterator[pa.Table]:
    """All runs, in order, each mapped from its file."""
    for path in sorted(work.path("examples", "").glob("*.arrow")):
        with pa.memory_map(str(path)) as file:
            yield pa.ipc.open_file(file).read_all()


def _of_group(run: pa.Table, group: int) -> tuple[pa.Table, np.ndarray]:
    """The examples of a split and bin in a run, and their keys, which rise."""
    begin, end = np.searchsorted(run["group"].to_numpy(), (group, group + 1))
    examples = run.slice(begin, end - begin)
    return examples, examples["key"].to_numpy()


def plan_shards(work: Work) -> list[PlannedShard]:
    """Divide the examples into shards, whose sizes differ by at most one within a split and bin."""
    options, shards = work.options, []
    for group in range(len(SHARD_SPLITS) * len(options.bins)):
        split, longest = SHARD_SPLITS[group // len(options.bins)], options.bins[group % len(options.bins)]
        keys = np.sort(np.concatenate([np.zeros(0, np.uint64), *(_of_group(run, group)[1] for run in _runs(work))]))
        number = -(-len(keys) // MOST_EXAMPLES)
        if split == SHARD_SPLITS[0]:
            number = min(len(keys), options.shards or max(number, LEAST_SHARDS))
        firsts = [int(keys[place * len(keys) // number]) for place in range(number)]
        for place, (first, end) in enumerate(zip_longest(firsts, firsts[1:])):
            shards.append(PlannedShard(f"{split}/{longest}-{place:05d}.parquet", group, first, end))
    return shards


def write_shard(work: Work, shard: PlannedShard) -> StageResult:
    """Write a shard, and return its facts for the manifest."""
    parts = []
    for run in _runs(work):
        examples, keys = _of_group(run, shard.group)
        low = np.searchsorted(keys, np.uint64(shard.first))
        high = len(keys) if shard.end is None else np.searchsorted(keys, np.uint64(shard.end))
        parts.append(examples.slice(low, high - low))
    examples = pa.concat_tables(parts).combine_chunks()
    order = np.argsort(examples["key"].to_numpy(), kind="stable")
    table = examples.drop_columns(["group", "key"]).take(order)
    path = work.folder / shard.name
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        parquet.write_table(table, temporary, row_group_size=ROWS, compression="zstd", use_dictionary=False)
        digest = sha256_of(temporary)
    tokens = int(pc.sum(pc.list_value_length(table["ids"])).as_py())
    return {"examples": len(table), "tokens": tokens, "sha256": digest}, [path]
