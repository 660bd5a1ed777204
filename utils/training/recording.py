"""Forward and backward passes of micro-batches, recorded for each pair of sizes and then replayed: CUDA graphs.

A recorded micro-batch is one launch. Its inputs are copied to fixed places, and its gradients go to fixed places.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bart.generation.graphs import Recorder, cuda_recorder
from bart.modeling.pretrained import PretrainedModel
from bart.rows import Rows
from bart.torch_internals import foreach, has_flash
from utils.data.batches import Inputs, moved
from utils.training.options import HardwareOptions
from utils.training.precision import half_dtype, keeps_master_weights

logger = logging.getLogger(__name__)
MOST_RECORDINGS = 256
# The share by which the gradients of a replay may differ from those of eager passes with the same random numbers, where
# only the order of sums is another. With other random numbers or inputs they have hardly anything in common.
TOLERANCE = 0.05

# Runs both passes and gives the loss, of inputs and the factors of its parts.
Passes = Callable[[Inputs, Tensor], Tensor]


def recordings_of(
    passes: Passes, model: PretrainedModel, hardware: HardwareOptions, is_recordable: bool
) -> RecordedPasses | None:
    """The passes of a run, to be recorded; None where all its steps are eager, as on a CPU."""
    device = next(model.parameters()).device
    if device.type != "cuda" or hardware.no_graphs:
        return None
    half = half_dtype(hardware)
    reasons = {
        "several processes": hardware.processes > 1,
        "the task's loss": not is_recordable,
        "--amp_level O2": keeps_master_weights(hardware),
        "no half precision": half is None,
        "no FlashAttention here": half is not None and not has_flash(device, half),
        "--activation_checkpointing": any(stack.activation_checkpointing for stack in model.stacks),
        "layer dropout": any(stack.layerdrop for stack in model.stacks),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    logger.info("steps are %s", "recorded as CUDA graphs" if reason is None else f"not recorded: {reason}")
    if reason is not None:
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return RecordedPasses(passes, trained, partial(recorder_with_room, device, sum(one.nbytes for one in trained)))


def recorder_with_room(device: torch.device, gradients: int) -> Recorder:
    """A recorder with memory of its own; RuntimeError unless twice what a step and its gradients (bytes) take is free.

    Recordings take as much as the largest of their steps, and so do eager steps beside them.
    """
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info(device)[0] < 2 * (step + gradients):
        raise RuntimeError("recordings need more memory than is free")
    return cuda_recorder(device)


class RecordedPasses:
    """Both passes of micro-batches of rows, eager for sizes that are new, and then recorded.

    The first replay of each recording, which has other inputs than it was recorded with, is compared with eager passes.
    The recordings that were used last are kept. They share their memory, which the one with the most rows takes first,
    so that those of fewer rows fit in. So they are made anew where there are more rows than ever before.
    """

    def __init__(self, passes: Passes, parameters: Sequence[Tensor], new_recorder: Callable[[], Recorder]) -> None:
        self.passes, self.parameters, self.new_recorder = passes, parameters, new_recorder
        self.is_on = True
        self.seen: set[Any] = set()  # sizes
        self.checked: set[Any] = set()  # sizes whose recording gave what eager passes give
        self.most_rows = self.recorded_rows = 0  # of a micro-batch so far, and of one that is recorded
        # By sizes: the places of inputs, factors and loss, and the replay.
        self.recordings: OrderedDict[Any, tuple[list[Tensor], Callable[[], None]]] = OrderedDict()

    def forget(self) -> None:
        """Record anew, since passes depend on more than their inputs, such as on dropout that was switched off."""
        self.recorded_rows = 0
        self.recordings.clear()
        self.checked.clear()

    def clear_gradients(self) -> None:
        """Let gradients be 0 where they are."""
        if gradients := self._gradients():
            foreach.zero_(gradients)

    def __call__(self, inputs: Inputs, factors: Tensor, adds: bool) -> Tensor:
        """The loss of a micro-batch, whose gradients are added to those there are, or take their place."""
        if not self.is_on or not isinstance(inputs["input_ids"], Rows):
            return self._eager(inputs, factors, adds)
        fixed = {name: each.without_counts() if isinstance(each, Rows) else each for name, each in inputs.items()}
        sides = [each for each in fixed.values() if isinstance(each, Rows)]
        tensors = [*tensors_of(fixed), factors]
        sizes = adds, *(each.span for each in sides), *(each.shape for each in tensors)
        if sizes in self.checked:
            return self._replay(sizes, tensors)
        rows = sum(each.tokens for each in sides)
        if rows > self.most_rows:
            self.most_rows = rows
            self.forget()  # which leaves these passes the memory that they would have without recordings
        if sizes not in self.seen:
            self.seen.add(sizes)
            return self._eager(inputs, factors, adds)
        before = [gradient.clone() for gradient in self._gradients()] if adds else []
        self.clear_gradients()
        generator = torch.default_generator
        if factors.device.type == "cuda":
            generator = torch.cuda.default_generators[factors.device.index]
        random = generator.get_state()
        try:
            if sizes not in self.recordings:
                loss = self._record(sizes, fixed, tensors, rows)
            else:
                self._replay(sizes, tensors)
                replayed = [gradient.clone() for gradient in self._gradients()]
                self.clear_gradients()
                generator.set_state(random)
                loss = self.passes(inputs, factors)
                self._check(sizes, replayed)
        except RuntimeError as error:  # of CUDA, where an operation cannot be recorded, or memory is short
            logger.warning("steps are eager from now on: %s", str(error).split("\n")[0])
            self.is_on = False
        if not self.is_on:  # only here are the error and the tensors that it holds gone
            self.forget()
            self.clear_gradients()
            generator.set_state(random)
            loss = self.passes(inputs, factors)
        if before:
            foreach.add_(self._gradients(), before)
        return loss

    def _eager(self, inputs: Inputs, factors: Tensor, adds: bool) -> Tensor:
        if not adds:
            self.clear_gradients()
        return self.passes(inputs, factors)

    def _record(self, sizes: Any, inputs: Inputs, tensors: Sequence[Tensor], rows: int) -> Tensor:
        """Record passes, and take them."""

        def step(state: Sequence[Tensor]) -> None:
            *given, factors, loss = state
            places = iter(given)
            sums = {one: one.grad for one in self.parameters if one.grad is not None}
            for one in sums:  # so that one call moves all gradients to these, in place of one for each
                one.grad = None
            try:
                loss.copy_(self.passes(moved(inputs, lambda _: next(places)), factors))
                made = {one: one.grad for one in self.parameters if one.grad is not None}
                if made.keys() != sums.keys():
                    raise RuntimeError("other parameters have gradients than in the steps before")
                take = foreach.add_ if sizes[0] else foreach.copy_
                take([*sums.values()], [*made.values()])
            finally:
                for one in self.parameters:
                    one.grad = sums.get(one)

        if rows > self.recorded_rows:
            self.forget()
            self.recorded_rows, self.recorder = rows, self.new_recorder()
        places = [*(tensor.clone() for tensor in tensors), tensors[-1].new_zeros(())]
        self.recordings[sizes] = places, self.recorder(step, places)
        if len(self.recordings) > MOST_RECORDINGS:
            self.checked.discard(self.recordings.popitem(last=False)[0])
        return places[-1]

    def _replay(self, sizes: Any, tensors: Sequence[Tensor]) -> Tensor:
        self.recordings.move_to_end(sizes)
        places, replay = self.recordings[sizes]
        for place, tensor in zip(places, tensors, strict=False):
            place.copy_(tensor)
        replay()
        return places[-1]

    def _check(self, sizes: Any, replayed: list[Tensor]) -> None:
        """Compare the gradients of a replay with those of eager passes; RuntimeError if they differ."""
        norm = torch.stack(foreach.norm(self._gradients())).norm()
        if norm.isfinite():  # fp16 overflows until the scale of its loss has come down
            foreach.add_(replayed, self._gradients(), alpha=-1)
            if torch.stack(foreach.norm(replayed)).norm() > TOLERANCE * norm:
                raise RuntimeError("a recorded step gave other gradients")
            self.checked.add(sizes)

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs, in the order in which `moved` moves them."""
    tensors: list[Tensor] = []
    moved(inputs, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors
