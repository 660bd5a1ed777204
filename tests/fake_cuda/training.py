"""The step of a training run on a CUDA device that is not there."""

from __future__ import annotations

import gc
import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from bart.cuda.backend import CudaBackend
from bart.generation.graphs import Step
from bart.rows import Rows, Spans
from tests import forked
from tests.fake_cuda.device import DEVICE, Launches, Storages, Watch, fake, on_device, plug_in
from tests.tiny_run import tiny_bart
from utils.data.batches import Batch
from utils.training.module import TrainingModule
from utils.training.optim import build_optimizer, build_schedule
from utils.training.options import HardwareOptions
from utils.training.precision import half_dtype, keeps_master_weights, precision_plugins
from utils.training.recording import RecordedPasses

# Precision, level and optimizer.
Mix = tuple[str, str, str]
USUAL: Mix = ("bf16", "O1", "adamw")
MIXES: tuple[Mix, ...] = (
    ("fp32", "O1", "adamw"),
    ("fp16", "O1", "adamw"),
    ("fp16", "O2", "adamw"),
    ("fp16", "O1", "lamb"),
    ("fp16", "O1", "sgd"),
    ("fp16", "O2", "sgd"),
    ("bf16", "O1", "lamb"),
    ("bf16", "O1", "adafactor"),
    ("bf16", "O1", "sgd"),
    ("bf16", "O2", "lamb"),
)
# What a loss might do by mistake, and what is said of it.
PLANTED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "index": (lambda loss: loss.expand(3)[torch.tensor([1])].sum(), "index with an index of torch.int64 on cpu"),
    "mask": (lambda loss: loss.expand(3)[loss.expand(3) > 0].sum(), "index with an index of torch.bool on cuda"),
    "tensor": (lambda loss: (loss + torch.zeros(2)).sum(), "Expected all tensors to be on the same device"),
    "number": (lambda loss: loss + torch.zeros(()), "add with a number on the CPU"),
    "copy": (lambda loss: loss + torch.tensor(1.0, device=loss.device), "a copy from cpu to cuda"),
    "read": (lambda loss: loss * loss.item(), "_local_scalar_dense"),
}


class _Computed(Exception):
    pass


class _Module(TrainingModule):
    """A module whose trainer is one process on the device."""

    trainer = SimpleNamespace(world_size=1, global_step=0)  # type: ignore[assignment]
    device = DEVICE  # type: ignore[assignment]
    signals = SimpleNamespace(number=0)  # type: ignore[assignment]
    stepper: _Stepper

    def optimizers(self) -> _Stepper:
        return self.stepper

    def lr_schedulers(self) -> Any:
        return self.stepper.schedule

    def manual_backward(self, loss: Tensor) -> None:
        scaler = getattr(self.stepper.plugin, "scaler", None)
        (loss if scaler is None else scaler.scale(loss)).backward()


class _Stepper:
    """An optimizer that Lightning's plugin for the precision steps, as its trainer lets it."""

    def __init__(self, module: _Module) -> None:
        hardware, options = module.plan.hardware, module.plan.optimisation
        plugins = precision_plugins(hardware)
        self.plugin: Precision = plugins[0] if plugins else Precision()
        self.plugin._after_closure = lambda _, optimizer: module.on_before_optimizer_step(optimizer)
        self.module = module
        self.optimizer: Optimizer = build_optimizer(module.model, options, hardware)
        self.param_groups, self.zero_grad = self.optimizer.param_groups, self.optimizer.zero_grad
        self.schedule = build_schedule(options.lr_scheduler, self.optimizer, 1, 100)

    def step(self) -> None:
        self.plugin.optimizer_step(self.optimizer, model=self.module, closure=lambda: None)


def _on_device(module: TrainingModule, batches: list[Batch], mix: Mix) -> tuple[_Module, list[Batch]]:
    """The module and its batches on the device, in a `fake` mode."""
    half, level, name = mix
    hardware = HardwareOptions(gpus=1, amp_level=level, **({} if half == "fp32" else {half: True}))
    options = replace(module.plan.optimisation, optimizer=name, adam_epsilon=None, nvlamb=False)
    dtype = half_dtype(hardware) if keeps_master_weights(hardware) else None
    loaded = replace(module.loaded, model=on_device(module.model, dtype))
    loaded.model.compute_with(CudaBackend())
    plan = replace(module.plan, hardware=hardware, optimisation=options)
    ours = _Module(module.task, loaded, plan, 100)
    ours.stepper = _Stepper(ours)
    return ours, [batch.to(DEVICE) for batch in batches]


def _step(module: TrainingModule, batches: list[Batch], mix: Mix) -> Watch:
    """The second step of a mix; the first one makes the optimizer's state."""
    with fake():
        ours, on = _on_device(module, batches, mix)
        for _ in range(2):
            watch = Watch()
            try:
                with watch, ours.stepper.plugin.forward_context():
                    losses = ours.training_step(on, 0)
            except Exception as error:
                watch.waits[f"{type(error).__name__}: {error}"] += 1
                return watch
        made = {"losses": losses, "train_loss": ours.train_loss, "grad_norm": ours.grad_norm}
        watch.waits.update(f"{name} on the CPU" for name, tensor in made.items() if not tensor.is_cuda)
    return watch


