"""Pretrain BART: `python run_pretraining.py --help`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from utils.app.start import start_program


def main(argv: Sequence[str] | None = None) -> int:
    # Imported here, so that a signal finds its handlers.
    from utils.recipes.pretraining_arguments import parse_pretraining_arguments

    args = parse_pretraining_arguments(argv)
    # Imported here so that --help and bad options need not wait for Lightning, which takes seconds to load.
    from utils.recipes.training import run

    run(args)
    return 0


def command() -> NoReturn:
    """The program, as pip installs it, or as a file."""
    start_program()
    from utils.app.cli import run_main

    run_main(main)


if __name__ == "__main__":
    command()
