"""The Dask cluster that makes shards, and the stages of that work run on it, each of which is many tasks."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError, brief
from utils.app.errors import RunError
from utils.app.output_files import file_digest
from utils.app.progress import progress
from utils.app.unfinished import Unfinished
from utils.corpora.shard_options import MakeShardsOptions, Work
from utils.corpora.shard_stages import StageResult

if TYPE_CHECKING:
    from dask.dataframe import DataFrame
    from distributed import Client

logger = logging.getLogger("utils.corpora.make_shards")
CONNECT_SECONDS = 5
Tasks = Mapping[str, tuple[object, ...]]  # name -> arguments
Numbers = dict[str, Any]  # what a task found


@contextmanager
def cluster_of(options: MakeShardsOptions, scratch: Path | None) -> Iterator[Client]:
    """Yield a client of the cluster of --scheduler, or of one on this machine that ends with it, with files there."""
    import dask
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    # Dask logs much that is of no use while a cluster is shut down.
    dask.config.set({"logging.distributed": "critical", "distributed.comm.timeouts.connect": f"{CONNECT_SECONDS}s"})
    dask.config.set({"distributed.p2p.comm.buffer": "128 MiB", "distributed.worker.profile.enabled": False})
    if sys.platform == "linux":  # a process is forked from one that has loaded the packages
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if options.scheduler is not None:
        try:
            client = Client(options.scheduler, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, TypeError) as error:  # the last two: the address is malformed
            reason = brief(error) or "no answer"
            raise InputError(f"--scheduler {options.scheduler}: no Dask scheduler can be reached ({reason})") from None
        with client:
            if not client.scheduler_info()["workers"]:
                logger.info("%s has no workers yet: waiting for the first", options.scheduler)
            try:  # a worker that cannot load a task ends, and the task waits for another
                for run in (client.run_on_scheduler, client.run):
                    run(import_module, "utils.corpora.shard_stages")
            except ModuleNotFoundError:
                raise RunError(
                    "--scheduler: its workers cannot load this program; start it and them as it is, with "
                    f"PYTHONPATH={Path(__file__).resolve().parents[2]}"
                ) from None
            yield client
        return
    # Ctrl-C reaches all processes of a terminal. Workers inherit that it is blocked, since this program ends them.
    resource_tracker.ensure_running()  # here, since it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with LocalCluster(
            n_workers=1 if options.workers == 0 else options.workers or CPU_COUNT,
            threads_per_worker=1,
            processes=options.workers != 0,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",  # a port that is free
            local_directory=None if scratch is None else str(scratch),
            silence_logs=logging.CRITICAL,
        ) as cluster:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            with Client(cluster) as client:
                yield client
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def store(function: Callable[..., StageResult], work: Work, *arguments: object) -> tuple[Numbers, dict[str, str]]:
    """Call a function of a stage, and take a digest of each file that it wrote."""
    numbers, files = function(work, *arguments)
    return numbers, {str(path.relative_to(work.folder)): file_digest(path) for path in files}


def is_whole(work: Work, files: Mapping[str, str]) -> bool:
    """True if files are as they were when their digests were taken."""
    with suppress(OSError):  # a file is missing, or cannot be read
        return all(file_digest(work.folder / name) == digest for name, digest in files.items())
    return False


def run_stage(
    client: Client,
    done: Unfinished,
    work: Work,
    what: str,
    function: Callable[..., StageResult],
    tasks: Tasks,
    table: DataFrame | None = None,
) -> list[Numbers]:
    """Run the tasks of a stage that are not `done`, and return the numbers of all; other files beside theirs go.

    Where there is a table, each task takes a partition of it behind its arguments.
    """
    stored = {name: (numbers, files) for stage, name, numbers, files in done.values() if stage == what}
    checks = {name: (is_whole, work, stored[name][1]) for name in tasks if name in stored}
    results = {name: stored[name] for name, is_right in computed(client, f"checking {what}", checks) if is_right}
    calls = {name: (store, function, work, *arguments) for name, arguments in tasks.items() if name not in results}
    if table is not None and calls:
        partitions = table.partitions[[place for place, name in enumerate(tasks) if name in calls]].to_delayed()
        calls = {name: (*calls[name], partition) for name, partition in zip(calls, partitions, strict=True)}
    for name, result in computed(client, what, calls):
        done.add([what, name, *result])
        results[name] = result
    written = {work.folder / file for name in tasks for file in results[name][1]}
    for folder in {path.parent for path in written}:
        for path in {*folder.iterdir()} - written:
            path.unlink(missing_ok=True)
    return [results[name][0] for name in tasks]


def shuffled(
    read: Callable[..., Any], items: Sequence[Any], empty: Any, bounds: Sequence[Any], **arguments: Any
) -> DataFrame:
    """The table that is read from items, in partitions by its first column, each from one bound to the next."""
    from dask.dataframe import from_map

    table = from_map(read, items, meta=empty, **arguments)
    return table.set_index(empty.columns[0], divisions=[*bounds], shuffle_method="p2p")


def computed(client: Client, what: str, calls: Tasks) -> Iterator[tuple[str, Any]]:
    """The name and the value of each call, of a function with its arguments, as they end."""
    from dask import delayed
    from distributed import CancelledError, as_completed
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    futures = client.compute([delayed(function)(*arguments) for function, *arguments in calls.values()])
    names = dict(zip(futures, calls, strict=True))
    try:
        for future in progress(what, len(names), "tasks", as_completed(names)):
            yield names[future], future.result()
    except (KilledWorker, CommClosedError, CancelledError) as error:
        raise RunError(
            f"{what}: worker processes or their scheduler have died, perhaps for want of memory "
            f"({type(error).__name__}); the same command goes on"
        ) from None
    except RuntimeError as error:
        if not str(error).startswith("P2P"):
            raise
        raise RunError(f"{what}: {brief(error)}: {brief(error.__cause__ or error)}; the same command goes on") from None
