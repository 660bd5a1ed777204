"""Recorded steps give what eager ones give, and depend on nothing but tensors at fixed places.

Where there is no GPU, two other recorders take the place of CUDA graphs: one repeats the step's Python code on the same
tensors, the other repeats its tensor operations alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock, patch
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bart.backend import Backend
from bart.configuration.configuration_generation import GenerationConfig
from bart.generation import cache, generate_live, graphs
from bart.generation.cache import DecoderCache
from bart.generation.graphs import Recorder, Step, recorder_for
from bart.generation.schedule import DecodingBatch
from bart.generation.search import Hypotheses
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import tiny_bart

pytestmark = pytest.mark.usefixtures("one_thread")

PAD, EOS, VOCAB, POSITIONS = 1, 2, 71, 64

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.5},
    "early": {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 2},
    "never": {"num_beams": 2, "early_stopping": "never", "length_penalty": 2.0},
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
        self.recordings = self.replays = self.loads = self.eager = 0

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
            before, replays = batch.state, counting.replays
            is_taken = step(steps, batch, steps_left)
            is_loaded = any(old is not new for old, new in zip(before, batch.state, strict=True))
            counting.loads += is_loaded and counting.replays > replays
            counting.eager += not is_taken
            return is_taken

        monkeypatch.setattr(graphs.RecordedSteps, "step", counted_step)
        modules = {name: importlib.import_module(f"bart.generation.{name}") for name in ("cache", "graphs", "schedule")}
        for module, name, value in (
            ("cache", "has_fixed_shapes", lambda device: True),
            ("cache", "MOST_ROOM_OF_FIXED_SHAPES", 12),
            ("cache", "ALIGNMENT", 4),
            ("cache", "SOURCE_PIECE", 4),
            ("graphs", "STEPS_WORTH_RECORDING", 2),
            ("schedule", "steps_between_checks", lambda device: 3),
            ("schedule", "FEWEST_PLACES", 2),
            ("graphs", "recorder_for", lambda _, *options: recorder_for(torch.device("cuda"), *options)),
            ("graphs", "cuda_recorder", lambda device: counting),
            ("graphs", "_kept", WeakKeyDictionary()),
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


@pytest.mark.parametrize("method", ["early", "never", "rules", "rules of greedy"])  # all code that there is
def test_recorded_operations_give_what_eager_steps_give(model, sources, use, method: str):
    """Articles join and leave, and the cache grows."""
    options = METHODS[method]
    eager = generated(model, sources[:9], 3, max_length=24, **options)
    counting = use(operations)
    assert generated(model, sources[:9], 3, max_length=24, **options) == eager
    assert counting.recordings >= 2
    assert counting.replays > 2 * counting.recordings


def outputs(model: BartForConditionalGeneration, batch_size: int, sources: Any, **options: Any) -> dict[int, Any]:
    """Ids and scores of each article; sources are lists of ids, or lists of these, which arrive step by step."""
    found, results = {}, DecodingBatch.results

    def noted(batch: DecodingBatch, places: list[int]) -> tuple[list[int], Hypotheses]:
        numbers, hypotheses = results(batch, places)
        each = zip(hypotheses.tokens.tolist(), hypotheses.scores.tolist(), strict=True)
        found.update(zip(numbers, each, strict=True))
        return numbers, hypotheses

    with patch.object(DecodingBatch, "results", noted):
        if isinstance(sources[0][0], int):
            list(model.generate_many(sources, batch_size, **options))
        else:
            waiting = [[*part] for part in sources]
            numbers = itertools.count()

            def arrivals(room: int) -> list[tuple[int, list[int]]]:
                now = waiting.pop(0) if waiting else []
                waiting[:0] = [now[room:]] if now[room:] else []
                return [(next(numbers), ids) for ids in now[:room]]

            while waiting:
                list(generate_live(model, arrivals, batch_size, **options))
    return found


def others(sources: list[list[int]], number: int = 1) -> list[list[int]]:
    """Other sources of the same lengths."""
    return [[3 + (token * 7 + number) % (VOCAB - 3) for token in source] for source in sources]


@pytest.fixture
def eager(use, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`outputs` by eager steps of the shapes that recorded ones have."""

    def eager(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(graphs, "STEPS_WORTH_RECORDING", 1000)
            patched.setattr(graphs, "_kept", WeakKeyDictionary())
            return outputs(*arguments, **options)

    return eager


@pytest.fixture
def counting(use, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Of operations; every step of new shapes is recorded."""
    counting = use(operations)
    monkeypatch.setattr(graphs, "STEPS_WORTH_RECORDING", 1)
    return counting


@pytest.mark.parametrize("method", ["early", "rules", "rules of greedy"])
@pytest.mark.parametrize("is_live", [False, True], ids=["many", "live"])
def test_later_calls_replay_from_the_first_step_on(sources, counting, eager, method: str, is_live: bool):
    """In fp32, scores bit for bit: articles of other texts join, leave, and come to batches that are half empty."""
    model = tiny()
    options = {**METHODS[method], "max_length": 18}
    for number in range(2):
        texts: Any = others(sources[:7], number)
        alone = eager(model, 1, texts, **options)
        if is_live:
            texts = [texts[:1], [], texts[1:4], [], [], texts[4:], []]
        found = outputs(model, 3, texts, **options)
        assert found == eager(model, 3, texts, **options)
        assert [found[article][0] for article in range(7)] == [alone[article][0] for article in range(7)]
    recordings, replays = counting.recordings, counting.replays
    counting.eager = 0
    outputs(model, 3, texts, **options)
    assert (counting.recordings, counting.eager) == (recordings, 0)
    assert counting.replays > replays


def test_articles_join_and_leave_without_new_recordings(counting, eager):
    model = tiny()
    options = {"num_beams": 2, "max_length": 12}
    sources = others([[5] * (1 + number % 4) for number in range(40)])
    expected = eager(model, 4, sources, **options)
    recordings = counting.recordings
    assert outputs(model, 4, sources, **options) == expected
    assert counting.recordings - recordings <= 2, "one of four places, and one of two at the end"
    assert counting.replays > 40


@pytest.mark.parametrize("length", [1, 4, 5, 63, 64, 65, 129, 192, 193, 257, 512, 513, 1000, 1024])
def test_sources_have_few_lengths(length: int):
    lengths = [64, 128, 192, 256, 384, 512, 768, 1024]
    assert cache.source_room(length) == next(each for each in lengths if each >= length)


def test_weights_that_change_in_place_need_no_new_recording(sources, counting, eager):
    model, options = tiny(), {"num_beams": 2, "min_length": 12, "max_length": 12}
    first = outputs(model, 3, sources, **options)
    recordings = counting.recordings
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    second = outputs(model, 3, sources, **options)
    assert second != first
    assert second == eager(model, 3, sources, **options)
    assert counting.recordings == recordings


def double_weights(model: BartForConditionalGeneration) -> None:
    layer = model.model.decoder.layers[0].fc1.weight
    layer.data = layer.data * 2


def add_hook(model: BartForConditionalGeneration) -> None:
    model.model.decoder.layers[1].register_forward_hook(lambda module, given, states: (states[0].neg(), states[1]))


def change_scale(model: BartForConditionalGeneration) -> None:
    model.model.decoder.embed_scale = 3.0


class Scaling(Backend):
    def linear(self, states: Tensor, layer: torch.nn.Module) -> Tensor:
        return super().linear(states, layer) * 1.5


def change_backend(model: BartForConditionalGeneration) -> None:
    model.compute_with(Scaling())


def add_layer(model: BartForConditionalGeneration) -> None:
    model.model.decoder.layers[0].fc1 = torch.nn.Linear(16, 24)


@pytest.mark.parametrize("change", [double_weights, add_hook, change_scale, change_backend, add_layer])
def test_a_model_that_is_another_one_is_recorded_anew(sources, counting, eager, change: Callable[[Any], None]):
    model = tiny()
    options = {"num_beams": 2, "max_length": 12}
    first = outputs(model, 3, sources[:5], **options)
    recordings = counting.recordings
    change(model)
    second = outputs(model, 3, sources[:5], **options)
    assert second != first
    assert second == eager(model, 3, sources[:5], **options)
    assert counting.recordings >= 2 * recordings


def test_options_models_and_types_are_recorded_apart(sources, counting, eager):
    models = [tiny(), tiny_bart(seed=4, vocab_size=VOCAB, max_position_embeddings=POSITIONS).eval(), tiny().double()]
    names = ["greedy", "early", "never"]
    ways = [
        *({**METHODS[name], "max_length": 9} for name in names),
        {"max_length": 6},
        {"max_length": 9, "min_length": 7},
    ]
    pairs = [*itertools.product(models, ways)]
    expected = [eager(model, 2, sources[:2], **options) for model, options in pairs]
    for _ in range(2):
        recordings = counting.recordings
        assert [outputs(model, 2, sources[:2], **options) for model, options in pairs] == expected
    assert counting.recordings - recordings <= len(models), "where the first option's memory was too small"
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        recordings = counting.recordings
        outputs(models[0], 2, sources[:2], **ways[0])
        assert counting.recordings > recordings
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def alone(recorder: Recorder) -> Recorder:
    """A recorder whose replays must not run beside each other where they share their recording or their memory."""
    running: set[int] = set()

    def record(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        replay, address = recorder(step, state), state[0].data_ptr()

        def checked() -> None:
            assert address not in running
            running.add(address)
            replay()
            running.remove(address)

        return checked

    return record


def test_calls_at_the_same_time_share_nothing(sources, use):
    model, texts = tiny().double(), [others(sources[:6], number) for number in range(4)]
    options = {"num_beams": 2, "max_length": 14}
    expected = [generated(model, each, 2, **options) for each in texts]
    use(alone(repeat))
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            assert list(threads.map(lambda each: generated(model, each, 2, **options), texts)) == expected
    for one, two in ((0, 1), (2, 0)):  # two calls by turns in one thread
        found: list[dict[int, Any]] = [{}, {}]
        calls = [model.generate_many(texts[number], 2, **options) for number in (one, two)]
        for articles in itertools.zip_longest(*calls):
            for place, article in enumerate(articles):
                if article is not None:
                    found[place][article.index] = article.sequences.tolist()
        for place, number in enumerate((one, two)):
            assert [ids for _, ids in sorted(found[place].items())] == expected[number]


def kept(model: BartForConditionalGeneration) -> graphs.RecordedSteps:
    [steps] = graphs._kept[model].values()
    return steps


def test_recordings_share_memory_and_few_are_kept(sources, counting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "MOST_RECORDINGS", 3)
    model = tiny()
    for length in (20, 9, 9, 20, 13):
        outputs(model, 4, sources, num_beams=2, max_length=length)
        steps = kept(model)
        assert 1 <= len(steps.recordings) <= 3
        own = {memory.untyped_storage().data_ptr() for memory in steps.memory.values()}
        for places, _, _ in steps.recordings.values():
            assert {place.untyped_storage().data_ptr() for place in places} <= own
    held = sum(memory.numel() * memory.element_size() for memory in steps.memory.values())
    stores = (
        2 * 2 * 4 * 16 * (16 + 20 * 2) * 4
    )  # 2 layers, keys and values, 4 articles of 16 positions, 20 ids, 2 beams
    assert stores <= held < 1.3 * stores
    graphs.forget_recordings(model)
    assert not graphs._kept


def test_recordings_die_with_their_model_and_after_an_error(sources, counting):
    model = tiny()
    outputs(model, 3, sources, max_length=9)
    memory = [weakref.ref(each.untyped_storage()) for each in kept(model).memory.values()]
    with pytest.raises(KeyError):
        model.generate_many(sources, 3, max_length=9, encoded=lambda *_: {}[0]).__next__()
    assert kept(model).recordings
    recorder = kept(model).recorder.recorder
    kept(model).recorder.recorder = lambda *_: {}[0]
    with pytest.raises(KeyError):
        outputs(model, 3, sources, max_length=8)
    assert not graphs._kept[model]
    counting.recorder = recorder
    outputs(model, 3, sources, max_length=9)
    dead = weakref.ref(model)
    del model
    gc.collect()
    assert dead() is None and not graphs._kept
    assert all(each() is None for each in memory)


def test_decoding_goes_on_without_recordings_when_one_fails(sources, counting, eager, caplog):
    """The first recordings serve on."""
    model, options = tiny(), {"num_beams": 2, "max_length": 16}
    expected = [eager(model, 3, others(sources, number), **options) for number in range(2)]
    record = counting.recorder

    def fails(step: Step, state: Sequence[Tensor]) -> Callable[[], None]:
        if counting.recordings <= 2:
            return record(step, state)
        step(state)
        step([tensor.clone() for tensor in state])  # a graph only notes its operations
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    counting.recorder = fails
    assert [outputs(model, 3, others(sources, number), **options) for number in range(2)] == expected
    assert counting.recordings == 3 and counting.eager and counting.replays
    assert caplog.messages == ["decoding steps are not recorded from now on: CUDA out of memory."]


def test_graphs_share_a_pool_while_one_of_them_lives(monkeypatch: pytest.MonkeyPatch):
    """torch ends with an error where a graph is recorded into a pool whose graphs have all died."""

    class Graph:
        def __init__(self) -> None:
            self.replay = functools.partial(id, self)

    handles, pools = itertools.count(), []
    nothing = contextlib.nullcontext
    for name, stand_in in {
        "Stream": MagicMock(),
        "current_stream": MagicMock(),
        "CUDAGraph": Graph,
        "device": nothing,
        "stream": nothing,
        "graph": lambda graph, pool, stream, capture_error_mode: pools.append(pool) or nothing(),
        "graph_pool_handle": lambda: next(handles),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    graphs._recording_stream.cache_clear()
    record = graphs.cuda_recorder(torch.device("cuda"))
    taken: list[Any] = []
    replays = [record(taken.append, []) for _ in range(3)]
    assert pools == [0, 0, 0] and taken == [[]] * 6
    del replays[0]
    replays.append(record(taken.append, []))
    assert pools[-1] == 0
    replays.clear()
    gc.collect()
    replays = [record(taken.append, []) for _ in range(2)]
    assert pools[-2:] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        record(lambda state: 1 // 0, [])
    current = graphs.torch.cuda.current_stream()
    stream = graphs._recording_stream(torch.device("cuda"))
    assert current.wait_stream.call_count == stream.wait_stream.call_count, "the error's step may go on beside others"
    graphs._recording_stream.cache_clear()


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
    monkeypatch.setattr(graphs, "cuda_recorder", lambda device: ("recorder", device))
    gpu, config = torch.device("cuda"), GenerationConfig()
    assert graphs.recorder_for(gpu, config, False) == ("recorder", gpu)
    assert graphs.recorder_for(gpu, config, True) is None
    assert graphs.recorder_for(torch.device("cpu"), config, False) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        assert graphs.recorder_for(gpu, config, False) is None
    assert graphs.recorder_for(gpu, config, False) == ("recorder", gpu)
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
    with monkeypatch.context() as patched:  # eager steps of the same shapes
        patched.setattr(graphs, "STEPS_WORTH_RECORDING", 1000)
        eager = [generated(model, sources, size, max_length=50, **options) for size in (1, 4, 100)]
    counting = Counting(graphs.cuda_recorder(model.device))
    monkeypatch.setattr(graphs, "cuda_recorder", lambda device: counting)
    monkeypatch.setattr(DecoderCache, "advance", never_waiting(DecoderCache.advance))
    monkeypatch.setattr(DecodingBatch, "_decode", never_waiting(DecodingBatch._decode))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", never_waiting(torch.cuda.CUDAGraph.replay))
    for size, expected in zip((1, 4, 100), eager, strict=True):
        recordings = counting.recordings
        assert generated(model, sources, size, max_length=50, **options) == expected
        assert counting.recordings > recordings
        assert counting.replays > counting.recordings
        recordings = counting.recordings
        assert generated(model, sources, size, max_length=50, **options) == expected
        assert counting.recordings == recordings


@pytest.mark.gpu
def test_cuda_graphs_free_their_memory():
    ids = torch.randint(3, VOCAB, (8, 20), device="cuda")
    reserved = []
    for _ in range(3):
        model = tiny().cuda()
        for _ in range(3):
            model.generate(ids, num_beams=4, max_length=50, min_length=40)
        del model
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[0]
