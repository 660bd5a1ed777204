"""Decoding steps that are recorded once and then replayed: CUDA graphs.

A recorded step is one launch, which reads and writes the same memory every time. A model keeps its recordings for later
calls, one for each choice of options and shapes; a batch's state is copied to where they read it. The recordings of a
model share this memory, and that of what they compute in between, so one batch at a time uses them. BART_GRAPHS=0 in
the environment switches this off.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.model import Model
from bart.torch_internals import foreach

logger = logging.getLogger(__name__)
# Recording takes as long as some steps, so a step is recorded only if so many steps are left.
STEPS_WORTH_RECORDING = 8
MOST_RECORDINGS = 64  # of a model; more options and shapes than that hardly recur

# Takes the state in these tensors to the next state, in the same tensors.
Step = Callable[[Sequence[Tensor]], None]
# Takes a step, and returns a function that repeats it on the same tensors.
Recorder = Callable[[Step, Sequence[Tensor]], Callable[[], None]]


class Recordable(Protocol):
    """A batch whose steps can be recorded."""

    options: Hashable
    """All that a step depends on besides the model, the state and its shapes."""
    constants: Any
    """Holds the other tensors that a step reads, the model's apart."""
    state: list[Tensor]
    """All tensors that a step changes or that may be replaced between steps; a step may replace some itself."""

    def take_step(self) -> None:
        """Take a step that depends on the above alone, and does not make the host wait."""


class RecordedSteps:
    """The recordings of a model's steps that were used last, and the memory in which all of them keep the state."""

    def __init__(self, recorder: Recorder, basis: list[Any]) -> None:
        self.recorder: Recorder | None = recorder  # None once it has failed
        self.basis = basis  # see `_basis`
        # By options and shapes: the tensors that a step reads and changes, its replay, and its constants.
        self.recordings: OrderedDict[Hashable, tuple[list[Tensor], Callable[[], None], Any]] = OrderedDict()
        self.memory: dict[tuple[int, torch.dtype], Tensor] = {}  # flat, for each tensor of a state

    def step(self, batch: Recordable, steps_left: int) -> bool:
        """Take a step by a recording; or do nothing and return False, so that the caller takes an eager step.

        steps_left: the most steps, this one included, for which the shapes can last.
        """
        key = batch.options, *(tensor.shape for tensor in batch.state)
        if key in self.recordings:
            self.recordings.move_to_end(key)
            places, replay, _ = self.recordings[key]
            if any(place is not tensor for place, tensor in zip(places, batch.state, strict=True)):
                _load(places, [tensor.contiguous() for tensor in batch.state])  # which may be cut from the places
                batch.state = places
            replay()
        elif self.recorder is None or steps_left < STEPS_WORTH_RECORDING:
            return False
        else:
            self._record(batch, key, self.recorder)
        return True

    def _record(self, batch: Recordable, key: Hashable, recorder: Recorder) -> None:
        """Record a step, and take it. Where recording fails after an eager step, no other step is recorded."""
        is_taken = False

        def step(state: Sequence[Tensor]) -> None:
            nonlocal is_taken
            batch.state = list(state)
            batch.take_step()
            _load(state, batch.state)
            batch.state = list(state)
            is_taken = True

        places = batch.state = self._places_of(batch.state)
        try:
            self.recordings[key] = places, recorder(step, places), batch.constants
        except RuntimeError as error:  # of CUDA, where an operation cannot be recorded, or memory is short
            if not is_taken:
                raise
            logger.warning("decoding steps are not recorded from now on: %s", str(error).split("\n")[0])
            self.recorder, batch.state = None, places
        if len(self.recordings) > MOST_RECORDINGS:
            self.recordings.popitem(last=False)

    def _places_of(self, state: Sequence[Tensor]) -> list[Tensor]:
        """A state where recordings find it: a tensor stays where it is if there is no room for it yet."""
        addresses, places = Counter(tensor.data_ptr() for tensor in state), []
        state = [(each if addresses[each.data_ptr()] == 1 else each.clone()).contiguous() for each in state]
        for number, tensor in enumerate(state):
            memory = self.memory.get((number, tensor.dtype))
            if memory is None or len(memory) < tensor.numel():
                self.recordings.clear()  # they would hold the memory that is too small
                memory = self.memory[number, tensor.dtype] = tensor.view(-1)
            places.append(memory[: tensor.numel()].view(tensor.shape))
        _load(places, state)
        return places


