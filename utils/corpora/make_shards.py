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
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from multiprocessing.pool import ThreadPool
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
from utils.app.errors import unwritable
from utils.app.output_files import LOCK, difference, file_digest, held, writable_folder
from utils.app.progress import progress, start_log
from utils.app.unfinished import Unfinished
from utils.corpora import shard_stages as stages
from utils.corpora.documents import PIECE, find_files, pieces_of
from utils.corpora.shard_cluster import Numbers, cluster_of, run_stage
from utils.corpora.shard_options import WORK, MakeShardsOptions, Work
from utils.data.options import SHARDS_VAL_RATIO, ShardOptions
from utils.data.shard_format import DENOISING, FORMAT, MANIFEST, ROWS, TOKENIZER
from utils.data.token_cache import cache_folder, made_once

logger = logging.getLogger("utils.corpora.make_shards")
DONE = "done.jsonl"  # in WORK: what is done of a run that could go on


def make_shards(options: MakeShardsOptions, tokenizer: PretrainedTokenizer | None = None) -> None:
    """Make a directory of shards, or go on with one; the vocabulary may be loaded already."""
    held_out = find_files("val_input", options.val_input) if options.val_input else []
    output, places = options.output.resolve(), {path.resolve() for path in held_out}
    files = [(path, True) for path in held_out]
    for path in find_files("input", options.input):
        if path.resolve() not in places and output not in path.resolve().parents:  # the output may lie among texts
            files.append((path, False))
    if tokenizer is None:
        tokenizer = (BartTokenizer if options.task == DENOISING else BertTokenizer).from_pretrained(options.tokenizer)
    plan: dict[str, Any] = {
        "format": FORMAT,
        "task": options.task,
        "sequence_length": options.sequence_length,
        "bins": list(options.bins),
        "vocabulary": hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        "vocab_size": len(tokenizer),
        "seed": options.seed,
        "options": options.lasting,
    }
    with ThreadPool() as pool:
        contents = [*progress("comparing", len(files), "files", pool.imap(file_digest, [path for path, _ in files]))]
    sources = [
        {"name": path.name, "bytes": path.stat().st_size, "content": content, "split": stages.SHARD_SPLITS[is_val]}
        for (path, is_val), content in zip(files, contents, strict=True)
    ]
    if _is_made(options.output, plan, sources):
        print(f"{options.output}: is there already")
        return
    folder = writable_folder("--output", options.output).resolve()
    record = plan | {"source": sources}
    work = Work(options, folder, plan["vocabulary"], "uint16" if len(tokenizer) <= 1 << 16 else "uint32")
    with _alone(options.output, record) as done, cluster_of(options, folder) as client:
        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
        tokenizer.save_pretrained(folder / TOKENIZER)
        try:
            manifest = plan | _make(partial(run_stage, client, done, work), work, files, sources)
            write_json(folder / MANIFEST, manifest)
        except InputError:  # this run cannot go on, but one with other input may follow
            done.finish()
            raise
        done.finish()
    _report(options.output, manifest)


def _is_made(folder: Path, plan: Mapping[str, Any], sources: Sequence[dict[str, Any]]) -> bool:
    """True of a folder with whole shards of these texts and options; InputError where it holds something else."""
    if (folder / MANIFEST).exists():
        manifest = read_json(folder / MANIFEST)
        of_files = [manifest.get("source", {}).get("files", []), sources]
        stored, current = ({f"{n}, {file['name']},": file for n, file in enumerate(files, 1)} for files in of_files)
        stored = {name: manifest.get(name) for name in plan} | {"source": stored}
        if changed := difference(stored, {**plan, "source": current}):
            raise InputError(f"--output {folder} holds shards made otherwise ({changed}): name another folder")
        shutil.rmtree(folder / WORK, ignore_errors=True)
        return True
    if folder.is_dir() and any(folder.iterdir()) and not (folder / WORK).is_dir():
        raise InputError(f"--output {folder}: other files are there; it takes a new folder, or an unfinished run's")
    return False


