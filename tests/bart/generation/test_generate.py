"""Laws of decoding that need no oracle: articles are independent, padding is nothing, bad input is named."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bart.errors import InputError
from bart.generation import generate, generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import tiny_bart

pytestmark = pytest.mark.usefixtures("one_thread")

PAD, EOS, VOCAB, POSITIONS = 1, 2, 71, 24

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.5},
    "early": {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2},
    "rules": {"num_beams": 2, "min_length": 5, "repetition_penalty": 1.3, "bad_words_ids": [[5], [6, 7]]},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.3},
}
every_method = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    sizes = {"max_position_embeddings": POSITIONS, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    # In double precision, so that no choice depends on how a batch of another shape is rounded.
    model = tiny_bart(seed=3, vocab_size=VOCAB, init_std=0.6, **sizes).double().eval()
    model.final_logits_bias[0, EOS] = 6.0
    return model


@pytest.fixture(scope="module")
def alone(model: BartForConditionalGeneration) -> Callable[..., list[list[list[int]]]]:
    """A function that gives the sequences of each source alone, computed once for all sizes of batches."""
    known: dict[str, list[list[list[int]]]] = {}

    def sequences(sources: list[list[int]], options: dict[str, Any]) -> list[list[list[int]]]:
        key = repr((sources, options))
        if key not in known:
            known[key] = [
                model.generate(torch.tensor([source]), max_length=20, **options).tolist() for source in sources
            ]
        return known[key]

    return sequences


@pytest.fixture(scope="module")
def source() -> Tensor:
    ids = torch.randint(3, VOCAB, (6, 12), generator=torch.Generator().manual_seed(5))
    for row, length in enumerate((12, 4, 7, 12, 1, 9)):
        ids[row, length - 1] = EOS
        ids[row, length:] = PAD
    return ids


def random_sources(count: int, seed: int) -> list[list[int]]:
    """Sources of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 15, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def without_padding(sequences: Tensor) -> list[list[int]]:
    """Ids of each sequence, without the padding that follows it."""
    kept = sequences != PAD
    lengths = (kept * torch.arange(1, sequences.shape[1] + 1)).amax(dim=1)
    return [row[:length].tolist() for row, length in zip(sequences, lengths, strict=True)]


@every_method
def test_an_article_gives_the_same_alone_and_in_a_batch(model, source: Tensor, options: dict[str, Any]):
    """And in a batch with more padding."""
    sequences = model.generate(source, max_length=20, **options)
    padded = torch.nn.functional.pad(source, (0, 5), value=PAD)
    assert torch.equal(model.generate(padded, max_length=20, **options), sequences)
    together = without_padding(sequences)
    alone = []
    for article in source:
        ids = article[article != PAD][None]
        alone += without_padding(model.generate(ids, max_length=20, **options))
    assert together == alone
    assert len({len(sequence) for sequence in together}) > 2, "all of one length: the test would show nothing"


@every_method
@pytest.mark.parametrize("batch_size", [1, 4, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 100))])
def test_articles_that_join_and_leave_get_what_they_get_alone(model, alone, batch_size: int, options: dict[str, Any]):
    sources = random_sources(23, seed=8)
    actual = {a.index: a.sequences for a in model.generate_many(sources, batch_size, max_length=20, **options)}
    assert [actual[index].tolist() for index in range(23)] == alone(sources, options)
    assert len(actual) == 23
    assert len({sequences.shape[1] for sequences in actual.values()}) > 2, "all of like length: shows nothing"


@every_method
@pytest.mark.parametrize("batch_size", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 8)), 3])
def test_articles_that_arrive_while_others_are_in_work_get_what_they_get_alone(
    model, alone, batch_size: int, options: dict[str, Any]
):
    sources = random_sources(19, seed=9)
    # How many have arrived by each question; the first is alone, and some come when nobody else is left.
    arrive = [1, *torch.randint(0, 3, (400,), generator=torch.Generator().manual_seed(9)).tolist()]
    left, inside, sizes = list(enumerate(sources)), 0, []

    def arrivals(room: int) -> list[tuple[int, list[int]]]:
        nonlocal inside
        assert 0 < room == batch_size - inside
        count = min(room, arrive.pop(0))
        new, left[:count] = left[:count], []
        inside += len(new)
        sizes.append(inside)
        return new

    actual: dict[int, list[list[int]]] = {}
    while left:
        for article in generate_live(model, arrivals, batch_size, max_length=20, **options):
            inside -= 1
            assert article.index not in actual
            actual[article.index] = article.sequences.tolist()
    assert max(sizes) == batch_size
    assert [actual[index] for index in range(len(sources))] == alone(sources, options)


