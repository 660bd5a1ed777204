"""Decoding at its limits: shapes as small and as large as there are, scores that allow nothing, and no leaks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bart.errors import InputError
from bart.generation import generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import tiny_bart

pytestmark = pytest.mark.usefixtures("one_thread")

PAD, EOS, VOCAB, POSITIONS = 1, 2, 23, 1024
INF, NAN = float("inf"), float("nan")
PRECISIONS = ("fp32", "bf16", "int8")
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "early": {"num_beams": 3, "early_stopping": True, "num_return_sequences": 2},
    "samples": {"do_sample": True, "top_k": 0, "top_p": 0.8, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}
every_method = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
Model = BartForConditionalGeneration


def a_model(**config: Any) -> Model:
    fields = {"vocab_size": VOCAB, "d_model": 32, "max_position_embeddings": POSITIONS, "init_std": 0.5, **config}
    return tiny_bart(seed=3, **fields).eval()


def copies(model: Model) -> dict[str, Model]:
    """The model as it is, and its copies for inference."""
    return {"plain": model, **{precision: model.for_inference(precision) for precision in PRECISIONS}}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return copies(a_model())


def by_both_ways(model: Model, sources: list[list[int]], **options: Any) -> Iterator[Callable[[], list[Tensor]]]:
    """Calls that give the sequences (N, T) of each source: of `generate`, and of `generate_many`."""
    count = options.get("num_return_sequences", 1)

    def at_once() -> list[Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sources], True, padding_value=PAD)
        return list(model.generate(ids, **options).split(count))

    def many() -> list[Tensor]:
        actual = {article.index: article.sequences for article in model.generate_many(sources, 2, **options)}
        return [actual[index] for index in range(len(sources))]

    yield at_once
    yield many


def check(actual: list[Tensor], articles: int, options: dict[str, Any]) -> None:
    """Every article has its sequences, of ids that there are."""
    assert len(actual) == articles
    for sequences in actual:
        assert len(sequences) == options.get("num_return_sequences", 1)
        assert 1 <= sequences.shape[1] <= options["max_length"]
        assert int(sequences.min()) >= 0 and int(sequences.max()) < VOCAB


# Shapes


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "no_repeat_ngram_size": 2}])
def test_articles_of_one_token_and_of_1024_give_what_transformers_gives(
    models: dict[str, Model], options: dict[str, Any], tmp_path: Path
) -> None:
    """The copy too: its choices do not change even under 30 times the errors of fp32 (see `tests.bart.rounding`)."""
    from transformers import BartForConditionalGeneration as Peer

    models["plain"].save_pretrained(tmp_path)
    peer = Peer.from_pretrained(tmp_path).double().eval()
    exact = copy.deepcopy(models["plain"]).double()
    options = {"max_length": 12, **options}
    sources = [[9], torch.randint(3, VOCAB, (POSITIONS,), generator=torch.Generator().manual_seed(2)).tolist()]
    expected = [peer.generate(torch.tensor([ids]), **options).tolist() for ids in sources]
    assert expected[0] != expected[1]
    for model in (exact, models["fp32"]):
        assert [model.generate(torch.tensor([ids]), **options).tolist() for ids in sources] == expected
        for call in by_both_ways(model, sources, **options):
            rows = [sequences[:, : len(row[0])].tolist() for sequences, row in zip(call(), expected, strict=True)]
            assert rows == expected


def test_more_beams_than_there_are_sequences_find_all_of_them_best_first() -> None:
    """Against a search through all sequences. Their scores are far apart, beyond any rounding of fp32."""
    vocab_size, beams = 5, 40
    model = a_model(vocab_size=vocab_size, max_position_embeddings=9)
    source = torch.tensor([[3, 4, 3]])
    every = torch.tensor([[EOS, *ids] for ids in itertools.product(range(vocab_size), repeat=2)])
    with torch.no_grad():
        logits = model(source.expand(len(every), -1), decoder_input_ids=every[:, :-1]).logits
    log_probs = logits.log_softmax(dim=2).gather(2, every[:, 1:, None]).sum(dim=(1, 2))
    expected = every[log_probs.argsort(descending=True)].tolist()
    assert log_probs.sort().values.diff().min() > 1e-3
    options = {"num_beams": beams, "num_return_sequences": beams, "max_length": 3, "eos_token_id": None}
    options["forced_eos_token_id"] = None
    for name, each in copies(model).items():
        for call in by_both_ways(each, source.tolist(), **options):
            [actual] = call()
            assert len(actual) == beams
            if name in ("plain", "fp32"):
                assert actual[: len(expected)].tolist() == expected


# Scores that allow nothing


@every_method
@pytest.mark.parametrize("limits", [{}, {"min_length": 6, "forced_eos_token_id": None}])
def test_rules_that_ban_every_id(models: dict[str, Model], options: dict[str, Any], limits: dict[str, Any]) -> None:
    words = [[token] for token in range(VOCAB)]
    for eos in (EOS, None):
        asked = {"bad_words_ids": words, "max_length": 6, "eos_token_id": eos, **limits, **options}
        for model in models.values():
            for call in by_both_ways(model, [[5], [6, 7, 8], [9, 4]], **asked):
                check(call(), 3, asked)


@pytest.mark.parametrize("name", ["greedy", "beams", "early"])
def test_an_article_without_any_id_left_does_not_change_the_others(models: dict[str, Model], name: str) -> None:
    sources = [[5, 9], list(range(VOCAB)), [6, 7, 8]]
    options = {"encoder_no_repeat_ngram_size": 1, "max_length": 6, **METHODS[name]}
    model = copy.deepcopy(models["plain"]).double()
    alone = [
        model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **options).tolist()
        for ids in sources
    ]
    for call in by_both_ways(model, sources, **options):
        assert [row[:, : len(own[0])].tolist() for row, own in zip(call(), alone, strict=True)] == alone


@every_method
@pytest.mark.parametrize(
    "bias", [[-INF], [NAN], [INF], [0.0] * 9 + [NAN] + [0.0] * (VOCAB - 10)], ids=["-inf", "nan", "inf", "one nan"]
)
def test_scores_that_are_not_finite(options: dict[str, Any], bias: list[float]) -> None:
    model = a_model()
    model.final_logits_bias[:] = torch.tensor(bias)
    asked = {"max_length": 6, **options}
    # Beams sample log-probabilities, which are NaN where all logits are -inf.
    drawn = options.get("do_sample") and not (bias == [-INF] and "num_beams" not in options)
    for each in copies(model).values():
        for call in by_both_ways(each, [[5], [6, 7, 8]], **asked):
            if drawn:
                with pytest.raises(InputError, match="do_sample is True, and scores of the next id are"):
                    call()
            else:
                check(call(), 2, asked)


# Faults of one article


@pytest.fixture(scope="module")
def deep_models() -> dict[str, Model]:
    """Models with two decoder layers: NaN of the encoder's states is in the second one's keys and values."""
    return copies(a_model(decoder_layers=2, max_position_embeddings=64))


@pytest.mark.parametrize("name", ["plain", *PRECISIONS])
@pytest.mark.parametrize("live", [False, True], ids=["many", "live"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_an_article_that_gives_nan_does_not_spoil_the_next_in_its_place(
    deep_models: dict[str, Model], name: str, live: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All articles take equally many steps, so that batches are those of a run without NaN, bit for bit."""
    model, bad = deep_models[name], 22
    sources = [[4] * 20, [bad] * 18, [5, 6, 7], [bad] * 3, [9, 8], [4] * 5, [6]]
    options = {"max_length": 8, "min_length": 8, **options}

    def generated() -> dict[int, list[list[int]]]:
        left = list(enumerate(sources))
        if live:  # one joins in each step, so that longer ones stay in the batch
            actual = generate_live(model, lambda room: [left.pop(0)] if left else [], 3, **options)
        else:
            actual = model.generate_many(sources, 2, **options)
        return {article.index: article.sequences.tolist() for article in actual}

    clean = generated()
    encode = model.encode

    def encode_with_nan(ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return encode(ids, mask).masked_fill((ids == bad).any(dim=1)[:, None, None], NAN)

    monkeypatch.setattr(model, "encode", encode_with_nan)
    actual = generated()
    assert actual[1] != clean[1], "nothing is NaN: the test would show nothing"
    assert [actual[index] for index in (0, 2, 4, 5, 6)] == [clean[index] for index in (0, 2, 4, 5, 6)]
