"""Fine-tune BART: `python finetune.py --help`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("finetune")

from collections.abc import Sequence

from utils.recipes.finetuning_arguments import parse_finetune_arguments


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_finetune_arguments(argv)
    # Imported here so that --help and bad options need not wait for Lightning, which takes seconds to load.
    from utils.recipes.training import run

    run(args)
