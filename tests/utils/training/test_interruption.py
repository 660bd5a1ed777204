"""Runs that are killed at any moment, asked to end, or find the disk full, and go on as if nothing had happened."""

from __future__ import annotations

import csv
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from bart.errors import InputError
from tests.tiny_run import write_tiny_run
from utils.arguments import parse_train_arguments
from utils.cli import RunError, run_main
from utils.training.checkpoints import AtomicCheckpointIO, find_checkpoint, is_whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills and limits are those of Linux")
# A new process is then a fork of one that has loaded everything.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["finetune", "utils.training.run", "tests.tiny_run"])
STEPS = 24


def run(argv: list[str], log: Path, largest_file: int | None) -> None:
    """finetune.py in this process, with its output in a file, and no file larger than so many bytes."""
    import finetune

    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = ["finetune.py", *argv]
    run_main(finetune.main)


def start(argv: list[str], output: Path, largest_file: int | None = None) -> BaseProcess:
    process = CONTEXT.Process(target=run, args=(argv, output.with_suffix(".log"), largest_file))
    process.start()
    return process


def losses(output: Path) -> dict[int, set[str]]:
    """The training losses that a run and its resumptions logged, by step; a step may be taken several times."""
    found: dict[int, set[str]] = {}
    for path in output.glob("metrics*.csv"):
        with path.open() as file:
            for row in csv.DictReader(file):
                # The last line of a killed run may be half a line.
                if row.get("train_loss") and None not in row.values():
                    found.setdefault(int(row["step"]), set()).add(row["train_loss"])
    return found


def weights(output: Path) -> dict[str, torch.Tensor]:
    return torch.load(output / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return [
        *write_tiny_run(tmp_path / "tiny"),
        *("--do_train", "--resume_from_checkpoint", "last", "--sortish_sampler", "--train_batch_size", "2"),
        *("--gradient_accumulation_steps", "2", "--max_steps", str(STEPS), "--val_check_interval", "0.4"),
        *("--save_every_n_steps", "2", "--learning_rate", "1e-3", "--dropout", "0.1"),
    ]


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_as_the_uninterrupted_one(
    kills: int, options: list[str], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    started = time.monotonic()
    process = start([*options, "--output_dir", str(whole)], whole)
    process.join()
    assert process.exitcode == 0, whole.with_suffix(".log").read_text()
    seconds = time.monotonic() - started
    expected, final, size = losses(whole), weights(whole), (whole / "last.ckpt").stat().st_size
    assert sorted(expected) == list(range(STEPS))
    rng = random.Random(kills)
    happened = runs = 0
    while happened < kills:
        runs += 1
        output = tmp_path / f"killed{runs}"
        status = None
        while status != 0:
            kind = rng.choice(["SIGKILL", "SIGTERM", "full disk"]) if happened < kills else None
            limit = rng.randrange(size // 20, size) if kind == "full disk" else None
            process = start([*options, "--output_dir", str(output)], output, limit)
            process.join(timeout=rng.uniform(0, seconds) if kind in ("SIGKILL", "SIGTERM") else None)
            if process.exitcode is None:
                os.kill(process.pid, getattr(signal, kind))
                process.join()
            status = process.exitcode
            log = output.with_suffix(".log").read_text() if output.with_suffix(".log").exists() else ""
            # Before training begins, SIGTERM ends a process as any other.
            assert status in {"SIGKILL": (-9, 0), "SIGTERM": (143, -15, 0), "full disk": (1, 0)}.get(kind, (0,)), log
            happened += status != 0
            if kind == "full disk" and status == 1:
                assert re.search("error: .* cannot be written", log.splitlines()[-1]), log
        assert "Traceback" not in output.with_suffix(".log").read_text()
        got = losses(output)
        assert {step: got[step] for step in expected} == expected
        assert all(torch.equal(tensor, final[name]) for name, tensor in weights(output).items())
        assert not list(output.glob("*.tmp"))


def test_a_run_killed_between_its_best_checkpoint_and_its_last_one(options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = start([*options, "--output_dir", str(output)], output)
    process.join()
    assert process.exitcode == 0, output.with_suffix(".log").read_text()
    final = weights(output)
    # At the last step the best one was written, and this one was not yet.
    shutil.copy(output / "last.ckpt", output / f"_epoch9_step{STEPS}.ckpt")
    (output / "previous.ckpt").replace(output / "last.ckpt")
    assert not all(torch.equal(tensor, final[name]) for name, tensor in weights(output).items())
    process = start([*options, "--output_dir", str(output)], output)
    process.join()
    assert process.exitcode == 0, output.with_suffix(".log").read_text()
    assert all(torch.equal(tensor, final[name]) for name, tensor in weights(output).items())


def run_and_export_to_a_full_disk(argv: list[str], log: Path) -> None:
    import utils.training.run as module

    export = module.export

    def full(*args: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        export(*args)

    module.export = full
    run(argv, log, None)


def test_a_disk_that_is_full_when_the_model_is_exported(options: list[str], tmp_path: Path) -> None:
    output, log = tmp_path / "run", tmp_path / "log"
    process = CONTEXT.Process(target=run_and_export_to_a_full_disk, args=([*options, "--output_dir", str(output)], log))
    process.start()
    process.join()
    assert process.exitcode == 1
    last = log.read_text().splitlines()[-1]
    assert last == f"finetune.py: error: {output}/export/model.safetensors: cannot be written (File too large)"


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    writer = AtomicCheckpointIO()
    writer.save_checkpoint({"number": torch.zeros(3)}, tmp_path / "last.ckpt")
    (tmp_path / f".last.ckpt.{socket.gethostname()}.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"last.ckpt: cannot be written \(.*No space left"):
        writer.save_checkpoint({"number": torch.ones(100_000)}, tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["number"].tolist() == [0] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("damage", ["cut", "zeros", "empty"])
def test_torn_checkpoints_are_passed_over(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = AtomicCheckpointIO()
    for number in (1, 2):
        writer.save_checkpoint({"number": torch.full((100_000,), number)}, tmp_path / "last.ckpt")
    args = parse_train_arguments(["--do_train", "--resume_from_checkpoint", "last", "--output_dir", str(tmp_path)])
    assert find_checkpoint(args) == tmp_path / "last.ckpt"
    content = (tmp_path / "last.ckpt").read_bytes()
    middle = len(content) // 2
    damaged = {"cut": content[:middle], "zeros": content[:middle] + b"\1" * 64 + content[middle + 64 :], "empty": b""}
    (tmp_path / "last.ckpt").write_bytes(damaged[damage])
    assert not is_whole(tmp_path / "last.ckpt")
    assert find_checkpoint(args) == tmp_path / "previous.ckpt"
    assert "last.ckpt is torn" in caplog.text and "the one before it is used" in caplog.text
    (tmp_path / "previous.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match="none of the checkpoints"):
        find_checkpoint(args)
    (tmp_path / "last.ckpt").unlink()
    (tmp_path / "previous.ckpt").unlink()
    assert find_checkpoint(args) is None
