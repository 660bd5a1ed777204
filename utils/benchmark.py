"""Throughput of training, or of inference, in each configuration that a machine has, as a table.

scripts/run_training_benchmark.sh and scripts/run_inference_benchmark.sh start this. Each row is a run of
run_summarization.sh or run_eval_summarization.sh in a process of its own: what it reports of itself is what the table
has. A row that fails says why.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import torch

from bart.errors import InputError
from utils.cli import RunError, option, parse_dataclass, run_main
from utils.training.environment import ROOT, git_state, processor

TRAINING, INFERENCE = KINDS = ("training", "inference")
CPU_PRECISIONS = {TRAINING: ("fp32", "bf16"), INFERENCE: ("fp32", "bf16", "int8")}
GPU_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
BASE_PRECISION = "fp32"  # what the speed-up is measured against
AMPERE = (8, 0)  # compute capability with which GPUs learnt tf32 and bf16
GRACE_SECONDS = 40  # from SIGTERM to SIGKILL; torchrun takes up to 30 to end its processes
LOG_EVERY = 5  # optimizer steps; throughput is averaged over such intervals
# What a table's columns are called, which figure they show, and how.
SHARED = {
    "throughput": "throughput",
    "tokens/s": "tokens_per_second",
    "speed-up": "speed_up",
    "scaling": "weak_scaling",
}
LATENCY = {
    "mean ms": "latency_mean",
    "50 %": "latency_p50",
    "90 %": "latency_p90",
    "95 %": "latency_p95",
    "99 %": "latency_p99",
    "100 %": "latency_p100",
}
COLUMNS = {
    TRAINING: {**SHARED, "step ms": "step_milliseconds", "peak GB": "peak_memory_gb"},
    INFERENCE: {**SHARED, **LATENCY, "peak GB": "peak_memory_gb"},
}
LEGEND = {
    TRAINING: "throughput: samples per second; tokens: of sources and targets, without padding; step ms: median",
    INFERENCE: "throughput: articles per second; tokens: generated ones; ms: what an article spends in the batch",
}


@dataclass(frozen=True)
class BenchmarkArguments:
    kind: str = option(choices=KINDS, help="what is measured")
    batch_size: int = option(least=1, help="examples per process at once")
    max_source_length: int = option(least=3, help="tokens a source is cut to")
    max_target_length: int = option(least=3, help="tokens a target is cut to, or generated at most")
    data_dir: str = option(help="directory with {train,val,test}.{source,target}")
    config_path: str = option(help="JSON with the architecture and decoding options")
    model: str = option("facebook/bart-large", help="inference: checkpoint file, Hub-format directory or Hub name")
    eval_beams: int = option(6, least=1, help="inference: beams")
    gpu_counts: str | None = option(
        None, help="GPUs of each row, 0 for the CPU; by default 0, and 1, 2, 4, ... and all"
    )
    precisions: str | None = option(None, help="precisions of each; by default all that the device has")
    steps: int = option(50, least=1, help="training: optimizer steps that are measured")
    batches: int = option(8, least=1, help="inference: batches that are measured, if the test split has so many")
    time_limit: float = option(1800, above=0, help="seconds that a row may take")
    output_dir: str | None = option(None, help="by default results/bart_pyt_<kind>_benchmark_<stamp>")


@dataclass
class Row:
    """A configuration; figures, or why there are none, come when it has been run.

    Attributes:
        gpus: 0 for the CPU.
        batch_size: examples per process at once.
    """

    gpus: int
    precision: str
    batch_size: int
    figures: dict[str, float | None]
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{self.gpus}gpu_{self.precision}" if self.gpus else f"cpu_{self.precision}"


def configurations(args: BenchmarkArguments) -> list[Row]:
    """The rows, in order.

    Raises:
        InputError: gpu_counts or precisions hold what the machine or the script does not have.
    """
    available = torch.cuda.device_count()
    counts = [0, *(2**n for n in range(available.bit_length()))]
    counts = sorted({*counts, available})
    if args.gpu_counts is not None:
        words = args.gpu_counts.replace(",", " ").split()
        if not words or not all(word.isdecimal() and int(word) <= available for word in words):
            raise InputError(
                f"--gpu_counts is {args.gpu_counts!r}; allowed: numbers from 0, the CPU, to {available}, the GPUs of "
                "this machine"
            )
        counts = [int(word) for word in words]
    known = (*GPU_PRECISIONS, "int8")
    wanted = known if args.precisions is None else tuple(args.precisions.replace(",", " ").split())
    if not wanted or not set(wanted) <= set(known):
        raise InputError(f"--precisions is {args.precisions!r}; allowed: {', '.join(known)}, separated by spaces")
    rows = []
    for count in counts:
        there = CPU_PRECISIONS[args.kind]
        if count:
            newer = torch.cuda.get_device_capability() >= AMPERE
            there = GPU_PRECISIONS if newer else ("fp32", "fp16")
        rows += [Row(count, precision, args.batch_size, {}) for precision in there if precision in wanted]
    if not rows:
        raise InputError(f"--precisions is {args.precisions!r}, none of which --gpu_counts {args.gpu_counts} has here")
    return rows


def with_warm_up(steps: int) -> int:
    """Optimizer steps of a run: a logging interval to warm up, and as many as hold the steps that are measured."""
    return LOG_EVERY * (1 - -steps // LOG_EVERY)


def training_command(args: BenchmarkArguments, row: Row) -> list[str]:
    """A row's run: the recipe."""
    steps, batch = str(with_warm_up(args.steps)), str(row.batch_size)
    lengths = [str(args.max_source_length), str(args.max_target_length)]
    values = [args.data_dir, args.config_path, str(row.gpus), "1e-4", batch, "1", row.precision, steps, "1", *lengths]
    return [
        *("bash", "scripts/run_summarization.sh", *values, "1", batch, batch, "1.0", "-1"),
        *("--n_val", batch, "--log_every_n_steps", str(LOG_EVERY)),
    ]


