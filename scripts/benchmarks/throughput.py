"""Throughput of training, pretraining or inference in each configuration that a machine has, as a table.

scripts/run_training_benchmark.sh, run_pretraining_benchmark.sh and run_inference_benchmark.sh start this. Each row is a
run of run_summarization.sh, run_pretraining_phase1.sh or run_eval_summarization.sh, and its metrics are those that the
run reports of itself. A row that fails says why.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.throughput")

import torch

from bart.errors import InputError
from bart.files import read_json, write_json
from utils.app.cli import option, parse_dataclass
from utils.app.errors import RunError
from utils.app.formatting import markdown_table
from utils.app.machine import PRECISIONS, ROOT, environment
from utils.app.output_files import writable_folder
from utils.app.run_directory import METRICS, read_metrics
from utils.data.places import is_published

GRACE_SECONDS = 40  # from SIGTERM to SIGKILL; torchrun takes up to 30 to end its processes
LOG_EVERY = 5  # optimizer steps; throughput is averaged over such intervals
AMPERE = (8, 0)  # the compute capability from which GPUs have tf32 and bf16
# The figures of a row and their titles; a table shows those that a row has.
COLUMNS = {
    "device": "NUM_GPU",
    "precision": "precision",
    "batch_size": "batch",
    "throughput": "throughput",
    "tokens_per_second": "tokens/s",
    "speed_up": "speed-up",
    "weak_scaling": "scaling",
    "latency_mean": "mean ms",
    **{f"latency_p{point}": f"{point} % ms" for point in (50, 90, 95, 99, 100)},
    "step_milliseconds": "step ms",
    "peak_memory_gb": "peak GB",
    "mfu": "MFU",
}
LEGEND = """throughput: samples or articles per second; tokens: of sources and targets, or generated ones; batch: per
process; speed-up: over fp32; scaling: over fewest GPUs; step ms: median; other ms: what an article spends in the batch
"""


@dataclass
class BenchmarkRow:
    """A configuration and, once it has been run, its metrics, or why there are none."""

    gpus: int  # 0 for the CPU
    precision: str
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{self.gpus}gpu_{self.precision}" if self.gpus else f"cpu_{self.precision}"


@dataclass(frozen=True)
class Benchmark:
    """The options of all benchmarks."""

    gpu_counts: tuple[int, ...] = option(
        (), least=0, help="GPUs of each row, 0 for the CPU; by default 0, and 1, 2, 4, ... and all"
    )
    precisions: tuple[str, ...] = option(
        (), choices=PRECISIONS, help="precisions of each; by default all that such a device may have"
    )
    time_limit: float = option(1800, above=0, help="seconds that a row may take")
    results_dir: str | None = option(None, help="by default results/bart_pyt_<kind>_benchmark_<stamp>")

    kind: ClassVar[str]
    cpu_precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16")
    run: ClassVar[str] = ""  # the folder of the training run in that of its row

    def command(self, row: BenchmarkRow) -> list[str]:
        """The recipe's command line for a row."""
        raise NotImplementedError

    def metrics(self, folder: Path) -> dict[str, float]:
        """The figures that a run left in its folder; OSError, ValueError or KeyError if there are none."""
        return training_metrics(folder / self.run)


@dataclass(frozen=True)
class TrainingBenchmark(Benchmark):
    batch_size: int = option(24, positional=True, least=1, help="examples per process at once")
    max_source_length: int = option(1024, positional=True, least=3, help="tokens a source is cut to")
    max_target_length: int = option(60, positional=True, least=3, help="tokens a target is cut to")
    data_dir: str = option(
        "data/xsum", positional=True, help="directory with {train,val}.{source,target}", reaches=is_published
    )
    config_path: str = option("configs/config_xsum.json", help="JSON with the architecture")
    steps: int = option(50, least=1, help="optimizer steps that are measured")

    kind: ClassVar[str] = "training"

    def command(self, row: BenchmarkRow) -> list[str]:
        lengths = (self.max_source_length, self.max_target_length)
        steps = (with_warm_up(self.steps), 1)
        values = (self.data_dir, self.config_path, row.gpus, 1e-4, self.batch_size, 1, row.precision, *steps, *lengths)
        return [
            *("bash", f"{ROOT}/scripts/run_summarization.sh", *map(str, values)),
            *("1", str(self.batch_size), str(self.batch_size), "1.0", "-1"),
            *("--n_val", str(self.batch_size), "--log_every_n_steps", str(LOG_EVERY)),
        ]


