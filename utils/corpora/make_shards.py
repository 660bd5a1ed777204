"""Shards for pretraining from raw text: `python -m utils.corpora.make_shards --input PATH ... --output DIR ...`.

A shard is a Parquet file of examples: the tokens of some sentences of one document, and how many each sentence has; or,
for BERT, those of two segments, of which the second one follows the first or is from another document.
Dask runs the stages of `shard_stages`, on processes of this machine or on a cluster whose machines share the folders.
Every task leaves its files and a record of them, so that a run goes on with what one that was killed has finished.
"""

from __future__ import annotations

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import hashlib
import logging
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from filelock import FileLock, Timeout

from bart.errors import InputError
from bart.files import read_json, write_json
from utils.app.cli import parse_dataclass, run_main
from utils.app.errors import RunError, brief, unwritable
from utils.app.progress import progress, start_log
from utils.corpora.documents import Piece, find_files, pieces_of
from utils.corpora.shard_options import LEAST_SHARDS, MOST_EXAMPLES, WORK, Options, Work
from utils.corpora.shard_stages import (
    HASHES_AT_ONCE,
    SPLITS,
    Record,
    Shard,
    count_keys,
    find_repeats,
    hash_documents,
    make_examples,
    write_shard,
)
from utils.data.shard_format import DENOISING, FORMAT, MANIFEST, MLM_NSP, TOKENIZER
from utils.runs.outputs import difference, writable_folder

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

logger = logging.getLogger("utils.corpora.make_shards")
OWN = "options.json"  # in WORK: the record of a run that could go on
CONNECT_SECONDS = 5
Tasks = Mapping[str, tuple[object, ...]]  # name -> arguments


def make_shards(options: Options) -> None:
    """Make a directory of shards, or go on with one.

    Raises:
        InputError: the input cannot be read or holds no text, the folder holds something else, or no scheduler answers.
        RunError: the disk is full, or workers died.
    """
    # These load torch, which the processes do without.
    from bart.tokenization.tokenization_bart import BartTokenizer
    from bert.tokenization.tokenization_bert import BertTokenizer

    held_out = find_files("val_input", options.val_input) if options.val_input else []
    training = [path for path in find_files("input", options.input) if path not in held_out]
    files = [*((path, True) for path in held_out), *((path, False) for path in training)]
    tokenizer = (BertTokenizer if options.task == MLM_NSP else BartTokenizer).from_pretrained(options.tokenizer)
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
    sources = [{"name": path.name, "bytes": path.stat().st_size, "split": SPLITS[is_val]} for path, is_val in files]
    if _is_made(options.output, plan, sources):
        print(f"{options.output}: is there already")
        return
    folder = writable_folder("--output", options.output).resolve()
    own = plan | {"files": {str(path): path.stat().st_mtime_ns for path, _ in files}, "source": sources}
    work = Work(options, folder, plan["vocabulary"], plan["vocab_size"])
    with _alone(options.output, own), _cluster(options, folder) as client:
        write_json(folder / WORK / OWN, own)
        tokenizer.save_pretrained(folder / TOKENIZER)
        try:
            manifest = plan | _make(client, work, files, sources)
            for leftover in folder.glob("*/.*.tmp"):  # of a process that was killed
                leftover.unlink()
            write_json(folder / MANIFEST, manifest)
        except InputError:  # other input is to come
            shutil.rmtree(folder / TOKENIZER)
            (folder / WORK / OWN).unlink()
            raise
        (folder / WORK / OWN).unlink()
    _report(options.output, manifest)


def _is_made(folder: Path, plan: Mapping[str, Any], sources: Sequence[Record]) -> bool:
    """Whether the folder holds whole shards of these texts and options.

    Raises:
        InputError: it holds something else.
    """
    if (folder / MANIFEST).exists():
        found = {"task": DENOISING, **read_json(folder / MANIFEST)}
        stored = {name: found.get(name) for name in plan}
        of_files = found.get("source", {}).get("files", [])
        stored["source"] = [{name: file[name] for name in ("name", "bytes", "split")} for file in of_files]
        _refuse(folder, difference(stored, {**plan, "source": list(sources)}), "holds shards made otherwise")
        shutil.rmtree(folder / WORK, ignore_errors=True)
        return True
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder}: a file is there; it takes a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / WORK).is_dir():
        raise InputError(f"--output {folder}: other files are there; it takes a new folder, or an unfinished run's")
    return False


def _refuse(folder: Path, found: str | None, what: str) -> None:
    if found:
        raise InputError(f"--output {folder} {what} ({found}): name another folder, or delete it")


