"""One fine-tuning run, from its arguments to its scores."""

from __future__ import annotations

import json
import logging
import math
import platform
import shutil
import signal
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from pytorch_lightning.utilities import rank_zero_only

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import replacing
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.arguments import LAST, TrainArguments
from utils.cli import RunError, unwritable
from utils.data.datamodule import SummarizationDataModule
from utils.data.line_files import Pairs
from utils.data.tables import Table, open_split, read_split
from utils.data.token_cache import PairFiles, check_pairs
from utils.distributed import is_lost_peer
from utils.evaluation.report import write_report
from utils.evaluation.results import format_scores
from utils.evaluation.scoring import Settings, generation_options, score_split
from utils.loading import check_gpus, check_lengths, for_inference, load_for_evaluation, load_for_training
from utils.memory import keep_freed_memory
from utils.training.callbacks import (
    CountSkippedSteps,
    LogProgress,
    Patience,
    StopOnNonFinite,
    ValidateAtTheEnd,
    progress,
    progress_bar,
)
from utils.training.checkpoints import (
    LAST_FILE,
    AtomicCheckpointIO,
    LastCheckpoint,
    check_identity,
    find_checkpoint,
    identity_of,
    load_for_resuming,
)
from utils.training.distillation import check_layers, set_layers, shrink
from utils.training.environment import resolved_arguments, write_records
from utils.training.metrics import StartClock, TrainingMetrics, format_summary, run_summary
from utils.training.module import SummarizationModule
from utils.training.precision import half_dtype, precision_of

logger = logging.getLogger(__name__)
EXPORT = "export"


def run(args: TrainArguments) -> None:
    """Train and score as the arguments say; everything written lies in `--output_dir`.

    Raises:
        InputError: anything wrong with options, files or the machine, found before training starts.
    """
    output_dir = Path(args.output_dir)
    check_gpus(args.gpus)
    check_wandb(args.wandb_project)
    config = BartConfig.from_json(args.config_path)
    for name in ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop"):
        if getattr(args, name) is not None:
            setattr(config, name, getattr(args, name))
    check_lengths(
        config,
        max_source_length=args.max_source_length,
        max_target_length=args.max_target_length,
        val_max_target_length=args.val_max_target_length,
        test_max_target_length=args.test_max_target_length,
        eval_max_gen_length=args.eval_max_gen_length,
    )
    if args.distill is not None:
        check_layers(config, args.kept_layers, args.do_encoder, args.do_decoder)
    # All of it before anything else: better refused now than after a download, or after hours of training.
    fields = args.source_field, args.target_field
    splits: dict[str, PairFiles | Pairs | Table] = {}
    if args.do_train and args.streams:
        splits["train"] = open_split(args.data_dir, "train", *fields)
        splits["val"] = read_split(args.data_dir, "val", args.n_val, *fields)
    elif args.do_train:
        for split, limit in (("train", args.n_train), ("val", args.n_val)):
            splits[split] = check_pairs(args.data_dir, split, limit, args.cache_dir)
    test = read_split(args.data_dir, "test", args.n_test, *fields) if args.do_predict else None
    start_log(output_dir)
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    pl.seed_everything(args.seed, verbose=False)
    checkpoint = find_checkpoint(args) if args.do_train else None
    if checkpoint is None:
        model, tokenizer = load_for_training(args.model_name_or_path, config, args.tokenizer)
        if args.distill is not None:
            shrink(model, args.kept_layers, args.do_encoder, args.do_decoder)
    else:
        if args.distill is not None:
            set_layers(config, len(args.kept_layers), args.do_encoder, args.do_decoder)
        model, tokenizer = load_for_resuming(checkpoint, config)
    if args.do_train:
        if rank_zero_only.rank == 0:
            write_records(args, output_dir)
        train(args, model, tokenizer, splits, checkpoint)
        del model
    if test is not None:
        if args.do_train:
            model, tokenizer = load_for_evaluation(output_dir / EXPORT, args.config_path)
        predict(args, model, tokenizer, test)
    if rank_zero_only.rank == 0:
        write_report(output_dir)


