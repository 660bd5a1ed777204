"""Training checkpoints: written whole or not at all, found again, and refused where they belong to another run."""

from __future__ import annotations

import copy
import errno
import logging
import math
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.distributed import tensor as dtensors
from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageWriter, async_save
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor, Shard

from bart.errors import InputError
from bart.files import replacing, sha256_of
from bart.modeling.checkpoint import tied_copies
from bart.tensor_files import SHARDS, check_shards, read_file, read_shards
from utils.app.distributed import PATIENCE, from_all, rank_and_world
from utils.app.errors import RunError
from utils.app.machine import is_first
from utils.app.output_files import difference
from utils.app.run_directory import LAST, LAST_FILE, PREVIOUS_FILE, SHARDED
from utils.training.options import Plan

logger = logging.getLogger(__name__)
# To be raised where a checkpoint of this code cannot be resumed by the code before, or the other way round.
FORMAT = 3


class CheckpointIO(TorchCheckpointIO):
    """Writes and reads checkpoints. A file takes its place once all of it is on the disk.

    Several processes write shards of the tensors, to a folder in `SHARDED`, while training goes on. The file of the
    checkpoint has the rest, and names them. Any number of processes can read them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.group: dist.ProcessGroup | None = None  # of the threads that write shards
        self.writing: Future[Any] | None = None
        self.paths: list[Path] = []  # of the checkpoints saved since `finish`, all of one state

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Begin to write a checkpoint, in all processes; `finish` ends it."""
        self.paths.append(Path(path))
        rank, world = rank_and_world()
        if len(self.paths) > 1:
            return
        self.content = checkpoint
        if world == 1:
            return
        for name in tied_copies(self.model):
            del checkpoint["state_dict"][f"model.{name}"]
        kind = DTensor if isinstance(next(self.model.parameters()), DTensor) else Tensor
        tensors: dict[str, Tensor] = {}

        def take(name: str, value: Any) -> Any:
            if not (isinstance(value, kind) and value.dim()):
                return copy.deepcopy(value)
            tensors[name] = value
            return None

        self.content = _mapped(take, checkpoint)
        # Each process has its part of a DTensor; other tensors are alike in all processes, which share them.
        names = enumerate(sorted(tensors, key=lambda name: -tensors[name].numel()))
        mine = {name: tensors[name] for i, name in names if kind is DTensor or i % world == rank}
        folder = from_all(f"step{checkpoint['global_step']}-{uuid.uuid4().hex[:8]}")[0]
        self.writer = _ShardWriter(str(self.paths[0].with_name(SHARDED) / folder), save_distributed=True)
        self.group = self.group or dist.new_group(backend="gloo", timeout=PATIENCE)
        stager = DefaultStager(StagingOptions(False, False, False, False))  # copies DTensors faster than the writer
        self.writing = async_save(mine, storage_writer=self.writer, process_group=self.group, async_stager=stager)

    def finish(self, waits: bool) -> bool:
        """True if checkpoints that were saved since the last call are there now; RunError where they are not whole."""
        if not self.paths or not (waits or self.writing is None or self.writing.done()):
            return False
        paths, writing, self.paths, self.writing = self.paths, self.writing, [], None
        try:
            if writing is not None:
                writing.result()
            for path in paths if is_first() else ():
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    with temporary.open("wb") as file:
                        torch.save(self.content | ({SHARDS: self.writer.shards} if writing else {}), file)
                        file.flush()
                        os.fsync(file.fileno())
                    if path.name == LAST_FILE and path.exists():
                        path.replace(path.with_name(PREVIOUS_FILE))
        except (OSError, RuntimeError, CheckpointException) as error:
            # torch's writers raise errors of their own for the system's, which says more.
            causes = [*(cause for cause, _ in getattr(error, "failures", {}).values()), error.__context__, error]
            reason = next((cause.strerror for cause in causes if isinstance(cause, OSError)), causes[0])
            if reason is None:  # another process is gone
                raise
            raise RunError(f"{paths[0]}: cannot be written ({reason}); the one before it is whole") from error
        return True

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        content, world = super().load_checkpoint(path, *args, **options), rank_and_world()[1]
        weight = next(self.model.parameters())
        mesh, placements = getattr(weight, "device_mesh", None), getattr(weight, "placements", [Shard(0)])
        if SHARDS not in content:
            if mesh is not None:
                reason = "one process wrote it, and processes that shard the network cannot go on from it"
                raise InputError(f"{path}: {reason}; its weights can begin a new one, by --model_name_or_path {path}")
            return content
        if mesh is None and world > 1:
            mesh = dist.init_device_mesh("cuda" if dist.get_backend() == "nccl" else "cpu", (world,))
        new = torch.empty if mesh is None else partial(dtensors.empty, device_mesh=mesh, placements=placements)
        tensors = read_shards(Path(path), content, new=new, is_alone=mesh is None)
        if mesh is not None and not isinstance(weight, DTensor):  # each process has read a part of each tensor
            tensors = {name: tensor.full_tensor() for name, tensor in tensors.items()}
        content = _mapped(tensors.get, content)
        weights = content["state_dict"]
        weights |= {f"model.{name}": weights[f"model.{self.model.shared}"] for name in tied_copies(self.model)}
        return content


class _ShardWriter(HuggingFaceStorageWriter):
    """Writes this process's shard; `shards` has the digests of all, in the first process."""

    def write_data(self, *args: Any) -> torch.futures.Future[dict[str, str]]:
        names = {result.storage_data.relative_path for result in super().write_data(*args).wait()}
        digests: torch.futures.Future[dict[str, str]] = torch.futures.Future()
        digests.set_result({f"{SHARDED}/{self.path.name}/{name}": sha256_of(self.path / name) for name in names})
        return digests

    def finish(self, metadata: Any, results: list[dict[str, str]]) -> None:
        self.shards = {name: digest for digests in results for name, digest in digests.items()}
        for name in self.shards:
            if not (self.path.parents[1] / name).is_file():  # better said now than at the end of the run
                raise FileNotFoundError(errno.ENOENT, f"the machines do not share this folder: {name} is not there")


def _mapped(act: Callable[[str, Any], Any], tree: Any, name: str = "") -> Any:
    """A copy of nested dicts and lists, with what `act` makes of the place of each value and the value."""
    if isinstance(tree, dict):
        return {key: _mapped(act, value, f"{name}/{key}".strip("/")) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_mapped(act, value, f"{name}/{number}") for number, value in enumerate(tree)]
    return act(name, tree)


def remove_unnamed_shards(output_dir: Path) -> None:
    """Remove shards that no checkpoint beside them names: it was replaced, or they were being written.

    Where a checkpoint cannot be read, all shards stay, since it may be read again later.
    """
    folders, named = [*(output_dir / SHARDED).glob("*")], set()
    for path in output_dir.glob("*.ckpt") if folders else ():  # a process alone need not read what it has saved
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # torch raises nearly anything on damaged bytes
            return
        named |= {Path(name).parent.name for name in content.get(SHARDS, {})}
    for folder in folders:
        if folder.name not in named:
            shutil.rmtree(folder, ignore_errors=True)  # a file of others, or a file system that fails for a moment


class BestCheckpoints:
    """Keeps the checkpoints with the best scores; of equal ones those with the lower loss, and then the later ones.

    It ends a run after `--early_stopping_patience` validations without a better score.
    Scores under different conditions are not compared: those of a run that goes on count until its first validation.

    Attributes:
        kept: name, score, loss and step of each, the best one first.
        of_kept: the conditions of their scores.
        has_stopped: whether it ended the run, which then ends at once when it is resumed.
    """

    def __init__(self, plan: Plan, metric: str) -> None:
        self.directory, self.metric, self.mode = plan.directory, metric, plan.direction
        self.count, self.conditions = plan.run.save_top_k, plan.conditions
        self.patience, self.min_epochs = plan.run.early_stopping_patience, plan.epochs.min_epochs
        self._begin()
        self.has_stopped = False
        self.dropped: list[dict[str, Any]] = []  # whose files go when the checkpoint is there that no longer names them

    def _begin(self) -> None:
        """Start anew, without the scores so far."""
        self.kept: list[dict[str, Any]] = []
        self.of_kept = self.conditions
        self.best = -math.inf if self.mode == "max" else math.inf
        self.waited = 0  # validations since the best score

    @property
    def score(self) -> float | None:
        """The best score, if there is one under the conditions."""
        return self.kept[0]["score"] if self.kept and not difference(self.of_kept, self.conditions) else None

    def forget_absent(self) -> None:
        """Forget checkpoints that lie in another directory; all processes must know the same ones."""
        self.kept = from_all([each for each in self.kept if (self.directory / each["name"]).is_file()])[0]

    def after_validation(self, trainer: pl.Trainer) -> None:
        """Save the model if it is one of the best; end the run where patience is lost."""
        if difference(self.of_kept, self.conditions):
            self._begin()
        step, figures = trainer.global_step, trainer.callback_metrics
        new = {"name": f"_epoch{trainer.datamodule.epoch(step)}_step{step}.ckpt", "step": step}
        new |= {"score": float(figures[self.metric]), "loss": float(figures["val_loss"])}
        self._count(new["score"], trainer)
        ranked = sorted([*(each for each in self.kept if each["step"] != step), new], key=self._rank)
        self.kept, self.dropped = ranked[: self.count], ranked[self.count :]  # before the checkpoint that holds it
        if new in self.kept:
            trainer.save_checkpoint(self.directory / new["name"])

    def _count(self, score: float, trainer: pl.Trainer) -> None:
        """Count a validation; RunError where its score is not finite and decides when the run ends."""
        if score > self.best if self.mode == "max" else score < self.best:
            self.best, self.waited = score, 0
        else:
            self.waited += 1
        if self.patience < 0:
            return
        if not math.isfinite(score):
            raise RunError(f"{self.metric} is {score}: the run has diverged; try a lower --learning_rate")
        step, data = trainer.global_step, trainer.datamodule
        if self.waited >= self.patience and data.epoch(step + 1) >= self.min_epochs:  # epochs that are finished
            trainer.should_stop = True
            if step < data.total_steps and not self.has_stopped:
                logger.info("early stopping: %s did not get better in %d validations", self.metric, self.waited)
                self.has_stopped = True

    def _rank(self, entry: Mapping[str, Any]) -> tuple[float, ...]:
        """Lower for better ones."""
        score = -entry["score"] if self.mode == "max" else entry["score"]
        return (*(math.inf if math.isnan(value) else value for value in (score, entry["loss"])), -entry["step"])

    def state_dict(self) -> dict[str, Any]:
        counted = {"best_score": self.best, "wait_count": self.waited, "stopped": self.has_stopped}
        return {"conditions": self.of_kept, "kept": self.kept, **counted}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept, self.of_kept = state_dict["kept"], state_dict["conditions"]
        if "wait_count" in state_dict and not difference(self.of_kept, self.conditions):
            self.best, self.waited = float(state_dict["best_score"]), state_dict["wait_count"]
            self.has_stopped = state_dict["stopped"] and 0 <= self.patience <= self.waited  # it may have changed


