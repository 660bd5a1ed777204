"""Commands whose modules take seconds to load: they start, and handle signals, before they load them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from utils.app.start import start_program


def run_program(main: Callable[[Sequence[str] | None], int | None]) -> NoReturn:
    """Start a program and run its entry point, which imports what it needs itself; see `run_main`."""
    start_program()
    from utils.app.cli import run_main

    run_main(main)


def summarize() -> NoReturn:
    """bart-summarize, a command of pip."""
    run_program(lambda argv: import_module("utils.summarize").main(argv))


def serve() -> NoReturn:
    """bart-serve, a command of pip."""
    run_program(lambda argv: import_module("utils.serving.__main__").main(argv))