def check_wandb(project: str | None) -> None:
    """Raise InputError when a Weights & Biases project is named and its package is not installed."""
    try:
        if project is not None:
            version("wandb")
    except PackageNotFoundError:
        raise InputError(f"--wandb_project is {project}; it needs the package wandb: pip install wandb") from None


def start_log(output_dir: Path) -> None:
    """Send the first process's log to the terminal and to `log.txt` in the run's directory; the others only warn."""
    first = rank_zero_only.rank == 0
    terminal = logging.StreamHandler()
    handlers: list[logging.Handler] = [terminal]
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        if first:
            handlers.append(logging.FileHandler(output_dir / "log.txt", encoding="utf-8"))
    except OSError as error:
        raise unwritable(f"output directory {output_dir}", error) from None
    if sys.stderr.isatty():
        terminal.addFilter(lambda record: record.name != progress.name)
    logging.basicConfig(
        level=logging.INFO if first else logging.WARNING,
        format="%(asctime)s  %(message)s",
        datefmt="%H:%M:%S",
        handlers=handlers,
    )
    # Lightning's greetings say nothing about this run; its warnings stay.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    for harmless in (
        "does not have many workers",
        "exists and is not empty",  # the run's directory holds its log already
        "your dataloader is not resumable",  # TrainBatches resumes by itself
        "smaller than the logging interval",
        "It is recommended to use `self.log",  # sums are reduced before they are logged
        "isinstance.treespec, LeafSpec",
    ):
        warnings.filterwarnings("ignore", message=f".*{harmless}")


def steps_of(args: TrainArguments, batches_per_epoch: int | None) -> int:
    """Optimizer steps of the whole run: --max_steps or --max_epochs, whichever ends it first.

    Args:
        batches_per_epoch: None for a stream, which goes by --max_steps alone.
    """
    epochs = args.max_epochs if args.max_epochs is not None else (1 if args.max_steps < 0 else None)
    steps = [args.max_steps] if args.max_steps > 0 else []
    if epochs is not None:
        steps.append(epochs * math.ceil(batches_per_epoch / args.gradient_accumulation_steps))
    return min(steps)


