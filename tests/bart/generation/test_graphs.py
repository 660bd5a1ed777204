"""Recorded steps give what eager ones give, and depend on nothing but tensors at fixed places.

Where there is no GPU, two other recorders take the place of CUDA graphs: one repeats the step's Python code on the same
tensors, the other repeats its tensor operations alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation import graphs
from bart.generation.cache import DecoderCache
from bart.generation.graphs import Recorder, Step, can_be_recorded
from bart.generation.schedule import DecodingBatch
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import tiny_bart

pytestmark = pytest.mark.usefixtures("one_thread")

PAD, EOS, VOCAB, POSITIONS = 1, 2, 71, 64

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.5},
    "early": {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 2},
    "never": {"num_beams": 2, "early_stopping": "never", "length_penalty": 2.0},
    "ratios": {"num_beams": 2, "max_ratio": 2.0, "min_ratio": 0.8},
    "rules": {
        "num_beams": 2,
        "min_length": 5,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.3,
        "bad_words_ids": [[5], [6, 7], [8, 9, 10]],
        "forced_bos_token_id": 7,
        "eos_token_id": [EOS, 11, 12],
    },
    "rules of greedy": {
        "min_length": 6,
        "repetition_penalty": 0.8,
        "no_repeat_ngram_size": 1,
        # Most of them begin with the start token twice, so that none of them applies to the first id.
        "bad_words_ids": [[5], [6, 7], *([EOS, EOS, token] for token in range(9, VOCAB))],
    },
}
every_method = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


def tiny() -> BartForConditionalGeneration:
    sizes = {"max_position_embeddings": POSITIONS, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    model = tiny_bart(seed=3, vocab_size=VOCAB, init_std=0.6, **sizes).eval()
    model.final_logits_bias[0, EOS] = 5.0
    return model


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    return tiny().double()  # so that no choice depends on how other shapes are rounded


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    lengths = torch.randint(1, 15, (11,), generator=generator).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def repeat(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
    """A recorder that repeats the whole step."""
    step(state)
    return lambda: step(state)


class Operations(TorchDispatchMode):
    """Notes all tensor operations with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a step asks for a tensor's value"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def operations(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
    """A recorder that repeats the operations alone: Python variables keep the values of the recorded step."""
    with Operations() as recorded:
        step(state)

    def replay() -> None:
        made: dict[int, Tensor] = {}  # by the identity of the recorded step's result

        def again(argument: Any) -> Any:
            return made.get(id(argument), argument)

        for func, args, kwargs, result in recorded.calls:
            new = func(*tree_map(again, args), **tree_map(again, kwargs))
            made |= {id(old): leaf for old, leaf in zip(tree_leaves(result), tree_leaves(new), strict=True)}

    return replay


