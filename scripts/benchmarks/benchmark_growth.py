"""How the time of a training step grows with batch, source length, vocabulary and layers, beside its operations.

    python scripts/benchmarks/benchmark_growth.py --output growth.json

A small BART with random weights takes steps on random ids: loss, gradients, clipping, AdamW. From row to row, one thing
of the first shape is doubled. Sizes are timed in turns, after a step each to warm up; the table has the medians. A time
that doubles where the operations do is linear; one that grows by more than they shows what should be looked at.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import torch

from bart.configuration.configuration_bart import BartConfig
from bart.files import write_json
from bart.modeling.modeling_bart import BartForConditionalGeneration
from scripts.benchmarks.measuring import DEVICES, check_device
from utils import cost
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.runs.machine import environment
from utils.runs.outputs import check_output
from utils.training.measurements import seconds, stamp

TARGET = 32  # tokens
COLUMNS = {
    "dimension": "of",
    "size": "size",
    "seconds": "seconds",
    "growth": "times as long",
    "operations_growth": "times the operations",
}


@dataclass(frozen=True)
class Arguments:
    device: str = option("cpu", choices=DEVICES, help="where steps are taken")
    steps: int = option(5, least=1, help="timed steps of each size")
    doublings: int = option(3, least=1, most=6, help="of each dimension")
    output: str | None = option(None, help="JSON file for all figures")

    def __post_init__(self) -> None:
        check_device(self.device, ())
        check_output("output", self.output)


@dataclass(frozen=True)
class Size:
    """A network and its batch."""

    batch: int = 4
    source_length: int = 128
    vocabulary: int = 8192
    layers: int = 1

    @property
    def config(self) -> BartConfig:
        wide = {"d_model": 256, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
        heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
        layers = {f"{side}_layers": self.layers for side in ("encoder", "decoder")}
        return BartConfig(**wide, **heads, **layers, vocab_size=self.vocabulary, max_position_embeddings=8192)

    def operations(self) -> float:
        """Of a step's matrix products."""
        return cost.training(self.config, (self.batch, self.source_length, TARGET), half=False, freeze=False).operations


@dataclass
class Timed:
    """A size, and the seconds of its steps."""

    dimension: str
    size: Size
    steps: Iterator[float]
    times: list[float] = field(default_factory=list)


def step_times(size: Size, device: torch.device) -> Iterator[float]:
    """The seconds of one step after another."""
    torch.manual_seed(0)
    model = BartForConditionalGeneration(size.config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    source, labels = (
        torch.randint(4, size.vocabulary, (size.batch, length), device=device)
        for length in (size.source_length, TARGET)
    )
    while True:
        start = stamp(device)
        model(source, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        yield seconds(start, stamp(device))


def measure(args: Arguments) -> list[dict[str, Any]]:
    """The rows of the table."""
    device, rows = torch.device(args.device), []
    for dimension, first in asdict(Size()).items():
        sizes = [replace(Size(), **{dimension: first * 2**power}) for power in range(args.doublings + 1)]
        timed = [Timed(dimension, size, step_times(size, device)) for size in sizes]
        for one in timed:
            next(one.steps)
        for _ in range(args.steps):
            for one in timed:
                one.times.append(next(one.steps))
        before = None
        for one in timed:
            row: dict[str, Any] = {"dimension": dimension.replace("_", " "), "size": getattr(one.size, dimension)}
            row |= {"seconds": statistics.median(one.times), "operations": one.size.operations(), "times": one.times}
            if before is not None:
                row["growth"] = row["seconds"] / before["seconds"]
                row["operations_growth"] = row["operations"] / before["operations"]
            rows.append(row)
            before = row
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, str(__doc__))
    info, rows = environment(args.device == "cuda"), measure(args)
    print(f"training steps in fp32 on {info['devices'][0]}, {torch.get_num_threads()} threads")
    print(table(rows, COLUMNS))
    if args.output is not None:
        write_json(Path(args.output), {"machine": info, "arguments": asdict(args), "results": rows})


if __name__ == "__main__":
    run_main(main)