@dataclass(frozen=True)
class PretrainingBenchmark(Benchmark):
    batch_size: int = option(200, positional=True, least=1, help="examples per process at once")
    length: int = option(128, positional=True, least=16, help="tokens of an example")
    data_dir: str = option(
        "data", positional=True, help="folder with the shards of that length, pretrain_lddl_<length>"
    )
    config_path: str = option("configs/config.json", positional=True, help="JSON with the architecture")
    steps: int = option(50, least=1, help="optimizer steps that are measured")

    kind: ClassVar[str] = "pretraining"
    run: ClassVar[str] = "phase_1"

    def command(self, row: BenchmarkRow) -> list[str]:
        steps = with_warm_up(self.steps)
        values = (self.batch_size, "", "", "", row.precision, "", row.gpus, 1, "", steps, "", steps, 1, "")
        return [
            *("env", f"LENGTH_PHASE1={self.length}", "bash", f"{ROOT}/scripts/run_pretraining_phase1.sh"),
            *(*map(str, values), self.config_path, "--data_dir", self.data_dir),
            *("--n_val", str(self.batch_size * max(row.gpus, 1)), "--log_freq", str(LOG_EVERY)),
        ]


@dataclass(frozen=True)
class InferenceBenchmark(Benchmark):
    """The benchmark of inference, which scores `batches` batches after one to warm up."""

    batch_size: int = option(128, positional=True, least=1, help="articles per process at once")
    eval_beams: int = option(6, positional=True, least=1, help="beams")
    max_source_length: int = option(1024, positional=True, least=3, help="tokens a source is cut to")
    max_target_length: int = option(60, positional=True, least=3, help="tokens to generate at most")
    model: str = option(
        "facebook/bart-large", positional=True, help="checkpoint file, Hub-format directory or Hub name"
    )
    data_dir: str = option(
        "data/xsum", positional=True, help="directory with test.{source,target}", reaches=is_published
    )
    config_path: str = option("configs/config_xsum.json", positional=True, help="JSON with the decoding options")
    batches: int = option(8, least=1, help="batches that are measured, if the test split has so many")

    kind: ClassVar[str] = "inference"
    cpu_precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "int8")

    def command(self, row: BenchmarkRow) -> list[str]:
        lengths = (self.max_source_length, self.max_target_length)
        values = (self.model, self.batch_size, row.gpus, row.precision, self.eval_beams, *lengths)
        articles = self.batch_size * max(row.gpus, 1) * (self.batches + 1)
        return [
            *("bash", f"{ROOT}/scripts/run_eval_summarization.sh", *map(str, values), self.data_dir, self.config_path),
            *("--n_obs", str(articles), "--warmup_batches", "1"),
        ]

    def metrics(self, folder: Path) -> dict[str, float]:
        speed = read_json(folder / "test_speed.json")
        if not speed["articles_per_second"]:
            raise ValueError("no article was timed")
        return {
            "throughput": speed["articles_per_second"],
            "tokens_per_second": speed["generated_tokens_per_second"],
            **{f"latency_{point}": value for point, value in speed["latency_ms"].items()},
            "peak_memory_gb": speed["peak_memory_gb"],
        }


KINDS = {kind.kind: kind for kind in (TrainingBenchmark, PretrainingBenchmark, InferenceBenchmark)}


