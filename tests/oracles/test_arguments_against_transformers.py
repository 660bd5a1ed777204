"""Arguments of models against Hugging Face's: their places, what may be left out, what has no effect."""

from __future__ import annotations

import copy
import inspect
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.bart.modeling_bart import BartDecoder, BartEncoder

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.modeling import heads, layers, modeling_bart
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.modeling import modeling_bert
from tests.oracles.test_encoders_against_transformers import inputs, theirs_of
from tests.oracles.test_model_against_transformers import EXACT

BART = {
    modeling_bart.BartModel: transformers.BartModel,
    modeling_bart.BartForConditionalGeneration: transformers.BartForConditionalGeneration,
    heads.BartForSequenceClassification: transformers.BartForSequenceClassification,
    heads.BartForQuestionAnswering: transformers.BartForQuestionAnswering,
}
BERT = {
    modeling_bert.BertModel: transformers.BertModel,
    modeling_bert.BertForPreTraining: transformers.BertForPreTraining,
    modeling_bert.BertForMaskedLM: transformers.BertForMaskedLM,
    modeling_bert.BertForSequenceClassification: transformers.BertForSequenceClassification,
    modeling_bert.BertForTokenClassification: transformers.BertForTokenClassification,
    modeling_bert.BertForQuestionAnswering: transformers.BertForQuestionAnswering,
}
PLACES = {ours.forward: theirs.forward for ours, theirs in (BART | BERT).items()} | {
    heads.BartForTokenClassification.forward: transformers.BartForSequenceClassification.forward,
    layers.BartEncoder.forward: BartEncoder.forward,
    layers.BartDecoder.forward: BartDecoder.forward,
}


