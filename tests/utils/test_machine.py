from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from bart.errors import InputError
from utils.machine import check_gpus, git_state, processor, versions


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


def test_no_git_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_gpus(2)
    with pytest.raises(
        InputError, match=r"^--gpus is 3; this machine has 2 CUDA devices \(--gpus 0 runs on the CPU\)$"
    ):
        check_gpus(3)


def test_names_and_versions() -> None:
    assert processor()
    assert versions(["torch"])["torch"] == torch.__version__
