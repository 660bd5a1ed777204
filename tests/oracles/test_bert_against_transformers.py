"""BERT's network against Hugging Face's: logits, losses, gradients, weights in and out, copies for inference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers

from bart.configuration.configuration import kind_of
from bart.errors import InputError
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainedBert,
)
from tests.oracles.test_model_against_transformers import EXACT

CLASSES = {
    "PreTraining": BertForPreTraining,
    "MaskedLM": BertForMaskedLM,
    "SequenceClassification": BertForSequenceClassification,
    "TokenClassification": BertForTokenClassification,
    "QuestionAnswering": BertForQuestionAnswering,
}
OUTPUTS = {
    "PreTraining": ("prediction_logits", "seq_relationship_logits"),
    "QuestionAnswering": ("start_logits", "end_logits"),
}
WEIGHTS = os.environ.get("BERT_WEIGHTS", "")  # a folder of a pretrained BERT
SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 40, "initializer_range": 0.3},
}


def theirs_of(head: str, **changes: object) -> transformers.PreTrainedModel:
    """A random Hugging Face model, whose biases and norms are random as well."""
    torch.manual_seed(0)
    theirs = getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return theirs


def loaded(theirs: transformers.PreTrainedModel, folder: Path) -> PretrainedBert:
    theirs.save_pretrained(folder)
    return CLASSES[type(theirs).__name__.removeprefix("BertFor")].from_pretrained(folder)


def texts(types: bool = True) -> dict[str, torch.Tensor]:
    """Ids (4, 17), ragged, of two segments."""
    ids = torch.randint(5, 97, (4, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate((17, 9, 4, 13)):
        ids[row, length:], mask[row, length:] = 0, 0
    given = {"input_ids": ids, "attention_mask": mask}
    return {**given, "token_type_ids": (torch.arange(17) > 3).long().repeat(4, 1)} if types else given


TOKENS = torch.where(torch.arange(68).view(4, 17) % 5 == 1, torch.arange(68).view(4, 17) % 3, -100)
LABELS = [
    ("PreTraining", {}, {"labels": TOKENS, "next_sentence_label": torch.tensor([0, 1, 1, 0])}),
    ("MaskedLM", {}, {"labels": TOKENS}),
    ("SequenceClassification", {"num_labels": 3}, {"labels": torch.tensor([0, 2, 1, 2])}),
    ("SequenceClassification", {"num_labels": 1}, {"labels": torch.tensor([0.5, -1, 2, 3]).double()}),
    ("SequenceClassification", {"num_labels": 3}, {"labels": torch.eye(4, 3).double()}),
    ("TokenClassification", {"num_labels": 3}, {"labels": TOKENS}),
    (
        "QuestionAnswering",
        {},
        {"start_positions": torch.tensor([3, 0, 40, 2]), "end_positions": torch.tensor([5, 0, 1, 17])},
    ),
]


@pytest.mark.parametrize("types", [True, False], ids=["types", "no types"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("head", "changes", "labels"), LABELS)
def test_logits_losses_and_gradients(
    head: str, changes: dict[str, object], labels: dict[str, torch.Tensor], activation: str, types: bool, tmp_path: Path
) -> None:
    theirs = theirs_of(head, **changes, hidden_act=activation)
    ours = loaded(theirs, tmp_path).double()
    theirs = theirs.double()
    inputs = {**texts(types), **labels}
    expected, actual = theirs(**inputs), ours(**inputs)
    for number, name in enumerate(("loss", *OUTPUTS.get(head, ("logits",)))):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), rtol=0, atol=EXACT)
        assert actual[number] is getattr(actual, name)
    expected.loss.backward()
    actual.loss.backward()
    gradients = {ours.stored_name(name): one.grad for name, one in ours.named_parameters()}
    for name, one in theirs.named_parameters():
        torch.testing.assert_close(gradients.pop(name), one.grad, rtol=0, atol=EXACT)
    assert not gradients


def test_the_summed_loss_is_of_the_masked_tokens_alone(tmp_path: Path) -> None:
    theirs = theirs_of("PreTraining")
    ours = loaded(theirs, tmp_path).double()
    theirs = theirs.double()
    expected = theirs(**texts(), labels=TOKENS, next_sentence_label=torch.zeros(4, dtype=torch.long))
    given = {**texts(), "labels": TOKENS, "masked_positions": (TOKENS != -100).long().topk(6).indices}
    actual = ours(**given)
    right = (expected.prediction_logits.argmax(2) == TOKENS).sum()
    with torch.no_grad():
        assert ours(**given).correct == right
    torch.testing.assert_close(actual[1], expected.seq_relationship_logits, rtol=0, atol=EXACT)
    mean = torch.nn.functional.cross_entropy(expected.prediction_logits.flatten(0, 1), TOKENS.flatten())
    (actual.loss / (TOKENS != -100).sum()).backward()
    mean.backward()
    torch.testing.assert_close(actual.loss / (TOKENS != -100).sum(), mean, rtol=0, atol=EXACT)
    gradients = {ours.stored_name(name): one.grad for name, one in ours.named_parameters()}
    for name, one in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], one.grad, rtol=0, atol=EXACT)


@pytest.mark.parametrize("head", CLASSES)
def test_weights_in_and_out(head: str, tmp_path: Path) -> None:
    """Bit for bit, and under transformers' names."""
    theirs = theirs_of(head)
    ours = loaded(theirs, tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    again = getattr(transformers, f"BertFor{head}").from_pretrained(tmp_path / "ours")
    assert again.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(one, theirs.state_dict()[name]) for name, one in again.state_dict().items())
    assert ours.config.labels == list(again.config.id2label.values()) or head == "QuestionAnswering"
    assert (ours.num_parameters(), ours.dtype) == (theirs.num_parameters(), torch.float32)


