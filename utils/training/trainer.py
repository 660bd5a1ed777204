"""One training run on data and a model that are there already: Lightning's trainer, set up and started."""

from __future__ import annotations

import logging
import math
import platform
import signal
from textwrap import indent

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.strategies import Strategy

from bart.errors import InputError
from bart.files import write_json
from bart.hub import EXPORT
from bart.modeling.pretrained import PretrainedModel
from utils.app.distributed import lost_peers_named
from utils.app.formatting import format_metric, metric_label, plain_table
from utils.app.machine import is_first
from utils.app.memory import keep_freed_memory
from utils.app.run_directory import LAST, REPORT_ORDER, remove, scored
from utils.app.signals import Interruption
from utils.data.batches import padded_length
from utils.models.loading import LoadedModel, export
from utils.tasks.task import TrainedTask
from utils.training import lightning_internals
from utils.training.checkpoints import LAST_FILE, CheckpointIO, check_identity, keep_as_last, remove_unnamed_shards
from utils.training.datamodule import TrainingData
from utils.training.module import TrainingModule
from utils.training.options import LORA_RATE, Plan
from utils.training.precision import half_dtype, precision_plugins
from utils.training.session import Session

logger = logging.getLogger(__name__)


def train(plan: Plan, task: TrainedTask, loaded: LoadedModel, data: TrainingData) -> None:
    """Train, keep the best and the last checkpoint, and export the best one in Hub format."""
    output_dir, model, model_class = plan.directory, loaded.model, type(loaded.model)
    if is_first():
        if plan.checkpoint is not None:
            logger.info("going on from %s", plan.checkpoint)
            keep_as_last(plan.checkpoint, output_dir)
        # What a run that was killed was writing: checkpoints, reports, the export.
        for leftover in [*output_dir.glob(".*.tmp"), *(output_dir / EXPORT).rglob(".*.tmp")]:
            leftover.unlink()
        remove_unnamed_shards(output_dir)
    module = TrainingModule(task, loaded, plan, data.total_steps)
    session = Session(plan, task)
    trainer = build_trainer(plan, model, data, session)
    rate = plan.optimisation.learning_rate
    for_lora = ", ten times the usual one, for --lora_rank" if loaded.lora_scale and rate == LORA_RATE else ""
    logger.info(
        "training %s of %s parameters on %s for %s steps of %s%.0f examples; the peak learning rate is %g%s",
        f"{model.num_parameters(only_trainable=True):,}",
        f"{model.num_parameters():,}",
        f"the stream {data.train.directory} train" if data.streams else f"{len(data.train):,} examples",
        f"{data.total_steps:,}",
        "about " if plan.epochs.max_tokens_per_batch else "",
        *(data.examples_per_step, rate, for_lora),
    )
    times = math.ceil(data.total_steps / trainer.val_check_interval)
    batches = math.ceil(len(data.val) / plan.hardware.processes / plan.batches.eval_batch_size)
    logger.info(f"validations: {times:,}, each of {len(data.val):,} examples (batches: {batches:,}){task.validation}")
    remedy = f"--resume_from_checkpoint {LAST} goes on from the newest checkpoint in {plan.run.output_dir}"
    try:
        with lost_peers_named(remedy):
            trainer.fit(module, data, ckpt_path=plan.checkpoint, weights_only=True)
            if trainer.is_global_zero:
                best = output_dir / (session.best.kept[0]["name"] if session.best.kept else LAST_FILE)
                summary = session.summary(trainer, best)
                if summary["steps_since_start"]:  # otherwise the export stays as it was scored
                    remove(output_dir, *scored(*REPORT_ORDER))
                export(loaded, model_class, best, output_dir / EXPORT)
                write_json(output_dir / "train_summary.json", summary)
                shown = [(metric_label(name), format_metric(name, value)) for name, value in summary.items()]
                table = plain_table([*shown, ("best model", str(output_dir / EXPORT))])
                logger.info("training is done\n%s", indent(table, "  "))
            trainer.strategy.barrier("export")
    except (Exception, Interruption):
        if trainer.strategy.launcher is not None:
            trainer.strategy.launcher.kill(signal.SIGKILL)
        raise


