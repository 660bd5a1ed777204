"""Runs of our programs in processes of their own, each a fork of one that has loaded everything: cheap, and real."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

SECONDS = 300  # no run takes as long, however busy the machine is
CONTEXT = multiprocessing.get_context("forkserver")
LOADED = ["tests.fake_cuda.guard"]  # before torch; it does nothing until it is asked to
LOADED += (
    "finetune run_pretraining pandas pytest torch._dynamo torch.utils.tensorboard tests.forked tests.tiny_run".split()
)
LOADED += ["utils.recipes.training", "utils.tasks.summarization", "utils.tasks.translation", "utils.tasks.denoising"]
CONTEXT.set_forkserver_preload(LOADED)
Before = Callable[[], None]


def start(
    options: Sequence[object],
    output: Path,
    *,
    ranks: int = 1,
    machines: int = 1,
    before: Before | None = None,
    largest_file: int | None = None,
    program: str = "finetune",
) -> list[BaseProcess]:
    """Start finetune.py, or another program, with these options.

    Args:
        output: its --output_dir; the output of rank R goes to `<output>.R.log`.
        ranks: processes that train together on the CPU, with an environment as torchrun makes it.
        machines: on which they say that they are, as many on each.
        before: called in each process before the run; a function of a module, or a `partial` of one.
        largest_file: bytes, beyond which the system refuses to write to a file.
    """
    environments: list[dict[str, object]] = [{}]
    if ranks > 1:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "test"}
        size = ranks // machines
        world = {**meeting, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": size}
        places = [{"RANK": rank, "GROUP_RANK": rank // size, "LOCAL_RANK": rank % size} for rank in range(ranks)]
        environments = [{**world, **place} for place in places]
    argv = [*map(str, options), "--output_dir", str(output)]
    processes = []
    for environment in environments:
        variables = {name: str(value) for name, value in environment.items()}
        process = CONTEXT.Process(
            target=_run, args=(program, argv, log_of(output, len(processes)), variables, before, largest_file)
        )
        process.start()
        processes.append(process)
    return processes


def finish(processes: Sequence[BaseProcess]) -> list[int | None]:
    """Wait for processes to end; their exit statuses."""
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def run(
    options: Sequence[object],
    output: Path,
    *,
    ranks: int = 1,
    machines: int = 1,
    before: Before | None = None,
    program: str = "finetune",
) -> None:
    """finetune.py, or another program, to its end, which must be a good one."""
    statuses = finish(start(options, output, ranks=ranks, machines=machines, before=before, program=program))
    assert statuses == [0] * ranks, "\n".join(log_of(output, rank).read_text()[-3000:] for rank in range(ranks))


def call(work: Callable[..., Any], *arguments: object) -> Any:
    """What a function of a module gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(work, *arguments).result(SECONDS)


def log_of(output: Path, rank: int = 0) -> Path:
    return output.with_name(f"{output.name}.{rank}.log")


def free_port() -> int:
    """A port below those that the system gives to whoever asks for any: it stays free until it is used."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _run(
    program: str,
    argv: list[str],
    log: Path,
    environment: dict[str, str],
    before: Before | None,
    largest_file: int | None,
) -> None:
    from utils.app.cli import run_main
    from utils.evaluation.report import charts

    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    # As users' processes start others: through forkserver loaders would take seconds to load, and outlive a kill.
    multiprocessing.set_start_method(None, force=True)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    charts.draw = lambda *_: ""  # the report's charts would take longer than the run
    if before is not None:
        before()
    sys.argv = [f"{program}.py", *argv]
    run_main(importlib.import_module(program).main)
