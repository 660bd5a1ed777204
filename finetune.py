"""Fine-tune BART for summarisation: `python finetune.py --help`."""

from __future__ import annotations

from collections.abc import Sequence

from utils.arguments import parse_train_arguments
from utils.cli import run_main


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_train_arguments(argv)
    # Imported here so that --help and bad options are answered at once: torch and Lightning take seconds to load.
    from utils.training.run import run

    run(args)
    return 0


if __name__ == "__main__":
    run_main(main)