class _TensorBoard(TensorBoardLogger):
    def save(self) -> None:
        self.experiment.flush()  # without Lightning's hparams.yaml, which would be empty


def check_plan(plan: Plan, model: PretrainedModel, data: TrainingData) -> None:
    """Raise InputError for options that do not fit the size of the data, or the checkpoint to go on from."""
    steps, processes = data.total_steps, plan.hardware.processes
    if plan.checkpoint is not None:
        check_identity(plan.checkpoint, plan.identity, plan.defaults)
    if plan.hardware.strategy != "ddp" and processes > 1 and any(stack.layerdrop for stack in model.stacks):
        raise InputError(
            f"--strategy {plan.hardware.strategy} and layer dropout (--encoder_layerdrop, --decoder_layerdrop or the "
            "config's) exclude each other"
        )
    warmup = plan.optimisation.warmup(steps)
    if warmup >= steps and plan.optimisation.lr_scheduler != "constant":
        name = "proportion makes" if plan.optimisation.warmup_proportion else "steps is"
        raise InputError(f"--warmup_{name} {warmup}; allowed: fewer than the run's {steps} steps")
    most = plan.epochs.max_tokens_per_batch
    if most is not None and most < (longest := int(padded_length(data.train.lengths).sum(axis=1).max())):
        raise InputError(
            f"--max_tokens_per_batch is {most}; allowed: at least {longest}, which the longest training example takes"
        )
    if len(data.val) < processes:
        raise InputError(f"{len(data.val)} validation examples cannot be shared by {processes} processes")


def build_trainer(plan: Plan, model: PretrainedModel, data: TrainingData, session: Session) -> pl.Trainer:
    """Lightning's trainer. To Lightning the whole run is one epoch, and an optimizer step is one batch."""
    run, hardware = plan.run, plan.hardware
    strategy: str | Strategy = "auto"
    if hardware.processes > 1:
        # LayerDrop leaves layers without gradients, for which plain DDP would wait. No buffer changes in training.
        exchange = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
        drops_layers = any(stack.layerdrop for stack in model.stacks)
        strategy = lightning_internals.Ddp(find_unused_parameters=drops_layers, **exchange)
        if hardware.strategy != "ddp":
            # Lightning's names for the two dimensions of the mesh; `configure_model` shards over the second alone.
            copies = hardware.processes // hardware.devices if hardware.strategy == "hsdp" else 1
            strategy = lightning_internals.ModelParallel(copies, hardware.processes // copies)
    if hardware.accelerator == "cpu":
        keep_freed_memory()
        emulated = platform.machine() == "x86_64" and not torch.cpu.get_capabilities().get("avx512_bf16", False)
        if half_dtype(hardware) is torch.bfloat16 and emulated and is_first():
            logger.warning("--bf16: this processor has no bf16 instructions, and fp32 is two or three times as fast")
    if (interval := run.val_check_interval) <= 1:
        interval = int(interval * (data.total_steps if data.streams else data.steps_per_epoch))
    else:
        interval = round(interval / data.examples_per_step)
    loggers: list[Logger] = [kind(plan.directory, name="", version="") for kind in (CSVLogger, _TensorBoard)]
    if run.wandb_project is not None:
        loggers.append(WandbLogger(project=run.wandb_project, save_dir=plan.directory, config=dict(plan.settings)))
    trainer = pl.Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.processes // hardware.devices,
        strategy=strategy,
        max_epochs=1,  # whose length is that of the training loader
        num_sanity_val_steps=run.num_sanity_val_steps or 0,
        val_check_interval=max(1, interval),
        check_val_every_n_epoch=None,
        log_every_n_steps=run.log_every_n_steps,
        logger=loggers,
        callbacks=[session],
        enable_checkpointing=False,  # which the session does
        plugins=[*precision_plugins(hardware), CheckpointIO(model)],
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        default_root_dir=plan.directory,
    )
    lightning_internals.prepare(trainer)
    return trainer