def training_figures(folder: Path) -> dict[str, float | None]:
    """What a training run says of itself, without its first logging interval."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["samples_per_second"]]
    measured = rows[1:]
    if not measured:
        raise ValueError(f"metrics.csv has {len(rows)} intervals")
    # Intervals are of as many samples each, whatever their tokens; these are the seconds of one sample in each.
    seconds = [1 / float(row["samples_per_second"]) for row in measured]
    tokens = sum(float(row["tokens_per_second"]) * time for row, time in zip(measured, seconds, strict=True))
    return {
        "throughput": len(seconds) / sum(seconds),
        "tokens_per_second": tokens / sum(seconds),
        "step_milliseconds": 1000 * statistics.median(float(row["step_time_p50"]) for row in measured),
        "peak_memory_gb": float(measured[-1]["peak_memory_gb"]),
    }


def inference_command(args: BenchmarkArguments, row: Row) -> list[str]:
    """A row's run: scoring of `batches` batches, after one to warm up."""
    lengths = [str(args.max_source_length), str(args.max_target_length)]
    values = [args.model, str(row.batch_size), str(row.gpus), row.precision, str(args.eval_beams), *lengths]
    articles = row.batch_size * max(row.gpus, 1) * (args.batches + 1)
    return [
        *("bash", "scripts/run_eval_summarization.sh", *values, args.data_dir, args.config_path),
        *("--n_obs", str(articles), "--warmup_batches", "1"),
    ]


def inference_figures(folder: Path) -> dict[str, float | None]:
    """What a scoring run says of itself."""
    speed = json.loads((folder / "test_speed.json").read_bytes())
    return {
        "throughput": speed["articles_per_second"],
        "tokens_per_second": speed["generated_tokens_per_second"],
        **{f"latency_{point}": value for point, value in speed["latency_ms"].items()},
        "peak_memory_gb": speed["peak_memory_gb"],
    }


COMMANDS: dict[str, Callable[[BenchmarkArguments, Row], list[str]]] = {
    TRAINING: training_command,
    INFERENCE: inference_command,
}
FIGURES = {TRAINING: training_figures, INFERENCE: inference_figures}


def end_group(leader: subprocess.Popen[str]) -> None:
    """End all processes of a process's group, if there are any left.

    SIGTERM comes first, on which torchrun ends the processes that it started: their groups are others.
    """
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            time.sleep(0.05)
            leader.poll()  # until its status is asked for, it counts as there
            os.killpg(leader.pid, 0)
        os.killpg(leader.pid, signal.SIGKILL)


def reason(lines: Iterable[str]) -> str | None:
    """The line of a failed run's output that says most about why: an error's, or the last; None if there is none."""
    lines = [line for line in lines if line]
    # What follows from the end of another process, and what torchrun says last, names no reason.
    follows = re.compile(r"(error_file|traceback) *:|.*: error: another process of this run is gone")
    for wanted in (r"(\[\w+\]: *)?([\w.]+: error|[\w.]*Error): \S", r".*[Ee]rror"):
        found = [line for line in lines if re.match(wanted, line) and not follows.match(line)]
        if found:
            return found[-1]
    return lines[-1] if lines else None


