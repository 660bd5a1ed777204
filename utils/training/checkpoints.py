"""Training checkpoints: written whole or not at all, found again, and refused where they belong to another run."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import xxhash
from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bart.errors import InputError
from bart.files import replacing
from bart.hub import EXPORT
from bart.tensor_files import read_file
from utils.app.distributed import from_first
from utils.app.errors import RunError
from utils.app.output_files import difference
from utils.app.run_directory import LAST, options_to_resume
from utils.app.signals import NAMES, Signals, status
from utils.training.lightning_internals import settle

logger = logging.getLogger(__name__)
LAST_FILE, PREVIOUS_FILE = "last.ckpt", "previous.ckpt"
# To be raised where a checkpoint of this code cannot be resumed by the code before, or the other way round.
FORMAT = 3


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, and renames it once all of it is on the disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """
        Raises:
            RunError: it cannot be written; what was there before is untouched.
        """
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
            reason = cause.strerror if isinstance(cause, OSError) else str(error).splitlines()[0]
            raise RunError(
                f"{path}: cannot be written ({reason}); the checkpoints before it are whole, and "
                f"--resume_from_checkpoint {LAST} goes on from the newest"
            ) from error


class Termination(Callback):
    """Records SIGTERM, SIGHUP and SIGINT, and lets all processes of a run agree that one has come.

    Before training starts, a signal ends the run as it ends any program. Processes exchange their answers in the
    background, on a group that does not involve the device. The answers of one step are read in the next, when they
    have long arrived.

    Attributes:
        asked: the signal by which this process was asked to end, or 0.
    """

    def __init__(self) -> None:
        self.asked, self._agreed = 0, False
        self.signals: Signals | None = None
        self.group: dist.ProcessGroup | None = None
        self.flag = torch.zeros(1)
        self.pending: dist.Work | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1 and self.group is None:
            self.group = dist.new_group(backend="gloo")
        self.signals = Signals(self._heed)

    def _heed(self, number: int) -> None:
        self.asked = number

    def on_train_end(self, *_: Any) -> None:
        if self.signals is not None:
            self.signals.restore()

    on_exception = on_train_end

    def on_train_batch_start(self, *_: Any) -> None:
        """Read the answers that processes gave before the last step, and ask again."""
        self._read()
        self._ask()

    @property
    def agreed(self) -> bool:
        """True if a process was asked to end, and all processes know it."""
        return self._agreed or (self.asked > 0 and self.group is None)

    def agree(self) -> bool:
        """Return true if a process has been asked to end until now; all processes must call it at the same place."""
        self._read()
        self._ask()
        self._read()
        return self.agreed

    def _ask(self) -> None:
        self.flag.fill_(self.asked > 0)
        if self.group is not None:
            self.pending = dist.all_reduce(self.flag, group=self.group, async_op=True)

    def _read(self) -> None:
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
            self._agreed |= bool(self.flag)


class BestCheckpoints(Checkpoint):
    """Keeps the checkpoints with the best scores; of equal ones those with the lower loss, and then the later ones.

    Args:
        metric: name of the score.
        mode: "max" or "min", the better side of it.
        count: of checkpoints to keep.
        conditions: plain values on which scores depend. Scores under different ones are not compared: those of a run
            that goes on count until its first validation.

    Attributes:
        kept: name, score, loss and step of each, the best one first.
        of_kept: the conditions of their scores.
    """

    def __init__(
        self, directory: str | Path, metric: str, mode: str, count: int, conditions: Mapping[str, Any]
    ) -> None:
        self.directory, self.metric, self.mode, self.count = Path(directory), metric, mode, count
        self.conditions = self.of_kept = dict(conditions)
        self.kept: list[dict[str, Any]] = []

    @property
    def score(self) -> float | None:
        """The best score, if there is one under the conditions."""
        return self.kept[0]["score"] if self.kept and not difference(self.of_kept, self.conditions) else None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget checkpoints that lie in another directory; all processes must know the same ones."""
        self.kept = from_first([each for each in self.kept if (self.directory / each["name"]).is_file()])

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
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


