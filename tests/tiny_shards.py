"""Shards for pretraining that are made in milliseconds, in the format of `utils.corpora.make_shards`."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bart.tokenization.tokenization_bart import BartTokenizer
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.shard_format import DENOISING, MLM_NSP, SPECIAL

WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()
ROWS = 8  # of a row group; the real ones have up to 1,024


def tiny_tokenizer(vocab_size: int = 300, task: str = DENOISING) -> PretrainedTokenizer:
    """A vocabulary in which some words are one token and others several."""
    if task != DENOISING:
        return BertTokenizer.train([" ".join(WORDS) + "."] * 3, 60)
    return BartTokenizer.train([" ".join(WORDS)] * 3, vocab_size)


def write_tiny_shards(
    folder: Path,
    *,
    bins: Sequence[int] = (16, 32),
    files: int = 2,
    train: int = 21,
    val: int = 5,
    seed: int = 0,
    tokenizer: BartTokenizer | None = None,
    task: str = DENOISING,
) -> PretrainedTokenizer:
    """Write a shard directory; return its vocabulary.

    Args:
        bins: the longest example of each in tokens, `<s>` and `</s>` included; each example fits no smaller one. The
            last is the sequence length.
        files: of each bin in the train split; val has one.
        train, val: examples of each bin, no two alike.
        task: mlm_nsp makes pairs, with labels at random.
    """
    rng = random.Random(seed)
    tokenizer = tokenizer or tiny_tokenizer(task=task)
    tokenizer.save_pretrained(folder / "tokenizer")
    splits: dict[str, list[dict[str, object]]] = {"train": [], "val": []}
    for smaller, longest in pairwise((2, *bins)):
        special = SPECIAL[task]
        rows = _examples(rng, tokenizer, max(2, smaller - special + 1), longest - special, train + val)
        if task == MLM_NSP:
            rows = [[[row[0][0]], [*row[0][1:], *chain.from_iterable(row[1:])]] for row in rows]
        held_out, rest = rows[:val], rows[val:]
        for split, parts in (("train", np.array_split(range(train), files)), ("val", [np.arange(val)])):
            for shard, numbers in enumerate(parts):
                mine = [(held_out if split == "val" else rest)[number] for number in numbers]
                labels = [rng.randint(0, 1) for _ in mine] if task == MLM_NSP else None
                splits[split].append(_write(folder, f"{split}/{longest}-{shard:05}.parquet", longest, mine, labels))
    manifest = {
        "format": 1,
        "task": task,
        "sequence_length": bins[-1],
        "bins": list(bins),
        "vocabulary": hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        "vocab_size": len(tokenizer),
        "seed": seed,
        "options": {},
        "source": {"hash": "0" * 64, "files": []},
        "documents": {"kept": (train + val) * len(bins), "dropped": {}},
        "rows": ROWS,
        "splits": splits,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return tokenizer


def _examples(
    rng: random.Random, tokenizer: PretrainedTokenizer, least: int, most: int, count: int
) -> list[list[list[int]]]:
    """Examples of `least` to `most` tokens, as sentences of ids."""
    examples: list[list[list[int]]] = []
    while len(examples) < count:
        sentences: list[list[int]] = []
        length = rng.randint(least, most)
        while (room := length - sum(map(len, sentences))) > 0:
            text = " ".join(rng.choices(WORDS, k=rng.randint(2, 6))) + "."
            text = f" {text}" if sentences else text  # joined, the sentences are the text
            sentences.append(tokenizer([text]).input_ids[0][1:-1][:room])
        if sentences not in examples:
            examples.append(sentences)
    return examples


def _write(
    folder: Path, name: str, longest: int, rows: Sequence[Sequence[Sequence[int]]], labels: list[int] | None
) -> dict[str, object]:
    """Write a shard; return what the manifest says of it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [[token for sentence in row for token in sentence] for row in rows]
    lengths = [[len(sentence) for sentence in row] for row in rows]
    kind = pa.list_(pa.uint16())
    columns = {"ids": pa.array(ids, kind), "sentences": pa.array(lengths, kind)}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.uint8())
    pq.write_table(pa.table(columns), path, ROWS, write_page_checksum=True)
    return {
        "file": name,
        "bin": longest,
        "examples": len(rows),
        "tokens": sum(map(len, ids)),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