def _launched(module: TrainingModule, batches: list[Batch]) -> list[Counter[str]]:
    """The launches of eager passes, of recorded ones, and of a step of recorded ones beside its replays."""
    with fake():
        ours, on = _on_device(module, batches, USUAL)
        with ours.stepper.plugin.forward_context():
            ours.training_step(on, 0)
            with ours.model.backend.step(ours.model.layers), Launches() as eager:
                ours._passes(on[0].inputs, torch.ones((), device=DEVICE))
            parameters = [one for one in ours.model.parameters() if one.requires_grad]
            replayed = Launches()

            def recorder(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
                replayed.counts.clear()
                with replayed:
                    step(state)
                return lambda: None

            ours.recorded = RecordedPasses(ours._passes, parameters, lambda: recorder)
            for _ in range(3):
                ours.recorded.checked.update(ours.recorded.recordings)
                with Launches() as recorded:
                    ours.training_step(on, 0)
    return [eager.counts, replayed.counts, recorded.counts]


def _grown(module: TrainingModule, batches: list[Batch], steps: int) -> dict[str, int]:
    """The bytes that are live after the last step and were not after step 3, without the garbage collector's help."""
    losses, loss = [], module.task.loss

    def kept(*arguments: Any) -> Tensor:
        losses.append(loss(*arguments))
        return losses[-1]

    gc.collect()
    gc.disable()
    with fake():
        ours, on = _on_device(module, batches[:1], USUAL)
        with Storages() as storages, ours.stepper.plugin.forward_context():
            for number in range(1, steps + 1):
                ours.training_step(on, 0)
                if number == 3:
                    before, module.task.loss = storages.live, kept  # type: ignore[method-assign]
        grown = {"with losses": storages.live - before - sum(each.untyped_storage().nbytes() for each in losses)}
        losses.clear()
        grown["without losses"] = storages.live - before
    module.task.loss = loss  # type: ignore[method-assign]
    gc.enable()
    return {f"bytes live on {how}": count for how, count in grown.items() if count}


def _steps(program: str, argv: list[str], cases: Sequence[tuple[Mix, str | None]], last: int) -> list[dict[str, int]]:
    plug_in()
    waits: list[dict[str, int]] = []

    def compute(module: TrainingModule, step: list[Batch], _: int) -> None:
        loss, step = module.task.loss, [batch.pin_memory() for batch in step]
        for mix, planted in cases:
            spoil = (lambda value: value) if planted is None else PLANTED[planted][0]
            module.task.loss = lambda *arguments, spoil=spoil: spoil(loss(*arguments))  # type: ignore[method-assign]
            waits.append(dict(_step(module, step, mix).waits))
            if (mix, planted) == (USUAL, None):
                waits[-1] |= _grown(module, step, last)
        raise _Computed

    TrainingModule.training_step, original = compute, TrainingModule.training_step
    _Module.training_step = original
    try:
        importlib.import_module(program).main(argv)
    except _Computed:
        return waits
    raise AssertionError("there was no step")


def _launches(argv: list[str]) -> list[Counter[str]]:
    plug_in()
    torch.cuda.default_generators = (torch.default_generator,)
    counts: list[Counter[str]] = []

    def compute(module: TrainingModule, step: list[Batch], _: int) -> None:
        counts.extend(_launched(module, [batch.pin_memory() for batch in step]))
        raise _Computed

    TrainingModule.training_step, original = compute, TrainingModule.training_step
    _Module.training_step = original
    with suppress(_Computed):
        importlib.import_module("finetune").main(argv)
    return counts


def _kept_by_a_layer(width: int) -> float:
    plug_in()
    sizes = {"d_model": width, "encoder_ffn_dim": 4 * width, "encoder_attention_heads": width // 64}
    on_cpu = tiny_bart(**sizes, dropout=0.1, attention_dropout=0.1)
    rows = Rows.of(torch.ones(8, 512, dtype=torch.long), torch.ones(8, 512))
    with fake():
        model = on_device(on_cpu).train()
        model.compute_with(backend := CudaBackend())
        rows = rows.moved(lambda tensor: tensor.to(DEVICE))
        hidden = torch.empty(*rows.ids.shape, width, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16), backend.step(model.layers):
            for _ in range(2):  # the first time makes the copies of the weights
                with Storages() as storages:
                    out = model.model.encoder.layers[0]((hidden, hidden, None), Spans(rows, rows))
                    live = storages.live
                del out
    return live / len(rows.texts)


def kept_by_a_layer(width: int) -> float:
    """The bytes of a row that a layer of the encoder in bf16 keeps for the backward pass, its result included."""
    return forked.call(_kept_by_a_layer, width)


def launches_of_a_step(argv: Sequence[object]) -> list[Counter[str]]:
    """The launches of both passes of a micro-batch, of recorded ones, and of a step of these beside its replays."""
    return forked.call(_launches, [*map(str, argv)])


def waits_in_a_step(
    argv: Sequence[object],
    cases: Sequence[tuple[Mix, str | None]] = ((USUAL, None),),
    program: str = "finetune",
    last: int = 30,
) -> list[dict[str, int]]:
    """Where the host would wait for a GPU in a step of a run with these options, how often, and what memory leaks.

    Args:
        cases: a mix, and a fault of PLANTED to add to the loss, or None.
        last: the step after which as much memory must be live as after step 3.
    """
    return forked.call(_steps, program, [*map(str, argv)], cases, last)
