from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from bart.errors import InputError
from utils.app.machine import check_gpus, git_state, peak_rate


def test_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("one")
    for command in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_state(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == f"{commit}-dirty"


def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_gpus(2)
    with pytest.raises(
        InputError, match=r"^--gpus is 3; this machine has 2 CUDA devices \(--gpus 0 runs on the CPU\)$"
    ):
        check_gpus(3)


def test_peak_rates_of_gpus() -> None:
    assert peak_rate("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_rate("NVIDIA H100 PCIe", "fp16") < peak_rate("NVIDIA H100 80GB HBM3", "fp16") == 989e12
    assert peak_rate("Tesla V100-SXM2-32GB", "bf16") is None and peak_rate("NVIDIA GeForce RTX 4090", "fp32") is None
