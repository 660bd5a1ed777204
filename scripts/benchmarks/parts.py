"""Where the time of decoding goes on a CPU: torch's operations and the kernels in C, beside what bounds them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partialmethod
from timeit import repeat
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bart.cpu.kernels import Kernels
from bart.modeling.packed import Packer

# Parts, by words in the names of operations; the first that fits counts.
PARTS = {
    "product": ("linear", "multiply", "mm"),
    "attention": ("attend", "attention"),
    "scores of ids": ("log_softmax", "top_sums", "topk", "amax", "scatter_reduce"),
    "norm": ("layer_norm",),
    "quantisation": ("quantize_rows", "finish_rows", "code_heads"),
    "moves": ("copy", "gather", "index", "cat", "clone", "fill", "pad", "scatter", "embedding"),
    "other operations": ("",),
}
COLUMNS = {
    "part": "part", "calls": "calls", "ms": "ms", "share": "share",
    "gb_s": "GB/s", "gflop_s": "GFLOP/s", "bound": "bound, ms",
}  # fmt: skip


class _Clock(TorchDispatchMode):
    """Adds up the time of each part, and for products and attention the bytes of tensors and the operations."""

    def __init__(self, sources: int) -> None:
        super().__init__()
        self.sources = sources  # tokens of each
        self.sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.is_inside = False  # a kernel, of whose time torch's operations in it are a part

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.time(function, str(function), *args, **(kwargs or {}))

    def time(self, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        if self.is_inside:
            return function(*args, **kwargs)
        self.is_inside, start = True, time.perf_counter()
        try:
            result = function(*args, **kwargs)
        finally:
            seconds, self.is_inside = time.perf_counter() - start, False
        part = next(part for part, words in PARTS.items() if any(word in name for word in words))
        moved = operations = 0
        if part == "product":  # rows (…, I) with a matrix of O outputs
            rows, inputs, outputs = result.numel() // result.shape[-1], args[0].shape[-1], result.shape[-1]
            operations = 2 * rows * inputs * outputs
            part += f" {rows} x {inputs} x {outputs}"
        elif part == "attention":  # of K queries (B, H, K, Dh) to L keys
            queries, length = args[0].shape[2], args[1].shape[2]
            operations = 4 * args[0].numel() * length
            others = "the source" if length == self.sources else "itself"
            part = "attention of the encoder" if queries == length else f"attention to {others}"
        if operations:
            moved = sum(tensor.numel() * tensor.element_size() for tensor in _tensors((args, kwargs, result)))
        self.sums[part].update(calls=1, seconds=seconds, bytes=moved, operations=operations)
        return result


def _tensors(given: Any) -> Iterator[Tensor]:
    """The tensors of arguments and results, and those of packed weights."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for each in given:
            yield from _tensors(each)
    elif isinstance(given, Mapping):
        yield from _tensors([*given.values()])
    elif type(given).__name__.startswith("Packed"):
        yield from _tensors(vars(given))


def parts_of(work: Callable[[], object], sources: int, precision: str) -> list[dict[str, Any]]:
    """The rows of a table for one call of the work, by time; sources is the number of tokens of each article.

    A bound is what the bytes of a part take at the rate of a large copy, or its operations at that of a large product
    in the precision, whichever is more. The row of all has these rates. What lies in caches moves faster.
    The clock slows each operation by some microseconds, which the row of what is between them shows.
    """
    work()
    start = time.perf_counter()
    work()
    whole = time.perf_counter() - start
    clock = _Clock(sources)

    def method(kernels: Kernels, *args: Any, function: Callable[..., Any], **kwargs: Any) -> Any:
        return clock.time(function.__get__(kernels), function.__name__, *args, **kwargs)

    with ExitStack() as stack:
        for name, function in vars(Kernels).items():
            if callable(function) and not name.startswith("_"):
                stack.enter_context(patch.object(Kernels, name, partialmethod(method, function=function)))
        stack.enter_context(clock)
        work()
    bandwidth, rate = _bandwidth(), _rate(precision)
    rows = []
    for part, sums in clock.sums.items():
        seconds, moved, operations = sums["seconds"], sums["bytes"], sums["operations"]
        row: dict[str, Any] = {"part": part, "calls": sums["calls"], "ms": 1e3 * seconds}
        if operations:
            row |= {"gb_s": moved / seconds / 1e9, "gflop_s": operations / seconds / 1e9}
            row["bound"] = 1e3 * max(moved / bandwidth, operations / rate)
        rows.append(row)
    rows.append({"part": "between them, less the clock", "ms": 1e3 * whole - sum(row["ms"] for row in rows)})
    rows.append({"part": "all, without a clock", "ms": 1e3 * whole, "gb_s": bandwidth / 1e9, "gflop_s": rate / 1e9})
    return sorted(({**row, "share": row["ms"] / 1e3 / whole} for row in rows), key=lambda row: -row["ms"])


def _bandwidth() -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    numbers = torch.ones(1 << 26)
    copy = torch.empty_like(numbers)
    return 2 * numbers.nbytes / min(repeat(lambda: copy.copy_(numbers), number=1))


def _rate(precision: str) -> float:
    """Operations a second of a large product, by the kernel or by oneDNN, as in a model."""
    side = 2048
    layer = torch.nn.Linear(side, side)
    packed = Packer(precision, torch.device("cpu"), leaves_out_padding=True).linear([layer], rows=side)
    rows = torch.randn(side, side, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    with torch.inference_mode():
        return 2 * side**3 / min(repeat(lambda: packed(rows), number=1))
