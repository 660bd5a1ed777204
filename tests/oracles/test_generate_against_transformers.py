"""Generated ids equal those of transformers over a grid of options, on tiny random BARTs that stop at different steps.

Both networks run in double precision, so that no choice depends on rounding; both round logits to fp32 and go on in
that.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.generation import GenerationConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The grid asks for min_length above max_length, and for options of methods not in use, on purpose.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PAD, EOS, VOCAB = 1, 2, 97

CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
    "init_std": 0.5,
}

Pair = tuple[transformers.BartForConditionalGeneration, BartForConditionalGeneration]


def make_pair(seed: int, eos_bias: float) -> Pair:
    torch.manual_seed(seed)
    theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**CONFIG)).double().eval()
    theirs.final_logits_bias[0, EOS] = eos_bias
    ours = BartForConditionalGeneration(BartConfig(**CONFIG)).double().eval()
    ours.load_state_dict(theirs.state_dict(), strict=False)
    return theirs, ours


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [make_pair(0, 4.0), make_pair(3, 5.0), make_pair(6, 3.0)]


def batch(seed: int, articles: int = 5, longest: int = 14) -> tuple[Tensor, Tensor]:
    """Articles of different lengths, at least one id and EOS each, with their mask."""
    lengths = [*random.Random(seed).choices(range(2, longest), k=articles - 1), longest]
    ids = torch.randint(3, VOCAB, (articles, longest), generator=torch.Generator().manual_seed(seed))
    for row, length in enumerate(lengths):
        ids[row, length - 1] = EOS
        ids[row, length:] = PAD
    return ids, (ids != PAD).long()


def assert_same(pair: Pair, ids: Tensor, mask: Tensor, options: dict[str, Any], seed: int = 0) -> Tensor:
    """Compare everything that generate returns; give back the sequences."""
    both = {"return_dict_in_generate": True, "output_scores": True}
    torch.manual_seed(seed)
    expected = pair[0].generate(ids, attention_mask=mask, **both, **options)
    torch.manual_seed(seed)
    got = pair[1].generate(ids, attention_mask=mask, **both, **options)
    assert_equal_ids(got.sequences, expected.sequences)
    assert len(got.scores) == len(expected.scores)
    if options.get("num_beams", 1) > 1:
        assert_close_in_fp32(got.sequences_scores, expected.sequences_scores, len(got.scores))
        # Two sampled beams may hold the same ids. Either may be chosen from: their scores are equal.
        for sequence, step in (got.beam_indices != expected.beam_indices).nonzero().tolist():
            assert options.get("do_sample")
            ours, theirs = (output.scores[step][output.beam_indices[sequence, step]] for output in (got, expected))
            assert_close_in_fp32(ours, theirs, 1)
    else:
        assert got.sequences_scores is None
    return got.sequences


def assert_equal_ids(ours: Tensor, theirs: Tensor, what: str = "id") -> None:
    """Equal, or an error that names the first row and place that differ; both are (R, T)."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} here, {tuple(theirs.shape)} in transformers"
    for row, place in (ours != theirs).nonzero().tolist()[:1]:
        pytest.fail(f"row {row}, {what} {place}: {ours[row, place]} here, {theirs[row, place]} in transformers")


def assert_close_in_fp32(ours: Tensor, theirs: Tensor, terms: int) -> None:
    """Equal apart from the rounding of sums of so many terms, of logits and of their softmax."""
    torch.testing.assert_close(ours, theirs, rtol=(terms + 8) * 2**-24, atol=(terms + 8) * 2**-24)


def lengths(sequences: Tensor) -> set[int]:
    return {int(length) for length in (sequences != PAD).sum(dim=1)}


def test_the_models_do_stop_at_different_steps(pairs: list[Pair]):
    for pair in pairs:
        ids, mask = batch(0, articles=12)
        options = {"max_length": 25, "num_beams": 3, "no_repeat_ngram_size": 3}
        found = lengths(pair[1].generate(ids, attention_mask=mask, **options))
        assert len(found) >= 4
        assert min(found) < 10


CORE: dict[str, list[Any]] = {
    "num_beams": [2, 4],
    "early_stopping": [True, False, "never"],
    "length_penalty": [0.0, 1.0, 2.0],
    "no_repeat_ngram_size": [0, 3],
    "min_length": [0, 9],
}
CORE_CASES = [dict(zip(CORE, values, strict=True)) for values in itertools.product(*CORE.values())]


@pytest.mark.parametrize(
    "number",  # every fifth case: each value of an option with each of another one
    [pytest.param(number, marks=pytest.mark.slow if number % 5 else ()) for number in range(len(CORE_CASES))],
)
def test_core_options_in_full_product(pairs: list[Pair], number: int):
    options = CORE_CASES[number] | {"num_return_sequences": CORE_CASES[number]["num_beams"], "max_length": 22}
    assert_same(pairs[number % 3], *batch(number), options)


def random_options(seed: int) -> dict[str, Any]:
    """One choice for every option."""
    pick = random.Random(seed).choice
    beams = pick([1, 2, 3, 4, 6])
    options: dict[str, Any] = {
        "num_beams": beams,
        "max_length": pick([2, 3, 12, 22, 30, 41]),
        "min_length": pick([0, 0, 6]),
        "length_penalty": pick([-1.0, 0.0, 0.6, 1.0, 2.0]),
        "early_stopping": pick([True, False, "never"]),
        "no_repeat_ngram_size": pick([0, 1, 2, 3]),
        "encoder_no_repeat_ngram_size": pick([0, 0, 1, 2, 3]),
        "repetition_penalty": pick([1.0, 1.0, 1.3, 0.8]),
        # None begins with the start token: transformers 5.17, unlike 5.23, overlooks a word begun by the very first id.
        "bad_words_ids": pick([None, [[5], [6, 7], [8, 9, 10], [2]], [[word, 2] for word in range(3, 50)]]),
        "forced_bos_token_id": pick([None, 0, 7]),
        "forced_eos_token_id": pick([None, 2, 2, [2, 5]]),
        "eos_token_id": pick([2, 2, [2, 11, 12]]),
        "do_sample": pick([False, False, True]),
        "temperature": pick([1.0, 0.7, 1.5]),
        "top_k": pick([0, 5, 50]),
        "top_p": pick([1.0, 0.8, 0.3]),
    }
    options["num_return_sequences"] = pick([1, beams]) if beams > 1 or not options["do_sample"] else pick([1, 3])
    if pick([True, False]):
        options |= {"max_new_tokens": options["max_length"] - 1, "min_new_tokens": options["min_length"]}
        del options["max_length"], options["min_length"]
    return options


def test_each_option_is_compared():
    fixed = {
        "num_beam_groups",
        "diversity_penalty",
        "output_scores",
        "return_dict_in_generate",
    }  # one value
    elsewhere = {"pad_token_id", "bos_token_id", "decoder_start_token_id"}  # test_fields_against_transformers.py
    options = {option.name for option in dataclasses.fields(GenerationConfig)}
    assert {name for seed in range(9) for name in random_options(seed)} | fixed | elsewhere == options


@pytest.mark.parametrize("seed", [*range(75), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(75, 150))])
def test_all_options_at_random(pairs: list[Pair], seed: int):
    assert_same(pairs[seed % 3], *batch(seed, articles=1 + seed % 5), random_options(seed), seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_length": 4},
        {"num_beams": 3, "encoder_no_repeat_ngram_size": 2, "forced_bos_token_id": 0},
        {"do_sample": True, "top_k": 10, "top_p": 0.9, "temperature": 1.3},
        {"do_sample": True, "num_beams": 3, "top_p": 0.9},
    ],
    ids=str,
)
def test_the_scores_of_every_step(pairs: list[Pair], options: dict[str, Any]):
    for theirs, ours in pairs:
        ids, mask = batch(1)
        both = {"max_length": 12, "return_dict_in_generate": True, "output_scores": True} | options
        torch.manual_seed(0)
        expected = theirs.generate(ids, attention_mask=mask, **both).scores
        torch.manual_seed(0)
        got = ours.generate(ids, attention_mask=mask, **both).scores
        assert_close_in_fp32(torch.stack(got), torch.stack(expected), 1)


def test_defaults_of_a_model_and_of_its_generation_config(pairs: list[Pair]):
    """Without any option: 20 new ids, greedy, EOS forced in the last place."""
    theirs, ours = pairs[0]
    ids, mask = batch(3)
    expected = theirs.generate(ids, attention_mask=mask)
    assert expected.shape[1] == 21
    assert_equal_ids(ours.generate(ids, attention_mask=mask), expected)


def test_our_generation_config_is_read_by_transformers_and_theirs_by_us():
    ours = GenerationConfig(
        num_beams=4, length_penalty=2.0, early_stopping=True, eos_token_id=2, bad_words_ids=[[4, 5]]
    )
    theirs = transformers.GenerationConfig.from_dict(ours.to_dict())
    assert {name: getattr(theirs, name) for name in ours.to_dict()} == ours.to_dict()
    assert GenerationConfig.from_dict(theirs.to_dict()) == ours


def test_a_generation_config_may_be_given_as_there(pairs: list[Pair]):
    theirs, ours = pairs[0]
    ids, mask = batch(3)
    config = transformers.GenerationConfig(num_beams=3, max_new_tokens=9, no_repeat_ngram_size=2)
    expected = theirs.generate(ids, attention_mask=mask, generation_config=config, length_penalty=0.5)
    fields = {"num_beams": 3, "max_new_tokens": 9, "no_repeat_ngram_size": 2}
    for given in (config, GenerationConfig(**fields), {**fields, "eos_token_id": None}):
        got = ours.generate(ids, attention_mask=mask, generation_config=given, length_penalty=0.5)
        assert_equal_ids(got, expected)
    assert ours.generation_config.num_beams == 1
