"""Several processes that train one model, over gloo on the CPU: as one process would, and when one of them is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests import forked
from tests.tiny_pretraining import PROGRAM, write_tiny_pretraining
from tests.tiny_run import ALIKE, checkpoint_of, compute_in_double, rows, same, weights, write_tiny_run
from utils.app.stores import fetch
from utils.training.checkpoints import find_checkpoint
from utils.training.module import TrainingModule

ROOT = Path(__file__).parents[3]
STEPS = 14  # 6 an epoch; the last one has 2 examples
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "finetune.py"]
ITSELF = [sys.executable, "finetune.py", "--devices", "2"]
# A task that does something once, in the ninth step of one process.
ONCE = """
import os, signal
from pathlib import Path
from utils.tasks.summarization import Summarization

class Once(Summarization):
    steps = 0
    def loss(self, model, batch):
        self.steps += 1
        place = Path(__file__).with_name("done")
        if self.steps == 9 and os.environ.get("LOCAL_RANK", "0") == "{rank}" and not place.exists():
            place.touch()
            {act}
        return super().loss(model, batch)
"""
# Ends the run: torchrun as an operator does it, by SIGTERM to the process that was started first, and finetune.py as a
# terminal does it, by SIGINT to all processes.
END = "os.kill(os.getppid(), signal.SIGTERM) if 'TORCHELASTIC_RUN_ID' in os.environ else os.killpg(0, signal.SIGINT)"
DIE = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """With dropout, and a validation after every fourth step."""
    options = write_tiny_run(tmp_path / "tiny")
    return [
        *(*options, "--do_train", "--sortish_sampler", "--train_batch_size", "2", "--max_steps", str(STEPS)),
        *("--learning_rate", "1e-3", "--dropout", "0.2", "--val_check_interval", "16"),
        *("--resume_from_checkpoint", "last", "--eval_batch_size", "1", "--n_val", "3"),
    ]


def launch(command: list[str], options: list[str], output: Path | str) -> subprocess.CompletedProcess[str]:
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
    (tmp_path / "once.py").write_text(ONCE.format(rank=0, act=END))
    options += ["--task", str(tmp_path / "once.py"), *command[command.index("finetune.py") + 3 :]]
    done = launch(command, options, tmp_path / "run")
    assert done.returncode == (1 if command is TORCHRUN else 130), done.stderr  # torchrun has a status of its own
    assert f"ended by {'SIGTERM' if command is TORCHRUN else 'Ctrl-C'} after step" in done.stderr
    assert done.stderr.count("ended by") == 1
    assert "Traceback" not in done.stderr or command is TORCHRUN  # torchrun's own
    assert checkpoint_of(tmp_path / "run")["global_step"] == 11 or command is TORCHRUN
    forked.run(options, tmp_path / "run", ranks=2)
    forked.run(options, tmp_path / "whole", ranks=2)
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a folder", "a store"])
def test_processes_that_torchrun_restarts_end_as_uninterrupted_ones(
    place: str, options: list[str], bucket: str, tmp_path: Path
) -> None:
    """The second process is killed once; `last.ckpt` is of three steps before."""
    (tmp_path / "once.py").write_text(ONCE.format(rank=1, act=DIE))
    output = f"{bucket}/run" if place == "a store" else str(tmp_path / "run")
    options += ["--task", str(tmp_path / "once.py"), "--save_every_n_steps", "3"]
    done = launch([*TORCHRUN[:3], "--max-restarts", "1", *TORCHRUN[3:]], options, output)
    assert done.returncode == 0 and (tmp_path / "done").exists(), done.stderr
    assert "going on from" in done.stderr and "connectFullMesh" not in done.stderr
    forked.run(options, tmp_path / "whole", ranks=2)
    assert_same_runs(Path(fetch(output)), tmp_path / "whole")


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
    statuses = forked.finish(forked.start(options, tmp_path / "run", ranks=2, before=partial(die_at_step, 10)))
    assert statuses == [1, -signal.SIGKILL]
    log = forked.log_of(tmp_path / "run").read_text()
    assert "Traceback" not in log
    assert "error: another process of this run is gone, or cannot be reached" in log.splitlines()[-1]
    assert log.endswith(f"--resume_from_checkpoint last goes on from the newest checkpoint in {tmp_path}/run\n")
    assert checkpoint_of(tmp_path / "run")["global_step"] in (4, 8)  # that of step 8 is whole a little later


def see_another_folder(folder: Path) -> None:
    """Let the second process see other checkpoints, as on a machine whose file system is its own."""
    if os.environ["RANK"] == "1":
        from utils.recipes import training

        training.told_by_first = lambda *_, **__: find_checkpoint("last", folder)


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
        shutil.copytree(run / "sharded", copy / "sharded", dirs_exist_ok=True)
    assert same(weights(run), before)


def cut(size: int, accumulation: int) -> list[object]:
    return ["--train_batch_size", size, "--gradient_accumulation_steps", accumulation]


FILES, SHARDS = "finetune", PROGRAM
ON_8_4_6 = [(8, cut(1, 3)), (4, cut(3, 2)), (6, cut(4, 1))]  # processes, and how they share steps of 24 examples


@pytest.mark.parametrize(
    ("program", "more_options", "sessions"),
    [
        (FILES, [], [(2, cut(4, 3)), (1, cut(8, 3)), (3, cut(8, 1))]),
        pytest.param(FILES, ["--sortish_sampler"], ON_8_4_6, marks=pytest.mark.slow),
        pytest.param(SHARDS, [], ON_8_4_6, marks=pytest.mark.slow),
        pytest.param(
            SHARDS,
            ["--strategy", "fsdp"],
            [(2, cut(12, 1)), (3, cut(8, 1)), (1, cut(12, 2))],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(FILES, ["--max_tokens_per_batch", 200]),
            [(2, cut(8, 3)), (6, cut(8, 1)), (1, cut(8, 6))],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_processes_go_on_as_one_would(
    program: str, more_options: list[object], sessions: list[tuple[int, list[object]]], tmp_path: Path
) -> None:
    """Without dropout; in steps of 24 examples of 60, the last of an epoch has fewer."""
    tiny = (
        partial(write_tiny_run, n_train=60, n_val=8) if program == FILES else partial(write_tiny_pretraining, train=60)
    )
    options = [*tiny(tmp_path / "tiny"), *("--dropout", 0, "--attention_dropout", 0, "--learning_rate", 1e-3)]
    options += [*("--lr_scheduler", "constant", "--warmup_proportion", 0, "--resume_from_checkpoint", "last")]
    options += [*("--do_train",) * (program == FILES), *more_options]
    start = partial(forked.run, before=compute_in_double, program=program)
    start([*options, *sessions[-1][1], "--max_steps", 2 * len(sessions)], tmp_path / "whole", ranks=sessions[-1][0])
    for steps, (ranks, how) in enumerate(sessions, 1):
        start([*options, *how, "--max_steps", 2 * steps], tmp_path / "run", ranks=ranks)
    losses = [[row["train_loss"] for row in rows(tmp_path / name)] for name in ("run", "whole")]
    assert len(losses[0]) == 2 * len(sessions)
    assert losses[0] == pytest.approx(losses[1], abs=ALIKE, rel=0)
    torch.testing.assert_close(weights(tmp_path / "run"), weights(tmp_path / "whole"), rtol=0, atol=ALIKE)
    log = forked.log_of(tmp_path / "run").read_text()
    assert f"dropout draws anew, as {sessions[-2][0]} processes wrote the checkpoint" in log


def test_another_global_batch_is_refused(options: list[str], tmp_path: Path) -> None:
    forked.run([*options, "--max_steps", 4], tmp_path / "run", ranks=2)
    assert forked.finish(forked.start(options, tmp_path / "run", ranks=3)) == [2, 2, 2]
    error = "its --train_batch_size x --gradient_accumulation_steps x processes is 4, this run's is 6; its weights can"
    assert error in forked.log_of(tmp_path / "run").read_text().splitlines()[-1]


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


def demand_gradients(dtype: torch.dtype) -> None:
    """End the run unless its gradients were added up in this type."""
    original = TrainingModule.on_before_optimizer_step

    def checked(self: TrainingModule, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        gradients = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
        rounded = all(gradient.equal(gradient.bfloat16().float()) for gradient in gradients)
        assert gradients and rounded == (dtype is torch.bfloat16)
        original(self, optimizer)

    TrainingModule.on_before_optimizer_step = checked


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_gradients_are_exchanged_in_half_precision(strategy: str, tiny: list[str], tmp_path: Path) -> None:
    options = [*tiny, "--strategy", strategy, "--max_steps", "6", "--log_every_n_steps", "1", "--dropout", "0"]
    options += ["--optimizer", "sgd", "--learning_rate", "0.1"]
    losses = []
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        run = [*options, "--allreduce_dtype", name]
        forked.run(run, tmp_path / name, ranks=2, before=partial(demand_gradients, dtype))
        losses.append([float(row["train_loss"]) for row in rows(tmp_path / name, "train_loss")])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[0][-1] < 0.98 * losses[0][0]
