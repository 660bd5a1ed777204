"""The commands that pip installs for modules that take seconds to load: each starts before it imports its module."""

from __future__ import annotations

from importlib import import_module
from typing import NoReturn

from utils.app.start import start_program


def summarize() -> NoReturn:
    """bart-summarize."""
    _run("utils.summarize")


def serve() -> NoReturn:
    """bart-serve."""
    _run("utils.serving.__main__")


def _run(module: str) -> NoReturn:
    start_program()
    from utils.app.cli import run_main

    run_main(import_module(module).main)