@contextmanager
def _alone(folder: Path, own: dict[str, Any]) -> Iterator[None]:
    """Keep other runs out of the folder, and refuse what a run with other texts or options has left there.

    What lies there of a run that could not go on stays as long as its record OWN does.
    """
    work = folder / WORK
    try:
        for name in ("documents", "repeats", "examples", "shards"):
            (work / name).mkdir(parents=True, exist_ok=True)
        with FileLock(work / ".lock", timeout=0):
            if (work / OWN).exists():
                _refuse(
                    folder,
                    difference({"task": DENOISING, **read_json(work / OWN)}, own),
                    "holds what another run has begun",
                )
            try:
                yield
            finally:
                if not (work / OWN).exists():
                    shutil.rmtree(work, ignore_errors=True)
    except Timeout:
        raise InputError(f"--output {folder}: another run is making it") from None
    except OSError as error:
        if error.errno is None:
            raise
        raise unwritable(str(error.filename or folder), error) from None


@contextmanager
def _cluster(options: Options, folder: Path) -> Iterator[Client]:
    """A client of a running cluster, or of one that lasts as long as it."""
    import dask
    from distributed import Client

    # Of a cluster that is shut down, Dask says much that is of no use.
    dask.config.set({"logging.distributed": "critical", "distributed.comm.timeouts.connect": f"{CONNECT_SECONDS}s"})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if options.scheduler is not None:
        try:
            client = Client(options.scheduler, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, TypeError) as error:  # of an address that is none, too
            reason = brief(error) or "no answer"
            raise InputError(f"--scheduler {options.scheduler}: no Dask scheduler can be reached ({reason})") from None
        with client:
            if not client.scheduler_info()["workers"]:
                logger.info("%s has no workers yet: waiting for the first", options.scheduler)
            else:
                try:  # a worker that cannot load a task ends, and the task waits for another
                    client.run(load_stages)
                except ModuleNotFoundError:
                    raise _lacking("workers") from None
            yield client
        return
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        cluster = thread.submit(_local_cluster, options.workers, folder / WORK / "dask")
        stack.callback(lambda: cluster.result().close())
        yield stack.enter_context(Client(cluster.result()))


def _local_cluster(workers: int | None, folder: Path) -> LocalCluster:
    """Processes that do not heed Ctrl-C, which reaches all processes of a terminal: they wait to be ended.

    They inherit from this thread that it is blocked. A thread other than the main one must start them: a signal that
    comes meanwhile would wake none of the threads that wait for it.
    """
    from dask.system import CPU_COUNT
    from distributed import LocalCluster

    resource_tracker.ensure_running()  # which unblocks it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return LocalCluster(
        n_workers=workers or CPU_COUNT,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",  # a port that is free
        local_directory=str(folder),
        silence_logs=logging.CRITICAL,
    )


def load_stages() -> None:
    """Load what workers call."""
    import utils.corpora.shard_stages  # noqa: F401


def _lacking(who: str) -> RunError:
    root = Path(__file__).resolve().parents[2]
    return RunError(f"--scheduler: its {who} cannot load this program; start them as it is, with PYTHONPATH={root}")


def recorded(function: Callable[..., Record], record: str, *arguments: object) -> None:
    """Call a function of a stage, and write what it returns: the sign that it has finished."""
    write_json(Path(record), function(*arguments))


def _run(
    client: Client, what: str, function: Callable[..., Record], work: Work, stage: str, tasks: Tasks
) -> list[Record]:
    """Run the tasks of a stage that no run has finished yet; the records of all, in order."""
    from distributed import CancelledError, as_completed
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    records = {name: work.path(stage, f"{name}.json") for name in tasks}
    todo = [name for name, record in records.items() if not record.exists()]
    futures = [client.submit(recorded, function, str(records[name]), work, *tasks[name], pure=False) for name in todo]
    with progress(what, len(tasks), "tasks") as shown:
        shown.begin(len(tasks) - len(todo))
        try:
            for future in as_completed(futures):
                future.result()
                future.release()
                shown.update()
        except (KilledWorker, CommClosedError, CancelledError) as error:
            raise RunError(
                f"{what}: worker processes or their scheduler have died, perhaps for want of memory "
                f"({type(error).__name__}); the same command goes on"
            ) from None
        except RuntimeError as error:
            if "deserialization of the task graph" not in str(error):
                raise
            raise _lacking("process") from None
    return [read_json(record) for record in records.values()]


def _make(client: Client, work: Work, files: Sequence[tuple[Path, bool]], sources: Sequence[Record]) -> Record:
    """Run all stages; what the manifest says besides the options."""
    options = work.options
    pieces: list[Piece] = []
    of_file: list[int] = []
    for place, (path, is_val) in enumerate(files):
        found = pieces_of(path, options.text_field, is_val)
        pieces += found
        of_file += [place] * len(found)
    names = [f"{number:06d}" for number in range(len(pieces))]
    numbered = dict(zip(names, enumerate(pieces), strict=True))
    read = _run(client, "reading", hash_documents, work, "documents", numbered)
    counts = [record["documents"] for record in read]
    dropped = sum((Counter(record["dropped"]) for record in read), Counter())
    if not sum(counts):
        raise InputError(f"--input {' '.join(options.input)}: no text in it{_reasons(dropped)}")
    parts = 1 + sum(counts) // HASHES_AT_ONCE
    by_hash = {f"{part:06d}": (part, parts) for part in range(parts)}
    _run(client, "looking for repeats", find_repeats, work, "repeats", by_hash)
    firsts = np.cumsum([0, *counts])[:-1].tolist()
    again = {name: (*numbered[name], first) for name, first in zip(names, firsts, strict=True)}
    made = _run(client, "tokenising", make_examples, work, "examples", again)
    dropped = sum((Counter(record["dropped"]) for record in made), dropped)
    kept = sum(record["kept"] for record in made)
    shards = _divide(count_keys(work), options)
    if not any(shard.name.startswith(SPLITS[0]) for shard in shards):
        raise InputError(f"--input {' '.join(options.input)}: no text is left to train on{_reasons(dropped)}")
    named = {shard.name.replace("/", "-"): (shard,) for shard in shards}
    written = _run(client, "writing", write_shard, work, "shards", named)
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for shard, record in zip(shards, written, strict=True):
        facts = {"file": shard.name, "bin": options.bins[shard.group % len(options.bins)]}
        splits[shard.name.partition("/")[0]].append(facts | record)
    digests = [xxhash.xxh3_128() for _ in files]
    for place, record in zip(of_file, read, strict=True):
        digests[place].update(record["digest"].encode())
    source = [facts | {"digest": each.hexdigest()} for facts, each in zip(sources, digests, strict=True)]
    whole = xxhash.xxh3_128("".join(file["digest"] for file in source).encode()).hexdigest()
    return {
        "source": {"hash": whole, "files": source},
        "documents": {"kept": kept, "dropped": dict(sorted(dropped.items()))},
        "short_examples": sum(record["short"] for record in made),
        "splits": splits,
    }


def _divide(counts: np.ndarray, options: Options) -> list[Shard]:
    """The shards, of sizes that differ by at most one within a split and bin.

    Args:
        counts: see `count_keys`; there are no more files than examples.
    """
    shards = []
    for group, of_bucket in enumerate(counts):
        ends = np.cumsum(of_bucket)
        total = int(ends[-1])
        split, longest = SPLITS[group // len(options.bins)], options.bins[group % len(options.bins)]
        number = -(-total // MOST_EXAMPLES)
        if split == SPLITS[0]:
            number = min(total, options.shards or max(number, LEAST_SHARDS))
        for place in range(number):
            begin, end = place * total // number, (place + 1) * total // number
            # The buckets of its first and of its last example.
            first, last = np.searchsorted(ends, (begin, end - 1), side="right").tolist()
            skip = begin - int(ends[first] - of_bucket[first])
            shards.append(Shard(f"{split}/{longest}-{place:05d}.parquet", group, first, last, skip, end - begin))
    return shards


def _reasons(dropped: Mapping[str, int]) -> str:
    return "".join(f", {count:,} {reason}" for reason, count in sorted(dropped.items()) if count)


def _report(folder: Path, manifest: Record) -> None:
    examples = {split: sum(file["examples"] for file in files) for split, files in manifest["splits"].items()}
    documents = manifest["documents"]
    print(
        f"{folder}: {examples['train']:,} examples to train on and {examples['val']:,} held out, of at most "
        f"{manifest['sequence_length']:,} tokens, from {documents['kept']:,} documents"
    )
    left_out = {f"documents: {reason}": count for reason, count in documents["dropped"].items()}
    for reason, count in (left_out | {"examples: too short": manifest["short_examples"]}).items():
        if count:
            print(f"  {count:>10,}  left out, {reason}")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `make_shards`."""
    options = parse_dataclass(Options, argv, "Make shards for pretraining from raw text.")
    start_log()
    make_shards(options)


if __name__ == "__main__":
    run_main(main)
