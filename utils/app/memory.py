"""Memory: the most that was held, and work on batches that shrink where it runs out."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from utils.app.machine import process_memory_gb

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
ON_CPUS = "DefaultCPUAllocator", "could not create a primitive"  # words of torch and of oneDNN where memory runs out


def peak_memory_gb(device: torch.device) -> float:
    """The most memory ever held, in 1e9 bytes: tensors on a GPU, else all of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return process_memory_gb()


def keep_freed_memory() -> None:
    """Let the process keep what large tensors on the CPU free, for the next ones of their size.

    glibc gives such blocks back to the system, which fills each page with zeros: a tenth of a training step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt.argtypes = ctypes.c_int, ctypes.c_int
    except (AttributeError, OSError):  # macOS, musl
        return
    mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
    mallopt(-4, 0)  # M_MMAP_MAX: nothing apart from the heap


def is_out_of_memory(error: BaseException) -> bool:
    """Return true if memory of a GPU or of the CPU ran out, also where the error is only a consequence of that."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, torch.OutOfMemoryError) or any(words in str(chain) for words in ON_CPUS):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


class FittingSize:
    """A number of examples at once, which is halved for good where memory runs out; `option` sets it."""

    def __init__(self, size: int, option: str) -> None:
        self.size = size
        self.option = option

    def run(self, items: Iterable[Item], work: Callable[[list[Item], int], Iterable[Item]]) -> None:
        """Do some work on all items, all different; where memory runs out, go on with those left and half the size.

        The work takes the items left, and how many may be in memory at once; it yields each item that is done.
        """
        left = dict.fromkeys(items)
        while left:
            size = min(self.size, len(left))
            try:
                for item in work(list(left), size):
                    del left[item]
                return
            except RuntimeError as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
            self.halve(size)  # only here are the error, its traceback and the tensors that they hold gone

    def halve(self, size: int) -> None:
        """Take half of a number of examples, for which there was no memory, from now on."""
        torch.cuda.empty_cache()
        self.size = size // 2
        message = "out of memory with %d examples at once; going on with %d: lower %s to what fits"
        logger.warning(message, size, self.size, self.option)