@pytest.mark.parametrize("size", [1, 2])
def test_padding_by_the_batch_is_no_ngram_of_the_source(model, size: int):
    model = copy.deepcopy(model)
    model.final_logits_bias[0, PAD] += 9
    sources = [[5, 6, 7, EOS], [9, EOS], [8], [4] * 20]
    options = {"encoder_no_repeat_ngram_size": size, "max_length": 15, "num_beams": 2}
    alone = [model.generate(torch.tensor([source]), **options)[0].tolist() for source in sources]
    assert all(sequence.count(PAD) > 3 for sequence in alone), "padding is not generated: the test would show nothing"
    together = {article.index: article.sequences[0].tolist() for article in model.generate_many(sources, 4, **options)}
    assert [together[index] for index in range(4)] == alone


def test_generate_many_refuses_bad_sources_before_it_generates(model):
    for sources, message in (
        ([[3], []], "source 1 has 0 ids"),
        ([[3] * 25], "source 0 has 25 ids; allowed: 1 to 24"),
        ([[3, VOCAB]], "source 0 hold 3 to 71; allowed: ids from 0 to 70"),
        (["text"], r"source 0 is str 'text'; allowed: ids, such as tokenizer\(text\)\['input_ids'\]"),
        ("text", "source 0 is str 't'; allowed: ids"),
        ([[3], ["a", "b"]], "source 1 is list"),
        ([[[3]], [3]], r"source 0 are torch.int64 \(1, 1, 1\)"),
        ([5], r"source 0 are torch.int64 \(1,\)"),
        ([[0.5]], "source 0 are torch.float32"),
    ):
        with pytest.raises(InputError, match=message):
            next(model.generate_many(sources, 2))
    with pytest.raises(InputError, match="batch_size is 0"):
        next(model.generate_many([[3]], 0))
    assert list(model.generate_many([], 2)) == []


@pytest.fixture
def texts() -> list[list[int]]:
    return random_sources(11, seed=8)


def test_the_caller_may_score_references_from_the_states_that_articles_are_decoded_from(
    model, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    labels = torch.randint(3, VOCAB, (len(texts), 7), generator=torch.Generator().manual_seed(1))
    losses: dict[int, Tensor] = {}
    expected = [model(torch.tensor([ids]), labels=labels[i : i + 1]).loss for i, ids in enumerate(texts)]
    encodings, masks = [], []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda *inputs: encodings.append(1) or encode(*inputs))

    def encoded(numbers: list[int], states: Tensor, mask: Tensor) -> None:
        assert mask.sum(dim=1).tolist() == [len(texts[number]) for number in numbers]
        masks.append((mask, mask.clone()))
        for place, number in enumerate(numbers):
            part = slice(place, place + 1)
            inputs = {"encoder_outputs": states[part], "attention_mask": mask[part]}
            losses[number] = model(**inputs, labels=labels[number : number + 1]).loss

    for article in model.generate_many(texts, 4, encoded=encoded, max_length=20):
        assert article.index in losses
    assert len(encodings) == 3
    assert all(torch.equal(*pair) for pair in masks), "what the caller was given has changed"
    torch.testing.assert_close(torch.stack([losses[i] for i in range(11)]), torch.stack(expected), rtol=0, atol=1e-12)