class LastCheckpoint(Checkpoint):
    """Keeps `last.ckpt` and the one before it. After a signal it writes it and ends the run with status 128 + signal.

    It is written at the end of every validation, and after optimizer steps where one is due. A validation that is
    broken off by a signal is done again, from its beginning, when the run goes on.
    """

    def __init__(self, directory: str | Path, every_n_steps: int | None, termination: Termination) -> None:
        self.directory = Path(directory)
        self.every_n_steps = every_n_steps
        self.termination = termination
        self.in_validation = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            # What a run that was killed was writing: checkpoints, reports, the export.
            for leftover in [*self.directory.glob(".*.tmp"), *(self.directory / EXPORT).rglob(".*.tmp")]:
                leftover.unlink()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.val_check_batch == 0 or trainer.global_step == trainer.datamodule.total_steps:
            return  # a validation comes next
        due = self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0
        if due or self.termination.agreed:
            self._write(trainer)
        if self.termination.agreed:
            self._leave(trainer)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if trainer.sanity_checking or batch_idx >= trainer.datamodule.validation_batches_of_all(trainer.world_size):
            return  # not all processes come here
        if self.termination.agree():
            pl_module.keep_whole(False)
            self.in_validation = True
            self._write(trainer)
            self._leave(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer)
            if self.termination.agree():
                self._leave(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        settle(checkpoint["loops"], trainer.global_step, self.in_validation)

    def _write(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.directory / LAST_FILE)

    def _leave(self, trainer: pl.Trainer) -> NoReturn:
        number = self.termination.asked or signal.SIGTERM  # which another process got
        options = options_to_resume(self.directory)
        logger.info("ended by %s after step %d; %s goes on", NAMES[number], trainer.global_step, options)
        raise SystemExit(status(number))


class SameStart(Callback):
    """Ends a run whose processes would go on from different checkpoints, before it begins.

    Each process looks for the newest checkpoint itself; on machines that do not share a file system, or that see its
    changes late, they may find different ones.

    Args:
        checkpoint: the one that this process found.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        contents = [None] * trainer.world_size
        dist.all_gather_object(contents, content_of(self.checkpoint))
        for rank, content in enumerate(contents):
            if content != contents[0]:
                raise InputError(
                    f"--resume_from_checkpoint: process 0 found {contents[0]} and process {rank} found {content}; all "
                    "processes must see the same files"
                )


def content_of(checkpoint: Path | None) -> str:
    """A checkpoint's name, optimizer step and a digest of its content."""
    if checkpoint is None:
        return "none"
    with zipfile.ZipFile(checkpoint) as file:  # whose parts have checksums, so that gigabytes need not be read
        parts = sorted((part.filename, part.file_size, part.CRC) for part in file.infolist())
    digest = xxhash.xxh3_64_hexdigest(repr(parts).encode())
    return f"{checkpoint.name} of step {read_file(checkpoint)['global_step']} (content {digest})"


def find_checkpoint(resume_from: str | None, output_dir: Path) -> Path | None:
    """The file that --resume_from_checkpoint names, the newest whole one of a run's folder; `last` is that of this run.

    Raises:
        InputError: none of the directory's checkpoints can be read.
    """
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
        logger.warning("%s is torn: it was not written to its end, or damaged; the one before it is used", path)
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
    """Copy the checkpoint from which a run goes on to `last.ckpt`.

    A run that was killed after it wrote its best checkpoint keeps an older `last.ckpt`, and a resumed run that has no
    step left writes none.
    """
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
    afresh = (
        f"its weights can begin a new run, in another --output_dir, by --model_name_or_path {path} or, in pretraining, "
        "by --load_model_weights_only"
    )
    if stored.get("format") != identity["format"]:
        raise InputError(
            f"--resume_from_checkpoint {path}: another version of this code wrote it, which kept its place in the "
            f"data in another way; {afresh}"
        )
    if changed := difference({**stored, "data": None}, {**identity, "data": None}):
        raise InputError(f"--resume_from_checkpoint {path}: {changed}; {afresh}")
    if changed := difference(stored["data"], identity["data"]):
        raise InputError(f"--resume_from_checkpoint {path}: it was trained on other data: {changed}; {afresh}")
