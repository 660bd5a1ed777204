"""What a shard directory holds: counts, lengths, what was left out, an example. `utils.corpora.inspect` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.corruption import Corruption, CorruptionOptions
from utils.data.masking import Masking, MaskingOptions
from utils.data.shard_format import MLM_NSP, SPECIAL, TOKENIZER
from utils.data.shards import Manifest, ShardReader

_BARS = 40  # characters of the longest


def inspect_shards(folder: Path) -> dict[str, Any]:
    """Figures of the manifest and, since any file of a bin is a random part of it, lengths from the first of each.

    Raises:
        InputError: a file is missing or cut off.
        RunError: it is damaged.
    """
    read = Manifest.read(folder)
    manifest = read.values
    facts = {name: manifest[name] for name in ("sequence_length", "vocab_size", "seed", "documents", "source")}
    facts |= {"shard_dir": str(folder), "bins": []}
    for split, files in manifest["splits"].items():
        for longest in manifest["bins"]:
            of_bin = [file for file in files if file["bin"] == longest]
            if not of_bin:
                continue
            first = next(shard for shard in read.splits[split] if shard.bin == longest)
            rows = list(ShardReader(folder, [first]))
            examples, tokens = (sum(file[unit] for file in of_bin) for unit in ("examples", "tokens"))
            facts["bins"].append(
                {
                    "split": split,
                    "bin": longest,
                    "files": len(of_bin),
                    "examples": examples,
                    "tokens": tokens,
                    "filled": (tokens + SPECIAL[read.task] * examples) / (longest * examples),
                    "sentences": float(np.mean([len(row.sentences) for row in rows])),
                    "lengths": np.percentile([len(row.ids) + SPECIAL[read.task] for row in rows], (5, 50, 95)).tolist(),
                }
            )
    tokenizer = (BertTokenizer if read.task == MLM_NSP else BartTokenizer).from_pretrained(folder / TOKENIZER)
    _, ids, sentences, _ = row = rows[0]  # the last bin's file, of the split that is last
    facts["example"] = tokenizer.batch_decode([part.tolist() for part in np.split(ids, np.cumsum(sentences)[:-1])])
    if read.task == MLM_NSP:
        noise = Masking(MaskingOptions(), tokenizer, len(ids), seed=0)
    else:
        noise = Corruption(CorruptionOptions(), tokenizer, seed=0)
    facts["corrupted"] = tokenizer.decode(noise.pairs([row], 0)[0].source[1:-1])
    return facts


def describe_shards(facts: Mapping[str, Any]) -> str:
    """What `inspect_shards` found, for people."""
    documents, files = facts["documents"], facts["source"]["files"]
    most = max(row["examples"] for row in facts["bins"])
    head = ["split", "bin", "files", "examples", "tokens", "filled", "sentences", "5 %", "50 %", "95 %", ""]
    table = [
        [
            *(row["split"], row["bin"], row["files"], f"{row['examples']:,}", f"{row['tokens']:,}"),
            *(f"{row['filled']:.1%}", f"{row['sentences']:.1f}", *(f"{length:.0f}" for length in row["lengths"])),
            "#" * -(-_BARS * row["examples"] // most),
        ]
        for row in facts["bins"]
    ]
    left_out = [f"{count:,} {reason}" for reason, count in documents["dropped"].items() if count]
    return "\n\n".join(
        [
            f"{facts['shard_dir']}: examples of at most {facts['sequence_length']:,} tokens of a vocabulary of "
            f"{facts['vocab_size']:,}, seed {facts['seed']}\n{documents['kept']:,} documents of {len(files):,} files; "
            f"left out: {', '.join(left_out) or 'none'}",
            tabulate([head, *table], tablefmt="plain", colalign=("left", *["right"] * 9, "left"), disable_numparse=True)
            + "\nLengths and bins count special tokens; sentences, or segments, are those of an example, on average.",
            "An example, a sentence or segment a line:\n"
            + "\n".join(f"  {sentence.strip()}" for sentence in facts["example"])
            + f"\nThe same with the noise that run_pretraining.py makes by default:\n  {facts['corrupted'].strip()}",
        ]
    )
