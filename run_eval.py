"""Score a checkpoint: `python run_eval.py --help`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from utils.app.commands import run_program


def main(argv: Sequence[str] | None = None) -> int:
    # Imported here, so that signals are handled meanwhile.
    from utils.recipes.evaluation_arguments import parse_eval_arguments

    args = parse_eval_arguments(argv)
    # Imported here so that --help and bad options need not wait for what only a run needs.
    from utils.recipes.evaluation import run

    run(args)
    return 0


command = partial(run_program, main)

if __name__ == "__main__":
    command()
