"""The options of scoring, whatever the task and the program."""

from __future__ import annotations

from dataclasses import dataclass

from utils.app.cli import changeable
from utils.data.splits import SPLITS


@dataclass(frozen=True)
class ScoringOptions:
    """The split that is scored, how it is predicted, and what is written of it."""

    type_path: str | None = changeable(
        None,
        section="prediction",
        choices=SPLITS,
        help="split to score; by default test or, if the data have none, val",
    )
    warmup_batches: int = changeable(
        1,
        least=0,
        help="batches before the clock starts, at most half of all; their results count, their times do not",
    )
    info: str | None = changeable(None, section="output", help="a text to store with the scores", reaches=bool)
    dump_args: bool = changeable(False, help="also print the resolved arguments; eval_arguments.yaml always has them")
    json_summary: str | None = changeable(None, help="file for scores, speed and arguments, as one JSON object")
