"""The Dask cluster that makes shards, and the stages of that work run on it, each of which is many tasks."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bart.errors import InputError, brief
from utils.app.errors import RunError
from utils.app.output_files import file_digest
from utils.app.progress import progress
from utils.app.unfinished import Unfinished
from utils.corpora.shard_options import WORK, MakeShardsOptions, Work
from utils.corpora.shard_stages import StageResult

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

logger = logging.getLogger("utils.corpora.make_shards")
CONNECT_SECONDS = 5
Tasks = Mapping[str, tuple[object, ...]]  # name -> arguments
Numbers = dict[str, Any]  # what a task found
Result = tuple[Numbers, dict[str, str]]  # with the digest of each file that it wrote


@contextmanager
def cluster_of(options: MakeShardsOptions, folder: Path) -> Iterator[Client | None]:
    """Yield a client of the cluster of --scheduler, or of one on this machine that ends with it; None of no workers."""
    if options.workers == 0:
        yield None
        return
    import dask
    from distributed import Client

    # Dask logs much that is of no use while a cluster is shut down.
    dask.config.set({"logging.distributed": "critical", "distributed.comm.timeouts.connect": f"{CONNECT_SECONDS}s"})
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
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        cluster = thread.submit(_local_cluster, options.workers, folder / WORK / "dask")
        stack.callback(lambda: cluster.result().close())
        yield stack.enter_context(Client(cluster.result()))


def _local_cluster(workers: int | None, folder: Path) -> LocalCluster:
    """Start processes that ignore Ctrl-C, which reaches all processes of a terminal: this program ends them.

    They inherit from this thread that the signal is blocked. It is not the main thread, which the signal must wake.
    """
    from dask.system import CPU_COUNT
    from distributed import LocalCluster

    resource_tracker.ensure_running()  # here, since it unblocks the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return LocalCluster(
        n_workers=workers or CPU_COUNT,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",  # a port that is free
        local_directory=str(folder),
        silence_logs=logging.CRITICAL,
    )


def finish(earlier: Result | None, function: Callable[..., StageResult], work: Work, *arguments: object) -> Result:
    """Return the result of a function of a stage: an earlier one, if its files are as they were, else a new one."""
    with suppress(OSError):  # a file is missing, or cannot be read
        if earlier and all(file_digest(work.folder / name) == digest for name, digest in earlier[1].items()):
            return earlier
    numbers, files = function(work, *arguments)
    return numbers, {str(path.relative_to(work.folder)): file_digest(path) for path in files}


def run_stage(
    client: Client | None, done: Unfinished, work: Work, what: str, function: Callable[..., StageResult], tasks: Tasks
) -> list[Numbers]:
    """Run the tasks of a stage that are not `done`, and return the numbers of all; other files beside theirs go."""
    results = {name: (numbers, files) for stage, name, numbers, files in done.values() if stage == what}
    with progress(what, len(tasks), "tasks") as shown:
        calls = {name: (results.get(name), function, work, *arguments) for name, arguments in tasks.items()}
        for name, result in _finished(client, what, calls):
            if result != results.get(name):
                done.add([what, name, *result])
                results[name] = result
            shown.update()
    written = {work.folder / file for name in tasks for file in results[name][1]}
    for folder in {path.parent for path in written}:
        for path in {*folder.iterdir()} - written:
            path.unlink(missing_ok=True)
    return [results[name][0] for name in tasks]


def _finished(client: Client | None, what: str, calls: Tasks) -> Iterator[tuple[str, Result]]:
    """The name and the result of each call of `finish`, as they end."""
    if client is None:
        yield from ((name, finish(*arguments)) for name, arguments in calls.items())
        return
    from distributed import CancelledError, as_completed
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    futures = {client.submit(finish, *arguments, pure=False): name for name, arguments in calls.items()}
    try:
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except (KilledWorker, CommClosedError, CancelledError) as error:
        raise RunError(
            f"{what}: worker processes or their scheduler have died, perhaps for want of memory "
            f"({type(error).__name__}); the same command goes on"
        ) from None