@contextmanager
def _alone(folder: Path, record: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Keep other runs out of the folder, and yield what is done of this one, whose files stay until it is whole."""
    work = folder / WORK
    try:
        for stage in ("documents", "examples"):
            (work / stage).mkdir(parents=True, exist_ok=True)
        with held(work / LOCK, f"--output {folder}: another run is making it"):
            done = Unfinished(work / DONE, record, f"name another --output, or delete {folder}")
            try:
                yield done
            finally:
                done.close()
                if not done.path.exists():
                    shutil.rmtree(work, ignore_errors=True)
                    if not (folder / MANIFEST).exists():
                        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise unwritable(str(error.filename or folder), error) from None


def _make(
    run: Callable[..., list[Numbers]], work: Work, files: Sequence[tuple[Path, bool]], sources: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Run all stages by `run`; return the part of the manifest that depends on the texts."""
    options = work.options
    pieces = chain.from_iterable(pieces_of(path, options.text_field, is_val) for path, is_val in files)
    numbered = {f"{number:06d}": (number, piece) for number, piece in enumerate(pieces)}
    read = run("reading", stages.hash_documents, numbered)
    counts = [record["documents"] for record in read]
    dropped = sum((Counter(record["dropped"]) for record in read), Counter())
    if not sum(counts):
        raise InputError(f"--input {' '.join(options.input)}: no text in it{_reasons(dropped)}")
    stages.find_repeats(work)
    firsts = np.cumsum([0, *counts])[:-1].tolist()
    lowest = min((record["lowest"] for record in read if record["lowest"]), default=0.0)
    # At least one document is held out, by its hash too.
    ratio = max(options.val_ratio, math.nextafter(lowest, 1)) if options.val_ratio else 0.0
    with_firsts = {name: (*piece, first, ratio) for (name, piece), first in zip(numbered.items(), firsts, strict=True)}
    made = run("tokenising", stages.make_examples, with_firsts)
    dropped = sum((Counter(record["dropped"]) for record in made), dropped)
    kept = sum(record["kept"] for record in made)
    shards = stages.plan_shards(work)
    purposes = {"train": "to train on"} | ({"val": "to hold out"} if options.val_input or options.val_ratio else {})
    for split, purpose in purposes.items():
        if not any(shard.name.startswith(f"{split}/") for shard in shards):
            raise InputError(
                f"--input {' '.join(options.input)}: no text is left {purpose}{_reasons(dropped)}; documents of all: "
                f"{kept:,}, and an empty line ends one"
            )
    written = run("writing", stages.write_shard, {shard.name.replace("/", "-"): (shard,) for shard in shards})
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in stages.SHARD_SPLITS}
    for shard, record in zip(shards, written, strict=True):
        facts = {"file": shard.name, "bin": options.bins[shard.group % len(options.bins)]}
        splits[shard.name.partition("/")[0]].append(facts | record)
    contents = "".join(source["content"] for source in sources)
    return {
        "source": {"hash": xxhash.xxh3_128_hexdigest(contents.encode()), "files": sources},
        "documents": {"kept": kept, "dropped": dict(sorted(dropped.items()))},
        "rows": ROWS,
        "short_examples": sum(record["short"] for record in made),
        "splits": splits,
    }


def _reasons(dropped: Mapping[str, int]) -> str:
    return "".join(f", {count:,} {reason}" for reason, count in sorted(dropped.items()) if count)


def _report(folder: Path, manifest: Mapping[str, Any]) -> None:
    train, val = (sum(file["examples"] for file in manifest["splits"][split]) for split in stages.SHARD_SPLITS)
    documents = manifest["documents"]
    print(
        f"{folder}: {train:,} examples to train on and {val:,} held out, of at most {manifest['sequence_length']:,} "
        f"tokens, from {documents['kept']:,} documents"
    )
    if not val:
        print("  nothing is held out, and run_pretraining.py needs held-out documents for validation")
    left_out = {f"documents: {reason}": count for reason, count in documents["dropped"].items()}
    for reason, count in {**left_out, "examples: too short": manifest["short_examples"]}.items():
        if count:
            print(f"  {count:>10,}  left out, {reason}")


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
                output=folder,
                task=task,
                sequence_length=sequence_length,
                val_ratio=val_ratio,
                text_field=text_field,
                # Processes take seconds to start, in which one alone reads a piece.
                workers=None if sum(file.stat().st_size for file in files) > PIECE else 0,
            )
            make_shards(made_with, tokenizer)
        except InputError as error:
            message = str(error).replace("--input ", "--data_dir ")
            raise InputError(message.replace("--sequence_length", "--max_source_length")) from None

    contents = [(str(file.relative_to(place.parent)), file_digest(file)) for file in files]
    identity = FORMAT, task, sequence_length, val_ratio, text_field, tokenizer.to_json(), contents
    cache = cache_folder(place if place.is_dir() else place.parent, options.cache_dir)
    folder = str(made_once(cache, f"{place.name}-shards", identity, MANIFEST, make))
    logger.info("shards of %s: %s", options.data_dir, folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(MakeShardsOptions, argv, "Make shards for pretraining from raw text.")
    start_log()
    make_shards(options)
