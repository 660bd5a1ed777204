"""The options of a training run that do not depend on its task; names as NVIDIA's BART example has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import card_option, changeable, option
from utils.app.run_directory import LAST
from utils.app.stores import STORES, in_store
from utils.data.options import BatchOptions

FINE_TUNING_RATE, LORA_RATE, SCRATCH_RATE = 3e-5, 3e-4, 1e-3  # learning rates of trained weights, adapters, random ones
LAMB_RATE = 5e-3  # of NVIDIA's first phase of pretraining, with batches of 64,000
POLYNOMIAL_END = 1e-7  # learning rate at the end of the polynomial schedule, transformers' default
COSINE_CYCLES = 4  # decays of cosine_w_restarts (Loshchilov & Hutter, 2017); transformers' default of 1 has no restart
POLY_SQRT = "poly_sqrt"  # NVIDIA's for pretraining BERT, which transformers lacks
# Their names and options in transformers.
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "polynomial": ("polynomial", {"lr_end": POLYNOMIAL_END}),
    "linear": ("linear", {}),
    "cosine": ("cosine", {}),
    "cosine_w_restarts": ("cosine_with_restarts", {"num_cycles": COSINE_CYCLES}),
    "constant": ("constant_with_warmup", {}),
}
OPTIMIZERS = ("adamw", "fused_adam", "adafactor", "lamb", "fused_lamb", "sgd")


@dataclass(frozen=True)
class RunOptions:
    """Where a run writes, where it begins, and when it saves, validates and logs."""

    config: str | None = changeable(
        None, section="run", help="YAML file with these options by name; the command line wins over it"
    )
    output_dir: str | None = changeable(
        None, help=f"folder of the run, or a {STORES}; by default results/NAME_TIME", reaches=in_store
    )
    seed: int = card_option(42, least=0, most=2**32 - 1, help="seed of weights, order and dropout")
    resume_from_checkpoint: str | None = changeable(
        None,
        help="checkpoint to go on from; of a run directory, its newest whole one; "
        f"'{LAST}': that of --output_dir, or the beginning if there is none",
    )
    overwrite_output_dir: bool = changeable(
        False, help="first remove the files that an earlier run wrote to --output_dir, and nothing else"
    )
    save_top_k: int = changeable(1, least=1, help="number of best checkpoints to keep, by --val_metric")
    save_every_n_steps: int | None = changeable(
        None, alias="save_checkpoint_steps", least=1, help="steps between two writings of last.ckpt"
    )
    log_every_n_steps: int = changeable(10, alias="log_freq", least=1, help="steps between two lines of the logs")
    wandb_project: str | None = changeable(None, help="also log to this project of Weights & Biases")

    val_check_interval: float = changeable(
        1.0,
        section="validation",
        above=0,
        help="time between validations: up to 1 a share of an epoch (in pretraining: of the run), "
        "above 1 a number of training samples",
    )
    val_metric: str | None = option(
        None,
        help="the best checkpoint is the best by this: loss, or a metric of the task, such as rouge2 or accuracy",
        on_resume="validation",
    )
    early_stopping_patience: int = changeable(
        -1, least=-1, help="validations without a better score that end the run; -1 for never"
    )
    num_sanity_val_steps: int | None = changeable(
        None,
        least=-1,
        help="number of validation batches before training; -1 for all, and then their metrics are logged; by default "
        "none, in pretraining with --model_name_or_path all",
    )

    def __post_init__(self) -> None:
        if self.resume_from_checkpoint == LAST and self.output_dir is None:
            raise InputError(f"--resume_from_checkpoint {LAST} needs --output_dir, where the checkpoints are")
        if self.val_check_interval > 1 and self.val_check_interval != int(self.val_check_interval):
            raise InputError(f"--val_check_interval is {self.val_check_interval}; allowed above 1: whole numbers")


@dataclass(frozen=True)
class OptimisationOptions:
    """The optimizer, its schedule and the length of training."""

    optimizer: str = card_option(
        "adamw",
        section="training",
        choices=OPTIMIZERS,
        flags={"lamb": "lamb", "adafactor": "adafactor"},
        help="fused_adam and fused_lamb are NVIDIA's, of apex; without apex they are adamw and lamb",
    )
    learning_rate: float | None = card_option(
        None,
        above=0,
        help=f"peak rate; by default {FINE_TUNING_RATE:g} for trained weights, {LORA_RATE:g} with LoRA, "
        f"{SCRATCH_RATE:g} from scratch, and in pretraining with lamb {LAMB_RATE:g}",
    )
    lr_scheduler: str = card_option(
        "linear",
        choices=(*SCHEDULES, POLY_SQRT),
        help=f"decay after the warm-up; cosine_w_restarts decays from the peak {COSINE_CYCLES} times, {POLY_SQRT} by "
        "the square root of the share of the run that is left",
    )
    warmup_steps: int = card_option(0, least=0, help="optimizer steps of linear warm-up")
    warmup_proportion: float = card_option(0.0, least=0, most=1, help="the warm-up as a share of the run's steps")
    max_steps: int = changeable(
        -1, least=-1, besides=0, help="optimizer steps to train; -1: --max_epochs decides; pretraining needs a number"
    )
    weight_decay: float = card_option(0.0, least=0, help="weight decay of all parameters but biases and norms")
    gradient_clip_val: float = card_option(
        1.0, alias="max_grad_norm", least=0, help="gradient norm limit, also of lamb's pre-normalisation; 0 for none"
    )
    adam_epsilon: float | None = card_option(
        None,
        above=0,
        help="epsilon of adamw and lamb; by default 1e-8, for lamb in fine-tuning 1e-6",
    )
    nvlamb: bool = card_option(False, help="let lamb also scale the steps of biases and norms")
    dropout_off_ratio: float = card_option(0.0, least=0, most=1, help="share of the run, at its end, without dropout")

    def __post_init__(self) -> None:
        if self.warmup_steps and self.warmup_proportion:
            raise InputError("--warmup_steps and --warmup_proportion exclude each other")
        if self.nvlamb and not self.is_lamb:
            raise InputError(f"--nvlamb is about --optimizer lamb; --optimizer is {self.optimizer}")
        if self.adam_epsilon is not None and self.optimizer in ("sgd", "adafactor"):
            raise InputError(f"--adam_epsilon is about adamw and lamb; --optimizer is {self.optimizer}")
        if self.lr_scheduler == "polynomial" and (self.learning_rate or FINE_TUNING_RATE) <= POLYNOMIAL_END:
            raise InputError(f"--learning_rate is {self.learning_rate}; polynomial decays to {POLYNOMIAL_END}")

    @property
    def is_lamb(self) -> bool:
        return self.optimizer in ("lamb", "fused_lamb")

    def warmup(self, total_steps: int) -> int:
        """Steps of the warm-up, in a run of so many optimizer steps."""
        return self.warmup_steps or round(self.warmup_proportion * total_steps)


@dataclass(frozen=True)
class EpochOptions:
    """Epochs, and batches of like lengths in them: options of runs whose examples are not streamed."""

    sortish_sampler: bool = option(False, section="data", help="group training examples by length: less padding")
    max_tokens_per_batch: int | None = card_option(
        None,
        least=1,
        help="tokens per process and micro-batch, padding and targets included, instead of --train_batch_size; "
        "steps are made of batches of similar length, the same in every epoch",
    )
    max_epochs: int | None = changeable(
        None,
        section="training",
        least=1,
        help="epochs to train; by default 1, with --max_steps no limit",
    )
    min_epochs: int = changeable(1, alias="min_num_train_epochs", least=0, help="epochs that early stopping waits for")


@dataclass(frozen=True)
class HardwareOptions:
    """Devices, processes and precision. --gpus, --accelerator and --devices agree once the object is made."""

    gpus: int | None = option(
        None,
        section="hardware and precision",
        least=0,
        help="number of GPUs of this machine; 0 trains on the CPU; by default 1 if there is one",
        on_resume="by_content",
    )
    accelerator: str | None = option(
        None, choices=("cpu", "gpu"), help="instead of --gpus, with --devices", on_resume="by_content"
    )
    devices: int | None = option(
        None, least=1, help="processes of this machine, on GPUs one per GPU", on_resume="by_content"
    )
    strategy: str = option(
        "ddp",
        choices=("ddp", "fsdp", "hsdp"),
        help="ddp copies the model to all processes, fsdp shards it over them, hsdp over those of each machine",
    )
    fp16: bool = card_option(False, help="half precision, with loss scaling; needs a GPU")
    bf16: bool = card_option(False, help="bfloat16 precision")
    tf32: bool = card_option(False, help="fp32 with TF32 tensor cores in matrix products")
    amp_level: str = option(
        "O1",
        choices=("O0", "O1", "O2"),
        help="for --fp16 and --bf16: O1 is autocast, O2 half weights with fp32 master copies, O0 neither",
    )
    allreduce_dtype: str = option(
        "fp32", choices=("fp32", "bf16"), help="type in which processes add up their gradients; bf16 sends half as much"
    )
    no_graphs: bool = changeable(
        False, help="on one GPU in half precision, do not record forward and backward passes as CUDA graphs"
    )

    def __post_init__(self) -> None:
        self._resolve_devices()
        chosen = [f"--{name}" for name in ("fp16", "bf16", "tf32") if getattr(self, name)]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        if self.gpus == 0 and (self.fp16 or self.tf32):
            raise InputError(f"{chosen[0]} needs a GPU; this run is on the CPU, which takes fp32 (no flag) or --bf16")
        shards = f"--strategy {self.strategy}"
        if self.strategy != "ddp" and self.fp16 and self.amp_level != "O0":
            raise InputError(f"{shards} and --fp16 exclude each other; it takes --bf16, --tf32 or fp32")
        if self.strategy != "ddp" and self.bf16 and self.amp_level == "O2":
            raise InputError(f"{shards} and --amp_level O2 exclude each other; it takes O0 or O1")

    def _resolve_devices(self) -> None:
        """Make --gpus, --accelerator and --devices say the same, each of them given or not."""
        import torch  # here, because --help needs none of it

        launched = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        none_there = self.gpus is None and self.devices is None and not torch.cuda.is_available()
        accelerator = self.accelerator or ("cpu" if self.gpus == 0 or none_there else "gpu")
        devices = self.devices or self.gpus or launched or 1
        gpus = devices if accelerator == "gpu" else 0
        if self.gpus is not None and self.gpus != gpus:
            raise InputError(
                f"--devices is {devices}, --accelerator is {accelerator} and --gpus is {self.gpus}; give one of them"
            )
        if launched and devices != launched:
            raise InputError(f"--gpus or --devices is {devices}; torchrun started {launched} processes")
        for name, value in {"accelerator": accelerator, "devices": devices, "gpus": gpus}.items():
            object.__setattr__(self, name, value)

    @property
    def processes(self) -> int:
        """Processes that train together on all machines."""
        # WORLD_SIZE alone is also set by schedulers of single processes.
        return int(os.environ["WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else self.devices


@dataclass(frozen=True)
class Plan:
    """A training run."""

    run: RunOptions
    hardware: HardwareOptions
    optimisation: OptimisationOptions
    batches: BatchOptions
    epochs: EpochOptions
    _: KW_ONLY
    directory: Path  # of --output_dir, or its copy
    settings: Mapping[str, Any]  # all options by name, for the loggers
    metric: str  # of validation, which makes a checkpoint the best one
    direction: str  # "max" or "min", in which the metric gets better
    identity: dict[str, Any]  # what a run that goes on from a checkpoint must share with the one that wrote it
    conditions: dict[str, Any]  # what the metrics of validation depend on, besides the model
    defaults: Mapping[str, Any]  # of all options, where the run that is resumed was of a version without them
    checkpoint: Path | None  # to go on from
