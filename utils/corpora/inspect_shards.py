"""The contents of a directory of shards: counts, lengths, documents left out, an example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.corruption import Corruption
from utils.data.masking import Masking
from utils.data.options import CorruptionOptions, MaskingOptions
from utils.data.shard_format import DENOISING, MLM_NSP, SPECIAL, TOKENIZER
from utils.data.shards import Manifest, ShardReader

_BARS = 40  # characters of the longest


def inspect_shards(folder: Path) -> dict[str, Any]:
    """Gather the counts of the manifest and, since any file of a bin is a random part of it, lengths in its first file.

    Raises:
        InputError: a file is missing or cut off.
        RunError: it is damaged.
    """
    manifest = Manifest.read(folder)
    stored = manifest.values
    facts = {name: stored[name] for name in ("sequence_length", "vocab_size", "seed", "documents", "source")}
    special = SPECIAL[manifest.task]
    facts |= {"shard_dir": str(folder), "bins": []}
    for split, files in stored["splits"].items():
        for longest in stored["bins"]:
            of_bin = [file for file in files if file["bin"] == longest]
            if not of_bin:
                continue
            first = next(shard for shard in manifest.splits[split] if shard.bin == longest)
            rows = list(ShardReader(folder, [first]))
            examples, tokens = (sum(file[unit] for file in of_bin) for unit in ("examples", "tokens"))
            facts["bins"].append(
                {
                    "split": split,
                    "bin": longest,
                    "files": len(of_bin),
                    "examples": examples,
                    "tokens": tokens,
                    "filled": (tokens + special * examples) / (longest * examples),
                    "sentences": float(np.mean([len(row.sentences) for row in rows])),
                    "lengths": np.percentile([len(row.ids) + special for row in rows], (5, 50, 95)).tolist(),
                }
            )
    tokenizer = (BartTokenizer if manifest.task == DENOISING else BertTokenizer).from_pretrained(folder / TOKENIZER)
    row = rows[0]  # of the last split's last bin
    sentences = np.split(row.ids, np.cumsum(row.sentences)[:-1])
    facts["example"] = tokenizer.batch_decode([sentence.tolist() for sentence in sentences])
    if manifest.task == DENOISING:
        noise = Corruption(CorruptionOptions(), tokenizer, seed=0)
    else:
        noise = Masking(MaskingOptions(), tokenizer, len(row.ids), seed=0, of_pairs=manifest.task == MLM_NSP)
    facts["corrupted"] = tokenizer.decode(noise.pairs([row], 0)[0].source[1:-1])
    return facts


def describe_shards(facts: Mapping[str, Any]) -> str:
    """Write the facts of `inspect_shards` for people."""
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
