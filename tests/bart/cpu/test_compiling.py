"""Compiling and loading the kernels, and the way out where that is impossible."""

from __future__ import annotations

import logging
import os
import platform
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bart.cpu import kernels
from bart.cpu.compiling import FLAGS, SOURCE, compile_library
from bart.cpu.kernels import PackedCodes
from tests.bart.cpu.common import ROOT


@pytest.fixture(autouse=True)
def loaded_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test loads the kernels itself, whatever BART_KERNELS says to the other tests."""
    monkeypatch.delenv("BART_KERNELS", raising=False)
    kernels.load.cache_clear()
    yield
    kernels.load.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors named are those of x86-64")
@pytest.mark.parametrize(
    "processor", ["x86-64", "x86-64-v3", "alderlake", "skylake-avx512", "icelake-server", "sapphirerapids"]
)
def test_compiled_for_other_processors(processor: str) -> None:
    """The code that this processor does not run is at least valid C."""
    compiler = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS.split(), "-O1", f"-march={processor}"]
    if subprocess.run([*compiler, "-E", "-x", "c", os.devnull], capture_output=True).returncode:
        pytest.skip("the compiler does not know this processor")
    strict = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-S", "-o", os.devnull]
    done = subprocess.run([*compiler, *strict, SOURCE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("compiler")
def test_tiles_that_linux_refuses_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels.Kernels().attends_in_int8:
        pytest.skip("needs AVX-512 with VNNI")
    monkeypatch.setattr(kernels, "XTILEDATA", 63)  # a feature that no processor has
    compiled = kernels.Kernels("-O0", "-mamx-tile", "-mamx-int8")
    assert not hasattr(compiled._library, "ask_for") and compiled.attends_in_int8
    states, weight = torch.ones(40, 64), PackedCodes(torch.ones(32, 64).char(), torch.ones(32), torch.ones(32), 32)
    assert (compiled.multiply(states, weight) == 64 * 127 + 1).all()


@pytest.mark.usefixtures("compiler")
def test_compiled_once_by_processes_that_race(cache: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: kernels.Kernels("-O0"), range(2)))
    (library,) = cache.iterdir()
    written = library.stat().st_mtime_ns
    kernels.Kernels("-O0")
    assert [library.stat().st_mtime_ns] == [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]
    kernels.Kernels("-O0", "-DBART_PLAIN")
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("compiler")
def test_a_library_that_others_may_change_is_compiled_anew(cache: Path) -> None:
    kernels.Kernels("-O0")
    (library,) = cache.iterdir()
    assert cache.stat().st_mode & 0o777 == library.stat().st_mode & 0o777 == 0o700
    library.unlink()
    library.write_bytes(b"planted")
    library.chmod(0o722)
    states = torch.ones(1, 1, 1, 64)
    assert torch.equal(kernels.Kernels("-O0").attend(states, states, states), states[0])
    assert library.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("compiler")
def test_a_folder_that_others_may_change_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    with pytest.raises(OSError, match="others may write"):
        kernels.Kernels("-O0")
    cache.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(OSError, match="is not owned by this user"):
        kernels.Kernels("-O0")
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernels are made for Linux")
def test_no_flipped_bit_of_a_library_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    whole = rng.randbytes(50_000)

    def compiles(command: Sequence[object], **_: object) -> SimpleNamespace:
        """A compiler that makes the same bytes each time, and takes no time."""
        if command[-1] != os.devnull:
            Path(command[-1]).write_bytes(whole)
        return SimpleNamespace(stdout=b"")

    monkeypatch.setattr(subprocess, "run", compiles)
    library = compile_library()
    assert [*cache.iterdir()] == [library]
    for place in rng.sample(range(8 * len(whole)), 200):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        library.write_bytes(changed)
        assert compile_library() == library and library.read_bytes() == whole


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("BART_KERNELS", "0", "BART_KERNELS is 0"),
        ("PATH", "", "No such file or directory"),
        ("CC", "false", "the compiler fails"),
        ("CC", "cc --no-such-option", "--no-such-option"),
        ("XDG_CACHE_HOME", "/dev/null", "/dev/null"),
    ],
)
def test_without_a_compiler_one_line_says_so(
    name: str,
    value: str,
    reason: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if name != "BART_KERNELS":
        request.getfixturevalue("compiler")
    monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert kernels.load() is None
        assert kernels.load() is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO and record.exc_info is None
    message = record.getMessage()
    assert reason in message and "torch's operations take their place" in message and "\n" not in message


THREADS = """
import os, torch
from bart.cpu.kernels import load
torch.set_num_threads(2)
one = torch.ones(1000, 1000)
torch.add(one, one)
threads = len(os.listdir("/proc/self/task"))
keys = torch.ones(4, 16, 256, 64).bfloat16()
assert (load().attend(keys[:, :, :4], keys, keys) == 1).all()
assert (load().finish_rows(one, torch.ones(1000, 1), torch.zeros(1000)) == 1).all()
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if "/" in line}
print(*sorted(name for name in map(os.path.basename, files) if name.startswith(("libgomp", "libomp", "libiomp"))))
print(len(os.listdir("/proc/self/task")) - threads)
"""


@pytest.mark.usefixtures("compiler")
def test_threads_are_those_of_torch() -> None:
    """In a fresh process, one OpenMP library is loaded, and the kernels start no threads of their own."""
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, check=True, capture_output=True, text=True)
    libraries, more_threads = done.stdout.splitlines()
    assert len(libraries.split()) == 1
    assert more_threads == "0"
