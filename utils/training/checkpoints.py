"""Training checkpoints: written whole or not at all, found again, and refused where they belong to another run."""

from __future__ import annotations

import logging
import math
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bart.errors import InputError
from bart.files import replacing
from bart.tensor_files import read_file, take_as_whole
from utils.app.distributed import from_first, told_by_first
from utils.app.errors import RunError
from utils.app.output_files import difference
from utils.app.run_directory import LAST, LAST_FILE, PREVIOUS_FILE
from utils.app.stores import local_path
from utils.training.options import Plan

logger = logging.getLogger(__name__)
# To be raised where a checkpoint of this code cannot be resumed by the code before, or the other way round.
FORMAT = 3


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, and renames it once all of it is on the disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                if path.name == LAST_FILE and path.exists():
                    path.replace(path.with_name(PREVIOUS_FILE))
        except (OSError, RuntimeError) as error:
            # torch's writer raises its own error while it handles the system's, which says more.
            cause = error if isinstance(error, OSError) else error.__context__
            reason = cause.strerror if isinstance(cause, OSError) else error
            raise RunError(f"{path}: cannot be written ({reason}); the one before it is whole") from error


class BestCheckpoints:
    """Keeps the checkpoints with the best scores; of equal ones those with the lower loss, and then the later ones.

    Scores under different conditions are not compared: those of a run that goes on count until its first validation.

    Attributes:
        kept: name, score, loss and step of each, the best one first.
        of_kept: the conditions of their scores.
    """

    def __init__(self, plan: Plan, metric: str) -> None:
        self.directory, self.metric, self.mode = Path(local_path(plan.run.output_dir)), metric, plan.direction
        self.count, self.conditions = plan.run.save_top_k, plan.conditions
        self.of_kept = self.conditions
        self.kept: list[dict[str, Any]] = []

    @property
    def score(self) -> float | None:
        """The best score, if there is one under the conditions."""
        return self.kept[0]["score"] if self.kept and not difference(self.of_kept, self.conditions) else None

    def forget_absent(self) -> None:
        """Forget checkpoints that lie in another directory; all processes must know the same ones."""
        self.kept = from_first([each for each in self.kept if (self.directory / each["name"]).is_file()])

    def after_validation(self, trainer: pl.Trainer) -> None:
        """Save the model if it is one of the best, and remove the checkpoint that is no longer one."""
        if difference(self.of_kept, self.conditions):
            self.kept, self.of_kept = [], self.conditions
        step, figures = trainer.global_step, trainer.callback_metrics
        new = {"name": f"_epoch{trainer.datamodule.epoch(step)}_step{step}.ckpt", "step": step}
        new |= {"score": float(figures[self.metric]), "loss": float(figures["val_loss"])}
        ranked = sorted([*(each for each in self.kept if each["step"] != step), new], key=self._rank)
        self.kept, dropped = ranked[: self.count], ranked[self.count :]  # before the checkpoint, which holds the list
        if new in self.kept:
            trainer.save_checkpoint(self.directory / new["name"])
        if trainer.is_global_zero:
            for entry in dropped:
                (self.directory / entry["name"]).unlink(missing_ok=True)

    def _rank(self, entry: Mapping[str, Any]) -> tuple[float, ...]:
        """Lower for better ones."""
        score = -entry["score"] if self.mode == "max" else entry["score"]
        return (*(math.inf if math.isnan(value) else value for value in (score, entry["loss"])), -entry["step"])

    def state_dict(self) -> dict[str, Any]:
        return {"conditions": self.of_kept, "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept, self.of_kept = state_dict["kept"], state_dict["conditions"]


def check_same_start(checkpoint: Path | None, world_size: int) -> None:
    """Raise InputError where processes, for want of a shared file system, would go on from different checkpoints."""
    if world_size == 1:
        return
    sums = None
    if checkpoint is not None:
        with zipfile.ZipFile(checkpoint) as file:  # whose parts have checksums, so that gigabytes need not be read
            sums = [part.CRC for part in file.infolist()]
    found = [None] * world_size
    dist.all_gather_object(found, sums)
    if any(other != sums for other in found):
        raise InputError("--resume_from_checkpoint: processes found different files; all must see the same")


def agreed_checkpoint(resume_from: str | None, output_dir: Path) -> Path | None:
    """`find_checkpoint`, where the first of all processes alone compares checksums, and tells the others."""
    named = resume_from, output_dir
    found = told_by_first(f"checkpoint {named}", lambda: find_checkpoint(*named), of_all=True)
    if found is not None and found.is_file():
        take_as_whole(found)
    return found


def find_checkpoint(resume_from: str | None, output_dir: Path) -> Path | None:
    """The file that --resume_from_checkpoint names, the newest whole one of a run's folder; `last` is of this run."""
    if resume_from is None:
        return None
    folder = output_dir if resume_from == LAST else Path(resume_from)
    # Of equally old ones, which `keep_as_last` makes, that which it copies: other processes may look later.
    files = sorted(folder.glob("*.ckpt"), key=lambda path: (-path.stat().st_mtime_ns, path.name))
    if resume_from != LAST and not files:
        return folder
    for path in files:
        # The files of a copied folder may have new times, in any order.
        steps = {each: step for each in (path, folder / LAST_FILE) if (step := _step_of(each)) is not None}
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
        return read_file(checkpoint).get("global_step", 0)
    except InputError:
        return None


def keep_as_last(checkpoint: Path, output_dir: Path) -> None:
    """Copy the checkpoint from which a run goes on to `last.ckpt`: a run with no step left writes none."""
    last = output_dir / LAST_FILE
    if not last.exists() or not last.samefile(checkpoint):
        with replacing(last) as temporary:
            shutil.copy2(checkpoint, temporary)


def completed(stored: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run, in which options that the version of this code then did not know have their defaults."""
    return {**{name: defaults.get(name) for name in current}, **stored}


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
