"""The heads that classify against Hugging Face's: logits, losses, gradients, weights in and out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration, PretrainedBart
from tests.oracles.test_model_against_transformers import EXACT, TINY

HEADS = {"SequenceClassification": BartForSequenceClassification, "QuestionAnswering": BartForQuestionAnswering}
FAMILIES = ("Bart", "MBart")


def pair(head: str, family: str = "Bart", **changes: object) -> tuple[torch.nn.Module, PretrainedBart]:
    """A random Hugging Face model and ours with its weights, in double precision."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**TINY, **changes})
    theirs = getattr(transformers, f"{family}For{head}")(config).double().eval()
    ours = HEADS[head](BartConfig(**config.to_dict())).double().eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def texts(lengths: tuple[int, ...] = (17, 9, 4, 13)) -> dict[str, torch.Tensor]:
    """Ids (4, 17), ragged, each with one `</s>` within and one at its end."""
    ids = torch.randint(4, 97, (4, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        ids[row, 2] = ids[row, length - 1] = 2
        ids[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}


def assert_same(theirs: torch.nn.Module, ours: PretrainedBart, inputs: dict[str, torch.Tensor], *names: str) -> None:
    """Compare the outputs of these names, the loss, and every gradient."""
    expected, actual = theirs(**inputs), ours(**inputs)
    for name in ("loss", "encoder_last_hidden_state", *names):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), rtol=0, atol=EXACT)
    assert actual[0] is actual.loss
    assert actual[1] is getattr(actual, names[0])
    expected.loss.backward()
    actual.loss.backward()
    gradients = {name: one.grad for name, one in ours.named_parameters()}
    for name, one in theirs.named_parameters():
        torch.testing.assert_close(gradients.pop(name), one.grad, rtol=0, atol=EXACT)
    assert not gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        pytest.param({"num_labels": 3}, torch.tensor([0, 2, 1, 2]), id="one of three"),
        pytest.param({"num_labels": 2}, torch.tensor([0, 1, 1, 0]), id="one of two"),
        pytest.param({"num_labels": 1}, torch.tensor([0.5, -1, 2, 3]).double(), id="a number"),
        pytest.param({"num_labels": 3}, torch.eye(4, 3).double(), id="any of three"),
        pytest.param({"num_labels": 2, "problem_type": "regression"}, torch.randn(4, 2).double(), id="two numbers"),
    ],
)
def test_classification(family: str, changes: dict[str, object], labels: torch.Tensor) -> None:
    theirs, ours = pair("SequenceClassification", family, **changes)
    assert_same(theirs, ours, {**texts(), "labels": labels}, "logits")


@pytest.mark.parametrize("family", FAMILIES)
def test_question_answering(family: str) -> None:
    theirs, ours = pair("QuestionAnswering", family)
    positions = {"start_positions": torch.tensor([3, 0, 40, 2]), "end_positions": torch.tensor([5, 0, 1, 17])}
    assert_same(theirs, ours, {**texts(), **positions}, "start_logits", "end_logits")


def test_a_row_is_classified_by_its_own_last_end() -> None:
    """transformers refuses rows with unequal numbers of `</s>`."""
    _, ours = pair("SequenceClassification")
    inputs = texts()
    alone = [ours(row[None, :length]).logits for row, length in zip(inputs["input_ids"], (17, 9, 4, 13), strict=True)]
    inputs["input_ids"][1, 4] = 2
    alone[1] = ours(inputs["input_ids"][1:2, :9]).logits
    torch.testing.assert_close(ours(**inputs).logits, torch.cat(alone), rtol=0, atol=EXACT)
    inputs["input_ids"][2] = 5
    with pytest.raises(InputError, match=r"input_ids\[2\] has no </s>"):
        ours(**inputs)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("labels", [1, 2, 3, 5])
