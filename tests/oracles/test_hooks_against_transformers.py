"""A caller's code in `generate`: the ids, the scores and the calls are those of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bart.errors import InputError
from tests.oracles.test_generate_against_transformers import (
    EOS,
    VOCAB,
    Pair,
    assert_equal_ids,
    assert_same,
    batch,
    make_pair,
)

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [make_pair(0, 4.0), make_pair(3, 5.0), make_pair(6, 3.0)]


def even_or_odd(article: int, ids: Tensor) -> list[int]:
    """Ids of one parity, which the article and the length tell, and EOS where a row is long enough."""
    first = 4 + (article + len(ids)) % 2
    return [*range(first, VOCAB, 2), *([EOS] if len(ids) > 4 + article else [])]


class Shift(transformers.LogitsProcessor):
    """Scores that depend on the rows' ids; it writes in place, as some do."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, 5:9] += 0.5 * (input_ids.sum(dim=1, keepdim=True) % 3)
        return scores


def ban_last(input_ids: Tensor, scores: Tensor) -> Tensor:
    return scores.scatter(1, input_ids[:, -1:], -torch.inf)


PROCESSORS: list[list[Callable[[Tensor, Tensor], Tensor]]] = [
    [],
    [ban_last],
    transformers.LogitsProcessorList([Shift(), transformers.MinPLogitsWarper(0.02)]),
    [transformers.SuppressTokensLogitsProcessor([5, 6, 7]), Shift()],
]


def ends_by_parity(ids: Tensor, scores: Any, **_: Any) -> Tensor:
    """Rows end where their ids' sum says so, and the scores, which are kept, show that it is no early step."""
    return (ids.sum(dim=1) % 7 < 2) & (len(scores) > 2)


CRITERIA: list[list[Callable[..., Tensor]]] = [
    [],
    [ends_by_parity],
    [ends_by_parity, transformers.EosTokenCriteria([EOS, 9, 10, 11])],
    [lambda ids, scores: torch.full((len(ids),), ids.shape[1] > 6)],
]


def random_options(seed: int) -> dict[str, Any]:
    pick = random.Random(seed).choice
    beams = pick([1, 1, 3, 4])
    options: dict[str, Any] = {
        "num_beams": beams,
        "max_length": pick([3, 12, 22]),
        "min_length": pick([0, 6]),
        "no_repeat_ngram_size": pick([0, 2]),
        "early_stopping": pick([True, False, "never"]),
        "forced_bos_token_id": pick([None, 0]),
        "forced_eos_token_id": pick([None, 2]),
        "do_sample": pick([False, True]),
        "top_k": pick([0, 5]),
        "temperature": pick([1.0, 1.4]),
        "logits_processor": transformers.LogitsProcessorList(pick(PROCESSORS)),
        "prefix_allowed_tokens_fn": pick([None, even_or_odd]),
        "stopping_criteria": transformers.StoppingCriteriaList(pick(CRITERIA)),
    }
    options["num_return_sequences"] = pick([1, 3]) if beams > 1 or options["do_sample"] else 1
    return options


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 60))])
def test_ids_and_scores(pairs: list[Pair], seed: int) -> None:
    options = random_options(seed)
    assert_same(pairs[seed % 3], *batch(seed, articles=1 + seed % 4), options, seed)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"do_sample": True, "top_k": 20}], ids=str)
def test_articles_stay_to_the_end(pairs: list[Pair], options: dict[str, Any]) -> None:
    """Without scores to keep: their numbers would change if articles that are done left the batch."""
    for theirs, ours in pairs:
        ids, mask = batch(2, articles=8)
        given = options | {"max_length": 25, "prefix_allowed_tokens_fn": even_or_odd, "logits_processor": [ban_last]}
        torch.manual_seed(1)
        expected = theirs.generate(ids, attention_mask=mask, **given)
        torch.manual_seed(1)
        assert_equal_ids(ours.generate(ids, attention_mask=mask, **given), expected)


class Recorder:
    """A streamer that keeps all that it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.got.append(value.tolist())

    def end(self) -> None:
        self.got.append("end")


@pytest.mark.parametrize(
    "options", [{}, {"min_length": 9}, {"do_sample": True}, {"do_sample": True, "num_return_sequences": 3}], ids=str
)
def test_a_streamer_gets_the_same(pairs: list[Pair], options: dict[str, Any]) -> None:
    for pair in pairs:
        ids, mask = batch(4)
        streamers = Recorder(), Recorder()
        for model, streamer in zip(pair, streamers, strict=True):
            torch.manual_seed(5)
            model.generate(ids, attention_mask=mask, streamer=streamer, max_length=20, **options)
        assert streamers[1].got == streamers[0].got
        assert len(streamers[1].got) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logits_processor": ban_last}, r"logits_processor is <function .*; allowed: a list of callables"),
        ({"logits_processor": [lambda ids, scores: scores[:, 1:]]}, r"gave \(1, 96\); allowed: scores \(1, 97\)"),
        (
            {"prefix_allowed_tokens_fn": lambda article, ids: []},
            r"gave \[\] for article 0; allowed: a list of at least",
        ),
        ({"prefix_allowed_tokens_fn": lambda article, ids: [97]}, r"gave \[97\] for article 0; .* one id below 97"),
        (
            {"stopping_criteria": [lambda ids, scores: ids]},
            r"gave Tensor .*; allowed: a bool tensor \(1,\)",
        ),
        ({"stopping_criteria": ends_by_parity}, r"stopping_criteria is <function .*; allowed: a list of callables"),
        ({"streamer": print}, "streamer is <built-in function print>; allowed: an object with the methods put and end"),
        ({"streamer": Recorder(), "num_beams": 2}, "streamer needs num_beams 1, and it is 2"),
    ],
)
def test_what_is_refused(pairs: list[Pair], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pairs[0][1].generate(batch(0, articles=1)[0], max_length=6, **options)