def with_warm_up(steps: int) -> int:
    """Optimizer steps of a run: a logging interval to warm up, and as many as hold the steps that are measured."""
    return LOG_EVERY * (1 - -steps // LOG_EVERY)


def training_metrics(run: Path) -> dict[str, float]:
    """The speeds that a training run has logged, without the first interval, which warms up."""
    logged = read_metrics(run / METRICS)
    names = "samples_per_second", "tokens_per_second", "step_time_p50", "peak_memory_gb"
    samples, tokens, times, memory = ([*logged[name].values()][1:] for name in names)
    throughput = statistics.harmonic_mean(samples)  # all intervals have equally many
    metrics = {
        "throughput": throughput,
        "tokens_per_second": throughput * statistics.mean(map(operator.truediv, tokens, samples)),
        "step_milliseconds": 1000 * statistics.median(times),
        "peak_memory_gb": memory[-1],
    }
    if mfus := [*logged.get("mfu", {}).values()][1:]:  # of GPUs whose peak is known
        metrics["mfu"] = statistics.mean(mfus)
    return metrics


def parse(argv: Sequence[str]) -> tuple[Benchmark, list[str]]:
    """The benchmark that a command line and the environment ask for, and the options for the program measured."""
    if not argv or argv[0] not in KINDS:
        given = repr(argv[0]) if argv else "missing"
        raise InputError(f"the first value is {given}; allowed: {', '.join(KINDS)}, each of which has --help")
    kind, *words = argv
    cut = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    values, extras = words[:cut], words[cut:]
    if extras[:1] == ["--help"]:
        values, extras = ["--help"], []
    for each in fields(KINDS[kind]):
        value = os.environ.get(each.name.upper())
        if value and not each.metadata["positional"]:
            values += [f"--{each.name}", *(value.split() if isinstance(each.default, tuple) else [value])]
    args = parse_dataclass(
        KINDS[kind],
        values,
        f"{str(__doc__).splitlines()[0]}\n\nThe options below are read from the environment, by their names in "
        "capitals, such as STEPS=20;\noptions of the command line go to the program that is measured.",
        prog=f"scripts/benchmarks/throughput.py {kind}",
    )
    return args, extras


def configurations(args: Benchmark) -> list[BenchmarkRow]:
    available = torch.cuda.device_count()
    counts = args.gpu_counts or sorted({0, *(2**n for n in range(available.bit_length())), available})
    on_gpus = ["fp32", "fp16"]
    if available and torch.cuda.get_device_capability() >= AMPERE:
        on_gpus = ["fp32", "tf32", "bf16", "fp16"]
    rows = []
    for count in dict.fromkeys(counts):
        usable = on_gpus if count else args.cpu_precisions
        rows += [BenchmarkRow(count, name) for name in usable if name in (args.precisions or usable)]
    if not rows:
        raise InputError(f"PRECISIONS is {' '.join(args.precisions)}, none of which the devices of GPU_COUNTS have")
    return rows


def reason(lines: Sequence[str]) -> str | None:
    """The line of a failed run's output that says most about why: an error's, or the last."""
    lines = [line.strip() for line in lines if line.strip()]
    # That another process is gone follows from its error.
    pattern = re.compile(r"(\[\w+\]: *)?([\w.]+: error(?!: another process of this run is gone)|[\w.]*Error): \S")
    errors = [line for line in lines if pattern.match(line)]
    return (errors or lines)[-1] if lines else None


def measure(
    command: Sequence[str], read: Callable[[Path], dict[str, Any]], folder: Path, time_limit: float
) -> tuple[dict[str, Any], str | None]:
    """Run a command in a new folder; return the metrics that `read` finds there and, if there are none, why."""
    folder.mkdir(parents=True)
    variables = {**os.environ, "RESULTS_DIR": str(folder.resolve()), "SCORE": "0"}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        status = process.wait(time_limit)
        if status == 0:
            return read(folder), None
        lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return {}, reason(lines) or f"it ended with status {status}"
    except subprocess.TimeoutExpired:
        return {}, f"it took longer than the time limit of {time_limit:g} s"
    except (OSError, ValueError, KeyError) as error:
        return {}, f"it left no figures ({type(error).__name__}: {error})"
    finally:
        with suppress(ProcessLookupError):  # nothing is left of its group
            os.killpg(process.pid, signal.SIGTERM)  # torchrun then ends its processes, whose groups are others
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            os.killpg(process.pid, signal.SIGKILL)
        for path in [path for name in ("*.ckpt", "sharded", "export") for path in folder.rglob(name)]:  # gigabytes
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def new_folder(name: str, folder: Path) -> None:
    """Make a folder for results, which an argument of this name has given."""
    if folder.exists():
        raise InputError(f"{name} is {folder}, which is there already; allowed: a directory that is not")
    writable_folder(name, folder)


def compare(rows: Sequence[BenchmarkRow]) -> None:
    """Add to each row its speed-up over fp32 on the same device, and its throughput over that of the fewest GPUs."""
    measured = [row for row in rows if row.metrics]
    rates = {(row.gpus, row.precision): row.metrics["throughput"] for row in measured}
    for row in measured:
        rate, full = row.metrics["throughput"], rates.get((row.gpus, "fp32"))
        if full is not None:
            row.metrics["speed_up"] = rate / full
        if row.gpus:
            fewest = min(gpus for gpus, precision in rates if gpus and precision == row.precision)
            row.metrics["weak_scaling"] = rate / rates[fewest, row.precision]


def write_table(
    args: Benchmark, extras: Sequence[str], rows: Sequence[BenchmarkRow], machine: dict[str, Any], folder: Path
) -> str:
    """Write the rows so far as Markdown and as JSON; return the Markdown."""
    compare(rows)
    arguments = {name: value for name, value in asdict(args).items() if isinstance(value, (int, str))}
    hardware = ", ".join(dict.fromkeys([machine["processor"], f"{machine['cores']} cores", *machine["devices"]]))
    cells = [
        {"device": row.gpus or "CPU", "precision": row.precision, "batch_size": args.batch_size, **row.metrics}
        for row in rows
    ]
    parts = [
        f"BART {args.kind} on {hardware}; torch {machine['versions']['torch']}; {machine['date']}",
        ", ".join([*(f"{name} {value}" for name, value in arguments.items()), *extras]),
        markdown_table(cells, {key: title for key, title in COLUMNS.items() if any(key in row for row in cells)}),
        *(f"{row.name} failed: {row.failure}" for row in rows if row.failure),
        LEGEND,
    ]
    text = "\n\n".join(parts)
    (folder / f"{args.kind}_benchmark.log").write_text(text, encoding="utf-8")
    report = {"machine": machine, "arguments": arguments, "options": extras, "rows": [asdict(row) for row in rows]}
    write_json(folder / f"{args.kind}_benchmark.json", report)
    return text


def main(argv: Sequence[str] | None = None) -> None:
    args, extras = parse(sys.argv[1:] if argv is None else argv)
    rows = configurations(args)
    machine = environment(torch.cuda.device_count())
    folder = Path(args.results_dir or f"results/bart_pyt_{args.kind}_benchmark_{time.strftime('%y%m%d_%H%M%S')}")
    new_folder("RESULTS_DIR", folder)
    for number, row in enumerate(rows, 1):
        output = folder / row.name
        print(f"[{number}/{len(rows)}] {output}/output.txt", file=sys.stderr, flush=True)
        row.metrics, row.failure = measure([*args.command(row), *extras], args.metrics, output, args.time_limit)
        text = write_table(args, extras, rows[:number], machine, folder)
    print(f"{text}\nresults lie in {folder}")
    if not any(row.metrics for row in rows):
        raise RunError(f"no configuration could be measured; {folder} has their output")
