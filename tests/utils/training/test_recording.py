"""Recorded micro-batches give what eager ones give, and depend on nothing but tensors at fixed places.

Where there is no GPU, the recorders of tests/bart/generation/test_graphs.py take the place of CUDA graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import IGNORE_INDEX
from bart.cuda import backend as cuda
from bart.cuda.backend import CudaBackend
from bart.generation.graphs import Recorder
from bart.modeling import loss
from bart.modeling.pretrained import PretrainedModel
from bart.rows import Rows
from tests.bart.generation.test_graphs import Counting, operations, repeat
from tests.tiny_run import tiny_bart
from utils.data.batches import Inputs
from utils.training import recording
from utils.training.module import turn_dropout_off
from utils.training.recording import RecordedPasses


def attend(query, keys, values, starts, longest, is_causal, dropout):
    """`bart.torch_internals.attend_to_spans` by operations whose shapes do not depend on numbers."""
    rows = [torch.arange(len(states)) for states in (query, keys)]
    texts = [torch.bucketize(row, start[1:], right=True) for row, start in zip(rows, starts, strict=True)]
    mask = texts[0][:, None] == texts[1]
    if is_causal:
        mask = mask & (rows[0][:, None] >= rows[1])
    parts = (states.transpose(0, 1)[None] for states in (query, keys, values))
    return F.scaled_dot_product_attention(*parts, attn_mask=mask, dropout_p=dropout)[0].transpose(0, 1)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PretrainedModel:
    monkeypatch.setattr(cuda, "attend_to_spans", attend)
    monkeypatch.setattr(cuda, "has_flash", lambda *_: True)
    # As on a GPU, where counting the targets would wait.
    with_zeros = lambda states, labels: (states.where((labels != IGNORE_INDEX)[:, None], 0), labels)  # noqa: E731
    monkeypatch.setattr(loss, "_targets_alone", with_zeros)
    model = tiny_bart(dropout=0.1, attention_dropout=0.1, max_position_embeddings=60).double().train()
    model.compute_with(CudaBackend())
    return model


def micro_batches(count: int) -> Iterator[Inputs]:
    """Of two sizes of sources and two of targets; their texts have other lengths each time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        inputs = {}
        for name, totals, spare in (("input_ids", (44, 60), 0), ("labels", (12, 15), IGNORE_INDEX)):
            first, second = torch.randint(1, totals[0] // 2, (2,), generator=generator).tolist()
            total = totals[int(torch.randint(2, (), generator=generator))]
            lengths = torch.tensor([first, second, total - first - second])
            ids = torch.randint(4, 50, (3, total), generator=generator)
            inputs[name] = Rows.of(ids, torch.arange(total) < lengths[:, None], spare=spare)
        yield inputs


class Trained:
    """A model that takes steps by a recorder or without one."""

    def __init__(self, model: PretrainedModel, recorder: Recorder | None, new_recorder: Any = None) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        parameters = list(self.model.parameters())
        if recorder is None:
            self.recorded = None
        else:
            self.recorded = RecordedPasses(self.passes, parameters, new_recorder or (lambda: recorder))

    def resumed(self, recorder: Recorder | None) -> Trained:
        other = Trained(self.model, recorder)
        other.optimizer.load_state_dict(self.optimizer.state_dict())
        return other

    def passes(self, inputs: Inputs, factors: Tensor) -> Tensor:
        share = (self.model(**inputs, summed_loss=True, smoothing=0.1).loss * factors).sum()
        share.backward()
        return share.detach()

    def step(self, *step: Inputs) -> list[Tensor]:
        """The losses and the gradients' sums."""
        losses = []
        if self.recorded is not None and len(step) > 1:
            self.recorded.clear_gradients()
        for number, inputs in enumerate(step):
            factors = torch.tensor(1 / (number + 2), dtype=torch.float64)
            take = self.passes if self.recorded is None else partial(self.recorded, adds=len(step) > 1)
            losses.append(take(inputs, factors).clone())
        gradients = [one.grad.clone() for one in self.model.parameters() if one.grad is not None]
        self.optimizer.step()
        if self.recorded is None:
            self.optimizer.zero_grad()
        return losses + gradients


@pytest.mark.parametrize(("recorder", "accumulated"), [(repeat, 1), (operations, 2)])
def test_recorded_steps_are_those_of_eager_ones(model: PretrainedModel, recorder: Recorder, accumulated: int) -> None:
    """To the bit, over 50 or 100 steps of changing sizes, also when they go on as a new run, and without dropout."""
    counting, results = Counting(recorder), []
    for chosen in (None, counting):
        torch.manual_seed(0)
        trained, batches = Trained(model, chosen), micro_batches(100)
        results.append([])
        for number in range(0, 100, accumulated):
            if number == 40:
                trained = trained.resumed(chosen)
            if number == 80:
                assert turn_dropout_off(trained.model) and not turn_dropout_off(trained.model)
                if trained.recorded is not None:
                    trained.recorded.forget()
            results[-1].append(trained.step(*islice(batches, accumulated)))
    assert trained.recorded.is_on and len(trained.recorded.checked) == 4
    assert counting.recordings < 20 and counting.replays > 70
    for number, (eager, recorded) in enumerate(zip(*results, strict=True)):
        assert all(map(torch.equal, eager, recorded)), number


def keeps_inputs(step: Any, state: Any) -> Any:
    step(state)
    kept = [tensor.clone() for tensor in state]
    return lambda: step(kept)


def keeps_random_numbers(step: Any, state: Any) -> Any:
    random = torch.get_rng_state()
    step(state)

    def replay() -> None:
        torch.set_rng_state(random)
        step(state)

    return replay


def fails(step: Any, state: Any) -> Any:
    step(state)
    raise RuntimeError("operation not permitted when stream is capturing")


def has_no_memory(step: Any, state: Any) -> Any:
    step(state)
    raise torch.OutOfMemoryError("CUDA out of memory.\nmore")


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("wrong", [keeps_inputs, keeps_random_numbers, fails, has_no_memory])
def test_a_run_goes_on_without_recordings_when_one_fails(
    model: PretrainedModel, wrong: Recorder, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each recording is checked, not only the first; and by other inputs than it was made with."""
    few, many = two_sizes()
    counting = Counting(lambda step, state: (repeat if counting.recordings <= after else wrong)(step, state))
    results = []
    for recorder in (None, counting):
        torch.manual_seed(0)
        trained = Trained(model, recorder)
        results.append([trained.step(*step) for step in zip([*many[:4], *few[:4]], [*few[:4], *many[:4]], strict=True)])
    assert counting.recordings > after and not trained.recorded.is_on and not trained.recorded.recordings
    [message] = [text for text in caplog.messages if "steps are eager from now on" in text]
    assert "\n" not in message
    for eager, recorded in zip(*results, strict=True):
        assert all(map(torch.equal, eager, recorded))


def two_sizes() -> list[list[Inputs]]:
    """Micro-batches of the fewest rows, and of the most."""
    batches = [*micro_batches(40)]
    rows = [sum(len(rows.texts) for rows in inputs.values()) for inputs in batches]
    return [[inputs for inputs, count in zip(batches, rows, strict=True) if count == many(rows)] for many in (min, max)]


def test_gradients_that_overflow_check_nothing(model: PretrainedModel) -> None:
    [inputs], counting, checked = micro_batches(1), Counting(repeat), []
    trained = Trained(model, counting)
    for scale in (1.0, torch.inf, torch.inf, 1.0, 1.0):
        trained.recorded(inputs, torch.tensor(scale, dtype=torch.float64), adds=False)
        checked.append(len(trained.recorded.checked))
    assert counting.recordings == 1 and checked == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("is_new", [True, False])
def test_other_parameters_with_gradients_than_before_end_the_recording(
    model: PretrainedModel, is_new: bool, caplog: pytest.LogCaptureFixture
) -> None:
    [inputs], results = micro_batches(1), []
    for recorder in (None, repeat):
        torch.manual_seed(0)
        trained = Trained(model, recorder)
        results.append([])
        for is_trained in (not is_new, is_new):
            trained.model.layers[0].fc1.weight.requires_grad_(is_trained)
            results[-1].append(trained.step(inputs))
    assert not trained.recorded.is_on and "other parameters have gradients" in caplog.text
    for eager, recorded in zip(*results, strict=True):  # of which the one that is frozen by then has zeros
        assert all(any(torch.equal(one, other) for other in recorded) for one in eager)


def test_more_rows_than_ever_take_the_memory_of_recordings_first(model: PretrainedModel) -> None:
    """So the most rows are recorded first, and those of fewer fit in, where there is room for both."""
    few, many = (batches[0] for batches in two_sizes())
    counting, rooms = Counting(repeat), []
    trained = Trained(model, counting, lambda: rooms.append(len(trained.recorded.recordings)) or counting)
    for inputs, recordings in ((few, 0), (few, 1), (many, 0), (few, 1), (many, 1), (few, 2)):
        trained.step(inputs)
        assert len(trained.recorded.recordings) == recordings
    assert rooms == [0, 0, 0]  # each time none is left, so that its memory counts as free


@pytest.mark.parametrize("free", [8.0, 7.9])
def test_where_memory_is_short_nothing_is_recorded(
    model: PretrainedModel, free: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step takes 3 more than the 2 that are held, gradients take 1; eager ones and recordings need that each."""
    emptied, device = [], torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 5.0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2.0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 9.0) if emptied else (0.0, 9.0))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(recording, "cuda_recorder", lambda *_: repeat)
    trained, [inputs] = Trained(model, repeat, partial(recording.recorder_with_room, device, 1)), micro_batches(1)
    for _ in range(2):
        trained.step(inputs)
    assert len(trained.recorded.recordings) == trained.recorded.is_on == (free == 8.0)
    assert ("steps are eager from now on: recordings need more memory than is free" in caplog.text) == (free < 8.0)


def test_the_last_recordings_are_kept(model: PretrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_RECORDINGS", 2)
    counting = Counting(repeat)
    trained = Trained(model, counting)
    of_size = {tuple(len(rows.texts) for rows in inputs.values()): inputs for inputs in micro_batches(12)}
    first, second, third = (of_size[size] for size in sorted(of_size, reverse=True)[:3])
    for inputs in (first, first, second, second, first, third, third, first):
        trained.step(inputs)
    assert counting.recordings == 3 and len(trained.recorded.recordings) == 2
    trained.step(second)
    assert counting.recordings == 4
