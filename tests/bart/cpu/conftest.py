"""The kernels as several processors get them, and an empty cache of compiled ones."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bart.cpu import kernels
from bart.cpu.kernels import Kernels

TILES = ["-include", str(Path(__file__).with_name("emulated_tiles.h"))]
OPTIONS = {"native": [], "AMX": TILES, "AVX2": ["-march=x86-64-v3"], "plain": ["-DBART_PLAIN"]}


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skips tests where the kernels cannot be compiled."""
    if sys.platform != "linux":
        pytest.skip("the kernels are made for Linux")
    command = shlex.split(os.environ.get("CC", "cc"))
    try:
        macros = subprocess.run([*command, "-dM", "-E", "-x", "c", os.devnull], check=True, capture_output=True).stdout
    except OSError:
        pytest.skip("there is no C compiler")
    if b"__clang__" in macros:
        pytest.skip("the C compiler is not GCC")


@pytest.fixture(scope="module", params=OPTIONS)
def compiled(compiler: None, request: pytest.FixtureRequest) -> Kernels:
    """The kernels as this processor gets them, as others with AMX or AVX2 alone do, and without code for some only."""
    if request.param in ("AMX", "AVX2") and not kernels.Kernels().is_avx512:
        pytest.skip("needs AVX-512")
    return kernels.Kernels(*OPTIONS[request.param])


@pytest.fixture
def emulated(compiler: None) -> Kernels:
    """The kernels as a processor gets them that multiplies bf16."""
    if not kernels.Kernels().is_avx512:
        pytest.skip("needs AVX-512")
    return kernels.Kernels("-O1", "-include", str(Path(__file__).with_name("emulated_bf16.h")))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bart-pytorch" / "kernels"
