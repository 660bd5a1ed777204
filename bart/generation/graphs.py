"""Decoding steps that are recorded once and then replayed: CUDA graphs.

A recorded step is one launch, which reads and writes the same memory every time. Where articles leave or join, or the
cache grows, the batch's state becomes other tensors. Those of the same shapes are copied into the recording's; with
other shapes the next steps are eager. BART_GRAPHS=0 in the environment switches this off.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig

# Recording takes as long as some eager steps. A step is recorded after so many eager steps of its shapes, if so many
# steps are left.
EAGER_STEPS = 1
STEPS_WORTH_RECORDING = 8

# Takes the state in these tensors to the next state, in the same tensors.
Step = Callable[[Sequence[Tensor]], None]
# Takes a step, and returns a function that repeats it on the same tensors.
Recorder = Callable[[Step, Sequence[Tensor]], Callable[[], None]]


class Recordable(Protocol):
    """A batch whose steps can be recorded."""

    state: list[Tensor]
    """All tensors that a step changes or that may be replaced between steps; a step may replace some itself."""

    def take_step(self) -> None:
        """Take a step that depends on the state and its shapes alone, and does not make the host wait."""


class RecordedSteps:
    """The recording of a batch's steps, made anew when the shapes of its state have changed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.shapes: list[torch.Size] = []
        self.eager_steps = 0  # with these shapes
        self.replay: Callable[[], None] | None = None
        self.state: list[Tensor] = []  # from which the recording reads the state, and to which it writes the next

    def step(self, batch: Recordable, steps_left: int) -> bool:
        """Take a step by a recording; or do nothing and return False, so that the caller takes an eager step.

        steps_left: the most steps, this one included, for which the shapes can last.
        """
        state = batch.state
        shapes = [tensor.shape for tensor in state]
        if shapes != self.shapes:
            self.shapes, self.eager_steps, self.replay, self.state = shapes, 0, None, []
        if self.replay is not None:
            if any(place is not tensor for place, tensor in zip(self.state, state, strict=True)):
                _load(self.state, state)
                batch.state = self.state
            self.replay()
            return True
        self.eager_steps += 1
        if self.eager_steps <= EAGER_STEPS or steps_left < STEPS_WORTH_RECORDING:
            return False
        self._record(batch)
        return True

    def _record(self, batch: Recordable) -> None:
        """Record a step, and take it."""

        def step(state: Sequence[Tensor]) -> None:
            batch.state = list(state)
            batch.take_step()
            _load(state, batch.state)
            batch.state = list(state)

        # The batch's own tensors, since caches are large; copies of those that share memory with others.
        addresses = Counter(tensor.data_ptr() for tensor in batch.state)
        self.state = [
            tensor if tensor.is_contiguous() and addresses[tensor.data_ptr()] == 1 else tensor.clone()
            for tensor in batch.state
        ]
        self.replay = self.recorder(step, self.state)


def _load(places: Sequence[Tensor], state: Sequence[Tensor]) -> None:
    for place, tensor in zip(places, state, strict=True):
        if place is not tensor:
            place.copy_(tensor)


@functools.cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all batches, because cuBLAS keeps memory for every stream that it has seen."""
    return torch.cuda.Stream(device)


def cuda_recorder(device: torch.device, pool: Any = None) -> Recorder:
    """A recorder whose graphs share a pool of memory, if one is given; none may be replayed beside another then."""
    stream = _recording_stream(device)

    def record(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        # Where recording fails, torch leaves its stream the current one; the outer `stream` takes that back.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            # A first step on the same stream: memory that libraries take on first use must not be part of the graph.
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step(state)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as those of data loaders, may go on allocating.
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                step(state)  # this computes nothing
            torch.cuda.current_stream().wait_stream(stream)
        return graph.replay

    return record


def recorder_for(device: torch.device, config: GenerationConfig, has_hooks: bool) -> Recorder | None:
    """The recorder for decoding with these options; None where steps have to be eager."""
    if device.type != "cuda" or not can_be_recorded(config, has_hooks):
        return None
    if torch.is_autocast_enabled("cuda") or os.environ.get("BART_GRAPHS") == "0":
        return None
    return cuda_recorder(device)


def can_be_recorded(config: GenerationConfig, has_hooks: bool) -> bool:
    """True if steps with these options depend on tensors of fixed shapes alone."""
    return not (config.do_sample or has_hooks or config.encoder_no_repeat_ngram_size)