class Counting:
    """A recorder that counts what it records and what is replayed; loads are counted by `use`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.recordings = self.replays = self.loads = 0

    def __call__(self, step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        self.recordings += 1
        replay = self.recorder(step, state)

        def counted() -> None:
            self.replays += 1
            replay()

        return counted


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorder], Counting]:
    """Decode on the CPU as on a GPU, with another recorder, and with pieces so small that shapes change often."""

    def use(recorder: Recorder) -> Counting:
        counting = Counting(recorder)
        step = graphs.RecordedSteps.step

        def counted_step(steps: graphs.RecordedSteps, batch: DecodingBatch, steps_left: int) -> bool:
            counting.loads += any(own is not tensor for own, tensor in zip(steps.state, batch.state, strict=False))
            return step(steps, batch, steps_left)

        monkeypatch.setattr(graphs.RecordedSteps, "step", counted_step)
        modules = {name: importlib.import_module(f"bart.generation.{name}") for name in ("cache", "graphs", "schedule")}
        for module, name, value in (
            ("cache", "has_fixed_shapes", lambda device: True),
            ("cache", "MOST_ROOM_OF_FIXED_SHAPES", 12),
            ("cache", "ALIGNMENT", 4),
            ("cache", "SOURCE_PIECE", 4),
            ("graphs", "EAGER_STEPS", 1),
            ("graphs", "STEPS_WORTH_RECORDING", 2),
            ("schedule", "steps_between_checks", lambda device: 3),
            ("schedule", "recorder_for", lambda _, *options: counting if can_be_recorded(*options) else None),
        ):
            monkeypatch.setattr(modules[module], name, value)
        return counting

    return use


def generated(model: BartForConditionalGeneration, sources: list[list[int]], batch_size: int, **options: Any) -> Any:
    return [
        article.sequences.tolist()
        for article in sorted(model.generate_many(sources, batch_size, **options), key=lambda article: article.index)
    ]


@every_method
@pytest.mark.parametrize("batch_size", [1, 3, pytest.param(100, marks=pytest.mark.slow)])
def test_repeated_steps_give_what_eager_ones_give(model, sources, use, batch_size: int, options: dict[str, Any]):
    eager = generated(model, sources, batch_size, max_length=30, **options)
    counting = use(repeat)
    assert generated(model, sources, batch_size, max_length=30, **options) == eager
    assert counting.recordings >= 2, "of one geometry: the test would show little"
    assert counting.replays > 2 * counting.recordings
    assert counting.loads < counting.replays / 2, "the state should stay where it is from one step to the next"


@pytest.mark.parametrize("method", ["early", "ratios", "rules", "rules of greedy"])  # all code that there is
def test_recorded_operations_give_what_eager_steps_give(model, sources, use, method: str):
    """Articles join and leave, and the cache grows."""
    options = METHODS[method]
    eager = generated(model, sources[:9], 3, max_length=24, **options)
    counting = use(operations)
    assert generated(model, sources[:9], 3, max_length=24, **options) == eager
    assert counting.recordings >= 2
    assert counting.replays > 2 * counting.recordings


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"do_sample": True, "num_beams": 2},
        {"encoder_no_repeat_ngram_size": 2},
        {"output_scores": True, "return_dict_in_generate": True},
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_eager(model, use, options: dict[str, Any]):
    ids = torch.randint(3, VOCAB, (3, 9), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    expected = model.generate(ids, max_length=30, **options)
    counting = use(lambda step, state: pytest.fail("recorded"))
    torch.manual_seed(0)
    got = model.generate(ids, max_length=30, **options)
    if isinstance(got, Tensor):
        assert torch.equal(got, expected)
    else:
        assert torch.equal(got.sequences, expected.sequences)
        # Of logits in double precision, which are rounded to fp32 last.
        torch.testing.assert_close(got.scores, expected.scores, rtol=2**-23, atol=1e-12)
    assert counting.recordings == 0


def test_only_cuda_devices_record(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "cuda_recorder", lambda device: device)
    gpu, config = torch.device("cuda"), GenerationConfig()
    assert graphs.recorder_for(gpu, config, False) == gpu
    assert graphs.recorder_for(gpu, config, True) is None
    assert graphs.recorder_for(torch.device("cpu"), config, False) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        assert graphs.recorder_for(gpu, config, False) is None
    assert graphs.recorder_for(gpu, config, False) == gpu
    monkeypatch.setenv("BART_GRAPHS", "0")
    assert graphs.recorder_for(gpu, config, False) is None


def never_waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, during which torch refuses to wait for a GPU."""

    @functools.wraps(function)
    def strict(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return strict


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@every_method
def test_cuda_graphs_give_what_eager_steps_give(
    sources, monkeypatch: pytest.MonkeyPatch, precision: str, options: dict[str, Any]
):
    """They run the same kernels, so in all precisions the ids are the same; and the host waits at checks alone."""
    model = tiny().cuda().for_inference(precision)
    monkeypatch.setenv("BART_GRAPHS", "0")
    eager = [generated(model, sources, size, max_length=50, **options) for size in (1, 4, 100)]
    monkeypatch.delenv("BART_GRAPHS")
    made = []

    def recorder(device: torch.device) -> Recorder:
        made.append(Counting(graphs_of_device(device)))
        return made[-1]

    graphs_of_device = graphs.cuda_recorder
    monkeypatch.setattr(graphs, "cuda_recorder", recorder)
    monkeypatch.setattr(DecoderCache, "advance", never_waiting(DecoderCache.advance))
    monkeypatch.setattr(DecodingBatch, "_decode", never_waiting(DecodingBatch._decode))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", never_waiting(torch.cuda.CUDAGraph.replay))
    for size, expected in zip((1, 4, 100), eager, strict=True):
        assert generated(model, sources, size, max_length=50, **options) == expected
        assert made[-1].recordings >= 1
        assert made[-1].replays > made[-1].recordings


@pytest.mark.gpu
def test_cuda_graphs_free_their_memory():
    model = tiny().cuda()
    ids = torch.randint(3, VOCAB, (8, 20), device="cuda")
    model.generate(ids, num_beams=4, max_length=50, min_length=40)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        model.generate(ids, num_beams=4, max_length=50, min_length=40)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
