"""Several processes that train one model, over gloo on the CPU: as one process would, and when one of them is lost."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from tests import forked
from tests.tiny_run import checkpoint_of, rows, same, weights, write_tiny_run
from utils.recipes import training as recipe
from utils.training.lightning_internals import _TrainingEpochLoop
from utils.training.module import TrainingModule

ROOT = Path(__file__).parents[3]
STEPS = 14  # 6 an epoch; the last one has 2 examples
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "finetune.py"]
ITSELF = [sys.executable, "finetune.py", "--devices", "2"]
# A task that ends the run it is used in, once: torchrun as an operator does it, by SIGTERM to the process that was
# started first, and finetune.py as a terminal does it, by SIGINT to all processes.
ENDING = """
import os, signal
from pathlib import Path
from utils.tasks.summarization import Summarization

class Ending(Summarization):
    steps = 0
    def loss(self, model, batch):
        self.steps += 1
        place = Path(__file__).with_name("ended")
        if self.steps == 9 and os.environ.get("LOCAL_RANK", "0") == "0" and not place.exists():
            place.touch()
            if "TORCHELASTIC_RUN_ID" in os.environ:
                os.kill(os.getppid(), signal.SIGTERM)
            else:
                os.killpg(0, signal.SIGINT)
        return super().loss(model, batch)
