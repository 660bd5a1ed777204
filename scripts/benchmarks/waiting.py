"""The share of all GPU time in which ranks wait for the slowest one of each step, simulated with `TrainOrder`.

Nothing is trained: lengths are drawn, and a rank takes as long as bart-large's matrix products for its share do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.waiting")

import numpy as np

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import training_operations
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import markdown_table
from utils.app.machine import ROOT
from utils.data.batches import padded_length
from utils.data.order import TrainOrder
from utils.data.shard_format import ROWS
from utils.data.shards import Shard
from utils.data.streaming import BinOrder

SIZE = 40  # examples of a rank
# Medians of sources and targets, whose means are 492 and 760, 30 and 74 tokens; and log-normal spreads.
DATA = {"XSum": ((419, 28), (0.75, 0.35)), "CNN-DM": ((784, 70), (0.5, 0.35))}
ORDERS = {
    "default": {"group_by_length": False},
    "`--sortish_sampler`": {},
    "`--max_tokens_per_batch`": {"max_tokens": -1},
    "padded, default": {"group_by_length": False, "is_padded": True},
    "padded, `--sortish_sampler`": {"is_padded": True},
    "padded, 4 micro-batches": {"group_by_length": False, "is_padded": True, "accumulation": 4},
    "like lengths together, as formerly": {"group_by_length": False, "is_padded": True},
}


@dataclass(frozen=True)
class WaitingArguments:
    """The options of this benchmark."""

    examples: int = option(204_800, least=1, help="examples of an epoch")
    ranks: tuple[int, ...] = option((8, 64, 1024), least=1, help="numbers of ranks")


def waiting(order: TrainOrder, config: BartConfig, pads: bool) -> float:
    """The share of an epoch's time in which ranks wait, if they compute padding or not."""

    def time(batch: np.ndarray) -> float:
        lengths = order.lengths[batch]
        lengths = np.full_like(lengths, padded_length(lengths.max(axis=0))) if pads else lengths
        return training_operations(config, *lengths.T).sum()

    times = np.array([[sum(map(time, share)) for share in step] for step in order.of_all(0)])
    return 1 - times.mean() / times.max(axis=1).mean()


def waiting_for_shards(config: BartConfig, ranks: int, size: int, shortest: int) -> float:
    """The same for shards of examples of the shortest to 128 tokens, in all 107 on average."""
    shards = [Shard(f"{number}", 128, 1 << 16, "", number << 16, ROWS) for number in range(-(-ranks * size >> 14))]
    order, generator = BinOrder(shards, range(len(shards)), ranks * size, (0, 0, 0)), np.random.default_rng(0)
    drawn = generator.lognormal(np.log(131), 0.6, 1 << 20).clip(8, 128).astype(int)
    lengths = generator.choice(drawn[drawn >= shortest], (len(order.ends), ROWS))
    read = np.concatenate([group[order.arranged(place, group)] for place, group in enumerate(lengths)])
    steps = np.stack([read[order.positions(step, np.arange(ranks * size))] for step in range(order.full)])
    times = training_operations(config, steps, steps).reshape(-1, ranks, size).sum(axis=2)
    return 1 - times.mean() / times.max(axis=1).mean()


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(WaitingArguments, argv, str(__doc__))
    config, generator = BartConfig.from_pretrained(ROOT / "configs/config.json"), np.random.default_rng(0)
    rows: list[dict[str, str]] = [{"order": name} for name in ORDERS]
    for data, (medians, spreads) in DATA.items():
        drawn = generator.lognormal(np.log(medians), spreads, (args.examples, 2))
        lengths = drawn.clip(8, 1024).astype(int)
        for ranks in args.ranks:
            for row, (name, options) in zip(rows, ORDERS.items(), strict=True):
                order_options = {"world_size": ranks, "accumulation": 1, **options}
                if "max_tokens" in options:
                    order_options["max_tokens"] = int(SIZE * lengths.sum(axis=1).mean())
                order = TrainOrder(lengths, SIZE // order_options["accumulation"], 0, **order_options)
                row[f"{data}, {ranks}"] = f"{100 * waiting(order, config, name.startswith('padded')):.1f} %"
    print(markdown_table(rows, {column: column for column in rows[0]}))
    rows = [{"shards": "without bins"}, {"shards": "a bin of 97 to 128 tokens"}]
    for size in (1, 8, 32, 200):
        for row, shortest in zip(rows, (8, 97), strict=True):
            row[f"320 ranks of {size}"] = f"{100 * waiting_for_shards(config, 320, size, shortest):.1f} %"
    print(markdown_table(rows, {column: column for column in rows[0]}))