def _load(places: Sequence[Tensor], state: Sequence[Tensor]) -> None:
    """Copy a state to its places, by one launch for all tensors of a type."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for place, tensor in zip(places, state, strict=True):
        if place.data_ptr() != tensor.data_ptr():
            pairs.setdefault(place.dtype, []).append((place, tensor))
    for of_type in pairs.values():
        foreach.copy_(*map(list, zip(*of_type, strict=True)))


@functools.cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all batches, because cuBLAS keeps memory for every stream that it has seen."""
    return torch.cuda.Stream(device)


_is_recording = threading.Lock()  # of two threads, one would record the other's operations


def cuda_recorder(device: torch.device) -> Recorder:
    """A recorder whose graphs share a pool of memory: none may be replayed beside another."""
    stream = _recording_stream(device)
    alive: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
    pool = None

    def record(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        nonlocal pool
        if not alive:  # torch takes no pool again whose graphs have all died
            pool = torch.cuda.graph_pool_handle()
        # Where recording fails, torch leaves its stream the current one; the outer `stream` takes that back.
        with _is_recording, torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            # A first step on the same stream: memory that libraries take on first use must not be part of the graph.
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    step(state)
            finally:  # what comes after an error, too, may use the same tensors
                torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as those of data loaders, may go on allocating.
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                step(state)  # this computes nothing
        alive.add(graph)
        return graph.replay

    return record


# By models, and by the stream on which their steps are replayed in order.
_kept: weakref.WeakKeyDictionary[Any, dict[Any, RecordedSteps]] = weakref.WeakKeyDictionary()


@contextmanager
def recorded_steps(model: Model, config: GenerationConfig, has_hooks: bool) -> Iterator[RecordedSteps | None]:
    """The recordings that a call may use and add to; None where its steps have to be eager.

    They are the model's unless another call, in this thread or another one, is using these. An error drops them.
    """
    recorder = recorder_for(model.device, config, has_hooks)
    if recorder is None:
        yield None
        return
    kept, basis = _kept.setdefault(model, {}), _basis(model)
    stream = torch.cuda.current_stream(model.device) if model.device.type == "cuda" else None
    steps = kept.pop(stream, None)
    if steps is None or steps.basis != basis:
        steps = RecordedSteps(recorder, basis)
    yield steps
    kept[stream] = steps


def forget_recordings(model: Model) -> None:
    """Free the memory that a model's recordings hold."""
    _kept.pop(model, None)


def _basis(model: Model) -> list[Any]:
    """The identities of a model's parts and of torch's settings, without the numbers in the weights: while they are
    equal, recordings are valid. They keep no part of the model alive.
    """

    def identity(value: Any) -> Any:
        if isinstance(value, Tensor):  # one of several processes' parts has no address, so it equals nothing
            return value.data_ptr() or object(), value.shape, value.stride(), value.dtype
        return weakref.ref(value) if type(value).__weakrefoffset__ else value

    found: list[Any] = [torch.backends.cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()]
    for module in model.modules():
        for value in vars(module).values():
            found += [*value, *value.values()] if isinstance(value, dict) else [value]
    return [identity(value) for value in found]


def recorder_for(device: torch.device, config: GenerationConfig, has_hooks: bool) -> Recorder | None:
    """The recorder for decoding with these options; None where steps have to be eager."""
    if device.type != "cuda" or torch.is_autocast_enabled("cuda") or os.environ.get("BART_GRAPHS") == "0":
        return None
    if config.do_sample or has_hooks or config.encoder_no_repeat_ngram_size:  # not of tensors of fixed shapes alone
        return None
    return cuda_recorder(device)
