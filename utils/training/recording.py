"""Forward and backward passes of micro-batches, recorded for each pair of sizes and then replayed: CUDA graphs.

A recorded micro-batch is one launch. Its inputs are copied to fixed places, and it adds to gradients at fixed places.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bart.generation.graphs import Recorder, Step, cuda_recorder
from bart.rows import Rows
from bart.torch_internals import foreach, has_flash
from utils.data.batches import Inputs, moved
from utils.training.options import HardwareOptions
from utils.training.precision import half_dtype, keeps_master_weights

logger = logging.getLogger(__name__)
MOST_RECORDINGS = 256
# A replay has the random numbers of the passes that were recorded, so only the order of sums may change gradients.
TOLERANCE = 0.05

# Runs both passes and gives the loss, of inputs and the factors of its parts.
Passes = Callable[[Inputs, Tensor], Tensor]


def recorder_of(hardware: HardwareOptions, model: nn.Module, is_recordable: bool) -> Recorder | None:
    """The recorder for a run; None where it takes eager steps, as on a CPU."""
    device = next(model.parameters()).device
    if device.type != "cuda" or not hardware.graphs:
        return None
    half, parts = half_dtype(hardware), list(model.modules())
    reasons = {
        "several processes": hardware.processes > 1,
        "the task's loss": not is_recordable,
        "--amp_level O2": keeps_master_weights(hardware),
        "no half precision": half is None,
        "no FlashAttention here": half is not None and not has_flash(device, half),
        "--activation_checkpointing": any(getattr(part, "activation_checkpointing", False) for part in parts),
        "--compile": any(getattr(part, "compiled", False) for part in parts),
        "layer dropout": any(getattr(part, "layerdrop", 0.0) for part in parts),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    logger.info("steps are %s", "recorded as CUDA graphs" if reason is None else f"not recorded: {reason}")
    return cuda_recorder(device, torch.cuda.graph_pool_handle()) if reason is None else None


class RecordedPasses:
    """Both passes of micro-batches of rows, eager for sizes that are new, and then recorded.

    The recordings that were used last are kept. They share their memory.
    """

    def __init__(self, passes: Passes, parameters: Sequence[Tensor], recorder: Recorder) -> None:
        self.passes, self.parameters, self.recorder = passes, parameters, recorder
        self.seen: set[Any] = set()  # sizes
        # By sizes: the places of inputs, factors and loss, and the replay.
        self.recordings: OrderedDict[Any, tuple[list[Tensor], Callable[[], None]]] = OrderedDict()
        self.is_right: bool | None = None  # whether replays give what eager passes give; None: not known yet

    def forget(self) -> None:
        """Record anew, since passes depend on more than their inputs, such as on dropout that was switched off."""
        self.recordings.clear()

    def clear_gradients(self) -> None:
        """Let gradients be 0 where they are."""
        if gradients := self._gradients():
            foreach.zero_(gradients)

    def __call__(self, inputs: Inputs, factors: Tensor, is_first: bool) -> Tensor:
        """The loss of a micro-batch, whose gradients are added to those there are; is_first where these are 0."""
        if self.is_right is False or not isinstance(inputs["input_ids"], Rows):
            return self.passes(inputs, factors)
        fixed = {name: each.without_counts() if isinstance(each, Rows) else each for name, each in inputs.items()}
        tensors = [*tensors_of(fixed), factors]
        sizes = *(each.span for each in fixed.values() if isinstance(each, Rows)), *(each.shape for each in tensors)
        if sizes in self.recordings:
            self.recordings.move_to_end(sizes)
            places, replay = self.recordings[sizes]
            for place, tensor in zip(places, tensors, strict=False):
                place.copy_(tensor)
            replay()
            return places[-1]
        # Until it is known that replays are right, they begin where the gradients are 0.
        if sizes in self.seen and (is_first or self.is_right):
            return self._record(sizes, fixed, tensors)
        self.seen.add(sizes)
        return self.passes(inputs, factors)

    def _record(self, sizes: Any, inputs: Inputs, tensors: Sequence[Tensor]) -> Tensor:
        """Record the passes, and take them."""

        def step(state: Sequence[Tensor]) -> None:
            *given, factors, loss = state
            places = iter(given)
            loss.copy_(self.passes(moved(inputs, lambda _: next(places)), factors))

        places = [*(tensor.clone() for tensor in tensors), tensors[-1].new_zeros(())]
        replay = self.recorder(step, places) if self.is_right else self._record_first(step, places)
        if replay is not None:
            self.recordings[sizes] = places, replay
            if len(self.recordings) > MOST_RECORDINGS:
                self.recordings.popitem(last=False)
        return places[-1]

    def _record_first(self, step: Step, places: list[Tensor]) -> Callable[[], None] | None:
        """Record where gradients are 0, and replay, too; where that fails, take a step again and record no others."""
        device = places[-1].device
        generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
        random, why = generator.get_state(), "its gradients are others"
        try:
            replay = self.recorder(step, places)
            eager = self._norms(places[-1])
            self.clear_gradients()
            generator.set_state(random)
            replay()
            if eager.isfinite().all():  # fp16 overflows until the scale of its loss has come down
                self.is_right = bool((self._norms(places[-1]) - eager).norm() <= TOLERANCE * eager.norm())
            if self.is_right is not False:
                return replay
        except RuntimeError as error:  # of CUDA, where an operation cannot be recorded
            self.is_right, why = False, str(error)
        logger.warning("a recorded step failed (%s): steps are eager from now on", why)
        self.forget()
        self.clear_gradients()
        generator.set_state(random)
        step(places)
        return None

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _norms(self, loss: Tensor) -> Tensor:
        """The loss, and the norm of each gradient."""
        return torch.stack([loss.abs().float(), *(norm.float() for norm in foreach.norm(self._gradients()))])


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs, in the order in which `moved` moves them."""
    tensors: list[Tensor] = []
    moved(inputs, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors
