"""Each score rule against the logits processor of transformers that it names, on random scores and sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from bart.generation import GenerationConfig, rules
from bart.generation.rules import (
    Prefixes,
    Rule,
    bad_words,
    encoder_no_repeat_ngram,
    forced_token,
    min_length,
    no_repeat_ngram,
    repetition_penalty,
    rules_for,
    temperature,
    top_k,
    top_p,
)
from tests.oracles.test_generate_against_transformers import assert_equal_ids

ARTICLES, BEAMS, VOCAB, SOURCE = 3, 4, 13, 9
ROWS = ARTICLES * BEAMS
CPU = torch.device("cpu")
WORDS = [[3], [4, 5], [6, 5], [5, 5, 5], [7, 8, 9, 10], [11], [1, 2, 3, 4, 5, 6, 7, 8]]


def random_source() -> Tensor:
    # Few different ids, so that n-grams do repeat.
    return torch.randint(3, 7, (ARTICLES, SOURCE), generator=torch.Generator().manual_seed(7))


def rows_of_one_length(tokens: Tensor) -> Prefixes:
    length = tokens.shape[1]
    return Prefixes(tokens, torch.full((len(tokens),), length), length, length)


PAIRS: dict[str, tuple[Rule, Callable[[Tensor, Tensor], Tensor]]] = (
    {
        "min length": (min_length(5, torch.tensor([2])), hf.MinLengthLogitsProcessor(5, 2)),
        "min length, two EOS": (min_length(5, torch.tensor([2, 6])), hf.MinLengthLogitsProcessor(5, [2, 6])),
        "forced BOS": (forced_token(1, torch.tensor([3])), hf.ForcedBOSTokenLogitsProcessor(3)),
        "forced EOS": (forced_token(7, torch.tensor([2])), hf.ForcedEOSTokenLogitsProcessor(8, 2)),
        "forced EOS, two": (forced_token(7, torch.tensor([2, 4])), hf.ForcedEOSTokenLogitsProcessor(8, [2, 4])),
        "repetition up": (repetition_penalty(1.7), hf.RepetitionPenaltyLogitsProcessor(1.7)),
        "repetition down": (repetition_penalty(0.6), hf.RepetitionPenaltyLogitsProcessor(0.6)),
        "bad words": (bad_words(WORDS, CPU), hf.NoBadWordsLogitsProcessor(WORDS)),
        "temperature": (temperature(0.7), hf.TemperatureLogitsWarper(0.7)),
        "top k": (top_k(5), hf.TopKLogitsWarper(5)),
        "top k above V": (top_k(50), hf.TopKLogitsWarper(50)),
        "top p": (top_p(0.6, 1), hf.TopPLogitsWarper(0.6)),
        "top p, at least": (top_p(0.01, 4), hf.TopPLogitsWarper(0.01, min_tokens_to_keep=4)),
    }
    | {f"{n}-gram": (no_repeat_ngram(n), hf.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3, 5)}
    | {
        f"encoder {n}-gram": (
            encoder_no_repeat_ngram(n, random_source()),
            hf.EncoderNoRepeatNGramLogitsProcessor(n, random_source()),
        )
        for n in (1, 2, 3, SOURCE, SOURCE + 1)
    }
)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("name", PAIRS)
def test_rule_equals_processor(name: str, length: int):
    rule, processor = PAIRS[name]
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(3, 7, (ROWS, length), generator=generator)
        tokens[:, 0] = 2
        scores = torch.randn(ROWS, VOCAB, generator=generator)
        scores[0, 5] = -torch.inf  # rules follow upon each other's bans
        scores[1] = scores[1].round()  # ties
        expected = processor(tokens, scores.clone())
        assert_equal_ids(rule(rows_of_one_length(tokens), scores), expected, what="score of id")


def test_each_rule_has_a_pair():
    made = {name for name, make in vars(rules).items() if getattr(make, "__annotations__", {}).get("return") == "Rule"}
    assert {rule.__qualname__.split(".")[0] for rule, _ in PAIRS.values()} == made


def test_the_random_sequences_do_bring_bans_about():
    tokens = torch.randint(3, 7, (ROWS, 8), generator=torch.Generator().manual_seed(0))
    for name in ("2-gram", "3-gram", "encoder 2-gram", "encoder 3-gram", "bad words"):
        assert PAIRS[name][0](rows_of_one_length(tokens), torch.zeros(ROWS, VOCAB)).isinf().any(), name


def test_bad_words_may_hold_a_single_eos_which_is_ignored():
    config = GenerationConfig(bad_words_ids=[[2], [3], [2, 4]], eos_token_id=2)
    (rule,) = rules_for(config, 8, None, CPU)
    processor = hf.NoBadWordsLogitsProcessor([[2], [3], [2, 4]], eos_token_id=2)
    tokens = torch.tensor([[2, 2], [2, 5]])
    scores = torch.zeros(2, VOCAB)
    expected = processor(tokens, scores.clone())
    assert torch.equal(rule(rows_of_one_length(tokens), scores), expected)


def test_a_bad_word_may_begin_with_the_very_first_id():
    """As transformers 5.23 has it; 5.17 wanted one id more in front."""
    scores = bad_words([[2, 4], [9, 2, 4]], CPU)(rows_of_one_length(torch.tensor([[2]])), torch.zeros(1, VOCAB))
    assert scores.isinf().nonzero().tolist() == [[0, 4]]