def run_row(args: BenchmarkArguments, row: Row, extras: Sequence[str], folder: Path) -> bool:
    """Run a configuration, with its output on stderr and in `folder/output.txt`; give its row figures or a failure.

    Returns:
        Whether it could not even begin, because of its options or files.
    """
    folder.mkdir(parents=True)
    environment = {**os.environ, "RESULTS_DIR": str(folder.resolve()), "SCORE": "0"}
    command = [*COMMANDS[args.kind](args, row), *extras]
    tail: deque[str] = deque(maxlen=200)
    over_time = False
    with (folder / "output.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip

        def stop() -> None:
            nonlocal over_time
            over_time = True
            end_group(process)

        timer = Timer(args.time_limit, stop)
        timer.start()
        try:
            for line in process.stdout:
                log.write(line)
                print(f"    {line}", end="", file=sys.stderr, flush=True)
                tail.append(line.strip())
            status = process.wait()
        finally:
            timer.cancel()
            end_group(process)
            process.wait()
    if over_time:
        row.failure = f"it took longer than the time limit of {args.time_limit:g} s"
    elif status:
        row.failure = reason(tail) or f"it ended with status {status}"
    else:
        try:
            row.figures = FIGURES[args.kind](folder)
        except (OSError, ValueError, KeyError) as error:
            row.failure = f"it left no figures ({type(error).__name__}: {error})"
    for path in folder.glob("*.ckpt"):  # gigabytes of what nobody asked for
        path.unlink()
    shutil.rmtree(folder / "export", ignore_errors=True)
    return status == 2 and not over_time


def compare(rows: Sequence[Row]) -> None:
    """Add to each row its speed-up over fp32 on the same device, and its throughput over that of fewest GPUs."""
    done = [row for row in rows if row.figures]
    for row in done:
        base = [other for other in done if other.gpus == row.gpus and other.precision == BASE_PRECISION]
        alike = [other for other in done if other.gpus and other.precision == row.precision]
        fewest = min(alike, key=lambda other: other.gpus, default=None) if row.gpus else None
        for name, other in (("speed_up", base[0] if base else None), ("weak_scaling", fewest)):
            known = other is not None and other.figures["throughput"] and row.figures["throughput"]
            row.figures[name] = row.figures["throughput"] / other.figures["throughput"] if known else None


def cells(kind: str, rows: Sequence[Row]) -> list[list[str]]:
    """The table, its head first; the cells of a failed row are its configuration and the reason."""

    def text(figure: float | None) -> str:
        if figure is None:
            return "-"
        return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.2f}" if figure >= 0.1 else f"{figure:.4f}"

    lines = [["NUM_GPU", "precision", "batch", *COLUMNS[kind]]]
    for row in rows:
        configuration = [str(row.gpus) if row.gpus else "CPU", row.precision, str(row.batch_size)]
        figures = [text(row.figures[name]) for name in COLUMNS[kind].values()] if row.figures else []
        lines.append([*configuration, *(figures or [f"failed: {row.failure}"])])
    return lines


def plain_table(lines: Sequence[Sequence[str]]) -> str:
    whole = [line for line in lines if len(line) == len(lines[0])]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    for line in lines:
        widths[:3] = [max(width, len(cell)) for width, cell in zip(widths[:3], line, strict=False)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)) for line in lines)


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    padded = [[*line, *[""] * (len(head) - len(line))] for line in rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---:"] * len(head), *padded))


def machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "git": git_state(ROOT),
    }


def write_tables(
    args: BenchmarkArguments, extras: Sequence[str], rows: Sequence[Row], started: str, folder: Path
) -> str:
    """Write the rows so far as text, JSON and Markdown; the text."""
    compare(rows)
    info = machine()
    hardware = ", ".join([f"{info['processor']}, {info['cores']} cores", *info["gpus"]])
    title = (
        f"BART {args.kind} on {hardware}; torch {info['versions']['torch']}; {started}\n"
        f"{args.config_path}, sources of at most {args.max_source_length} tokens, targets {args.max_target_length}, "
        f"{args.data_dir}" + (f", {args.model}, {args.eval_beams} beams" if args.kind == INFERENCE else "")
    )
    title += f"\noptions: {' '.join(extras)}" if extras else ""
    legend = f"{LEGEND[args.kind]}; batch: per process; speed-up: over fp32; scaling: over fewest GPUs"
    lines = cells(args.kind, rows)
    text = f"{title}\n\n{plain_table(lines)}\n\n{legend}\n"
    report = {
        "kind": args.kind,
        "date": started,
        "machine": info,
        "arguments": vars(args),
        "options": list(extras),
        "rows": [vars(row) for row in rows],
    }
    stem = f"{args.kind}_benchmark"
    (folder / f"{stem}.log").write_text(text, encoding="utf-8")
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    paragraphs = title.replace("\n", "  \n")
    (folder / f"{stem}.md").write_text(f"{paragraphs}\n\n{markdown_table(lines)}\n\n{legend}\n", encoding="utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parse_dataclass(
        BenchmarkArguments,
        argv[:cut],
        f"{__doc__.splitlines()[0]} Options of the program measured follow behind --.",
        prog="python -m utils.benchmark",
    )
    extras = argv[cut + 1 :]
    # As an exception, so that the row that runs is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows = configurations(args)
    started = time.strftime("%Y-%m-%d %H:%M")
    folder = Path(args.output_dir or f"results/bart_pyt_{args.kind}_benchmark_{time.strftime('%y%m%d_%H%M%S')}")
    if folder.exists():
        raise InputError(f"--output_dir is {folder}, which is there already; allowed: a directory that is not")
    for number, row in enumerate(rows, 1):
        print(f"[{number}/{len(rows)}] {row.name}, batch {row.batch_size}", file=sys.stderr, flush=True)
        is_refused = run_row(args, row, extras, folder / row.name)
        if is_refused and number == 1:  # and so would be all others
            shutil.rmtree(folder)
            raise InputError(str(row.failure))
        text = write_tables(args, extras, rows[:number], started, folder)
    print(f"{text}\nresults lie in {folder}")
    if not any(row.figures for row in rows):
        raise RunError(f"no configuration could be measured; {folder} has their output")


if __name__ == "__main__":
    run_main(main)
