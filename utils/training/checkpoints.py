"""Training checkpoints: written whole or not at all, found again, and refused where they belong to another run."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import signal
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import replacing
from bart.modeling.checkpoint import read_file
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import LAST, TrainArguments
from utils.cli import RunError
from utils.data.dataset import PairDataset, TrainBatches
from utils.data.tables import Table
from utils.loading import fit_vocabulary
from utils.training.precision import keeps_master_weights

logger = logging.getLogger(__name__)
LAST_FILE, PREVIOUS_FILE = "last.ckpt", "previous.ckpt"
# Besides the data, what the order of the training examples and the meaning of the optimizer's state depend on.
LASTING_OPTIONS = (
    *("seed", "train_batch_size", "max_tokens_per_batch", "gradient_accumulation_steps", "sortish_sampler"),
    *("max_source_length", "max_target_length", "optimizer", "strategy", "freeze_embeds", "freeze_encoder"),
)
PARTS = {"config", "state_dict", "optimizer_states", "loops", "identity"}


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
        except (OSError, RuntimeError) as error:  # torch's writer turns some of the system's errors into its own
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise RunError(
                f"{path}: cannot be written ({reason}); the checkpoints before it are whole, and "
                f"--resume_from_checkpoint {LAST} goes on from the newest"
            ) from error


class LastCheckpoint(Checkpoint):
    """Keeps `last.ckpt` and the one before it; on SIGTERM writes it and ends the run with status 143.

    It is written at the end of every validation, and between optimizer steps where one is due.
    """

    def __init__(self, directory: str | Path, every_n_steps: int | None) -> None:
        self.directory = Path(directory)
        self.every_n_steps = every_n_steps
        self.terminated = False  # whether this process was asked to end
        self.written_at = 0  # the optimizer step

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            for leftover in self.directory.glob(".*.ckpt.*.tmp"):  # of a run that was killed
                leftover.unlink()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.written_at = trainer.global_step
        # A checkpoint from between two steps counts the batch that was about to begin; Lightning forgets to take that
        # back from the total, by which it validates where an interval is counted through epochs.
        trainer.fit_loop.epoch_loop.batch_progress.total.reset_on_restart()

        def terminate(number: int, frame: FrameType | None) -> None:
            launcher = trainer.strategy.launcher
            if not self.terminated and launcher is not None:
                launcher.kill(number)  # the processes that this one started
            self.terminated = True

        # In place of the handler of Lightning, which ends a run without saving; it restores the one before.
        signal.signal(signal.SIGTERM, terminate)
        self.terminated = trainer.received_sigterm
        trainer._signal_connector.received_sigterm = False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches:
            return  # inside an optimizer step
        due = self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0
        terminated = self._is_terminated(trainer)
        if (due or terminated) and trainer.global_step != self.written_at:
            loop = trainer.fit_loop.epoch_loop
            # Going on from here, Lightning counts one more step of the loggers than there was.
            ahead = 0 if loop._should_accumulate() else 1
            loop._batches_that_stepped -= ahead
            self._write(trainer)
            loop._batches_that_stepped += ahead
        if terminated:
            logger.info("ended by SIGTERM after step %d; --resume_from_checkpoint %s goes on", self.written_at, LAST)
            _leave(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._is_terminated(trainer):
            _leave(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.directory / LAST_FILE)
        self.written_at = trainer.global_step

    def _is_terminated(self, trainer: pl.Trainer) -> bool:
        """Whether any of the processes was asked to end."""
        if trainer.world_size == 1:
            return self.terminated
        flag = torch.tensor(float(self.terminated), device=trainer.strategy.root_device)
        dist.all_reduce(flag)  # the strategy's reduce would also wait at a barrier
        return bool(flag)


def _leave(trainer: pl.Trainer) -> NoReturn:
    # Lightning kills the process that started the others when one of these ends with a failure.
    started = trainer.local_rank > 0 and not trainer.strategy.cluster_environment.creates_processes_externally
    raise SystemExit(0 if started else 128 + signal.SIGTERM)


def find_checkpoint(args: TrainArguments) -> Path | None:
    """The file that --resume_from_checkpoint names; with `last` the newest whole one of --output_dir, if any.

    Raises:
        InputError: a file that is named cannot be read, or none of the directory's checkpoints can.
    """
    if args.resume_from_checkpoint is None:
        return None
    if args.resume_from_checkpoint != LAST:
        return Path(args.resume_from_checkpoint)
    files = sorted(Path(args.output_dir).glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in files:
        if is_whole(path):
            return path
        logger.warning("%s is torn: it was not written to its end, or damaged; the one before it is used", path)
    if files:
        raise InputError(f"--resume_from_checkpoint {LAST}: none of the checkpoints in {args.output_dir} is whole")
    logger.info("no checkpoint in %s: the run starts from its beginning", args.output_dir)
    return None


def is_whole(path: Path) -> bool:
    """Whether a checkpoint is a zip file, as torch writes it, with all its parts and their checksums."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError):
        return False


def identity_of(args: TrainArguments, data: PairDataset | Table) -> dict[str, Any]:
    """What a run that goes on from a checkpoint must share with the one that wrote it.

    That are LASTING_OPTIONS, the training data, and how this code orders them: the order depends on all lengths.
    """
    options = {name: getattr(args, name) for name in LASTING_OPTIONS}
    options["amp_level O2"] = keeps_master_weights(args)
    options["processes"] = args.processes
    options["order of batches"] = TrainBatches.ORDER
    if isinstance(data, Table):
        # With another number of files, they would be read in another order.
        options |= {"data": data.name, "fields": " and ".join(data.fields), "files": data.dataset.num_shards}
        return {**options, "n_train": args.n_train}
    lengths = np.stack([data.sources.lengths, data.targets.lengths]).astype(np.int64)
    return {**options, "examples": len(data), "lengths": hashlib.sha256(lengths.tobytes()).hexdigest()}


def load_for_resuming(path: Path, config: BartConfig) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """The model and vocabulary of a training checkpoint; the config says what the run expects them to be.

    Raises:
        InputError: the file is no training checkpoint, or one of a network of another shape.
    """
    checkpoint = read_file(path)
    if not checkpoint.keys() >= PARTS:
        raise InputError(f"--resume_from_checkpoint {path}: not a training checkpoint of finetune.py")
    stored = BartConfig(**checkpoint["config"])
    config.vocab_size = stored.vocab_size  # weights or tokenizer gave it
    for field in dataclasses.fields(BartConfig):
        old, new = getattr(stored, field.name), getattr(config, field.name)
        if old != new and type(old) is not float:  # probabilities of dropping may change
            raise InputError(f"--resume_from_checkpoint {path}: its {field.name} is {old}, this run's is {new}")
    tokenizer = BartTokenizer.from_pretrained(path)
    model = BartForConditionalGeneration.from_pretrained(path, config)
    fit_vocabulary(model, tokenizer)
    return model, tokenizer


def check_identity(path: Path, identity: dict[str, Any]) -> None:
    """Raise InputError when a checkpoint's position in the data or its optimizer's state means nothing in this run."""
    stored = read_file(path)["identity"]
    for name, value in identity.items():
        found = stored.get(name)
        if found != value:
            if name == "order of batches":
                raise InputError(
                    f"--resume_from_checkpoint {path}: another version of this code wrote it, which may have read the "
                    "examples in another order; --model_name_or_path takes its weights for a new run"
                )
            if name == "lengths":
                raise InputError(f"--resume_from_checkpoint {path}: it was trained on other data of the same size")
            raise InputError(f"--resume_from_checkpoint {path}: its {name} is {found}, this run's is {value}")
