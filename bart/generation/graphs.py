"""Decoding steps that are recorded once and then replayed: CUDA graphs.

An eager step launches some hundred small kernels, and a GPU waits for the host most of the time. A recorded step is one
launch. It reads and writes the same memory every time, so the tensors that a step changes, the batch's state, must keep
their addresses.

Recordings are kept per geometry, the shapes of the state: articles, source length, columns of the cache. When articles
leave or join, or the cache grows, the state becomes other tensors. If their geometry has a recording, they are copied
into its tensors. If not, the next steps are eager until the geometry has lasted some steps.

Some steps are never recorded: those that draw random numbers (do_sample), whose scores are kept (output_scores), whose
rules hold the source (encoder_no_repeat_ngram_size), and those under autocast, whose copies of the weights do not last.
BART_GRAPHS=0 in the environment switches recording off.

Only `cuda_recorder` needs a GPU; other recorders can take its place.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig

# Recording takes as long as some eager steps. A step is recorded after so many eager steps of its geometry, if so many
# steps are left.
EAGER_STEPS = 4
STEPS_WORTH_RECORDING = 8
# Beyond this, the recording that was not used for longest is dropped.
MOST_RECORDINGS = 8

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


@dataclass
class Recording:
    """A recorded step, and the tensors from which it reads its state and to which it writes the next."""

    state: list[Tensor]
    replay: Callable[[], None]


def _load(own: Sequence[Tensor], state: Sequence[Tensor]) -> None:
    """Copy a state into a recording's tensors, apart from those that are in place already."""
    for place, tensor in zip(own, state, strict=True):
        if place.data_ptr() != tensor.data_ptr():
            place.copy_(tensor)


class RecordedSteps:
    """The recordings of a batch's steps.

    What steps read besides the state, such as weights, must stay alive and keep its addresses.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.recordings: dict[tuple[torch.Size, ...], Recording] = {}  # by geometry; the last used comes last
        self.eager_steps: Counter[tuple[torch.Size, ...]] = Counter()
        self.current: Recording | None = None
        self.memory: dict[int, Tensor] = {}  # by place in the state, without dimensions

    def step(self, batch: Recordable, steps_left: int) -> bool:
        """Take a step by a recording; or do nothing and return False, so that the caller takes an eager step.

        Args:
            batch: the same in all calls.
            steps_left: the most steps, this one included, for which the geometry can last.
        """
        state = batch.state
        if self.current is not None and all(a is b for a, b in zip(state, self.current.state, strict=True)):
            self.current.replay()
            return True
        geometry = tuple(tensor.shape for tensor in state)
        self.current = self.recordings.pop(geometry, None)
        if self.current is not None:
            self.recordings[geometry] = self.current
            _load(self.current.state, state)
            batch.state = self.current.state
            self.current.replay()
            return True
        self.eager_steps[geometry] += 1
        if self.eager_steps[geometry] <= EAGER_STEPS or steps_left < STEPS_WORTH_RECORDING:
            return False
        self.recordings[geometry] = self.current = self._record(batch, state)
        if len(self.recordings) > MOST_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        return True

    def _record(self, batch: Recordable, state: Sequence[Tensor]) -> Recording:
        """Record a step, and take it."""

        def step(state: Sequence[Tensor]) -> None:
            batch.state = list(state)
            batch.take_step()
            for old, new in zip(state, batch.state, strict=True):
                if new is not old:
                    old.copy_(new)
            batch.state = list(state)

        own = [self._place(index, tensor) for index, tensor in enumerate(state)]
        _load(own, state)
        return Recording(own, self.recorder(step, own))

    def _place(self, index: int, like: Tensor) -> Tensor:
        """A tensor for one place of the state, in memory that all geometries share.

        When a geometry follows another, tensors of unchanged shape are in place already. The others are new tensors,
        which do not overlap with this memory.
        """
        memory = self.memory.get(index)
        if memory is None or memory.numel() < like.numel():
            memory = self.memory[index] = like.new_empty(like.numel())
        return memory[: like.numel()].view(like.shape)


@functools.cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all batches, because cuBLAS keeps memory for every stream that it has seen."""
    return torch.cuda.Stream(device)


def cuda_recorder(device: torch.device) -> Recorder:
    """A recorder of CUDA graphs. They share the memory of intermediate results: only one is replayed at a time."""
    stream = _recording_stream(device)
    pool = torch.cuda.graph_pool_handle()

    def record(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        with torch.cuda.device(device):
            # A first step on the same stream: what libraries allocate on first use must not become part of the graph.
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step(state)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as those of data loaders, may go on allocating.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                step(state)  # this computes nothing
            torch.cuda.current_stream().wait_stream(stream)
        return graph.replay

    return record


def recorder_for(device: torch.device, config: GenerationConfig, keeps_scores: bool) -> Recorder | None:
    """The recorder for decoding with these options; None where steps have to be eager."""
    if device.type != "cuda" or not can_be_recorded(config, keeps_scores):
        return None
    if torch.is_autocast_enabled("cuda") or os.environ.get("BART_GRAPHS") == "0":
        return None
    return cuda_recorder(device)


def can_be_recorded(config: GenerationConfig, keeps_scores: bool) -> bool:
    """Whether steps with these options depend on tensors of fixed shapes alone."""
    return not (config.do_sample or keeps_scores or config.encoder_no_repeat_ngram_size)