def test_weights_in_and_out(head: str, labels: int, tmp_path: Path) -> None:
    """transformers cannot load a BART of two labels that it saved itself."""
    theirs, _ = pair(head, num_labels=labels)
    theirs.float().save_pretrained(tmp_path / "theirs")
    ours = HEADS[head].from_pretrained(tmp_path / "theirs")
    expected = theirs(**texts())
    name = "logits" if head == "SequenceClassification" else "start_logits"
    actual = getattr(ours(**texts()), name)
    torch.testing.assert_close(actual, getattr(expected, name))
    ours.save_pretrained(tmp_path / "ours")
    again = getattr(transformers, f"BartFor{head}").from_pretrained(tmp_path / "ours")
    assert all(torch.equal(one, ours.state_dict()[name]) for name, one in again.state_dict().items())
    assert ours.config.labels == list(again.config.id2label.values())


def test_a_plain_model_gets_a_new_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = BartForConditionalGeneration(BartConfig(**TINY))
    plain.save_pretrained(tmp_path)
    config = BartConfig(**TINY)
    config.labels = list("abcd")
    ours = BartForSequenceClassification.from_pretrained(tmp_path, config)
    assert "begin with random weights: classification_head" in caplog.text
    assert ours.classification_head.out_proj.weight.shape == (4, 32)
    assert 0.2 < ours.classification_head.dense.weight.std() < 0.4  # init_std is 0.3
    assert (ours.classification_head.dense.bias == 0).all()
    assert torch.equal(ours.model.shared.weight, plain.model.shared.weight)
    with pytest.raises(InputError, match="no weights of a BartForSequenceClassification"):
        BartForSequenceClassification.from_pretrained(tmp_path, new_head=False)


def test_a_head_that_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = BartConfig(**TINY, num_labels=2)
    BartForSequenceClassification(config).save_pretrained(tmp_path)
    asked = BartConfig(**TINY)
    asked.labels = ["red", "green", "blue"]
    with pytest.raises(InputError, match=r"its head has 2 labels, and 3 are asked for \(red, green, blue\)"):
        BartForSequenceClassification.from_pretrained(tmp_path, asked)
    ours = BartForSequenceClassification.from_pretrained(tmp_path, asked, new_head=True)
    assert ours.classification_head.out_proj.weight.shape == (3, 32)
    with pytest.raises(InputError, match="no weights of a BartForQuestionAnswering.*its head is classification_head"):
        BartForQuestionAnswering.from_pretrained(tmp_path, new_head=False)
    with pytest.raises(InputError, match="no weights of a BartForConditionalGeneration"):
        BartForConditionalGeneration.from_pretrained(tmp_path, new_head=False)
    BartForConditionalGeneration.from_pretrained(tmp_path)
    assert "weights of another head left out: classification_head.dense.bias" in caplog.text


def test_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = BartForTokenClassification(BartConfig(**TINY, num_labels=5)).eval()
    theirs = transformers.BartModel(transformers.BartConfig(**TINY)).eval()
    theirs.load_state_dict(
        {name.removeprefix("model."): one for name, one in ours.state_dict().items() if "model" in name}
    )
    inputs, labels = texts(), torch.randint(0, 5, (4, 17))
    labels[inputs["attention_mask"] == 0] = -100
    actual, states = ours(**inputs, labels=labels), theirs(**inputs)
    expected = torch.nn.functional.linear(states.last_hidden_state, ours.classifier.weight, ours.classifier.bias)
    torch.testing.assert_close(actual.logits, expected)
    torch.testing.assert_close(actual.loss, torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten()))
    actual.loss.backward()
    assert all(one.grad is not None for one in ours.parameters())
    ours.save_pretrained(tmp_path)
    again = BartForTokenClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**inputs).logits, actual.logits)
    with pytest.raises(InputError, match="'token_states' is 'encoder'; allowed: decoder"):
        BartForTokenClassification(BartConfig(**TINY, num_labels=5, token_states="encoder"))
