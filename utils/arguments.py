"""The options of finetune.py: names as NVIDIA's BART example has them, where it has them.

Those of run_eval.py stand in `utils.evaluation.arguments`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bart.errors import InputError
from utils.cli import option, parse_dataclass
from utils.data.padding import padded_length
from utils.data.places import PLACES, check_fields, is_place

MODEL, DATA, TRAINING, REGULARISATION = "model", "data", "training", "regularisation"
EVALUATION, HARDWARE, RUN = "evaluation", "hardware and precision", "run"
SCHEDULES = ("polynomial", "linear", "cosine", "cosine_w_restarts", "constant")
POLYNOMIAL_END = 1e-7  # the rate at which the polynomial schedule ends, as transformers has it
COSINE_CYCLES = 4  # falls of the cosine_w_restarts schedule, one restart less
SCRATCH = "scratch"  # what --model_name_or_path calls random weights
OPTIMIZERS = ("adamw", "fused_adam", "adafactor", "lamb", "fused_lamb", "sgd")
STRATEGIES = ("ddp", "fsdp")
LAST = "last"  # what --resume_from_checkpoint calls the newest checkpoint of --output_dir
AMP_LEVELS = ("O0", "O1", "O2", "O3")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
METRICS = ("loss", "rouge1", "rouge2", "rougeLsum")


@dataclass(frozen=True)
class TrainArguments:
    config: str | None = option(None, section=RUN, help="YAML file of these options by name; the command line wins")
    output_dir: str = option("results", section=RUN, help="where logs, checkpoints, the export and scores are written")
    do_train: bool = option(False, section=RUN, help="train on the train split")
    do_predict: bool = option(False, section=RUN, help="score the test split, with the best checkpoint after training")
    seed: int = option(42, section=RUN, least=0, help="seed of weights, order and dropout")
    resume_from_checkpoint: str | None = option(
        None,
        section=RUN,
        help="checkpoint to go on from, with its weights, optimizer, schedule, random state and position in the epoch; "
        "'last' takes the newest whole one of --output_dir, and starts afresh where there is none",
    )
    save_top_k: int = option(1, section=RUN, least=1, help="best checkpoints to keep, by val_metric")
    save_every_n_steps: int | None = option(
        None, section=RUN, least=1, help="optimizer steps between two writings of last.ckpt, besides every validation"
    )
    wandb_project: str | None = option(None, section=RUN, help="Weights & Biases project to log to as well")

    model_name_or_path: str = option(
        "facebook/bart-large",
        section=MODEL,
        help="initial weights: a Hub name, a directory, a checkpoint file, or 'scratch' for random ones",
    )
    config_path: str = option(
        "configs/config.json", section=MODEL, help="JSON with the architecture and decoding options"
    )
    tokenizer: str | None = option(
        None, section=MODEL, help="vocabulary: a Hub name or directory; by default the one that lies with the weights"
    )
    freeze_embeds: bool = option(False, section=MODEL, help="do not train token and position embeddings")
    freeze_encoder: bool = option(False, section=MODEL, help="do not train the encoder")
    distill: str | None = option(
        None,
        section=MODEL,
        choices=("sft",),
        help="sft, shrink and fine-tune, starts from some --layers of the weights (Shleifer & Rush, 2020)",
    )
    layers: str | None = option(None, section=MODEL, help="layers that --distill keeps, counted from 0, such as 0-6-11")
    do_encoder: bool = option(False, section=MODEL, help="--distill shrinks the encoder")
    do_decoder: bool = option(False, section=MODEL, help="--distill shrinks the decoder")
    activation_checkpointing: bool = option(
        False, section=MODEL, help="recompute activations in the backward pass: less memory, a third more time"
    )

    data_dir: str = option(
        "data/cnn_dm",
        section=DATA,
        help=f"directory with {{train,val,test}}.{{source,target}}; or a set to stream: {PLACES}",
    )
    cache_dir: str | None = option(
        None,
        section=DATA,
        help="folder for the token ids of training and validation texts, which are made once; by default .cache in the "
        "data directory or, where that cannot be written, ~/.cache/bart-pytorch",
    )
    source_field: str | None = option(
        None, section=DATA, help="column of the documents in a set that is streamed; by default as published sets do it"
    )
    target_field: str | None = option(None, section=DATA, help="column of the summaries in a set that is streamed")
    max_source_length: int = option(1024, section=DATA, least=3, help="tokens a source is cut to")
    max_target_length: int = option(142, section=DATA, least=3, help="tokens a training target is cut to")
    val_max_target_length: int = option(142, section=DATA, least=3, help="tokens a validation target is cut to")
    test_max_target_length: int = option(142, section=DATA, least=3, help="tokens a test target is cut to for its loss")
    n_train: int = option(-1, section=DATA, least=-1, help="training examples to use; -1 for all")
    n_val: int = option(-1, section=DATA, least=-1, help="validation examples to use; -1 for all")
    n_test: int = option(-1, section=DATA, least=-1, help="test examples to use; -1 for all")
    sortish_sampler: bool = option(False, section=DATA, help="group training examples of like length: less padding")
    num_workers: int = option(
        2,
        section=DATA,
        least=0,
        help="loader processes per GPU, one at most for a stream; 0 loads in the training process",
    )

    train_batch_size: int = option(8, section=TRAINING, least=1, help="examples per process and micro-batch")
    max_tokens_per_batch: int | None = option(
        None,
        section=TRAINING,
        least=1,
        help="tokens per process and micro-batch, padding and targets included, in place of --train_batch_size; "
        "micro-batches then hold examples of like length, the same in every epoch",
    )
    gradient_accumulation_steps: int = option(1, section=TRAINING, least=1, help="micro-batches per optimizer step")
    optimizer: str = option(
        "adamw",
        section=TRAINING,
        choices=OPTIMIZERS,
        help="sgd has a momentum of 0.9; fused_adam and fused_lamb are those of NVIDIA's apex; without it, torch's "
        "fused AdamW and our lamb serve",
    )
    learning_rate: float = option(3e-5, section=TRAINING, above=0, help="peak learning rate")
    lr_scheduler: str = option(
        "linear",
        section=TRAINING,
        choices=SCHEDULES,
        help=f"decay after the warm-up; cosine_w_restarts falls from the peak {COSINE_CYCLES} times",
    )
    warmup_steps: int = option(0, section=TRAINING, least=0, help="optimizer steps of linear warm-up")
    max_steps: int = option(-1, section=TRAINING, least=-1, help="optimizer steps to train; -1 leaves it to max_epochs")
    max_epochs: int | None = option(
        None, section=TRAINING, least=1, help="epochs to train; by default 1, and unlimited where --max_steps is given"
    )
    min_epochs: int = option(1, section=TRAINING, least=0, help="epochs before early stopping may end the run")

    label_smoothing: float = option(
        0.0, section=REGULARISATION, least=0, most=1, help="probability spread over the vocabulary"
    )
    weight_decay: float = option(0.0, section=REGULARISATION, least=0, help="of all but biases and norms")
    dropout: float | None = option(
        None,
        section=REGULARISATION,
        least=0,
        most=0.99,
        help="of embeddings and layer outputs; by default the config's",
    )
    attention_dropout: float | None = option(
        None, section=REGULARISATION, least=0, most=0.99, help="of attention weights; by default the config's"
    )
    encoder_layerdrop: float | None = option(
        None,
        section=REGULARISATION,
        least=0,
        most=0.99,
        help="chance to skip an encoder layer; by default the config's",
    )
    decoder_layerdrop: float | None = option(
        None, section=REGULARISATION, least=0, most=0.99, help="chance to skip a decoder layer; by default the config's"
    )
    gradient_clip_val: float = option(1.0, section=REGULARISATION, least=0, help="gradient norm limit; 0 for none")

    eval_batch_size: int = option(8, section=EVALUATION, least=1, help="examples per process in validation and test")
    eval_beams: int | None = option(
        None,
        section=EVALUATION,
        least=0,
        help="beams in validation and test; by default the config's num_beams; 0 scores validation by the "
        "teacher-forced arg-max, without search, and leaves the test split at the config's num_beams",
    )
    eval_max_gen_length: int | None = option(
        None, section=EVALUATION, least=2, help="tokens to generate at most; by default the config's max_length"
    )
    val_check_interval: float = option(
        1.0,
        section=EVALUATION,
        above=0,
        help="validate every so many epochs (up to 1), or every so many training samples (above 1)",
    )
    val_metric: str | None = option(
        None,
        section=EVALUATION,
        choices=METRICS,
        help="what makes a checkpoint the best one; by default rouge2, and loss with --eval_beams 0, because an "
        "arg-max under teacher forcing that merely echoes the reference's previous token has a high ROUGE",
    )
    early_stopping_patience: int = option(
        -1, section=EVALUATION, least=-1, help="validations without a better val_metric that end the run; -1 for never"
    )
    num_sanity_val_steps: int = option(
        0, section=EVALUATION, least=-1, help="validation batches before training; -1 for all"
    )

    gpus: int | None = option(
        None, section=HARDWARE, least=0, help="GPUs of this machine to train on; 0 trains on the CPU; by default 1"
    )
    accelerator: str | None = option(
        None, section=HARDWARE, choices=("cpu", "gpu"), help="with --devices, another way to say --gpus"
    )
    devices: int | None = option(
        None, section=HARDWARE, least=1, help="processes of this machine that train together, one per GPU if on GPUs"
    )
    strategy: str = option(
        "ddp",
        section=HARDWARE,
        choices=STRATEGIES,
        help="how several processes train together: ddp copies the model to all, fsdp shards it",
    )
    fp16: bool = option(False, section=HARDWARE, help="half precision, with loss scaling; needs a GPU")
    bf16: bool = option(False, section=HARDWARE, help="bfloat16 precision")
    tf32: bool = option(False, section=HARDWARE, help="fp32 with TF32 tensor cores in matrix products")
    amp_level: str = option(
        "O1",
        section=HARDWARE,
        choices=AMP_LEVELS,
        help="how --fp16 and --bf16 are used: O0 not at all, O1 autocast, O2 half weights with fp32 master copies, "
        "O3 half everywhere",
    )
    log_every_n_steps: int = option(10, section=RUN, least=1, help="optimizer steps between two lines of the logs")

    def __post_init__(self) -> None:
        self._resolve_devices()
        chosen = [f"--{name}" for name in ("fp16", "bf16", "tf32") if getattr(self, name)]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        if self.gpus == 0 and (self.fp16 or self.tf32):
            raise InputError(f"{chosen[0]} needs a GPU and --gpus is 0; the CPU takes fp32 (no flag) or --bf16")
        for name in ("n_train", "n_val", "n_test", "max_steps"):
            if getattr(self, name) == 0:
                raise InputError(f"--{name} is 0; allowed: -1, or at least 1")
        if self.lr_scheduler == "polynomial" and self.learning_rate <= POLYNOMIAL_END:
            raise InputError(
                f"--learning_rate is {self.learning_rate}; --lr_scheduler polynomial decays to {POLYNOMIAL_END}: "
                "allowed: above that"
            )
        if self.strategy == "fsdp" and self.fp16 and self.amp_level != "O0":
            raise InputError("--strategy fsdp and --fp16 exclude each other; fsdp takes --bf16, --tf32 or fp32")
        if self.strategy == "fsdp" and self.bf16 and self.amp_level in ("O2", "O3"):
            raise InputError(
                f"--strategy fsdp and --amp_level {self.amp_level} exclude each other; fsdp takes O0 or O1"
            )
        if self.strategy == "fsdp" and self.optimizer in ("adafactor", "lamb", "fused_lamb"):
            raise InputError(
                f"--strategy fsdp and --optimizer {self.optimizer} exclude each other: it needs whole matrices, and "
                "fsdp gives each process parts; fsdp takes adamw, fused_adam or sgd"
            )
        self._check_distillation()
        if self.max_tokens_per_batch is not None:
            longest = padded_length(self.max_source_length) + padded_length(self.max_target_length)
            if self.max_tokens_per_batch < longest:
                raise InputError(
                    f"--max_tokens_per_batch is {self.max_tokens_per_batch}; allowed: at least {longest}, one example "
                    "of --max_source_length and --max_target_length, each padded to a multiple of 8"
                )
        check_fields(self.data_dir, source_field=self.source_field, target_field=self.target_field)
        if self.streams and self.do_train:
            self._check_stream()
        if not (self.do_train or self.do_predict):
            raise InputError("nothing to do: give --do_train, --do_predict or both")
        if self.val_check_interval > 1 and self.val_check_interval != int(self.val_check_interval):
            raise InputError(
                f"--val_check_interval is {self.val_check_interval}; above 1 it counts training samples, so it is whole"
            )

    def _resolve_devices(self) -> None:
        """Make --gpus, --accelerator and --devices say the same, each of them given or not."""
        launched = int(os.environ["LOCAL_WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else None
        accelerator = self.accelerator or ("cpu" if self.gpus == 0 else "gpu")
        if self.gpus is not None and (accelerator == "gpu") != (self.gpus > 0):
            raise InputError(f"--accelerator is {accelerator} and --gpus is {self.gpus}; give one of them")
        devices = self.devices or self.gpus or launched or 1
        if self.gpus and devices != self.gpus:
            raise InputError(f"--devices is {devices} and --gpus is {self.gpus}; give one of them")
        if launched is not None and devices != launched:
            name = "gpus" if self.gpus else "devices"
            raise InputError(f"--{name} is {devices}; torchrun started {launched} processes on this machine")
        resolved = {"accelerator": accelerator, "devices": devices, "gpus": devices if accelerator == "gpu" else 0}
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def _check_stream(self) -> None:
        """Refuse what needs the length of an epoch, the lengths of all examples, or files."""
        stream = f"--data_dir {self.data_dir} is streamed, and nobody knows the length of its epochs"
        if self.max_steps < 0 or self.max_epochs is not None:
            given = "" if self.max_epochs is None else f", and not --max_epochs, which is {self.max_epochs}"
            raise InputError(f"{stream}: give --max_steps{given}")
        if self.val_check_interval <= 1:
            raise InputError(
                f"{stream}: --val_check_interval is {self.val_check_interval:g}, a part of an epoch; allowed: training "
                "samples, above 1"
            )
        if self.min_epochs > 1:
            raise InputError(f"{stream}: --min_epochs is {self.min_epochs}; allowed: 0 or 1, which both mean none")
        if self.max_tokens_per_batch is not None:
            raise InputError(
                f"--max_tokens_per_batch needs the lengths of all examples; --data_dir {self.data_dir} is streamed and "
                "takes --train_batch_size"
            )
        if self.cache_dir is not None:
            raise InputError(
                f"--cache_dir is {self.cache_dir}, for token ids of line files; --data_dir {self.data_dir} is streamed"
            )

    def _check_distillation(self) -> None:
        if self.distill is None:
            for name in ("layers", "do_encoder", "do_decoder"):
                if getattr(self, name):
                    raise InputError(f"--{name} is about --distill sft, which is not given")
        elif self.layers is None or not (self.do_encoder or self.do_decoder) or not self.do_train:
            raise InputError("--distill sft needs --do_train, --layers, and --do_encoder, --do_decoder or both")
        elif self.model_name_or_path == SCRATCH:
            raise InputError(
                f"--distill sft keeps trained layers; --model_name_or_path is {SCRATCH}, which has none: name weights"
            )

    @property
    def kept_layers(self) -> list[int]:
        """The layers that --distill keeps."""
        try:
            layers = [int(number) for number in (self.layers or "").split("-")]
            if sorted(set(layers)) != layers:
                raise ValueError
        except ValueError:
            raise InputError(f"--layers is {self.layers!r}; allowed: rising numbers such as 0-6-11") from None
        return layers

    @property
    def streams(self) -> bool:
        """Whether training data are streamed, not read from line files."""
        return is_place(self.data_dir)

    @property
    def selection_metric(self) -> str:
        """What makes a checkpoint the best one."""
        return self.val_metric or ("loss" if self.eval_beams == 0 else "rouge2")

    @property
    def processes(self) -> int:
        """Processes that train together on all machines."""
        # WORLD_SIZE alone is also set by schedulers of single processes.
        return int(os.environ["WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else self.devices


def parse_train_arguments(argv: Sequence[str] | None = None) -> TrainArguments:
    """Read finetune.py's command line, and the YAML file that it may name."""
    return parse_dataclass(TrainArguments, argv, "Fine-tune BART for summarisation and score it.", prog="finetune.py")
