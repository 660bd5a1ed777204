"""Scores of plain files: `python -m utils.metrics NAME PREDICTIONS REFERENCES`."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.metrics.__main__")

import sys
from collections.abc import Sequence
from importlib import import_module

from bart.errors import InputError
from utils.app.cli import program

NAMES = ("rouge", "bleu", "classification", "entities", "squad")


def main(argv: Sequence[str] | None = None) -> None:
    name, *words = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if name in ("-h", "--help"):
        print(f"usage: {program()} NAME PREDICTIONS REFERENCES\n\nNAME is one of {', '.join(NAMES)}; each has --help.")
    elif name in NAMES:
        import_module(f"utils.metrics.{name}").main(words, f"{program()} {name}")
    else:
        raise InputError(f"NAME is {name!r}; allowed: {', '.join(NAMES)}, each of which has --help")
