"""Score a checkpoint: `python run_eval.py --help`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from utils.app.cli import run_main


def main(argv: Sequence[str] | None = None) -> int:
    # Imported here, so that a signal finds its handlers.
    from utils.recipes.evaluation_arguments import parse_eval_arguments

    args = parse_eval_arguments(argv)
    # Imported here so that --help and bad options need not wait for what only a run needs.
    from utils.recipes.evaluation import run

    run(args)
    return 0


command = partial(run_main, main)

if __name__ == "__main__":
    command()
