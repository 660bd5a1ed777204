"""Recorded micro-batches give what eager ones give, and depend on nothing but tensors at fixed places.

Where there is no GPU, the recorders of tests/bart/generation/test_graphs.py take the place of CUDA graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
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
    """A model that takes steps of two micro-batches, by a recorder or without one."""

    def __init__(self, model: PretrainedModel, recorder: Recorder | None) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        parameters = list(self.model.parameters())
        self.recorded = None if recorder is None else RecordedPasses(self.passes, parameters, recorder)

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
        for number, inputs in enumerate(step):
            factors = torch.tensor(1 / (number + 2), dtype=torch.float64)
            take = self.passes if self.recorded is None else self.recorded
            losses.append(take(inputs, factors, *(() if self.recorded is None else (number == 0,))).clone())
        gradients = [one.grad.clone() for one in self.model.parameters() if one.grad is not None]
        self.optimizer.step()
        if self.recorded is None:
            self.optimizer.zero_grad()
        else:
            self.recorded.clear_gradients()
        return losses + gradients


@pytest.mark.parametrize("recorder", [repeat, operations])
def test_recorded_steps_are_those_of_eager_ones(model: PretrainedModel, recorder: Recorder) -> None:
    """To the bit, over 50 steps of changing sizes, also when they go on as a new run, and without dropout."""
    counting, results = Counting(recorder), []
    for chosen in (None, counting):
        torch.manual_seed(0)
        trained, batches = Trained(model, chosen), micro_batches(100)
        results.append([])
        for number in range(50):
            if number == 20:
                trained = trained.resumed(chosen)
            if number == 40:
                assert turn_dropout_off(trained.model) and not turn_dropout_off(trained.model)
                if trained.recorded is not None:
                    trained.recorded.forget()
            results[-1].append(trained.step(next(batches), next(batches)))
    assert trained.recorded.is_right
    sizes = len(trained.recorded.recordings)
    assert sizes == 4 and counting.recordings == 12 and counting.replays > 70
    for number, (eager, recorded) in enumerate(zip(*results, strict=True)):
        assert all(map(torch.equal, eager, recorded)), number


def gives_others(step: Any, state: Any) -> Any:
    step(state)
    return lambda: None


def fails(step: Any, state: Any) -> Any:
    step(state)
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("wrong", [gives_others, fails])
def test_a_run_goes_on_without_recordings_that_fail(
    model: PretrainedModel, wrong: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    [inputs] = micro_batches(1)
    results = []
    for recorder in (None, wrong):
        torch.manual_seed(0)
        trained = Trained(model, recorder)
        results.append([trained.step(inputs, inputs) for _ in range(4)])
    assert "a recorded step failed" in caplog.text and trained.recorded.is_right is False
    for eager, recorded in zip(*results, strict=True):
        assert all(map(torch.equal, eager, recorded))


def test_the_last_recordings_are_kept(model: PretrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_RECORDINGS", 2)
    counting = Counting(repeat)
    trained, batches = Trained(model, counting), list(micro_batches(12))
    of_size = {inputs["input_ids"].ids.shape[1] * 100 + inputs["labels"].ids.shape[1]: inputs for inputs in batches}
    first, second, third = [*of_size.values()][:3]
    for inputs in (first, first, second, second, first, third, third, first):
        trained.step(inputs)
    assert counting.recordings == 3 and len(trained.recorded.recordings) == 2
    trained.step(second)
    assert counting.recordings == 4
