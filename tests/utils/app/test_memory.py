from __future__ import annotations

import logging
import platform
import resource
import weakref
from collections.abc import Iterator
from typing import NoReturn

import pytest
import torch

from tests import forked
from utils.app.memory import FittingSize, is_out_of_memory, keep_freed_memory

# As torch raises it where malloc fails.
CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError(CPU_MESSAGE),
    RuntimeError("could not create a primitive"),
]


@pytest.mark.parametrize("error", ERRORS, ids=["gpu", "cpu", "onednn"])
def test_sizes_are_halved_until_they_fit_and_stay(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    fitting = FittingSize(20, "--size")
    done: list[int] = []
    tried: list[int] = []

    def work(left: list[int], size: int) -> Iterator[int]:
        for start in range(0, len(left), size):
            part = left[start : start + size]
            tried.append(len(part))
            if len(part) > (3 if 17 in part else 6):
                raise error
            done.extend(part)
            yield from part

    fitting.run(range(15), work)
    assert tried == [15, 7, 3, 3, 3, 3, 3]
    fitting.run(range(15, 22), work)
    assert tried[7:] == [3, 3, 1]
    assert done == list(range(22))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[1] == "out of memory with 7 examples at once; going on with 3: lower --size to what fits"


def test_one_example_that_does_not_fit_and_other_errors_are_raised_as_they_are() -> None:
    for error, expected in [(ERRORS[0], [4, 2, 1]), (ERRORS[1], [4, 2, 1]), (RuntimeError("shapes"), [4])]:
        tried = []

        def work(_: list[int], size: int, error: Exception = error, tried: list[int] = tried) -> NoReturn:
            tried.append(size)
            raise error

        with pytest.raises(RuntimeError) as raised:
            FittingSize(4, "--size").run(range(4), work)
        assert raised.value is error
        assert tried == expected


def test_what_did_not_fit_is_free_before_the_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append([reference() for reference in held]))

    def work(left: list[int], size: int) -> list[int]:
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        if size > 1:
            raise torch.OutOfMemoryError
        return left

    FittingSize(4, "--size").run(range(4), work)
    assert emptied == [[None], [None, None]]


def test_what_torch_raises_is_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    with pytest.raises(RuntimeError) as raised:  # as where recording a CUDA graph breaks off
        try:
            raise torch.OutOfMemoryError
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def faults(keeps: bool) -> int:
    """Pages that the system hands out, each filled with zeros, for ten tensors of 64 MB one after another."""
    if keeps:
        keep_freed_memory()
    counts = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(16 * 2**20)
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return counts[1]  # the first round takes the memory from the system in any case


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_freed_memory_is_kept_for_the_next_tensors() -> None:
    assert forked.call(faults, True) < 100 < 1000 < forked.call(faults, False)