"""


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """With dropout, and a validation after every fourth step."""
    options = write_tiny_run(tmp_path / "tiny")
    return [
        *(*options, "--do_train", "--sortish_sampler", "--train_batch_size", "2", "--max_steps", str(STEPS)),
        *("--learning_rate", "1e-3", "--dropout", "0.2", "--val_check_interval", "16"),
        *("--resume_from_checkpoint", "last", "--eval_batch_size", "1", "--n_val", "3"),
    ]


def launch(command: list[str], options: list[str], output: Path) -> subprocess.CompletedProcess[str]:
    words = [*command, *options, "--output_dir", str(output)]
    own_group = {"start_new_session": True}
    return subprocess.run(words, capture_output=True, text=True, timeout=forked.SECONDS, cwd=ROOT, **own_group)


@pytest.mark.parametrize(
    "command",
    [ITSELF, [*ITSELF, "--strategy", "fsdp"], TORCHRUN],
    ids=["finetune.py", "fsdp", "torchrun"],
)
@pytest.mark.slow
def test_a_signal_to_a_launcher_saves_and_the_resumed_run_ends_as_the_uninterrupted_one(
    command: list[str], options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "ending.py").write_text(ENDING)
    options += ["--task", str(tmp_path / "ending.py"), *command[command.index("finetune.py") + 3 :]]
    done = launch(command, options, tmp_path / "run")
    assert done.returncode == (1 if command is TORCHRUN else 130), done.stderr  # torchrun has a status of its own
    assert f"ended by {'SIGTERM' if command is TORCHRUN else 'Ctrl-C'} after step" in done.stderr
    assert done.stderr.count("ended by") == 1
    assert "Traceback" not in done.stderr or command is TORCHRUN  # torchrun's own
    assert checkpoint_of(tmp_path / "run")["global_step"] == 11 or command is TORCHRUN
    forked.run(options, tmp_path / "run", ranks=2)
    forked.run(options, tmp_path / "whole", ranks=2)
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def assert_same_runs(output: Path, whole: Path) -> None:
    """Losses, validations, and weights."""
    for column in ("train_loss", "val_loss"):
        ours, theirs = ({row["step"]: row[column] for row in rows(place, column)} for place in (output, whole))
        assert ours == theirs
    assert same(weights(output), weights(whole))


def end_in_validation(rank: int, step: int, batch: int) -> None:
    """Send SIGTERM to one process on its way to a batch of a validation, which must be its last one."""
    validate = TrainingModule.validation_step

    def ending(self: TrainingModule, examples: Any, number: int) -> None:
        assert "ASKED" not in os.environ
        if int(os.environ["RANK"]) == rank and (self.trainer.global_step, number) == (step, batch):
            os.environ["ASKED"] = "yes"
            os.kill(os.getpid(), signal.SIGTERM)
        validate(self, examples, number)

    TrainingModule.validation_step = ending


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "step", "batch", "more_options"),
    [
        (1, 4, 0, ["--n_val", "4", "--strategy", "fsdp", "--max_steps", "6"]),
        (1, STEPS, 0, ["--n_val", "4"]),  # the run's last validation
        (0, 4, 1, []),  # a batch that the other process lacks
    ],
)
def test_sigterm_to_one_process_in_a_validation_ends_all(
    rank: int, step: int, batch: int, more_options: list[str], options: list[str], tmp_path: Path
) -> None:
    options += more_options
    ending = partial(end_in_validation, rank, step, batch)
    statuses = forked.finish(forked.start(options, tmp_path / "run", ranks=2, before=ending))
    assert statuses == [143, 143], forked.log_of(tmp_path / "run").read_text()
    assert checkpoint_of(tmp_path / "run")["global_step"] == step
    forked.run(options, tmp_path / "run", ranks=2)
    forked.run(options, tmp_path / "whole", ranks=2)
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def die_at_step(step: int) -> None:
    train = TrainingModule.training_step

    def dying(self: TrainingModule, *arguments: Any) -> Tensor:
        if os.environ["RANK"] == "1" and self.trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(self, *arguments)

    TrainingModule.training_step = dying


def test_a_process_that_dies_ends_the_run_in_one_line(options: list[str], tmp_path: Path) -> None:
    statuses = forked.finish(forked.start(options, tmp_path / "run", ranks=2, before=partial(die_at_step, 6)))
    assert statuses == [1, -signal.SIGKILL]
    log = forked.log_of(tmp_path / "run").read_text()
    assert "Traceback" not in log
    assert "error: another process of this run is gone, or cannot be reached" in log.splitlines()[-1]
    assert log.endswith(f"--resume_from_checkpoint last goes on from the newest checkpoint in {tmp_path}/run\n")
    assert checkpoint_of(tmp_path / "run")["global_step"] == 4


def see_another_folder(folder: Path) -> None:
    """Let the second process see other checkpoints, as on a machine whose file system is its own."""
    if os.environ["RANK"] == "1":
        from utils.recipes import training

        find = training.find_checkpoint
        training.find_checkpoint = lambda named, output: find(named, folder)


@pytest.mark.slow
def test_processes_that_find_different_checkpoints_are_refused(options: list[str], tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "other"
    forked.run([*options, "--max_steps", "8"], run, ranks=2)
    before = weights(run)
    copy.mkdir()
    for _ in range(2):  # none, and another one
        statuses = forked.finish(forked.start(options, run, ranks=2, before=partial(see_another_folder, copy)))
        assert statuses == [2, 2]
        for rank in range(2):
            line = forked.log_of(run, rank).read_text().splitlines()[-1]
            assert line.endswith(
                "error: --resume_from_checkpoint: processes found different files; all must see the same"
            )
        shutil.copy(run / "previous.ckpt", copy / "last.ckpt")
    assert same(weights(run), before)


def watch_steps(notes: Path) -> None:
    """Note, for each training step, its exchanges of weights and what its layers compute with.

    Lightning's own way to tell of SIGTERM, which waits for the device in every step, would raise here.
    """

    def waiting(self: object) -> None:
        raise AssertionError("a broadcast in every step")

    _TrainingEpochLoop._broadcast_sigterm_tensor = waiting
    train, seen = TrainingModule.training_step, []

    def watched(self: TrainingModule, *arguments: Any) -> Tensor:
        dtypes = set()
        layer = self.model.layers[0].fc1
        handle = layer.register_forward_pre_hook(lambda linear, _: dtypes.add(str(linear.weight.dtype)))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            losses = train(self, *arguments)
        handle.remove()
        exchanges = Counter(event.name for event in profiler.events() if event.name.startswith("c10d::"))
        seen.append({"dtypes": sorted(dtypes), "exchanges": exchanges})
        if os.environ["RANK"] == "0":
            notes.write_text(json.dumps(seen))
        return losses

    def score(*_: object) -> None:
        gc.collect()  # as the recipe does
        left = [type(thing) for thing in gc.get_objects() if issubclass(type(thing), Optimizer | FSDPModule)]
        notes.with_name("left").write_text(str(left))

    TrainingModule.training_step, recipe.score = watched, score


@pytest.mark.slow
def test_fsdp_exchanges_the_same_after_a_validation_as_before(options: list[str], tmp_path: Path) -> None:
    """Layers compute in bf16 and give their weights back after use; the root keeps its own, as FSDP decides.

    When scoring begins, nothing of training is left.
    """
    options += ["--strategy", "fsdp", "--bf16", "--max_steps", "3", "--val_check_interval", "8"]
    options += ["--num_sanity_val_steps", "-1", "--do_predict", "--optimizer", "fused_adam"]
    forked.run(options, tmp_path / "run", ranks=2, before=partial(watch_steps, tmp_path / "notes.json"))
    steps = json.loads((tmp_path / "notes.json").read_text())
    assert (tmp_path / "left").read_text() == "[]"
    assert len(steps) == 3  # with a validation before the first one and after the second
    assert [step["dtypes"] for step in steps] == [["torch.bfloat16"]] * 3
    # Two layers and the root, each once, and the layers again for the backward pass; targets, norm, loss.
    expected = {"c10d::_allgather_base_": 5, "c10d::_reduce_scatter_base_": 3, "c10d::allreduce_": 3}
    assert [step["exchanges"] for step in steps] == [expected] * 3
    assert {tensor.dtype for tensor in weights(tmp_path / "run").values()} == {torch.float32}


@pytest.mark.slow
def test_processes_without_training_share_the_test_split(options: list[str], tmp_path: Path) -> None:
    """As `torchrun finetune.py --do_predict` does."""
    forked.run(options, tmp_path / "run", ranks=2)
    common = [*options, "--no_do_train", "--do_predict", "--model_name_or_path", str(tmp_path / "run" / "export")]
    for name, ranks in (("one", 1), ("two", 2)):
        forked.run(common, tmp_path / name, ranks=ranks)
    one, two = (json.loads((tmp_path / name / "test_scores.json").read_text()) for name in ("one", "two"))
    assert one == two and one["examples"] == 7
    assert json.loads((tmp_path / "two" / "test_speed.json").read_text())["processes"] == 2
