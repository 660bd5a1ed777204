"""Score a checkpoint: `python run_eval.py --help`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("run_eval")

from collections.abc import Sequence

from utils.recipes.evaluation_arguments import parse_eval_arguments


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_eval_arguments(argv)
    # Imported here so that --help and bad options need not wait for what only a run needs.
    from utils.recipes.evaluation import run

    run(args)
