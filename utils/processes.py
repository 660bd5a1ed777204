"""Work in a process of its own. Nothing heavy is loaded here: a process inherits the peak memory of its parent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh interpreter, which ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()
