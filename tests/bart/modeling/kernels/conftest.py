"""The kernels as several processors get them, and an empty cache of compiled ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bart.modeling import kernels
from bart.modeling.kernels import Kernels
from tests.bart.modeling.kernels.common import why_not

OPTIONS = {"native": [], "AVX2": ["-march=x86-64-v3"], "plain": ["-DBART_PLAIN"]}


@pytest.fixture(scope="module", params=OPTIONS)
def compiled(request: pytest.FixtureRequest) -> Kernels:
    """The kernels as this processor gets them, as one gets them that has AVX2 alone, and without code for some only."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if request.param == "AVX2" and not kernels.compile_kernels().is_avx512:
        pytest.skip("this processor has no more than that")
    return kernels.compile_kernels(*OPTIONS[request.param])


@pytest.fixture
def emulated() -> Kernels:
    """The kernels as a processor gets them that multiplies bf16."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if not kernels.compile_kernels().is_avx512:
        pytest.skip("needs AVX-512")
    return kernels.compile_kernels("-O1", "-include", str(Path(__file__).with_name("emulated_bf16.h")))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bart-pytorch" / "kernels"
