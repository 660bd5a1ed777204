"""What the benchmarks share: runs in turns, a made-up model's shape."""

from __future__ import annotations

import os
import statistics
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any

from bart.errors import InputError
from utils.runs.machine import process_memory_gb

if TYPE_CHECKING:
    from bart.configuration.configuration_bart import BartConfig

# Width, layers of the encoder and as many of the decoder, heads.
NETWORKS = {"tiny": (32, 2, 4), "base": (768, 6, 12), "large": (1024, 12, 16)}
DEVICES = ("cpu", "cuda")


def check_device(device: str, modes: Sequence[str]) -> None:
    """Raise InputError where there is no such device, or a mode cannot be measured on it."""
    if device == "cuda":
        import torch  # which a peer's process must not hold

        if not torch.cuda.is_available():
            raise InputError("--device is cuda; this machine has no CUDA device")
        allowed = ("transformers_fp32", "transformers_bf16", "ours_fp32", "ours_bf16")
        if not set(modes) <= {*allowed}:
            raise InputError(f"--modes is {' '.join(modes)}; allowed with --device cuda: {', '.join(allowed)}")


def forget_loading(device: str) -> None:
    """Let `device_memory_gb` of a GPU count from now on: a copy for inference is made there from fp32 weights."""
    if device == "cuda":
        sys.modules["torch"].cuda.reset_peak_memory_stats()


def device_memory_gb(device: str) -> float:
    """As `utils.runs.memory.peak_memory_gb`, in a process that may hold no torch."""
    if device == "cuda":
        return sys.modules["torch"].cuda.max_memory_allocated() / 1e9
    return process_memory_gb()


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh interpreter, which ends with it, or with this process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        return pool.submit(work, *arguments).result()


def _end_with_parent() -> None:
    def wait() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def in_turns(
    modes: Sequence[str], rounds: int, work: Callable[..., Any], *arguments: object
) -> dict[str, list[dict[str, Any]]]:
    """Call `work(mode, *arguments)` in each round once for every mode; return the results of each mode.

    A machine whose speed drifts is then as fast for one mode as for another. Every call is a process of its own, so
    that its peak memory is its own.
    """
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for number in range(1, rounds + 1):
        for mode in modes:
            print(f"running {mode}, {number} of {rounds}", file=sys.stderr, flush=True)
            results[mode].append(in_new_process(work, mode, *arguments))
    return results


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]], peer: str) -> list[dict[str, Any]]:
    """A row for each mode: the median of its runs' `rate`, its speed-up over a peer, and the most memory of a run."""
    medians = {mode: statistics.median(run["rate"] for run in done) for mode, done in runs.items()}
    return [
        {
            "mode": mode,
            "rate": rate,
            "speed_up": rate / medians[peer],
            "peak_memory_gb": max(run["peak_memory_gb"] for run in runs[mode]),
            "rates": [run["rate"] for run in runs[mode]],
        }
        for mode, rate in medians.items()
    ]


def made_up_config(network: str, **fields: Any) -> BartConfig:
    """The config of a network of NETWORKS."""
    from bart.configuration.configuration_bart import BartConfig

    width, layers, heads = NETWORKS[network]
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    return BartConfig(d_model=width, **fields)