def validation_schedule(
    args: TrainArguments, batches_per_epoch: int | None, examples_per_step: float
) -> dict[str, Any]:
    """Lightning's Trainer arguments for --val_check_interval, in batches: those of whole optimizer steps.

    Args:
        batches_per_epoch: None for a stream, which goes by samples alone.
    """
    accumulated = args.gradient_accumulation_steps
    if args.val_check_interval <= 1:
        steps = max(1, int(args.val_check_interval * batches_per_epoch) // accumulated)
        return {"val_check_interval": min(steps * accumulated, batches_per_epoch)}
    steps = max(1, round(args.val_check_interval / examples_per_step))
    # Counted through epochs, since so many samples may be more than one epoch has.
    return {"val_check_interval": steps * accumulated, "check_val_every_n_epoch": None}


def train(
    args: TrainArguments,
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    splits: Mapping[str, PairFiles | Pairs | Table],
    checkpoint: Path | None,
) -> None:
    """Train, keep the best and the last checkpoint, and export the best one in Hub format.

    With a checkpoint, go on from there.
    """
    output_dir = Path(args.output_dir)
    data = SummarizationDataModule(args, tokenizer, splits)
    identity = identity_of(args, data.table or data.train_set)
    if checkpoint is not None:
        check_identity(checkpoint, identity)
        logger.info("going on from %s", checkpoint)
        if args.resume_from_checkpoint == LAST and checkpoint.name != LAST_FILE and rank_zero_only.rank == 0:
            # Killed between a best checkpoint and the last one, which is not written again if no step is left.
            with replacing(output_dir / LAST_FILE) as temporary:
                shutil.copy2(checkpoint, temporary)
    batches = data.train_batches()
    per_epoch = None if args.streams else len(batches)
    total_steps = steps_of(args, per_epoch)
    if args.warmup_steps >= total_steps and args.lr_scheduler != "constant":
        raise InputError(f"--warmup_steps is {args.warmup_steps}; allowed: fewer than the run's {total_steps} steps")
    if args.early_stopping_patience >= 0 and args.val_check_interval > max(1, total_steps * batches.examples_per_step):
        raise InputError(
            f"--early_stopping_patience is {args.early_stopping_patience} and --val_check_interval "
            f"{args.val_check_interval:g} samples; the run's {total_steps} steps end before its first validation"
        )
    if len(data.val_set) < args.processes:
        raise InputError(f"{len(data.val_set)} validation examples cannot be shared by {args.processes} processes")
    module = SummarizationModule(model, tokenizer, args, data.references, total_steps, identity)
    checkpoints, callbacks = build_callbacks(args)
    # LayerDrop leaves layers without gradients, for which plain DDP would wait.
    drops_layers = max(model.config.encoder_layerdrop, model.config.decoder_layerdrop) > 0
    if args.strategy == "fsdp" and args.processes > 1 and drops_layers:
        raise InputError(
            "--strategy fsdp and layer dropout (--encoder_layerdrop, --decoder_layerdrop or the config's) exclude each "
            "other: processes that drop other layers would wait for each other"
        )
    strategy: str | Strategy = "ddp_find_unused_parameters_true" if drops_layers else "ddp"
    if args.strategy == "fsdp":
        strategy = ModelParallelStrategy(
            data_parallel_size=args.processes, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    if args.accelerator == "cpu":
        keep_freed_memory()
        emulated = platform.machine() == "x86_64" and not torch.cpu._is_avx512_bf16_supported()
        if half_dtype(args) is torch.bfloat16 and emulated and rank_zero_only.rank == 0:
            logger.warning("--bf16: this processor has no bf16 instructions, and fp32 is two or three times as fast")
    precision = precision_of(args)
    plugins = precision.pop("plugins", [])
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        # Lightning's own requeueing would write checkpoints in the midst of a step, and resume from them unasked.
        plugins = [*plugins, SLURMEnvironment(auto_requeue=False)]
    trainer = pl.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        num_nodes=args.processes // args.devices,
        strategy=strategy if args.processes > 1 else "auto",
        max_steps=total_steps,
        max_epochs=args.max_epochs if args.max_epochs is not None else -1,
        min_epochs=0 if args.streams else args.min_epochs,
        accumulate_grad_batches=args.gradient_accumulation_steps,
        gradient_clip_val=args.gradient_clip_val or None,
        num_sanity_val_steps=args.num_sanity_val_steps,
        log_every_n_steps=args.log_every_n_steps,
        logger=build_loggers(args),
        callbacks=callbacks,
        plugins=[*plugins, AtomicCheckpointIO()],
        enable_model_summary=False,
        enable_progress_bar=sys.stderr.isatty(),
        use_distributed_sampler=False,
        default_root_dir=output_dir,
        **precision,
        **validation_schedule(args, per_epoch, batches.examples_per_step),
    )
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    step_size = f"{batches.examples_per_step:.0f} examples"
    if args.max_tokens_per_batch is not None:
        most = args.max_tokens_per_batch * args.processes * args.gradient_accumulation_steps
        step_size = f"about {step_size} and at most {most} tokens"
    logger.info(
        "training %.1f M of %.1f M parameters on %s for %d steps of %s",
        trainable / 1e6,
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        f"the stream {data.table.name}" if data.table else f"{len(data.train_set)} examples",
        total_steps,
        step_size,
    )
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
        if not checkpoints.best_model_path:  # resumed with nothing left to train
            trainer.save_checkpoint(output_dir / LAST_FILE)
        if trainer.is_global_zero:
            export(trainer, checkpoints, tokenizer, output_dir)
        trainer.strategy.barrier("export")
    except Exception as error:
        if trainer.strategy.launcher is not None:  # the processes that this one started would wait for it
            trainer.strategy.launcher.kill(signal.SIGKILL)
        if args.processes > 1 and is_lost_peer(error):
            raise RunError(
                f"another process of this run is gone, or cannot be reached ({str(error).splitlines()[0]}); "
                f"--resume_from_checkpoint {LAST} goes on from the newest checkpoint in {output_dir}"
            ) from error
        raise


def export(trainer: pl.Trainer, checkpoints: ModelCheckpoint, tokenizer: BartTokenizer, output_dir: Path) -> None:
    """Write the best checkpoint in Hub format, and the summary of the run."""
    best = checkpoints.best_model_path or output_dir / LAST_FILE
    BartForConditionalGeneration.from_pretrained(best).save_pretrained(output_dir / EXPORT, tokenizer)
    summary = run_summary(trainer, checkpoints, Path(best))
    (output_dir / "train_summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    logger.info("training is done\n%s", format_summary(summary, checkpoints.monitor, output_dir / EXPORT))


def build_loggers(args: TrainArguments) -> list[Logger]:
    """Metrics as CSV and TensorBoard, and in Weights & Biases where that is asked for."""
    loggers: list[Logger] = [kind(args.output_dir, name="", version="") for kind in (CSVLogger, TensorBoardLogger)]
    if args.wandb_project is not None:
        config = resolved_arguments(args)
        loggers.append(WandbLogger(project=args.wandb_project, save_dir=args.output_dir, config=config))
    return loggers


def build_callbacks(args: TrainArguments) -> tuple[ModelCheckpoint, list[Callback]]:
    """The checkpoint callback, and the list of all."""
    metric, mode = f"val_{args.selection_metric}", "min" if args.selection_metric == "loss" else "max"
    checkpoints = ModelCheckpoint(
        args.output_dir,
        filename="_epoch{epoch}_step{step}",
        auto_insert_metric_name=False,
        monitor=metric,
        mode=mode,
        save_top_k=args.save_top_k,
        enable_version_counter=False,
        save_on_train_epoch_end=False,
    )
    metrics = TrainingMetrics()
    callbacks: list[Callback] = [
        StopOnNonFinite(),
        ValidateAtTheEnd(),
        CountSkippedSteps(),
        metrics,
        LogProgress(args.log_every_n_steps),
        checkpoints,
        LastCheckpoint(args.output_dir, args.save_every_n_steps),
        StartClock(metrics),
    ]
    if sys.stderr.isatty():
        callbacks.append(progress_bar(args.log_every_n_steps))
    if args.early_stopping_patience >= 0:
        callbacks.append(Patience(metric, mode, args.early_stopping_patience))
    return checkpoints, callbacks


def predict(args: TrainArguments, model: BartForConditionalGeneration, tokenizer: BartTokenizer, pairs: Pairs) -> None:
    """Summarise and score the test split."""
    if args.gpus:
        model.to(torch.device("cuda", torch.cuda.current_device()))
    dtype = half_dtype(args)
    precision = "tf32" if args.tf32 else {None: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    model = for_inference(model, precision)
    settings = Settings(
        model_name=Path(args.output_dir) / EXPORT if args.do_train else args.model_name_or_path,
        max_source_length=args.max_source_length,
        max_target_length=args.test_max_target_length,
        batch_size=args.eval_batch_size,
        generation=generation_options(args.eval_beams or None, args.eval_max_gen_length),
        precision=precision,
        seed=args.seed,
    )
    results = score_split(model, tokenizer, pairs, args.output_dir, settings)
    if results is not None:
        print(format_scores(*results))
