"""The scaffold of the benchmarks: options, runs in turns and in new processes, comparisons, the report."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bart.errors import InputError
from bart.files import write_json
from utils.app.cli import option
from utils.app.formatting import markdown_table
from utils.app.machine import environment, process_memory_gb
from utils.app.output_files import check_output

MODES_ON_CUDA = "transformers_fp32 transformers_bf16 ours_fp32 ours_bf16 ctranslate2_fp16 ctranslate2_int8".split()
LEAST_SECONDS = 2  # of inference that is timed

Run = Mapping[str, Any]  # figures of one run, with `rate` and `peak_memory_gb`
# Folder, what inputs.json in it holds, precision, device -> a function that computes the outputs, one of each input.
Load = Callable[[Path, Any, str, str], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """The options of all benchmarks."""

    rounds: int = option(3, least=1, help="timed runs of each mode, in turns; the table has their medians")
    output: str | None = option(None, help="JSON file for all figures")
    device: str = option("cpu", choices=("cpu", "cuda"), help="the device of all modes")

    def __post_init__(self) -> None:
        check_output("output", self.output)
        if self.device == "cuda":
            import torch  # which the process of a peer must not hold

            if not torch.cuda.is_available():
                raise InputError("--device is cuda; this machine has no CUDA device")


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(BenchmarkOptions):
    """The options of the benchmarks of inference. A mode is a peer and a precision, such as "ours_fp32"."""

    modes: tuple[str, ...]
    threads: int = option(os.cpu_count() or 1, least=1, help="threads of each mode")

    def __post_init__(self) -> None:
        super().__post_init__()
        for package in packages_of(self.modes):
            if find_spec(package) is None:
                raise InputError(f"--modes holds {package}, which needs `pip install -r requirements-dev.txt`")
        if self.device == "cuda" and not set(self.modes) <= set(MODES_ON_CUDA):
            raise InputError(f"--modes: allowed with --device cuda: {', '.join(MODES_ON_CUDA)}")


def shape_option(default: str, shapes: Mapping[str, Any]) -> Any:
    """The option `shape` of a benchmark, whose help lists the fields of each shape, a dataclass."""
    texts = []
    for name, shape in shapes.items():
        fields = [value if field == "config" else f"{field} {value}" for field, value in vars(shape).items()]
        texts.append(f"{name}: {', '.join(fields)}")
    return option(default, choices=tuple(shapes), help=f"what is run; tiny is for trying this out. {'; '.join(texts)}")


def modes_option(peer: str, *more: str) -> Any:
    """The option `modes` of a benchmark of transformers, another peer in fp32 and int8, and ours; more for choice."""
    modes = f"transformers_fp32 transformers_bf16 {peer}_fp32 {peer}_int8 ours_fp32 ours_bf16 ours_int8".split()
    text = f"what is run, in this order; on cuda allowed: {', '.join(MODES_ON_CUDA)}"
    return option(tuple(modes), choices=(*modes, *more), help=text)


def packages_of(modes: Sequence[str]) -> list[str]:
    """The packages of the peers, which have their names."""
    return sorted({mode.split("_")[0] for mode in modes} - {"ours"})


def run_peer(peers: Mapping[str, Load], mode: str, args: InferenceOptions, folder: Path) -> Run:
    """Let the peer of a mode work once and then for LEAST_SECONDS: rate, outputs and memory.

    The process of a peer holds no torch, unless the peer needs it. On GPUs memory counts from the warm-up on, because a
    copy for inference is made there from fp32 weights.
    """
    peer, precision = mode.split("_")
    inputs = json.loads((folder / "inputs.json").read_bytes())
    work = peers[peer](folder, inputs, precision, args.device)
    on_cuda, torch = args.device == "cuda", sys.modules.get("torch")  # None: memory on a GPU is not known
    if on_cuda and torch:
        torch.cuda.reset_peak_memory_stats()
    work()
    start, seconds, passes = time.perf_counter(), 0.0, 0
    while seconds < LEAST_SECONDS:
        outputs = work()
        seconds, passes = time.perf_counter() - start, passes + 1
    memory = (torch and torch.cuda.max_memory_allocated() / 1e9) if on_cuda else process_memory_gb()
    return {"rate": passes * len(outputs) / seconds, "outputs": outputs, "peak_memory_gb": memory}


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def beside_peers(
    args: Any, prepare: Callable[[Any, Path], None], work: Callable[[str, Any, Path], Run]
) -> dict[str, list[Run]]:
    """After `prepare(args, folder)`, the runs `work(mode, args, folder)` of each of `args.modes`.

    Modes take turns in each of `args.rounds`, because the speed of a machine drifts. Every call is a process of its
    own, so that its peak memory is its own.
    """
    # Peers print no bars of progress and no advice, and take one GPU.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with TemporaryDirectory(prefix="benchmark_") as folder:
        in_new_process(prepare, args, Path(folder))
        runs: dict[str, list[Run]] = {mode: [] for mode in args.modes}
        for number in range(1, args.rounds + 1):
            for mode in args.modes:
                print(f"running {mode}, {number} of {args.rounds}", file=sys.stderr, flush=True)
                runs[mode].append(in_new_process(work, mode, args, Path(folder)))
        return runs


def compared(runs: Mapping[str, Sequence[Run]], peer: str) -> list[dict[str, Any]]:
    """A row for each mode: the median of its runs' `rate`, its speed-up over a peer, and the most memory of a run."""
    rates = {mode: [run["rate"] for run in done] for mode, done in runs.items()}
    return [
        {
            "mode": mode,
            "rate": statistics.median(rates[mode]),
            "speed_up": statistics.median(rates[mode]) / statistics.median(rates[peer]),
            "peak_memory_gb": max((run["peak_memory_gb"] for run in done), key=lambda peak: peak or 0),
            "rates": rates[mode],
        }
        for mode, done in runs.items()
    ]


def report(
    args: BenchmarkOptions,
    columns: Mapping[str, str],
    results: Sequence[Mapping[str, Any]],
    packages: Sequence[str],
) -> None:
    """Print the results as a table, and write them to --output with the options, the machine and its packages."""
    print(markdown_table(results, columns))
    if args.output is not None:
        machine = environment(int(args.device == "cuda"), *packages)
        write_json(Path(args.output), {"machine": machine, "arguments": asdict(args), "results": results})
        print(f"{args.output}: {len(results)} results", file=sys.stderr)


def compare_inference(
    args: InferenceOptions,
    unit: str,
    prepare: Callable[[Any, Path], None],
    peers: Mapping[str, Load],
    difference: Callable[[Any, Any], float],
    title: str,
) -> None:
    """Run all modes in turns and report their speeds, in a unit, and a difference to the outputs of the first mode.

    `prepare` is that of `beside_peers`; the difference's name is the key of its column.
    """
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # libraries read it when they are loaded
    runs = beside_peers(args, prepare, partial(run_peer, peers))
    firsts = {mode: done[0] for mode, done in runs.items()}
    rows = compared(runs, args.modes[0])
    for row in rows:
        run = firsts[row["mode"]]
        row["seconds"] = len(run["outputs"]) / row["rate"]
        row[difference.__name__] = difference(run["outputs"], firsts[args.modes[0]]["outputs"])
    columns = {"mode": "mode", "rate": unit, "seconds": "seconds", "speed_up": "speed-up", "peak_memory_gb": "peak GB"}
    columns[difference.__name__] = title
    report(args, columns, rows, packages_of(args.modes))
