"""Growth of a training step's time with batch, source length, vocabulary and layers, beside that of its operations.

    python scripts/benchmarks/training.py growth --output growth.json

A small BART with random weights takes steps on random ids: loss, gradients, clipping, AdamW. From row to row, one thing
of the first shape is doubled. Sizes are timed in turns, after a step each to warm up; the table has the medians. A time
that doubles where the operations do is linear; one that grows by more than they shows what should be looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bart.configuration.configuration_bart import BartConfig
from bart.cpu.backend import CpuBackend
from bart.modeling.modeling_bart import BartForConditionalGeneration, training_operations
from scripts.benchmarks import measuring
from utils.app.cli import option, parse_dataclass
from utils.runs.machine import environment
from utils.training.measurements import seconds, stamp

TARGET_LENGTH = 32
COLUMNS = {
    "dimension": "of",
    "size": "size",
    "seconds": "seconds",
    "growth": "times as long",
    "operations_growth": "times the operations",
}


@dataclass(frozen=True, kw_only=True)
class GrowthArguments(measuring.DeviceOptions):
    """The options of the measure; a round is a step of each size."""

    rounds: int = option(5, least=1, help="timed steps of each size, in turns; the table has their medians")
    doublings: int = option(3, least=1, most=6, help="of each dimension")


@dataclass(frozen=True)
class Size:
    """A network and its batch."""

    batch: int = 4
    source_length: int = 128
    vocabulary: int = 8192
    layers: int = 1

    @property
    def config(self) -> BartConfig:
        """The config of the network."""
        return measuring.made_up_config(256, self.layers, 4, vocab_size=self.vocabulary, max_position_embeddings=8192)

    def operations(self) -> int:
        """The operations of a step's matrix products."""
        return self.batch * training_operations(self.config, self.source_length, TARGET_LENGTH)


def step_times(size: Size, device: torch.device) -> Iterator[float]:
    """The seconds of one step after another."""
    torch.manual_seed(0)
    model = BartForConditionalGeneration(size.config).to(device).train()
    if device.type == "cpu":
        model.compute_with(CpuBackend())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    source, labels = (
        torch.randint(4, size.vocabulary, (size.batch, length), device=device)
        for length in (size.source_length, TARGET_LENGTH)
    )
    while True:
        start = stamp(device)
        model(source, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        yield seconds(start, stamp(device))


def doubled(dimension: str, args: GrowthArguments) -> list[dict[str, Any]]:
    """A row of the table for each size, from the first shape on, of which one dimension is doubled."""
    first = getattr(Size(), dimension)
    sizes = [replace(Size(), **{dimension: first * 2**power}) for power in range(args.doublings + 1)]
    clocks = [step_times(size, torch.device(args.device)) for size in sizes]
    for clock in clocks:
        next(clock)  # warms up
    rounds = [[next(clock) for clock in clocks] for _ in range(args.rounds)]
    rows: list[dict[str, Any]] = []
    for size, times in zip(sizes, zip(*rounds, strict=True), strict=True):
        row: dict[str, Any] = {"dimension": dimension.replace("_", " "), "size": getattr(size, dimension)}
        row |= {"seconds": statistics.median(times), "operations": size.operations(), "times": times}
        if rows:
            row["growth"] = row["seconds"] / rows[-1]["seconds"]
            row["operations_growth"] = row["operations"] / rows[-1]["operations"]
        rows.append(row)
    return rows


def main(argv: Sequence[str]) -> None:
    args = parse_dataclass(GrowthArguments, argv, str(__doc__), prog="training.py growth")
    machine = environment(int(args.device == "cuda"))
    results = [row for dimension in asdict(Size()) for row in doubled(dimension, args)]
    print(f"training steps in fp32 on {machine['devices'][0]}, {torch.get_num_threads()} threads")
    measuring.report(args, COLUMNS, results, machine)
