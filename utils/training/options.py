"""The options of a training run that do not depend on its task; names as NVIDIA's BART example has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bart.errors import InputError
from utils.app.cli import option
from utils.runs.run_directory import LAST

FINE_TUNING_RATE, SCRATCH_RATE = 3e-5, 1e-3  # learning rates of trained and of random weights
POLYNOMIAL_END = 1e-7  # learning rate at the end of the polynomial schedule, transformers' default
COSINE_CYCLES = 4  # decays of cosine_w_restarts (Loshchilov & Hutter, 2017); transformers' default of 1 has no restart
POLY_SQRT = "poly_sqrt"  # NVIDIA's for pretraining BERT, which transformers lacks
# Their names and options in transformers.
SCHEDULES: dict[str, tuple[str, dict[str, Any]] | None] = {
    "polynomial": ("polynomial", {"lr_end": POLYNOMIAL_END}),
    "linear": ("linear", {}),
    "cosine": ("cosine", {}),
    "cosine_w_restarts": ("cosine_with_restarts", {"num_cycles": COSINE_CYCLES}),
    "constant": ("constant_with_warmup", {}),
    POLY_SQRT: None,
}
OPTIMIZERS = ("adamw", "fused_adam", "adafactor", "lamb", "fused_lamb", "sgd")
STRATEGIES = ("ddp", "fsdp")
AMP_LEVELS = ("O0", "O1", "O2", "O3")


@dataclass(frozen=True)
class RunOptions:
    """What a run does, where it writes, and when it saves, validates and logs."""

    config: str | None = option(None, section="run", help="YAML file of these options by name; the command line wins")
    output_dir: str | None = option(
        None,
        help="where everything is written; by default results/NAME_TIME, of the model or, from scratch, the config",
    )
    do_train: bool = option(False, help="train on the train split")
    do_predict: bool = option(False, help="score the test split, with the best checkpoint after training")
    seed: int = option(42, least=0, help="seed of weights, order and dropout")
    resume_from_checkpoint: str | None = option(
        None,
        help="checkpoint to go on from, with its weights, optimizer, schedule, random state and position in the data; "
        f"'{LAST}' takes the newest whole one of --output_dir, and starts afresh where there is none",
    )
    overwrite_output_dir: bool = option(
        False, help="remove what an earlier run has written to --output_dir, and nothing else, before this one starts"
    )
    save_top_k: int = option(1, least=1, help="best checkpoints to keep, by val_metric")
    save_every_n_steps: int | None = option(
        None,
        alias="save_checkpoint_steps",
        least=1,
        help="optimizer steps between two writings of last.ckpt, besides every validation",
    )
    log_every_n_steps: int = option(10, alias="log_freq", least=1, help="optimizer steps between two lines of the logs")
    wandb_project: str | None = option(None, help="Weights & Biases project to log to as well")

    val_check_interval: float = option(
        1.0,
        section="validation",
        above=0,
        help="validate every so many epochs (up to 1), or every so many training samples (above 1)",
    )
    val_metric: str | None = option(
        None,
        help="what makes a checkpoint the best one: loss, or a figure of the task, for summarization rouge1, rouge2 or "
        "rougeLsum; by default the task's choice",
    )
    early_stopping_patience: int = option(
        -1, least=-1, help="validations without a better val_metric that end the run; -1 for never"
    )
    num_sanity_val_steps: int = option(0, least=-1, help="validation batches before training; -1 for all")

    def __post_init__(self) -> None:
        if not (self.do_train or self.do_predict):
            raise InputError("nothing to do: give --do_train, --do_predict or both")
        if self.resume_from_checkpoint == LAST and self.output_dir is None:
            raise InputError(f"--resume_from_checkpoint {LAST} needs --output_dir, where the checkpoints are")
        if self.val_check_interval > 1 and self.val_check_interval != int(self.val_check_interval):
            raise InputError(
                f"--val_check_interval is {self.val_check_interval}; above 1 it counts training samples, so it is whole"
            )

    @property
    def resumed(self) -> str | None:
        """The checkpoint to go on from, with all that it holds."""
        return self.resume_from_checkpoint


@dataclass(frozen=True)
class OptimisationOptions:
    """The optimizer, its schedule and the length of training."""

    optimizer: str = option(
        "adamw",
        section="training",
        choices=OPTIMIZERS,
        flags={"lamb": "lamb"},
        help="sgd has a momentum of 0.9; fused_adam and fused_lamb are those of NVIDIA's apex; without it, torch's "
        "fused AdamW and our lamb serve",
    )
    learning_rate: float | None = option(
        None, above=0, help=f"peak; by default {FINE_TUNING_RATE:g} for trained weights, {SCRATCH_RATE:g} from scratch"
    )
    lr_scheduler: str = option(
        "linear",
        choices=tuple(SCHEDULES),
        help=f"decay after the warm-up; cosine_w_restarts decays from the peak {COSINE_CYCLES} times, {POLY_SQRT} by "
        "the root of what is left of the whole run, and so falls at the end of the warm-up",
    )
    warmup_steps: int = option(0, least=0, help="optimizer steps of linear warm-up")
    warmup_proportion: float = option(0.0, least=0, most=1, help="the same as a share of the run's steps")
    max_steps: int = option(-1, least=-1, help="optimizer steps to train; -1 leaves it to max_epochs")
    max_epochs: int | None = option(
        None, least=1, help="epochs to train; by default 1, and unlimited where --max_steps is given"
    )
    min_epochs: int = option(1, least=0, help="epochs before early stopping may end the run")
    weight_decay: float = option(0.0, least=0, help="of all but biases and norms")
    gradient_clip_val: float = option(1.0, least=0, help="gradient norm limit; 0 for none")
    adam_epsilon: float | None = option(
        None, above=0, help="added to the root of the second moment by adamw and lamb; by default 1e-8, of lamb 1e-6"
    )
    nvlamb: bool = option(False, help="let lamb scale the steps of biases and norms too, which have no weight decay")
    dropout_off_ratio: float = option(0.0, least=0, most=1, help="share of the run's last steps without dropout")

    def __post_init__(self) -> None:
        if self.max_steps == 0:
            raise InputError("--max_steps is 0; allowed: -1, or at least 1")
        if self.warmup_steps and self.warmup_proportion:
            raise InputError(
                f"--warmup_steps is {self.warmup_steps} and --warmup_proportion {self.warmup_proportion:g}; "
                "give one of them"
            )
        if self.nvlamb and self.optimizer not in ("lamb", "fused_lamb"):
            raise InputError(f"--nvlamb is about --optimizer lamb; --optimizer is {self.optimizer}")
        if self.adam_epsilon != type(self).adam_epsilon and self.optimizer in ("sgd", "adafactor"):
            raise InputError(f"--adam_epsilon is about adamw and lamb; --optimizer is {self.optimizer}")
        if self.lr_scheduler == "polynomial" and (self.learning_rate or FINE_TUNING_RATE) <= POLYNOMIAL_END:
            raise InputError(
                f"--learning_rate is {self.learning_rate}; --lr_scheduler polynomial decays to {POLYNOMIAL_END}: "
                "allowed: above that"
            )

    def warmup(self, total_steps: int) -> int:
        """Steps of the warm-up, in a run of so many optimizer steps."""
        return self.warmup_steps or round(self.warmup_proportion * total_steps)


@dataclass(frozen=True)
class HardwareOptions:
    """Devices, processes and precision. --gpus, --accelerator and --devices agree once the object is made."""

    gpus: int | None = option(
        None,
        section="hardware and precision",
        least=0,
        help="GPUs of this machine to train on; 0 trains on the CPU; by default 1 if there is one",
    )
    accelerator: str | None = option(None, choices=("cpu", "gpu"), help="with --devices, another way to say --gpus")
    devices: int | None = option(
        None, least=1, help="processes of this machine that train together, one per GPU if on GPUs"
    )
    strategy: str = option(
        "ddp",
        choices=STRATEGIES,
        help="how several processes train together: ddp copies the model to all, fsdp shards it",
    )
    fp16: bool = option(False, help="half precision, with loss scaling; needs a GPU")
    bf16: bool = option(False, help="bfloat16 precision")
    tf32: bool = option(False, help="fp32 with TF32 tensor cores in matrix products")
    amp_level: str = option(
        "O1",
        choices=AMP_LEVELS,
        help="how --fp16 and --bf16 are used: O0 not at all, O1 autocast, O2 half weights with fp32 master copies, "
        "O3 half everywhere",
    )

    def __post_init__(self) -> None:
        self._resolve_devices()
        chosen = [f"--{name}" for name in ("fp16", "bf16", "tf32") if getattr(self, name)]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        if self.gpus == 0 and (self.fp16 or self.tf32):
            raise InputError(f"{chosen[0]} needs a GPU; this run is on the CPU, which takes fp32 (no flag) or --bf16")
        if self.strategy == "fsdp" and self.fp16 and self.amp_level != "O0":
            raise InputError("--strategy fsdp and --fp16 exclude each other; fsdp takes --bf16, --tf32 or fp32")
        if self.strategy == "fsdp" and self.bf16 and self.amp_level in ("O2", "O3"):
            raise InputError(
                f"--strategy fsdp and --amp_level {self.amp_level} exclude each other; fsdp takes O0 or O1"
            )

    def _resolve_devices(self) -> None:
        """Make --gpus, --accelerator and --devices say the same, each of them given or not."""
        launched = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        none_there = self.gpus is None and self.devices is None and not torch.cuda.is_available()
        accelerator = self.accelerator or ("cpu" if self.gpus == 0 or none_there else "gpu")
        devices = self.devices or self.gpus or launched or 1
        gpus = devices if accelerator == "gpu" else 0
        if self.gpus is not None and (accelerator == "gpu") != (self.gpus > 0):
            raise InputError(f"--accelerator is {accelerator} and --gpus is {self.gpus}; give one of them")
        if self.gpus and devices != self.gpus:
            raise InputError(f"--devices is {devices} and --gpus is {self.gpus}; give one of them")
        if launched and devices != launched:
            name = "gpus" if gpus else "devices"
            raise InputError(f"--{name} is {devices}; torchrun started {launched} processes on this machine")
        for name, value in {"accelerator": accelerator, "devices": devices, "gpus": gpus}.items():
            object.__setattr__(self, name, value)

    @property
    def processes(self) -> int:
        """Processes that train together on all machines."""
        # WORLD_SIZE alone is also set by schedulers of single processes.
        return int(os.environ["WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else self.devices


@dataclass(frozen=True)
class Plan:
    """A training run.

    Attributes:
        settings: all options by name, for the loggers.
        metric: the figure of validation that makes a checkpoint the best one.
        identity: what a run that goes on from a checkpoint must share with the one that wrote it.
        conditions: on which the figures of validation depend, besides the model.
        checkpoint: to go on from.
    """

    run: RunOptions
    hardware: HardwareOptions
    optimisation: OptimisationOptions
    settings: Mapping[str, Any]
    metric: str
    identity: dict[str, Any]
    conditions: dict[str, Any]
    checkpoint: Path | None
