"""Checkpoints: written whole or not at all, found again, and refused where they belong to another run."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tensor_files import is_whole, read_file
from tests.tiny_run import Train, checkpoint_of, weights
from utils.app.errors import RunError
from utils.data import order
from utils.recipes import training
from utils.training.checkpoints import CheckpointIO, find_checkpoint, keep_as_last


def save(content: dict[str, Any], path: Path) -> None:
    saving = CheckpointIO(nn.Module())
    saving.save_checkpoint(content, path)
    assert saving.finish(waits=False) and not saving.finish(waits=True)


def write(folder: Path, number: int) -> Path:
    save({"number": torch.full((100_000,), number), "global_step": number}, folder / "last.ckpt")
    return folder / "last.ckpt"


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    last = write(tmp_path, 0)
    (tmp_path / f".last.ckpt.{socket.gethostname()}.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"last.ckpt: cannot be written \(No space left on device\)"):
        write(tmp_path, 1)
    assert not torch.load(last, weights_only=True)["number"].any()
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("damage", ["cut", "overwritten", "empty"])
def test_torn_checkpoints_are_passed_over(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        last = write(tmp_path, number)
    assert find_checkpoint("last", tmp_path) == last
    content = last.read_bytes()
    middle = len(content) // 2
    damaged = {"cut": content[:middle], "overwritten": content[:middle] + b"\1" * 64 + content[middle + 64 :]}
    last.write_bytes(damaged.get(damage, b""))
    assert not is_whole(last)
    assert find_checkpoint("last", tmp_path) == tmp_path / "previous.ckpt"
    assert find_checkpoint(str(tmp_path), tmp_path / "new") == tmp_path / "previous.ckpt"
    assert "last.ckpt is incomplete or damaged; the checkpoint before it is used" in caplog.text
    (tmp_path / "previous.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match="none of the checkpoints"):
        find_checkpoint("last", tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    assert find_checkpoint("last", tmp_path) is None


def test_after_a_flipped_bit_the_checkpoint_is_right_or_the_one_before_it_is_used(tmp_path: Path) -> None:
    """Of a small one, so that most bits are those of zip headers, names and pickles, some of which have no checksum."""
    save({"number": torch.ones(3), "global_step": 1}, tmp_path / "previous.ckpt")
    content, last = {"number": torch.arange(3), "global_step": 2}, tmp_path / "last.ckpt"
    save(content, last)
    whole, used = last.read_bytes(), {last: 0, tmp_path / "previous.ckpt": 0}
    for place in np.random.default_rng(0).integers(8 * len(whole), size=300):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        last.write_bytes(changed)
        found = find_checkpoint("last", tmp_path)
        used[found] += 1
        assert found != last or str(read_file(found)) == str(content)
    assert min(used.values()) > 50


def test_a_copied_folder_goes_on_from_its_last_step(tmp_path: Path) -> None:
    """`scp -r` and the like give files new times, in the order in which they copy them."""
    older = write(tmp_path, 1).rename(tmp_path / "_epoch0_step1.ckpt")
    last = write(tmp_path, 2)
    os.utime(older)
    assert find_checkpoint("last", tmp_path) == last


def test_processes_that_look_later_find_the_same_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning starts them once the first one has made `last.ckpt` a copy of what it found, which is as old."""
    best = write(tmp_path, 1).rename(tmp_path / "_epoch0_step1.ckpt")
    keep_as_last(best, tmp_path)
    for listed in (sorted, lambda paths: sorted(paths, reverse=True)):  # in which file systems list them
        monkeypatch.setattr(Path, "glob", lambda folder, _, listed=listed: iter(listed(folder.iterdir())))
        assert find_checkpoint("last", tmp_path) == best


def test_only_a_run_that_shares_data_and_optimizer_goes_on(
    train: Train, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever gives the order of the examples, or the optimizer's state, its meaning; both values are named."""
    output = train("run", "--max_steps", 2)

    def refused(message: str, *options: object) -> None:
        with pytest.raises(InputError, match=f"^--resume_from_checkpoint {output}/last.ckpt: {message}"):
            train("run", "--max_steps", 3, "--resume_from_checkpoint", "last", *options)

    for option, old, new in (
        *(("seed", 42, 43), ("optimizer", "'adamw'", "sgd"), ("task", "'summ", "translation")),
        *(("learning_rate", 0.001, 0.002), ("weight_decay", 0.0, 0.1), ("max_source_length", 40, 39)),
        *(("lr_scheduler", "'linear'", "constant"), ("warmup_steps", 0, 1), ("gradient_clip_val", 1.0, 0.1)),
        *(("label_smoothing", 0.0, 0.1), ("dropout", 0.1, 0.2), ("attention_dropout", 0.0, 0.1)),
        *(("encoder_layerdrop", 0.0, 0.1), ("decoder_layerdrop", 0.0, 0.1)),
        *(("n_train", -1, 20), ("max_tokens_per_batch", None, 300)),
    ):
        refused(f"its {option} is {old}.*, this run's is '?{new}'?(;|$)", f"--{option}", new)
    way_out = f"; its weights can begin a new run, in another --output_dir, by --model_name_or_path {output}"
    refused(f"its learning_rate is 0.001, this run's is 0.002{way_out}", "--learning_rate", 0.002)
    refused("its sortish_sampler is True, this run's is False", "--no_sortish_sampler")
    refused("its freeze_encoder is False, this run's is True", "--freeze_encoder")
    refused("its bf16 is False, this run's is True", "--bf16")
    size = "its --train_batch_size x --gradient_accumulation_steps x processes is 4, this run's is"
    refused(f"{size} 3", "--train_batch_size", 3)
    refused(f"{size} 8", "--gradient_accumulation_steps", 2)
    refused(f"{size} 8", "--gpus", 0, "--devices", 2)
    for side in ("target", "source"):  # as many lines of the same lengths in another order
        path = tmp_path / "data" / f"train.{side}"
        before = path.read_text()
        path.write_text("".join(reversed(before.splitlines(keepends=True))))
        refused(f"it was trained on other data: its {side} digest is ")
        path.write_text(before)
    with monkeypatch.context() as patch:
        patch.setattr(training, "ORDER", order.ORDER + 1)
        refused("another version of this code wrote it; its weights can begin a new run, .*, by --model_name_or_path")
    train("run", "--max_steps", 3, "--resume_from_checkpoint", "last")  # nothing of this has changed it


def test_a_checkpoint_of_the_former_code_gives_its_weights_alone(train: Train, tmp_path: Path) -> None:
    """Its identity had another format, and no entry of that name."""
    output = train("run", "--max_steps", 1)
    content = checkpoint_of(output)
    content["identity"] = {"order": 1, "seed": 42, "train_batch_size": 4}
    former = tmp_path / "former.ckpt"
    torch.save(content, former)
    with pytest.raises(InputError, match="another version of this code wrote it.* new run, .*by --model_name_or_path"):
        train("resumed", "--max_steps", 2, "--resume_from_checkpoint", former)
    start = BartForConditionalGeneration.from_pretrained(former).state_dict()
    new = train("new", "--max_steps", 1, "--learning_rate", 1e-9, "--model_name_or_path", former)
    moved = BartForConditionalGeneration.from_pretrained(new / "last.ckpt").state_dict()
    torch.testing.assert_close(moved, start, rtol=0, atol=1e-8)  # ten times the learning rate
    assert weights(new).keys() == weights(output).keys()
