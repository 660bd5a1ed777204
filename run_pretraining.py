"""Pretrain BART: `python run_pretraining.py --help`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("run_pretraining")

from collections.abc import Sequence

from utils.recipes.pretraining_arguments import parse_pretraining_arguments


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_pretraining_arguments(argv)
    # Imported here so that --help and bad options need not wait for Lightning, which takes seconds to load.
    from utils.recipes.training import run

    run(args)
