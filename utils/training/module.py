"""The Lightning module: one optimizer step and one validation, for any task."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bart.generation.graphs import forget_recordings
from utils.app.distributed import from_all
from utils.app.memory import FittingSize
from utils.app.signals import Signals
from utils.data.batches import Batch, Inputs
from utils.models.loading import LoadedModel, checkpoint_parts
from utils.tasks.task import TrainedTask
from utils.training.optim import build_optimizer, build_schedule, clip
from utils.training.options import Plan
from utils.training.precision import MasterWeights, half_dtype, precision_name
from utils.training.recording import RecordedPasses, recordings_of

logger = logging.getLogger(__name__)
Stamp = float | torch.cuda.Event


def stamp(device: torch.device) -> Stamp:
    """This moment; on a GPU the one at which the work queued so far is done, without waiting for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class TrainingModule(pl.LightningModule):
    """Trains a task's model.

    The loss of an optimizer step is the mean over all targets of its micro-batches on all processes, or the sum of such
    means. The step is optimised by hand, as Lightning calls it, since its number of targets must be known before the
    first micro-batch's gradients are computed.
    """

    signals: Signals  # in training, when they ask the run to end
    # Of the last step, on all processes: its mean loss, the unscaled gradient's norm before clipping, its rate.
    train_loss: Tensor
    grad_norm: Tensor
    lr: float
    asked: Tensor  # the number of processes that had been asked to end the run before it

    def __init__(self, task: TrainedTask, loaded: LoadedModel, plan: Plan, total_steps: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.task, self.loaded, self.plan, self.total_steps = task, loaded, plan, total_steps
        self.model = loaded.model.train()  # from_pretrained gives eval mode, and Lightning keeps what it finds
        self.recorded: RecordedPasses | None = None
        self.random_states: list[dict[str, Tensor]] = []  # of all processes, where a checkpoint gave them
        self.saved_steps = total_steps  # of the run that a checkpoint was written for
        self.waits: list[tuple[Stamp, Stamp]] = []  # of the last step: times in which DDP waited for other processes
        self.computed: Stamp | None = None  # when this process had computed its gradients
        self.eval_batch_size = FittingSize(plan.batches.eval_batch_size, "--eval_batch_size")

    # ---- Training

    def training_step(self, step: list[Batch], step_idx: int) -> Tensor:
        """One optimizer step of this process's micro-batches; nothing in it waits for the device."""
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        left = self.total_steps - self.trainer.global_step
        is_last = left <= self.total_steps * self.plan.optimisation.dropout_off_ratio
        if is_last and turn_dropout_off(self.model) and self.recorded is not None:
            self.recorded.forget()
        totals = torch.zeros(self.task.means + 1, dtype=torch.float64, device=self.device)  # exact, and weights fit in
        totals[-1].fill_(self.signals.number > 0)
        for batch in step:
            if batch.is_real:
                totals[:-1] += self.task.count(self.model, batch.inputs)
        self.waits, self.asked = [], totals[-1]
        targets = self.summed(totals)[:-1].to(torch.get_default_dtype())
        targets += targets == 0  # a loss over nothing is 0: sentences may be cut before the end of their first word
        losses = torch.zeros(len(step), device=self.device)
        if self.recorded is not None and len(step) > 1:
            self.recorded.clear_gradients()
        with self.model.backend.step(self.model.layers):
            for number, batch in enumerate(step):
                with self._exchanging_gradients(number == len(step) - 1):
                    # The strategies average gradients over processes.
                    factors = batch.is_real * self.trainer.world_size / targets
                    if self.recorded is None:
                        losses[number] = self._passes(batch.inputs, factors)
                    else:
                        losses[number] = self.recorded(batch.inputs, factors, adds=len(step) > 1)
                if self.computed is not None:
                    self.waits.append((self.computed, stamp(self.device)))
                    self.computed = None
                if isinstance(optimizer.optimizer, MasterWeights):
                    optimizer.optimizer.add_gradients()
        self.train_loss = self.summed(losses.sum()) / self.trainer.world_size
        self.lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if self.recorded is None:
            optimizer.zero_grad()
        schedule.step()
        return losses * self.trainer.world_size

    def _passes(self, inputs: Inputs, factors: Tensor) -> Tensor:
        """The loss of a micro-batch, weighed by factors, whose gradients are added to those there are."""
        share = (self.task.loss(self.model, inputs) * factors).sum()
        with torch.autocast(self.device.type, enabled=False):  # for the forward pass alone
            self.manual_backward(share)
        return share.detach()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip the gradient, once it is unscaled, by its norm."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if limit := self.plan.optimisation.gradient_clip_val:
            clip(optimizer, parameters, limit, norm)
        self.grad_norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).float()

    def summed(self, value: Tensor) -> Tensor:
        """The sum over all processes, which takes the value's place."""
        if self.trainer.world_size > 1:
            began = stamp(self.device)
            dist.all_reduce(value)  # the strategy's reduce would also wait at a barrier
            self.waits.append((began, stamp(self.device)))
        return value

    @contextmanager
    def _exchanging_gradients(self, is_last: bool) -> Iterator[None]:
        """Let a backward pass exchange gradients only after the last micro-batch; master weights need each one's."""
        if is_last or self.trainer.world_size == 1 or isinstance(self.optimizers().optimizer, MasterWeights):
            yield
        elif isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(False)
            yield
            self.model.set_requires_gradient_sync(True)
        else:
            with self.trainer.model.no_sync():
                yield

    def _exchange(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        """Average a part of the gradients over the processes, as DDP does."""
        if bucket.is_last():
            self.computed = stamp(self.device)
        in_half = self.plan.hardware.allreduce_dtype == "bf16"
        return (bf16_compress_hook if in_half else allreduce_hook)(state, bucket)

    def configure_optimizers(self) -> dict[str, Any]:
        options = self.plan.optimisation
        optimizer = build_optimizer(self.model, options, self.plan.hardware)
        schedule = build_schedule(options.lr_scheduler, optimizer, options.warmup(self.total_steps), self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def configure_model(self) -> None:
        """Shard the network layer by layer, for --strategy fsdp and hsdp (Zhao et al., 2023, section 3.2)."""
        strategy = self.plan.hardware.strategy
        if strategy == "ddp" or self.trainer.world_size == 1 or isinstance(self.model, FSDPModule):
            return
        half = half_dtype(self.plan.hardware)
        exchanged = None if half is None else torch.float32
        if self.plan.hardware.allreduce_dtype == "bf16":
            exchanged = torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=exchanged)
        # Of two dimensions: copies, and shards of each.
        mesh = self.device_mesh if strategy == "hsdp" else self.device_mesh["tensor_parallel"]
        options = {"mesh": mesh, "mp_policy": policy}
        for layer in self.model.layers:
            fully_shard(layer, **options)
        fully_shard(self.model, **options)

    def on_train_start(self) -> None:
        """Let each process drop out different units, or restore its random state where as many processes go on."""
        self._follow_schedule()
        self.recorded = recordings_of(self._passes, self.model, self.plan.hardware, self.task.is_recordable)
        if isinstance(self.trainer.model, DistributedDataParallel):
            self.trainer.model.register_comm_hook(None, self._exchange)
        rank, step = self.trainer.global_rank, self.trainer.global_step
        if len(self.random_states) == self.trainer.world_size:
            torch.set_rng_state(self.random_states[rank]["cpu"].cpu())
            if "cuda" in self.random_states[rank] and torch.cuda.is_initialized():
                torch.cuda.set_rng_state(self.random_states[rank]["cuda"].cpu())
        elif rank > 0 or step > 0:
            torch.manual_seed(int(np.random.SeedSequence((self.plan.run.seed, rank, step)).generate_state(1)[0]))
            if self.random_states:
                logger.info("dropout draws anew, as %d processes wrote the checkpoint", len(self.random_states))

    def _follow_schedule(self) -> None:
        """Take the next step's learning rate from a schedule whose length has changed since the checkpoint."""
        if self.saved_steps == self.total_steps:
            return
        schedule = self.lr_schedulers()
        groups = schedule.optimizer.param_groups
        for group, peak, factor in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
            group["lr"] = peak * factor(schedule.last_epoch)
        logger.info(
            "the checkpoint is of a run of %d steps, this one has %d: its learning rate goes on at %.4g",
            *(self.saved_steps, self.total_steps, groups[0]["lr"]),
        )

    # ---- Validation

    def on_validation_epoch_start(self) -> None:
        self.keep_whole(True)  # processes have unequal numbers of batches
        self.validated = self.task.for_validation(self.loaded, precision_name(self.plan.hardware))
        self.sums: Tensor | None = None

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        def validate(rows: list[int], size: int) -> Iterator[int]:
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                sums = self.task.validate(self.validated, batch.rows(part))
                self.sums = sums if self.sums is None else self.sums + sums
                yield from part

        self.eval_batch_size.run(range(len(batch)), validate)

    def on_validation_epoch_end(self) -> None:
        self.validated = self.loaded
        forget_recordings(self.model)  # training needs their memory
        self.keep_whole(False)
        metrics = self.task.metrics_of(self.summed(self.sums).tolist(), self.loaded)
        # For the callbacks; Measurements writes the files.
        values = {self.task.validation_name(name): value for name, value in metrics.items()}
        self.log_dict(values, logger=False)

    def keep_whole(self, whole: bool) -> None:
        """Let every process of --strategy fsdp and hsdp hold all weights, and wait for none, or only its share."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                # FSDP keeps the root's weights after the forward pass in any case, and has no public setting for it.
                if module is not self.model:
                    module.set_reshard_after_forward(not whole, recurse=False)
                if whole:
                    module.unshard()
                else:
                    module.reshard()

    # ---- Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint |= checkpoint_parts(self.loaded)
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        checkpoint |= {"random_states": from_all(states)}
        checkpoint |= {"identity": self.plan.identity, "total_steps": self.total_steps}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.random_states, self.saved_steps = checkpoint["random_states"], checkpoint["total_steps"]


def turn_dropout_off(model: nn.Module) -> bool:
    """Let a network train on without dropout, as BART's last tenth of steps had it (Lewis et al., 2020, section 4).

    True if there was any.
    """
    found = False
    for module in model.modules():
        for name in ("p",) if isinstance(module, nn.Dropout) else ("dropout", "activation_dropout"):
            if isinstance(value := getattr(module, name, None), float):
                found |= value > 0.0
                setattr(module, name, 0.0)
    return found