def places(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize(("ours", "theirs"), PLACES.items(), ids=lambda function: function.__qualname__)
def test_arguments_have_the_places_of_transformers(ours: object, theirs: object) -> None:
    assert places(ours) == places(theirs)[: len(places(ours))]


def test_generate_and_tokenizers_have_the_places_of_transformers() -> None:
    ours, theirs = (module.BartForConditionalGeneration.generate for module in (modeling_bart, transformers))
    assert places(ours)[2:] == places(theirs)[2 : len(places(ours))]
    assert places(BartTokenizer.__call__) == places(transformers.BartTokenizer.__call__)[:4]
    model, ids = loaded("BartForConditionalGeneration")[1], inputs("Bart")["input_ids"]
    assert model.generate(ids, {"max_length": 5}).shape == (4, 5)
    with pytest.raises(InputError, match="generation_config is Tensor "):
        model.generate(ids, torch.ones_like(ids))


@cache
def loaded(name: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model of transformers and ours with its weights, in double precision."""
    theirs = theirs_of(name)
    ours_class = next(ours for ours in BART | BERT if ours.__name__ == name)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = ours_class.from_pretrained(folder)
    return theirs.double(), ours.double()


@pytest.mark.parametrize("name", [model.__name__ for model in BART | BERT])
def test_inputs_by_place_and_arguments_without_effect(name: str) -> None:
    theirs, ours = loaded(name)
    given = inputs(name[:4])
    if name.startswith("Bart"):
        given["encoder_outputs"] = theirs.get_encoder()(given["input_ids"], given["attention_mask"])
        if name == "BartForSequenceClassification":  # decoder ids as many as the source's, with its ends
            given |= {"decoder_input_ids": given["input_ids"], "decoder_attention_mask": None}
    if name == "BartForQuestionAnswering":
        del given["decoder_input_ids"], given["decoder_attention_mask"]
        given = {**given, "encoder_outputs": tuple(given["encoder_outputs"].values())}
        expected, actual = theirs(**given), ours(**given, use_cache=False, output_attentions=False)
    else:
        expected, actual = theirs(*given.values()), ours(*given.values(), inputs_embeds=None, output_attentions=False)
    for value in ("logits", "last_hidden_state", "prediction_logits", "start_logits"):
        if value in expected:
            torch.testing.assert_close(actual[value], expected[value], rtol=0, atol=EXACT)
    assert all(map(torch.equal, ours(**given, return_dict=False), actual.to_tuple()))
    assert all(map(torch.equal, type(actual)({**actual}).to_tuple(), actual.to_tuple()))  # as accelerate copies it
    for wrong in ({"atention_mask": None}, {"past_key_values": ()}, {"use_cache": "yes"}):
        with pytest.raises(
            InputError, match=f"{name} got {next(iter(wrong))}, which is .*; (allowed: input_ids, att|use model)"
        ):
            ours(**given, **wrong)


def test_ids_alone_are_shifted_for_the_decoder() -> None:
    """The mask-filling example of transformers' page on BART."""
    theirs, ours = loaded("BartForConditionalGeneration")
    ids = inputs("Bart")["input_ids"]
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=EXACT)


def test_what_an_encoder_of_transformers_returns_is_taken() -> None:
    theirs, ours = loaded("BartForConditionalGeneration")
    given = inputs("Bart")
    ids, mask = given["input_ids"], given["attention_mask"]
    states = theirs.get_encoder()(ids, mask)
    expected = theirs.generate(ids, attention_mask=mask, num_beams=2, max_length=9)
    for outputs in (states, tuple(states.values()), [states[0]], states[0]):
        assert torch.equal(
            ours.generate(encoder_outputs=outputs, attention_mask=mask, num_beams=2, max_length=9), expected
        )
        actual = ours(attention_mask=mask, encoder_outputs=outputs, labels=ids).loss
        torch.testing.assert_close(actual, theirs(ids, mask, labels=ids).loss, rtol=0, atol=EXACT)
    for outputs in ((), "text", {"hidden": states[0]}):
        with pytest.raises(InputError, match="encoder_outputs is .*; allowed: a tensor"):
            ours(attention_mask=mask, encoder_outputs=outputs, labels=ids)


def test_a_generation_config_for_one_call(recwarn: pytest.WarningsRecorder) -> None:
    """Fields that are not built here are refused, unless they change nothing."""
    theirs, ours = loaded("BartForConditionalGeneration")
    ids = inputs("Bart")["input_ids"][:1]
    refused = {"suppress_tokens": [5, 6], "begin_suppress_tokens": [5], "sequence_bias": [[[5], 9.0]], "min_p": 0.4}
    refused |= {"exponential_decay_length_penalty": (2, 1.5), "encoder_repetition_penalty": 1.5, "guidance_scale": 0.0}
    refused |= {"output_logits": True, "output_attentions": True, "prompt_lookup_num_tokens": 3, "max_time": 0.0}
    for name, value in refused.items():
        config = transformers.GenerationConfig(**{name: value}, max_length=9)
        with pytest.raises(InputError, match=f"{name} is {re.escape(repr(value))}, which is no generation option"):
            ours.generate(ids, generation_config=config)
    taken = {"suppress_tokens": [], "typical_p": 1.0, "remove_invalid_values": True, "use_cache": False}
    taken |= {"output_attentions": False, "encoder_repetition_penalty": 1.0, "cache_implementation": "dynamic"}
    config = transformers.GenerationConfig(**taken, max_length=9)
    assert torch.equal(ours.generate(ids, config), theirs.generate(ids, config))
    assert not [warning for warning in recwarn.list if "not supported here" in str(warning.message)]


def test_a_call_takes_what_its_generation_config_was_given() -> None:
    theirs, ours = map(copy.deepcopy, loaded("BartForConditionalGeneration"))
    ids = inputs("Bart")["input_ids"]
    for model in (theirs, ours):
        model.generation_config.num_beams, model.generation_config.no_repeat_ngram_size = 3, 1
    for given in ({}, {"max_length": 9}, {"num_beams": 1, "max_length": 9}):
        expected = theirs.generate(ids, transformers.GenerationConfig(**given), attention_mask=ids != 1)
        assert torch.equal(ours.generate(ids, GenerationConfig(**given)), expected)


def test_what_belongs_elsewhere_is_refused_by_a_line_that_says_where(tmp_path: Path) -> None:
    theirs, ours = loaded("BartForConditionalGeneration")
    ours.save_pretrained(tmp_path, BartTokenizer.train(["a"], 270))
    load, tokenizer = type(ours).from_pretrained, BartTokenizer.from_pretrained(tmp_path)
    assert load(tmp_path, num_beams=3, eos_token_id=5).generation_config.merged() == (
        ours.generation_config.merged(num_beams=3, eos_token_id=5)
    )
    for call, line in (
        (lambda: load(tmp_path, config=theirs.config), r"config is .*; allowed: .*BartConfig\(\*\*config.to_dict"),
        (lambda: type(ours)(theirs.config), "config is .*; allowed: a BartConfig"),
        (lambda: ours.generate(inputs=inputs("Bart")["input_ids"]), "call it input_ids"),
        (lambda: BartTokenizer.from_pretrained(tmp_path, model_max_length=9), "set it on the loaded tokenizer"),
        (lambda: tokenizer("a", pad_to_multiple_of=8), "give padding='max_length'"),
        (lambda: tokenizer("a").word_ids, "Encoded has no word_ids; docs"),
        (lambda: ours.main_input_name, "BartForConditionalGeneration has no main_input_name; docs"),
        (lambda: ours.generation_config.update, "GenerationConfig has no update; docs"),
        (lambda: setattr(ours.generation_config, "num_beam", 4), "did you mean 'num_beams'"),
    ):
        with pytest.raises((InputError, AttributeError), match=line):
            call()


def test_arguments_of_tokenizers(tmp_path: Path) -> None:
    BartTokenizer.train(["a bc de f gh i"], vocab_size=270).save_pretrained(tmp_path)
    theirs, ours = transformers.BartTokenizer.from_pretrained(tmp_path), BartTokenizer.from_pretrained(tmp_path)
    neutral = {"stride": 0, "return_attention_mask": True, "return_length": False, "verbose": False}
    neutral |= {"padding_side": "right", "text_target": None, "return_overflowing_tokens": False}
    for options in ({}, {"max_length": 2, "add_special_tokens": False}, {"max_length": 1, "add_special_tokens": False}):
        expected = theirs(text="a bc de", text_pair="f gh i", truncation=bool(options), **options)["input_ids"]
        got = ours(text="a bc de", text_pair="f gh i", truncation=bool(options), **options, **neutral)["input_ids"]
        assert got == expected
    for wrong in ({"stride": 2}, {"padding_side": "left"}, {"texts": "a"}, {"paddin": None}):
        with pytest.raises(
            InputError, match=f"BartTokenizer got {next(iter(wrong))}, which is .*; allowed: text, text_"
        ):
            ours("a", **wrong)
