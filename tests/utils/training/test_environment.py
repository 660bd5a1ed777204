"""The record of what a run was started with."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml

import finetune
from bart.errors import InputError
from tests.tiny_run import write_tiny_run
from utils.training.environment import git_state


def test_every_run_leaves_its_record(tmp_path: Path) -> None:
    """A resumed run's stands beside the first one's."""
    output = tmp_path / "run"
    argv = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(output), "--seed", "5"]
    finetune.main([*argv, "--max_steps", "1"])
    first = json.loads((output / "environment.json").read_text())
    assert first["versions"]["torch"] == torch.__version__
    assert first["versions"]["cuda"] == torch.version.cuda
    assert first["versions"]["python"] == platform.python_version()
    assert {"pytorch_lightning", "transformers"} <= first["versions"].keys()
    assert (first["seed"], first["processes"], first["nodes"]) == (5, 1, 1)
    assert first["command"].startswith(sys.argv[0])
    assert len(first["devices"]) == 1
    assert first["host"]
    assert first["date"].endswith("+00:00")
    for steps in (2, 3):
        finetune.main([*argv, "--max_steps", str(steps), "--resume_from_checkpoint", str(output / "last.ckpt")])
    names = [f"arguments{number}.yaml" for number in (".1", ".2", "")]
    assert [yaml.safe_load((output / name).read_text())["max_steps"] for name in names] == [1, 2, 3]
    assert json.loads((output / "environment.1.json").read_text()) == first
    assert sorted(path.name for path in output.glob("*.csv")) == ["metrics.1.csv", "metrics.2.csv", "metrics.csv"]


def test_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("one")
    for command in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_no_git_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_wandb_that_is_not_installed(tmp_path: Path) -> None:
    argv = [*write_tiny_run(tmp_path), "--do_train", "--output_dir", str(tmp_path / "run"), "--wandb_project", "bart"]
    with pytest.raises(InputError, match="--wandb_project is bart; .*pip install wandb"):
        finetune.main(argv)
    assert not (tmp_path / "run").exists()


def test_wandb_gets_the_project_the_arguments_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own logger, on a stand-in for the package."""
    logged: dict[str, float] = {}
    started: list[dict[str, object]] = []

    class Run:
        def log(self, metrics: dict[str, float]) -> None:
            logged.update(metrics)

    def init(**options: object) -> Run:
        started.append(options)
        return Run()

    packages = tmp_path / "packages"
    (packages / "wandb-0.99.0.dist-info").mkdir(parents=True)
    (packages / "wandb-0.99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: wandb\nVersion: 0.99.0\n"
    )
    monkeypatch.syspath_prepend(packages)
    parts = {
        "wandb": {"init": init, "run": None, "__path__": []},
        "wandb.sdk": {"__path__": []},
        "wandb.sdk.lib": {"RunDisabled": type("RunDisabled", (), {})},
        "wandb.wandb_run": {"Run": Run},
    }
    for name, content in parts.items():
        stand_in = types.ModuleType(name)
        vars(stand_in).update(content)
        monkeypatch.setitem(sys.modules, name, stand_in)
    output = tmp_path / "run"
    options = ["--do_train", "--output_dir", str(output), "--wandb_project", "bart", "--max_steps", "2", "--seed", "9"]
    finetune.main([*write_tiny_run(tmp_path), *options])
    (start,) = started
    assert (start["project"], start["dir"]) == ("bart", str(output))
    assert start["config"] == yaml.safe_load((output / "arguments.yaml").read_text())
    assert start["config"]["seed"] == 9
    assert logged["trainer/global_step"] == 1
    assert {"train_loss", "tokens_per_second", "val_loss"} <= logged.keys()
