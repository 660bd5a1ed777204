"""Shards for pretraining from raw text: `python -m utils.corpora.make_shards --input PATH ... --output DIR ...`.

A shard is a Parquet file of examples: the tokens of sentences of one document, or of two segments, and their lengths.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.make_shards")

import hashlib
import logging
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from bart.errors import InputError
from bart.files import as_named, read_json, write_json
from bart.tokenization.tokenization_bart import BartTokenizer
from bart.tokenization.tokenizer import PretrainedTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.app.cli import parse_dataclass
from utils.app.output_files import LOCK, difference, file_digest, held, writable_folder
from utils.app.progress import start_log
from utils.app.stores import fetch, publish
from utils.app.unfinished import Unfinished
from utils.corpora import shard_stages as stages
from utils.corpora.documents import PIECE, Piece, find_files, in_tasks, pieces_of
from utils.corpora.shard_cluster import Numbers, cluster_of, computed, run_stage, shuffled
from utils.corpora.shard_options import WORK, MakeShardsOptions, Work
from utils.data.options import SHARDS_VAL_RATIO, ShardOptions
from utils.data.shard_format import DENOISING, FORMAT, MANIFEST, ROWS, TOKENIZER
from utils.data.token_cache import cache_folder, made_once

logger = logging.getLogger("utils.corpora.make_shards")
DONE = "done.jsonl"  # in WORK: what is done of a run that could go on


def make_shards(options: MakeShardsOptions, tokenizer: PretrainedTokenizer | None = None) -> None:
    """Make a directory of shards, or go on with one; the vocabulary may be loaded already."""
    folder = Path(fetch(options.output, may_be_missing=True))
    held_out = [file._replace(held_out=True) for file in find_files("val_input", options.val_input)]
    inside = f"{folder.resolve()}/", f"{options.output.rstrip('/')}/"  # the output may lie among texts
    inputs = [file for file in find_files("input", options.input) if not file.place.startswith(inside)]
    files = [*{file.place: file for file in [*held_out, *inputs, *held_out]}.values()]
    if tokenizer is None:
        tokenizer = (BartTokenizer if options.task == DENOISING else BertTokenizer).from_pretrained(options.tokenizer)
    vocabulary = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
    plan: dict[str, Any] = {"format": FORMAT, "task": options.task, "sequence_length": options.sequence_length}
    plan |= {"bins": [*options.bins], "vocabulary": vocabulary, "vocab_size": len(tokenizer)}
    plan |= {"seed": options.seed, "options": options.lasting, "rows": ROWS}
    is_made = (folder / MANIFEST).exists()
    if not (is_made or (folder / WORK).is_dir()) and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"--output {folder}: other files are there; it takes a new folder, or an unfinished run's")
    with ExitStack() as stack:
        if not is_made:
            folder = writable_folder("--output", folder).resolve()
            stack.enter_context(held(folder / WORK / LOCK, f"--output {folder}: another run is making it"))
            stack.callback(_clear, folder)
        client = stack.enter_context(cluster_of(options, None if is_made else folder / WORK / "dask"))
        files, plan["source"] = _measured(partial(computed, client, "comparing"), files)
        if is_made:
            manifest = read_json(folder / MANIFEST)
            if changed := difference({name: manifest.get(name) for name in plan}, plan):
                raise InputError(f"--output {folder} holds shards made otherwise ({changed}): name another folder")
            shutil.rmtree(folder / WORK, ignore_errors=True)
            print(f"{options.output}: is there already")
            return
        kind = "uint16" if len(tokenizer) <= 1 << 16 else "uint32"
        work, otherwise = Work(options, folder, vocabulary, kind), f"name another --output, or delete {folder}"
        done = Unfinished(folder / WORK / DONE, plan, otherwise)
        stack.callback(done.close)
        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
        tokenizer.save_pretrained(folder / TOKENIZER)
        manifest = plan | _make(partial(run_stage, client, done, work), done, work, files)
        publish(options.output)
        write_json(folder / MANIFEST, manifest)
        done.finish()
    publish(options.output)
    train, val = (sum(file["examples"] for file in manifest["splits"][split]) for split in stages.SHARD_SPLITS)
    kept, dropped = manifest["documents"].values()
    print(
        f"{options.output}: {train:,} examples to train on and {val:,} held out, of at most "
        f"{options.sequence_length:,} tokens, from {kept:,} documents\n"
        f"documents left out: {_reasons(dropped)[2:] or 'none'}\n"
        f"examples left out: {manifest['short_examples']:,} with fewer tokens than --min_tokens"
    )


def _measured(
    compute: Callable[..., Iterator[tuple[str, Any]]], files: Sequence[Piece]
) -> tuple[list[Piece], dict[str, Any]]:
    """The files with the sizes of their texts, and the facts of them that the manifest has."""
    calls = {str(number): (stages.measure, task) for number, task in enumerate(in_tasks(files))}
    found = dict(compute(calls))
    measured = [file for name in calls for file in found[name]]
    facts = [
        {"name": Path(place).name, "bytes": size, "content": content, "split": stages.SHARD_SPLITS[held_out]}
        for (place, _, size, held_out), content in measured
    ]
    contents = "".join(content for _, content in measured)
    return [file for file, _ in measured], {"hash": xxhash.xxh3_128_hexdigest(contents.encode()), "files": facts}


def _clear(folder: Path) -> None:
    """Remove the files of a run that is whole, or cannot go on."""
    if not (folder / WORK / DONE).exists():
        shutil.rmtree(folder / WORK, ignore_errors=True)
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder / TOKENIZER, ignore_errors=True)


def _make(run: Callable[..., list[Numbers]], done: Unfinished, work: Work, files: Sequence[Piece]) -> dict[str, Any]:
    """Run all stages by `run`; return the part of the manifest that depends on the texts."""
    options, bins = work.options, work.options.bins
    groups = in_tasks(piece for file in files for piece in pieces_of(file)) or [[]]
    empty, last = stages.frame(stages.TEXTS.empty_table()), 2**64 - 1
    bounds = [np.uint64(place * last // len(groups)) for place in range(len(groups) + 1)]
    texts = shuffled(stages.read_texts, groups, empty, bounds, text_field=options.text_field)
    names, ratio = [f"{place:06d}" for place in range(len(groups))], options.val_ratio
    while True:
        made = run("tokenising", stages.make_examples, {f"{name} {ratio}": (name, ratio) for name in names}, texts)
        totals = np.sum([record["groups"] for record in made], axis=0).tolist()
        lowest = min(chain.from_iterable(record["lowest"] for record in made), default=0.0)
        if any(totals[len(bins) :]) or not 0 < ratio <= lowest:
            break
        ratio = math.nextafter(lowest, 1)  # at least one document is held out, by its hash too
    dropped = sum((Counter(record["dropped"]) for record in made), Counter())
    kept, wants_val = sum(record["kept"] for record in made), options.val_input or options.val_ratio
    for of_split, purpose in ((totals[: len(bins)], "train on"), (totals[len(bins) :], "hold out")):
        if not any(of_split) and (wants_val or purpose == "train on"):
            done.finish()  # a run with other input may follow
            raise InputError(
                f"--input {' '.join(options.input)}: no text is left to {purpose}{_reasons(dropped)}; "
                f"documents of all: {kept:,}, and an empty line ends one"
            )
    shards = stages.plan_shards(options, totals)
    numbers = np.bincount([*shards.values()], minlength=len(totals)).tolist()
    empty, bounds = stages.frame(stages.EXAMPLES.empty_table()), range(len(shards) + 1)
    examples = shuffled(stages.read_examples, names, empty, bounds, work=work, numbers=numbers)
    tasks = {name.replace("/", "-"): (name,) for name in shards}
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in stages.SHARD_SPLITS}
    written = run("writing", stages.write_shard, tasks, examples)
    for (name, group), record in zip(shards.items(), written, strict=True):
        if record["examples"]:
            splits[name.partition("/")[0]].append({"file": name, "bin": bins[group % len(bins)], **record})
    return {
        "documents": {"kept": kept, "dropped": dict(sorted(dropped.items()))},
        "short_examples": sum(record["short"] for record in made),
        "splits": splits,
    }


def _reasons(dropped: Mapping[str, int]) -> str:
    return "".join(f", {count:,} {reason}" for reason, count in sorted(dropped.items()) if count)


def is_text(data_dir: str) -> bool:
    """True of a file, and of a folder without shards."""
    place = Path(data_dir)
    return place.is_file() or (place.is_dir() and not any((place / name).exists() for name in (MANIFEST, WORK)))


def shards_of_text(options: ShardOptions, tokenizer: PretrainedTokenizer, task: str, sequence_length: int) -> str:
    """Make shards of a file or a folder of text, once, in the folder of caches, and return their directory.

    Which documents are held out depends on the texts alone, whatever the seed of the run.
    """
    place, text_field = as_named(options.data_dir), options.text_field or "text"
    val_ratio = options.val_ratio or SHARDS_VAL_RATIO
    files = find_files("data_dir", [options.data_dir])

    def make(folder: Path) -> None:
        try:
            made_with = MakeShardsOptions(
                input=(options.data_dir,),
                tokenizer="",
                output=str(folder),
                task=task,
                sequence_length=sequence_length,
                val_ratio=val_ratio,
                text_field=text_field,
                # Processes take seconds to start, in which one alone reads a piece.
                workers=None if sum(file.size for file in files) > PIECE else 0,
            )
            make_shards(made_with, tokenizer)
        except InputError as error:
            message = str(error).replace("--input ", "--data_dir ")
            raise InputError(message.replace("--sequence_length", "--max_source_length")) from None

    contents = [(os.path.relpath(file.place, place.parent), file_digest(Path(file.place))) for file in files]
    identity = FORMAT, task, sequence_length, val_ratio, text_field, tokenizer.to_json(), contents
    cache = cache_folder(place if place.is_dir() else place.parent, options.cache_dir)
    folder = str(made_once(cache, f"{place.name}-shards", identity, MANIFEST, make))
    logger.info("shards of %s: %s", options.data_dir, folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(MakeShardsOptions, argv, "Make shards for pretraining from raw text.")
    start_log()
    make_shards(options)
