"""Checkpoints of several processes: in shards that are written while training goes on, whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.errors import InputError
from bart.files import sha256_of
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tensor_files import SHARDS
from tests import forked
from tests.tiny_run import checkpoint_of, same, weights
from utils.training import checkpoints
from utils.training.checkpoints import find_checkpoint, keep_as_last
from utils.training.module import TrainingModule

EVERY_THIRD = ["--save_every_n_steps", "3", "--resume_from_checkpoint", "last", "--lr_scheduler", "constant"]
EVERY_THIRD += ["--val_check_interval", "1000"]


def on_write(act: Any) -> None:
    """Call a function after a process has written its shard, in the thread that does, before any other knows of it."""
    write = checkpoints._ShardWriter.write_data

    def writing(self: Any, *args: Any) -> Any:
        written = write(self, *args)
        act(self.path.name)
        return written

    checkpoints._ShardWriter.write_data = writing  # type: ignore[method-assign]


def die_in_second_save() -> None:
    def die(folder: str) -> None:
        if os.environ["RANK"] == "1" and folder.startswith("step6-"):
            os.kill(os.getpid(), signal.SIGKILL)

    on_write(die)


def write_until_step_five() -> None:
    """Let the shards of step 3 be on the disk only once the fifth step begins, which must not wait for them."""
    begun, train = threading.Event(), TrainingModule.training_step

    def training_step(self: TrainingModule, *args: Any) -> Any:
        if self.trainer.global_step == 4:
            begun.set()
        return train(self, *args)

    def wait(folder: str) -> None:
        assert not folder.startswith("step3-") or begun.wait(60)

    TrainingModule.training_step = training_step
    on_write(wait)


def folders_of(output: Path) -> set[str]:
    return {path.name for path in (output / "sharded").iterdir()}


def named_by(output: Path) -> set[str]:
    names = {name for path in output.glob("*.ckpt") for name in checkpoint_of(output, path.name)[SHARDS]}
    assert all((output / name).is_file() for name in names)
    return {Path(name).parent.name for name in names}


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_kill_in_a_save_leaves_the_checkpoint_before(strategy: str, tiny: list[str], tmp_path: Path) -> None:
    """And the run that goes on ends as an uninterrupted one, and removes what the killed one left."""
    options, run = [*tiny, *EVERY_THIRD, "--strategy", strategy, "--max_steps", "8"], tmp_path / "run"
    statuses = forked.finish(forked.start(options, run, ranks=2, before=die_in_second_save))
    assert statuses == [1, -signal.SIGKILL]
    assert checkpoint_of(run)["global_step"] == 3 and find_checkpoint("last", run) == run / "last.ckpt"
    assert {name.partition("-")[0] for name in folders_of(run)} == {"step3", "step6"}
    forked.run(options, run, ranks=2)
    forked.run(options, tmp_path / "whole", ranks=2)
    assert same(weights(run), weights(tmp_path / "whole"))
    assert folders_of(run) == named_by(run) and len(folders_of(run)) == 2  # of `last` and the best one, and `previous`


def test_training_goes_on_while_shards_are_written(tiny: list[str], tmp_path: Path) -> None:
    """They hold the state of their step, and each process has written about a half."""
    options, run, short = [*tiny, *EVERY_THIRD, "--dropout", "0.1"], tmp_path / "run", tmp_path / "short"
    forked.run([*options, "--max_steps", "5"], run, ranks=2, before=write_until_step_five)
    forked.run([*options, "--max_steps", "3"], short, ranks=2)
    assert checkpoint_of(run, "previous.ckpt")["global_step"] == 3
    whole = [
        BartForConditionalGeneration.from_pretrained(path) for path in (run / "previous.ckpt", short / "last.ckpt")
    ]
    assert same(*(model.state_dict() for model in whole))
    assert not same(weights(run), weights(short))
    sizes = [(run / name).stat().st_size for name in checkpoint_of(run)[SHARDS]]
    assert len(sizes) == 2 and max(sizes) < 1.3 * min(sizes)


def test_damaged_and_missing_shards_are_named(tiny: list[str], tmp_path: Path, caplog: Any) -> None:
    options, run = [*tiny, *EVERY_THIRD], tmp_path / "run"
    forked.run([*options, "--max_steps", "4"], run, ranks=2)
    shard = run / min(checkpoint_of(run)[SHARDS])
    assert {path.suffix for path in (run / "sharded").rglob("*") if path.is_file()} == {".safetensors"}
    content = bytearray(shard.read_bytes())
    content[-5] ^= 4
    for damage in (lambda: shard.write_bytes(content), shard.unlink):
        damage()
        problem = f"^{shard}: missing, damaged or truncated; it is a part of {run}/last.ckpt$"
        with pytest.raises(InputError, match=problem):
            find_checkpoint(str(run / "last.ckpt"), run)
        with pytest.raises(InputError, match=problem):
            BartForConditionalGeneration.from_pretrained(run / "last.ckpt")
        assert find_checkpoint("last", run) == run / "previous.ckpt"
    assert "last.ckpt is incomplete or damaged; the checkpoint before it is used" in caplog.text
    forked.run([*options, "--max_steps", "4"], run, ranks=2)
    assert checkpoint_of(run)["global_step"] == 4
    moved = tmp_path / "moved"
    forked.run([*options, "--max_steps", "4", "--resume_from_checkpoint", run], moved, ranks=2)
    shutil.rmtree(run)
    assert find_checkpoint("last", moved) == moved / "last.ckpt"


def put_a_file_in_the_way(output: Path) -> None:
    if os.environ["RANK"] == "0":
        (output / "sharded").touch()


def test_shards_that_cannot_be_written_end_the_run_in_one_line(tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    before = partial(put_a_file_in_the_way, run)
    processes = forked.start([*tiny, *EVERY_THIRD, "--max_steps", "5"], run, ranks=2, before=before)
    assert forked.finish(processes) == [1, 1]
    log = forked.log_of(run).read_text()
    assert log.splitlines()[-1].endswith("last.ckpt: cannot be written (Not a directory); the one before it is whole")
    assert "Traceback" not in log


def keep_to_itself(output: Path) -> None:
    """Let the second process write where the first one does not see it, as on a disk of another machine."""

    def hide(folder: str) -> None:
        if os.environ["RANK"] == "1":
            next((output / "sharded" / folder).glob("shard-00002*")).unlink()

    on_write(hide)


def test_machines_that_share_no_folder_are_told_at_the_first_checkpoint(tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = forked.start([*tiny, *EVERY_THIRD], run, ranks=2, before=partial(keep_to_itself, run))
    assert forked.finish(processes) == [1, 1]
    for rank in range(2):
        line = forked.log_of(run, rank).read_text().splitlines()[-1]
        assert ".ckpt: cannot be written (the machines do not share this folder: sharded/step3-" in line
    assert not [*run.glob("*.ckpt")]


def test_processes_that_shard_refuse_the_file_of_one(tiny: list[str], tmp_path: Path) -> None:
    options, run = [*tiny, "--strategy", "fsdp", "--resume_from_checkpoint", "last"], tmp_path / "run"
    forked.run([*options, "--train_batch_size", "4", "--max_steps", "2"], run)
    two = forked.start([*options, "--train_batch_size", "2", "--max_steps", "3"], run, ranks=2)
    assert forked.finish(two) == [2, 2]
    line = forked.log_of(run).read_text().splitlines()[-1]
    assert line.endswith(f"by --model_name_or_path {run}/last.ckpt") and "one process wrote it" in line


def test_shards_stay_where_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    for name in ("named", "unnamed"):
        (tmp_path / checkpoints.SHARDED / name).mkdir(parents=True)
    torch.save({SHARDS: {f"{checkpoints.SHARDED}/named/a.safetensors": ""}}, tmp_path / "last.ckpt")
    (tmp_path / "best.ckpt").write_bytes(b"damaged")
    (tmp_path / checkpoints.SHARDED / ".DS_Store").touch()  # as macOS leaves them anywhere
    for damaged in (True, False):
        checkpoints.remove_unnamed_shards(tmp_path)
        left = {path.name for path in (tmp_path / checkpoints.SHARDED).glob("[!.]*")}
        assert left == ({"named", "unnamed"} if damaged else {"named"})
        (tmp_path / "best.ckpt").unlink(missing_ok=True)


def test_a_copy_of_shards_that_was_broken_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a full disk or a kill breaks it off, where a run goes on in another folder."""
    here, there, name = tmp_path / "here", tmp_path / "there", f"{checkpoints.SHARDED}/step1/a.safetensors"
    (here / name).parent.mkdir(parents=True)
    there.mkdir()
    (here / name).write_bytes(b"whole")
    torch.save({SHARDS: {name: sha256_of(here / name)}}, here / "last.ckpt")

    def half(_: Path, target: Path) -> None:
        target.write_bytes(b"wh")
        raise OSError

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(shutil, "copy2", half)
        keep_as_last(here / "last.ckpt", there)
    keep_as_last(here / "last.ckpt", there)
    assert find_checkpoint("last", there) == there / "last.ckpt"