def check_same_start(checkpoint: Path | None) -> None:
    """Raise InputError where processes, for want of a shared file system, would go on from different checkpoints."""
    sums = None
    if checkpoint is not None:
        with zipfile.ZipFile(checkpoint) as file:  # whose parts have checksums, so that gigabytes need not be read
            sums = [part.CRC for part in file.infolist()]
    if any(other != sums for other in from_all(sums)):
        raise InputError("--resume_from_checkpoint: processes found different files; all must see the same")


def find_checkpoint(resume_from: str | None, output_dir: Path) -> Path | None:
    """The file that --resume_from_checkpoint names, the newest whole one of a run's folder; `last` is of this run."""
    if resume_from is None:
        return None
    folder = output_dir if resume_from == LAST else Path(resume_from)
    # Of equally old ones, which `keep_as_last` makes, that which it copies: other processes may look later.
    files = sorted(folder.glob("*.ckpt"), key=lambda path: (-path.stat().st_mtime_ns, path.name))
    if resume_from != LAST and not files:
        if folder.is_file():
            check_shards(folder, read_file(folder))
        return folder
    for path in files:
        # The files of a copied folder may have new times, in any order.
        newest = dict.fromkeys((path, folder / LAST_FILE))
        steps = {each: step for each in newest if (step := _step_of(each)) is not None}
        if path in steps:
            return max(steps, key=lambda each: steps[each])  # the first of equal ones
        logger.warning("%s is incomplete or damaged; the checkpoint before it is used", path)
    if files:
        raise InputError(f"--resume_from_checkpoint {resume_from}: none of the checkpoints in {folder} is whole")
    logger.info("no checkpoint in %s: the run starts from its beginning", folder)
    return None


def _step_of(checkpoint: Path) -> int | None:
    """The optimizer step of a checkpoint; None where it cannot be read."""
    try:
        content = read_file(checkpoint)
        check_shards(checkpoint, content)
        return content.get("global_step", 0)
    except InputError:
        return None


def keep_as_last(checkpoint: Path, output_dir: Path) -> None:
    """Copy the checkpoint from which a run goes on to `last.ckpt`: a run with no step left writes none."""
    last = output_dir / LAST_FILE
    if not last.exists() or not last.samefile(checkpoint):
        for name in read_file(checkpoint).get(SHARDS, {}):
            if not (shard := output_dir / name).exists():
                shard.parent.mkdir(parents=True, exist_ok=True)
                with replacing(shard) as temporary:
                    shutil.copy2(checkpoint.parent / name, temporary)
        with replacing(last) as temporary:
            shutil.copy2(checkpoint, temporary)


def completed(stored: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run, with defaults of options that are new since, and no options that are gone and were off."""
    kept = {name: value for name, value in stored.items() if value or name in current}
    return {**{name: defaults.get(name) for name in current}, **kept}


def check_identity(path: Path, identity: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise InputError, which names both values, when something differs that must stay as a run goes on."""
    stored = completed(read_file(path).get("identity", {}), identity, defaults)
    if stored.get("format") != identity["format"]:
        reason = "another version of this code wrote it"
    elif changed := difference({**stored, "data": None}, {**identity, "data": None}):
        reason = changed
    elif changed := difference(stored["data"], identity["data"]):
        reason = f"it was trained on other data: {changed}"
    else:
        return
    raise InputError(
        f"--resume_from_checkpoint {path}: {reason}; its weights can begin a new run, in another --output_dir, by "
        f"--model_name_or_path {path} or, in pretraining, by --load_model_weights_only"
    )
