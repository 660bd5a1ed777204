"""The network against Hugging Face's, in double precision: logits, loss, gradients, cached steps."""

from __future__ import annotations

import pytest
import torch
from transformers import BartConfig as HFBartConfig
from transformers import BartForConditionalGeneration as HFBart
from transformers import MBartConfig, MBartForConditionalGeneration

from bart.configuration.configuration_bart import ACTIVATIONS, BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration

EXACT = 1e-10  # logits and gradients are of the order of 1: a million times the rounding of double precision
TINY = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_std": 0.3,
}


def pair(family: str = "bart", **changes: object) -> tuple[torch.nn.Module, BartForConditionalGeneration]:
    """A random Hugging Face model and ours with its weights."""
    torch.manual_seed(0)
    classes = {"bart": (HFBartConfig, HFBart), "mbart": (MBartConfig, MBartForConditionalGeneration)}
    config_class, model_class = classes[family]
    config = config_class(**{**TINY, **changes})
    theirs = model_class(config).double().eval()
    with torch.no_grad():
        theirs.final_logits_bias.normal_()
    ours = BartForConditionalGeneration(BartConfig(**config.to_dict())).double().eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def batch() -> dict[str, torch.Tensor]:
    """Ragged sources and targets: (4, 17) and (4, 11), padded on the right."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(3, 97, (4, 17), generator=generator)
    labels = torch.randint(3, 97, (4, 11), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    for row, (source, target) in enumerate([(17, 11), (9, 3), (1, 7), (13, 1)]):
        input_ids[row, source:] = 1
        attention_mask[row, source:] = 0
        labels[row, target:] = -100
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


VARIANTS = [
    *[pytest.param("bart", {"activation_function": name}, id=name) for name in ACTIVATIONS],
    pytest.param("bart", {"scale_embedding": True}, id="scaled embeddings"),
    pytest.param("mbart", {}, id="Pre-LN"),
    pytest.param("mbart", {"scale_embedding": True}, id="Pre-LN, scaled embeddings"),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_logits_loss_and_every_gradient(family: str, changes: dict[str, object]) -> None:
    theirs, ours = pair(family, **changes)
    inputs = batch()
    if family == "mbart":  # its own shift puts a language id first; hand both models the same decoder input
        inputs["decoder_input_ids"] = torch.randint(3, 97, (4, 11), generator=torch.Generator().manual_seed(2))
    expected, actual = theirs(**inputs), ours(**inputs)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=0, atol=EXACT)
    torch.testing.assert_close(actual.encoder_last_hidden_state, expected.encoder_last_hidden_state, rtol=0, atol=EXACT)
    torch.testing.assert_close(actual.loss, expected.loss, rtol=0, atol=EXACT)
    assert actual[0] is actual.loss
    assert actual[1] is actual.logits
    expected.loss.backward()
    actual.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=EXACT, msg=name)


def test_decoder_attention_mask() -> None:
    theirs, ours = pair()
    inputs = batch()
    labels = inputs.pop("labels")
    inputs["decoder_input_ids"] = labels.clamp(min=1)
    mask = torch.ones_like(labels)
    mask[0, 3:5] = 0  # a hole in the middle, where causality alone would let later positions read
    inputs["decoder_attention_mask"] = mask
    torch.testing.assert_close(ours(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=EXACT)


@pytest.mark.parametrize("family", ["bart", "mbart"])
def test_the_same_draws_give_both_the_same_dropout_and_layerdrop(family: str) -> None:
    drops = {"dropout": 0.2, "activation_dropout": 0.3, "attention_dropout": 0.1}
    theirs, ours = pair(family, **drops, encoder_layerdrop=0.4, decoder_layerdrop=0.4)
    models = theirs.train(), ours.train()
    inputs = batch()
    inputs["decoder_input_ids"] = torch.randint(3, 97, (4, 11))
    for seed in range(5):
        losses, gradients = [], []
        for model in models:
            torch.manual_seed(seed)
            losses.append(model(**inputs).loss)
            gradients += torch.autograd.grad(losses[-1], model.model.shared.weight)
        torch.testing.assert_close(*losses, rtol=0, atol=EXACT)
        torch.testing.assert_close(*gradients, rtol=0, atol=EXACT)


@pytest.mark.parametrize("family", ["bart", "mbart"])
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_steps_equal_the_full_pass(family: str, beams: int) -> None:
    _, ours = pair(family)
    inputs = batch()
    ids = torch.randint(3, 97, (4 * beams, 12), generator=torch.Generator().manual_seed(4))
    sources = inputs["input_ids"].repeat_interleave(beams, 0)
    mask = inputs["attention_mask"].repeat_interleave(beams, 0)
    with torch.no_grad():
        expected = ours(sources, mask, decoder_input_ids=ids).logits
        states = ours.encode(inputs["input_ids"], inputs["attention_mask"])
        cache = ours.new_cache(states, inputs["attention_mask"], beams=beams, max_length=12)
        steps = []
        for column in ids.T:
            cache.advance()
            steps.append(ours.decode(column.view(4, beams), cache))
    assert cache.steps == 12
    torch.testing.assert_close(torch.stack(steps, 2).flatten(0, 1), expected, rtol=0, atol=EXACT)


def test_reordered_cache_continues_the_chosen_rows() -> None:
    _, ours = pair()
    inputs = batch()
    ids = torch.randint(3, 97, (8, 6), generator=torch.Generator().manual_seed(5))
    order = torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]])
    with torch.no_grad():
        states = ours.encode(inputs["input_ids"], inputs["attention_mask"])
        cache = ours.new_cache(states, inputs["attention_mask"], beams=2, max_length=6)
        for column in ids[:, :5].T:
            cache.advance()
            ours.decode(column.view(4, 2), cache)
        cache.reorder(order)
        cache.advance()
        actual = ours.decode(ids[:, 5].view(4, 2), cache)
        rows = (order + torch.arange(0, 8, 2)[:, None]).flatten()
        followed = torch.cat([ids[rows, :5], ids[:, 5:]], 1)
        mask = inputs["attention_mask"].repeat_interleave(2, 0)
        expected = ours(inputs["input_ids"].repeat_interleave(2, 0), mask, decoder_input_ids=followed).logits[:, 5]
    torch.testing.assert_close(actual.flatten(0, 1), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("family", ["bart", "mbart"])
def test_padding_changes_nothing(family: str) -> None:
    _, ours = pair(family)
    inputs = batch()
    decoder_input_ids = torch.randint(3, 97, (4, 6))
    with torch.no_grad():
        together = ours(inputs["input_ids"], inputs["attention_mask"], decoder_input_ids=decoder_input_ids).logits
        for row, length in enumerate([17, 9, 1, 13]):
            alone = ours(
                inputs["input_ids"][row : row + 1, :length], decoder_input_ids=decoder_input_ids[row : row + 1]
            )
            torch.testing.assert_close(together[row : row + 1], alone.logits, rtol=0, atol=EXACT)


@pytest.mark.slow
def test_bart_large_at_full_size() -> None:
    """406 M parameters: logits, gradients, and beam search of one article, against transformers."""
    torch.manual_seed(0)
    theirs = HFBart(HFBartConfig(dropout=0.0)).double().eval()
    config = BartConfig(**theirs.config.to_dict())
    with torch.device("meta"):
        ours = BartForConditionalGeneration(config)
    ours.load_state_dict(theirs.state_dict(), assign=True)  # one copy of the weights serves both models
    ours.tie_weights()
    ours.eval()
    input_ids = torch.randint(3, 50000, (2, 200))
    mask = torch.ones_like(input_ids)
    input_ids[1, 120:], mask[1, 120:] = 1, 0
    labels = torch.randint(3, 50000, (2, 30))
    expected, actual = (model(input_ids=input_ids, attention_mask=mask, labels=labels) for model in (theirs, ours))
    torch.testing.assert_close(actual.logits, expected.logits, rtol=0, atol=EXACT)
    torch.testing.assert_close(actual.loss, expected.loss, rtol=0, atol=EXACT)
    options = {"num_beams": 4, "max_length": 30, "min_length": 10, "no_repeat_ngram_size": 3, "length_penalty": 2.0}
    options |= {"early_stopping": True, "forced_bos_token_id": 0}
    expected_ids = theirs.generate(input_ids, attention_mask=mask, **options)
    assert ours.generate(input_ids, attention_mask=mask, **options).tolist() == expected_ids.tolist()