def test_articles_are_charged_for_encoding_and_steps_but_not_for_the_callers_work(
    model, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    """The clock says that encoding a group takes 6 s, a decoding step 0.125 s, and the caller's work 100 s."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    encode, decode = model.encode, model.decode

    def slow_encode(ids: Tensor, mask: Tensor) -> Tensor:
        clock.now += 6
        return encode(ids, mask)

    def slow_decode(*inputs: Any) -> Tensor:
        clock.now += 0.125
        return decode(*inputs)

    def work(numbers: list[int], states: Tensor, mask: Tensor) -> None:
        clock.now += 100

    monkeypatch.setattr(importlib.import_module("bart.generation.generate"), "time", clock)
    monkeypatch.setattr(model, "encode", slow_encode)
    monkeypatch.setattr(model, "decode", slow_decode)

    def charged(**callback: Any) -> list[tuple[int, float, float]]:
        articles = model.generate_many(texts, 3, max_length=20, **callback)
        return [(article.index, article.seconds, article.encoding_seconds) for article in articles]

    free = charged()
    assert charged(encoded=work) == free
    groups = [2.0] * 9 + [3.0] * 2  # the shares of 3 articles, and of the last 2
    assert sorted(share for _, _, share in free) == groups
    by_length = sorted(range(11), key=lambda index: -len(texts[index]))
    assert {index for index, _, share in free if share == 3} == set(by_length[9:])
    assert all(seconds >= share + 0.125 for _, seconds, share in free)
    alone = model.generate_many(texts[:1], 1, max_length=6, min_length=6)
    assert [(article.seconds, article.encoding_seconds) for article in alone] == [(6 + 5 * 0.125, 6)]


def test_the_mask_is_inferred_from_padding(model, source: Tensor):
    explicit = model.generate(source, attention_mask=(source != PAD).long(), max_length=20, num_beams=2)
    assert torch.equal(model.generate(source, max_length=20, num_beams=2), explicit)
    unmasked = model.generate(source, attention_mask=torch.ones_like(source), max_length=20, num_beams=2)
    assert without_padding(unmasked) != without_padding(explicit)
    # Padding that might as well be EOS says nothing.
    assert torch.equal(
        model.generate(source, max_length=20, pad_token_id=PAD, eos_token_id=[EOS, PAD]),
        model.generate(
            source, attention_mask=torch.ones_like(source), max_length=20, pad_token_id=PAD, eos_token_id=[EOS, PAD]
        ),
    )


@every_method
def test_checking_rarely_for_the_end_changes_nothing(
    model, source: Tensor, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """On an accelerator too, some steps are taken after all is done."""
    options = options | {"max_length": 20, "min_length": 0, "eos_token_id": [EOS, *range(20, VOCAB)]}
    every_step = model.generate(source, **options)
    assert every_step.shape[1] < 15, "nothing ends early: the test would show nothing"
    module = importlib.import_module("bart.generation.schedule")
    monkeypatch.setattr(module, "steps_between_checks", lambda device: 100)
    assert torch.equal(model.generate(source, **options), every_step)


def test_runs_without_dropout_and_gradients_and_restores_each_modules_mode(source: Tensor):
    model = tiny_bart(vocab_size=VOCAB, dropout=0.5).train()
    model.model.encoder.eval()
    modes = [module.training for module in model.modules()]
    first = model.generate(source, max_length=12, return_dict_in_generate=True, output_scores=True)
    second = model.generate(source, max_length=12, return_dict_in_generate=True, output_scores=True)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(first.scores, second.scores, strict=True))
    assert not first.scores[0].requires_grad
    with pytest.raises(InputError):
        model.generate(source, num_beams=0)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither"),
        ({"input_ids": torch.zeros(0, 5, dtype=torch.long)}, "at least one article"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, "at least one article and one id"),
        ({"input_ids": torch.zeros(5, dtype=torch.long)}, r"allowed: integers \(texts, length\)"),
        ({"input_ids": torch.full((1, 4), VOCAB)}, f"0 to {VOCAB - 1}"),
        ({"input_ids": torch.full((1, POSITIONS + 1), 5)}, f"at most {POSITIONS}"),
        ({"input_ids": torch.full((2, 4), PAD)}, "all padding"),
        ({"input_ids": torch.full((2, 4), 5), "attention_mask": torch.tensor([[1] * 4, [0] * 4])}, "all padding"),
        ({"input_ids": torch.full((2, 4), 5), "attention_mask": torch.ones(2, 5)}, "attention_mask"),
        ({"input_ids": torch.full((2, 4), 5), "encoder_outputs": torch.ones(3, 4, 16)}, r"\(2, 4, 16\)"),
        ({"encoder_outputs": torch.ones(2, 5, 15)}, r"encoder_outputs are \(2, 5, 15\); allowed: \(2, 5, 16\)"),
        ({"encoder_outputs": torch.ones(2, 5)}, r"\(2, 5\); allowed: an encoder.s states"),
        ({"input_ids": torch.full((2, 4), 5), "max_length": POSITIONS + 2}, "max_length"),
        ({"input_ids": torch.full((2, 4), 5), "num_beam": 4}, "num_beams"),
        ({"input_ids": "text"}, r"input_ids is str 'text'; allowed: a tensor.*tokenizer\(text, return_tensors='pt'\)"),
        ({"input_ids": torch.full((2, 4), 5), "attention_mask": [[1]]}, "attention_mask is list"),
        ({"input_ids": torch.full((2, 4), 5), "top_p": 0}, "top_p is 0; allowed: above 0 and at most 1"),
        ({"input_ids": torch.full((2, 4), 5), "generation_config": {"num_beam": 4}}, "num_beams"),
        ({"input_ids": torch.full((2, 4), 5), "bad_words_ids": [[VOCAB]]}, "bad_words_ids"),
        ({"input_ids": torch.full((2, 4), 5), "eos_token_id": [2, VOCAB]}, "eos_token_id"),
        ({"input_ids": torch.full((2, 4), 5), "decoder_start_token_id": VOCAB}, "decoder_start_token_id"),
        ({"input_ids": torch.full((2, 4), 5), "num_beams": 2, "eos_token_id": list(range(VOCAB))}, "eos_token_id"),
    ],
)
def test_bad_input_is_one_line_that_names_it(model, arguments: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message) as error:
        generate(model, **arguments)
    assert "\n" not in str(error.value)
