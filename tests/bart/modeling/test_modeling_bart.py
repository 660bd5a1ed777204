"""The network's promises besides agreeing with transformers."""

from __future__ import annotations

import functools

import pytest
import torch
import torch._dynamo
from torch.utils.flop_counter import FlopCounterMode

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration, training_operations
from tests.tiny_run import tiny_bart

tiny = functools.partial(tiny_bart, encoder_layers=2, decoder_layers=2, max_position_embeddings=12)
SOME = torch.full((2, 3), 5)


def loss_and_gradients(model: BartForConditionalGeneration, length: int = 9) -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(3, 50, (3, length))
    loss = model(ids, attention_mask=(ids > 5).long(), labels=ids[:, : length // 2 + 1]).loss
    return loss, list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def test_activation_checkpointing_changes_memory_not_results() -> None:
    model = tiny(dropout=0.3, attention_dropout=0.2).train()
    loss, gradients = loss_and_gradients(model)
    calls = []
    model.model.encoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.gradient_checkpointing_enable()
    again, gradients_again = loss_and_gradients(model)
    assert len(calls) == 2  # once forward, once more in the backward pass
    assert loss == again
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_again, strict=True))


def test_layerdrop_skips_layers_in_training_only() -> None:
    model = tiny(encoder_layerdrop=0.5, decoder_layerdrop=0.5, dropout=0.0)
    ids = torch.randint(3, 50, (2, 6))
    model.eval()
    assert torch.equal(model(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)
    model.train()
    counts = torch.zeros(2)
    for index, layer in enumerate((model.model.encoder.layers[0], model.model.decoder.layers[1])):
        layer.register_forward_pre_hook(lambda *_, index=index: counts.__setitem__(index, counts[index] + 1))
    torch.manual_seed(0)
    for _ in range(200):
        model(ids, decoder_input_ids=ids)
    assert ((counts > 70) & (counts < 130)).all()  # binomial(200, 0.5): five standard deviations are 35


def test_initial_weights() -> None:
    model = tiny(init_std=0.05, vocab_size=5000, d_model=64)
    assert model.model.shared.weight.std().item() == pytest.approx(0.05, rel=0.02)
    assert model.model.shared.weight[1].abs().sum() == 0  # padding
    assert model.model.encoder.layers[0].fc1.bias.abs().sum() == 0
    assert model.lm_head.weight is model.model.shared.weight


def test_more_tokens_than_positions_is_an_error_that_names_both_numbers() -> None:
    model = tiny()
    with pytest.raises(InputError, match=r"13 tokens.*max_position_embeddings \(12\)"):
        model.encode(torch.full((1, 13), 5))


def test_an_encoder_of_another_language_reads_what_the_mask_says() -> None:
    """Whatever ids stand elsewhere: decoding without a padding id puts others there."""
    model = tiny(source_encoder_layers=1, source_vocab_size=50).eval()
    ids = torch.randint(3, 50, (2, 9))
    ids[1, 2] = model.config.pad_token_id
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    torch.testing.assert_close(model.encode(ids, mask)[1:, :6], model.encode(ids[1:, :6]), rtol=0, atol=1e-5)
    assert not torch.equal(model.encode(ids, mask)[1], model.encode(ids)[1])
    model.generation_config.pad_token_id = None
    options = {"max_length": 12, "eos_token_id": None}
    sources = [ids[0].tolist(), ids[1, :6].tolist()]
    for article in model.double().generate_many(sources, 2, **options):
        alone = model.generate(torch.tensor([sources[article.index]]), **options)
        assert article.sequences.tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": "text"}, r"input_ids is str 'text'; allowed: a tensor"),
        ({"input_ids": SOME, "labels": torch.full((3, 4), 5)}, "targets have 3 rows; allowed: 2, as the sources"),
        (
            {"input_ids": SOME, "labels": torch.full((2,), 5)},
            r"labels are .* \(2,\); allowed: integers \(texts, length",
        ),
        ({"encoder_outputs": torch.ones(2, 3, 16), "decoder_input_ids": SOME[:1]}, "targets have 1 rows; allowed: 2"),
        (
            {"input_ids": SOME, "decoder_input_ids": SOME, "labels": SOME[:, :2]},
            r"labels is \(2, 2\); allowed: \(2, 3\), as decoder_input_ids",
        ),
        ({"input_ids": SOME, "decoder_input_ids": SOME, "summed_loss": True}, "summed_loss needs labels"),
        ({"encoder_outputs": torch.zeros(1, 3, 16)}, "needs input_ids, and got none"),
        ({"labels": SOME}, "needs input_ids, and got none"),
        ({"input_ids": SOME + 200, "labels": SOME}, "input_ids hold 205 to 205; allowed: ids from 0 to "),
        ({"input_ids": SOME, "labels": SOME - 7}, "labels hold -2 to -2; allowed: ids from 0 to "),
        ({"input_ids": SOME, "decoder_input_ids": SOME - 7}, "decoder_input_ids hold -2 to -2; allowed"),
        ({"input_ids": SOME, "labels": SOME, "attention_mask": [[1] * 3] * 2}, "attention_mask is list"),
        # Masks that would be repeated in silence.
        ({"input_ids": SOME, "labels": SOME, "attention_mask": SOME[:, :1]}, r"attention_mask is \(2, 1\); allowed"),
        (
            {"input_ids": SOME, "labels": SOME, "decoder_attention_mask": SOME[:, :1]},
            r"decoder_attention_mask is \(2, 1\); allowed: \(2, 3\), as decoder_input_ids",
        ),
        (
            {"encoder_outputs": torch.ones(2, 3, 16), "decoder_input_ids": SOME, "attention_mask": SOME[:1]},
            r"attention_mask is \(1, 3\); allowed: \(2, 3\), as encoder_outputs",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        tiny()(**inputs)
    assert "\n" not in str(error.value)
    assert tiny()(SOME, labels=SOME[:, :0]).logits.shape[:2] == (2, 0)  # which fits


def test_operations_of_a_training_step_are_those_that_torch_counts() -> None:
    sizes = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "decoder_layers": 3, "max_position_embeddings": 64}
    for freeze_embeds, before in ((False, {}), (True, {}), (False, {"source_encoder_layers": 3})):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = tiny(**sizes, **before, dropout=0.0).train()
            model.model.shared.requires_grad_(not freeze_embeds)
            source, target = (torch.ones(1, length, dtype=torch.long) for length in (24, 40))
            model(source, labels=target).loss.backward()
        assert training_operations(model.config, 24, 40, freeze_embeds) == counter.get_total_flops()