def test_checkpoints_of_nvidia(tmp_path: Path) -> None:
    """Dense layers with an activation are called dense_act, and the vocabulary is padded to a multiple of 8."""
    theirs = theirs_of("PreTraining", vocab_size=104)
    dense = ("intermediate.dense.", "pooler.dense.", "transform.dense.")
    state = {}
    for name, weight in theirs.state_dict().items():
        state[name.replace("dense.", "dense_act.") if any(part in name for part in dense) else name] = weight
    assert sum("dense_act" in name for name in state) == 8
    torch.save({"model": state, "optimizer": {}, "epoch": 0}, tmp_path / "ckpt_8601.pt")
    config = BertConfig(**SIZES)
    ours = BertForPreTraining.from_pretrained(tmp_path / "ckpt_8601.pt", config)
    assert ours.config.vocab_size == 104
    expected, actual = theirs.double()(**texts()), ours.double()(**texts())
    for name in OUTPUTS["PreTraining"]:
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), rtol=0, atol=EXACT)
    ours.save_pretrained(tmp_path / "ours")
    again, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(again.get_input_embeddings().weight, ours.get_input_embeddings().weight.float())
    for size in (95, 96, 105):  # no padding to a multiple of 8
        with pytest.raises(InputError, match=rf"embed_tokens.weight \(104, 32\) where the model has \({size}, 32\)"):
            BertForPreTraining.from_pretrained(tmp_path / "ckpt_8601.pt", BertConfig(**SIZES | {"vocab_size": size}))


def test_a_pretrained_network_gets_a_new_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a bare network, of one under pretraining's heads, and of old files with TensorFlow's names and buffers."""
    theirs = theirs_of("PreTraining")
    theirs.save_pretrained(tmp_path / "whole")
    theirs.bert.save_pretrained(tmp_path / "bare")
    state = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): one for name, one in theirs.state_dict().items()}
    (tmp_path / "old").mkdir()
    torch.save({**state, "bert.embeddings.position_ids": torch.arange(40)[None]}, tmp_path / "old/pytorch_model.bin")
    theirs.config.save_pretrained(tmp_path / "old")
    config = BertConfig(**SIZES)
    config.labels = list("abcd")
    for kind in ("whole", "bare", "old"):
        ours = BertForSequenceClassification.from_pretrained(tmp_path / kind, config)
        assert "begin with random weights: classifier" in caplog.text
        assert "pooler" not in caplog.text
        assert torch.equal(ours.bert.pooler.dense.weight, theirs.bert.pooler.dense.weight)
        assert torch.equal(ours.bert.encoder.layernorm_embedding.weight, theirs.bert.embeddings.LayerNorm.weight)
        assert (ours.classifier.weight.shape, ours.classifier.bias.tolist()) == ((4, 32), [0] * 4)
        assert 0.2 < ours.classifier.weight.std() < 0.4
    ours = BertForPreTraining.from_pretrained(tmp_path / "bare")
    assert "begin with random weights: cls.predictions" in caplog.text
    assert (ours.cls.predictions.bias == 0).all()


def test_heads_whose_weights_have_the_same_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tagger is no classifier, and the other way round."""
    for mine, other in (
        ("SequenceClassification", "TokenClassification"),
        ("TokenClassification", "SequenceClassification"),
    ):
        theirs_of(mine, num_labels=3).save_pretrained(tmp_path / mine)
        with pytest.raises(InputError, match=f"no weights of a BertFor{other}: it has no classifier"):
            CLASSES[other].from_pretrained(tmp_path / mine, new_head=False)
        CLASSES[other].from_pretrained(tmp_path / mine)
        assert "begin with random weights: classifier" in caplog.text
        caplog.clear()


def test_shipped_configs() -> None:
    folder = Path(__file__).parents[2] / "configs"
    published = transformers.BertConfig().to_dict()
    config = BertConfig.from_pretrained(folder / "bert_base.json")
    assert {name: getattr(config, name) for name in config.types} == {name: published[name] for name in config.types}
    tiny = transformers.BertForMaskedLM(transformers.BertConfig.from_json_file(folder / "bert_tiny.json"))
    ours = BertForMaskedLM(BertConfig.from_pretrained(folder / "bert_tiny.json"))
    assert ours.num_parameters() == tiny.num_parameters()


def test_what_is_refused(tmp_path: Path) -> None:
    loaded(theirs_of("SequenceClassification", num_labels=3), tmp_path / "texts")
    for given, message in (
        ({"new_head": False}, "no weights of a BertForQuestionAnswering.*its head is classifier"),
        ({"config": BertConfig(**{**SIZES, "hidden_size": 36})}, "the weights do not fit the model.*wrong shape"),
    ):
        with pytest.raises(InputError, match=message):
            BertForQuestionAnswering.from_pretrained(tmp_path / "texts", **given)
    for field, value, message in (
        ("num_attention_heads", 5, r"a divisor of hidden_size \(32\)"),
        ("classifier_dropout", 2, "null, or a number"),
    ):
        with pytest.raises(InputError, match=message):
            BertConfig(**{**SIZES, field: value})
    with pytest.raises(InputError, match="'bart'; allowed: 'bert'"):
        kind_of({"model_type": "bart"}, [BertConfig])
    ours = BertForMaskedLM(BertConfig(**SIZES))
    with pytest.raises(InputError, match="a sequence has 41 tokens; allowed"):
        ours(torch.ones(1, 41, dtype=torch.long))
    with pytest.raises(InputError, match="needs input_ids"):
        ours()
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(InputError, match="masked_positions need labels"):
        BertForPreTraining(BertConfig(**SIZES))(ids, masked_positions=ids)
