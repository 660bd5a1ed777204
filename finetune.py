"""Fine-tune BART: `python finetune.py --help`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from utils.app.commands import run_program


def main(argv: Sequence[str] | None = None) -> int:
    # Imported here, so that signals are handled meanwhile.
    from utils.recipes.finetuning_arguments import parse_finetune_arguments

    args = parse_finetune_arguments(argv)
    # Imported here so that --help and bad options need not wait for Lightning, which takes seconds to load.
    from utils.recipes.training import run

    run(args)
    return 0


command = partial(run_program, main)

if __name__ == "__main__":
    command()
