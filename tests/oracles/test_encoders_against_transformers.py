"""Models without heads against Hugging Face's: states, weights of any class in and out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers

from bart.configuration.configuration import ModelConfig
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration, BartModel
from bart.modeling.pretrained import PretrainedModel
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM, BertForSequenceClassification, BertModel
from bert.tokenization.tokenization_bert import BertTokenizer
from tests.oracles.test_bert_against_transformers import SIZES, WEIGHTS
from tests.oracles.test_model_against_transformers import EXACT, TINY

OURS = {"Bert": BertModel, "Bart": BartModel, "MBart": BartModel}


def theirs_of(name: str, **changes: object) -> transformers.PreTrainedModel:
    """A random Hugging Face model, whose biases and norms are random as well."""
    torch.manual_seed(0)
    family = name.partition("For")[0].removesuffix("Model")
    sizes = {**(SIZES if family == "Bert" else TINY), **changes}
    config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")
    theirs = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return theirs


def inputs(family: str) -> dict[str, torch.Tensor]:
    """Ids (4, 17), ragged, with 2 at their ends, and for a decoder (4, 9)."""
    draws = torch.Generator().manual_seed(1)
    ids, targets = torch.randint(5, 97, (4, 17), generator=draws), torch.randint(5, 97, (4, 9), generator=draws)
    mask, target_mask = torch.ones_like(ids), torch.ones_like(targets)
    for row, length in enumerate((17, 9, 4, 13)):
        ids[row, length - 1 :], mask[row, length:], target_mask[row, 3 + row :] = 2, 0, 0
        ids[row, length:] = 0 if family == "Bert" else 1
    given = {"input_ids": ids, "attention_mask": mask}
    if family == "Bert":
        return {**given, "token_type_ids": (torch.arange(17) > 3).long().repeat(4, 1)}
    return {**given, "decoder_input_ids": targets, "decoder_attention_mask": target_mask}


def assert_same_outputs(expected: object, actual: object) -> None:
    """Compare all values, one by one and by number; transformers' cache of a decoder is left out."""
    names = [name for name in expected if name != "past_key_values"]
    assert len(actual.to_tuple()) == len(names)
    for number, name in enumerate(names):
        assert actual[name] is actual[number]
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=EXACT)


@pytest.mark.parametrize("family", OURS)
def test_states_and_gradients(family: str, tmp_path: Path) -> None:
    theirs = theirs_of(f"{family}Model")
    theirs.save_pretrained(tmp_path)
    ours = OURS[family].from_pretrained(tmp_path).double()
    theirs, given = theirs.double(), inputs(family)
    assert_same_outputs(theirs(**given), ours(**given))
    expected, actual = theirs(given["input_ids"]), ours(given["input_ids"])
    assert_same_outputs(expected, actual)
    for output in (expected, actual):
        sum(output[name].square().mean() for name in actual).backward()
    gradients = {ours.stored_name(name): weight.grad for name, weight in ours.named_parameters()}
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=0, atol=EXACT)


def test_outputs_as_tuples(tmp_path: Path) -> None:
    theirs, given = theirs_of("BertModel"), inputs("Bert")
    theirs.save_pretrained(tmp_path)
    ours = BertModel.from_pretrained(tmp_path)
    values = ours(**given, return_dict=False)
    assert type(values) is tuple
    torch.testing.assert_close(values, theirs(**given, return_dict=False)[:2])
    bart = BartModel(BartConfig(**TINY))(given["input_ids"], return_dict=False)
    assert [tuple(states.shape) for states in bart] == [(4, 17, 32)] * 2


@pytest.mark.parametrize("family", OURS)
def test_weights_out(family: str, tmp_path: Path) -> None:
    theirs_of(f"{family}Model", output_hidden_states=True).save_pretrained(tmp_path / "theirs")
    with pytest.raises(InputError, match="got output_hidden_states, which is bool True; use transformers"):
        OURS[family].from_pretrained(tmp_path / "theirs")
    ours = OURS[family].from_pretrained(tmp_path / "theirs", output_hidden_states=False)
    ours.save_pretrained(tmp_path / "ours")
    again, report = getattr(transformers, f"{family}Model").from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    given = inputs(family)
    for model in (again, ours.double()):
        model.double()
    assert_same_outputs(again(**given), ours(**given))
    states = ours.float().for_inference()(**given, output_attentions=False)
    torch.testing.assert_close(states.to_tuple(), ours(**given).to_tuple())


@pytest.mark.parametrize(
    "name",
    [f"BertFor{head}" for head in ("PreTraining", "MaskedLM", "SequenceClassification", "QuestionAnswering")]
    + [f"BartFor{head}" for head in ("ConditionalGeneration", "SequenceClassification", "QuestionAnswering")],
)
def test_weights_under_any_head(name: str, tmp_path: Path) -> None:
    """A checkpoint without a pooler leaves it out or, as in transformers, begins a random one."""
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path)
    base = theirs.base_model.double()
    given = inputs(name[:4])
    pooled = name in ("BertForPreTraining", "BertForSequenceClassification")
    ours = (BertModel if name.startswith("Bert") else BartModel).from_pretrained(tmp_path).double()
    torch.testing.assert_close(ours(**given)[0], base(**given)[0], rtol=0, atol=EXACT)
    if pooled:
        torch.testing.assert_close(ours(**given).pooler_output, base(**given)[1], rtol=0, atol=EXACT)
    ours.save_pretrained(tmp_path / "again")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "again").architectures == [f"{name[:4]}Model"]


@pytest.mark.parametrize(
    ("config", "head", "theirs", "sizes"),
    [
        (BertConfig, BertForSequenceClassification, transformers.BertConfig, SIZES),
        (BartConfig, BartForSequenceClassification, transformers.BartConfig, TINY),
    ],
)
def test_configs_and_labels(
    config: type[ModelConfig],
    head: type[PretrainedModel],
    theirs: type[transformers.PretrainedConfig],
    sizes: dict[str, object],
    tmp_path: Path,
) -> None:
    theirs(
        **sizes, id2label={0: "no", 1: "yes", 2: "perhaps"}, label2id={"no": 0, "yes": 1, "perhaps": 2}
    ).save_pretrained(tmp_path)
    for fields in (
        {},
        {"num_labels": 3},
        {"num_labels": 5},
        {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}},
    ):
        ours, expected = config.from_pretrained(tmp_path, **fields), theirs.from_pretrained(tmp_path, **fields)
        for name in ("num_labels", "id2label", "label2id"):
            assert getattr(ours, name) == getattr(expected, name)
    model = head(config.from_pretrained(tmp_path))
    model.save_pretrained(tmp_path)
    assert head.from_pretrained(tmp_path, num_labels=3, problem_type="regression").config.problem_type == "regression"
    assert head.from_pretrained(tmp_path, label2id={"c": 2, "a": 0, "b": 1}).config.labels == ["a", "b", "c"]
    assert head.from_pretrained(tmp_path, num_labels=4, new_head=True).config.num_labels == 4
    for options, message in (
        ({"num_labels": 5}, r"its head has 3 labels, and 5 are asked for .*new_head=True"),
        ({"id2label": {0: "a", 1: "b"}}, r"its head has 3 labels, and 2 are asked for \(a, b\)"),
        ({"id2label": {0: "a"}, "num_labels": 2}, "'num_labels' is 2; allowed: 1, as the names"),
        ({"id2label": {0: "a", 1: "b", 3: "c"}}, "'id2label' is .*; allowed: .* from 0 on without a gap"),
        ({"label2id": {"a": 0, "b": 1, "c": 1}}, "'label2id' is .*; allowed: the inverse of id2label"),
        (
            {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 2, "c": 1}},
            "'label2id' is .*; allowed: the inverse of id2label",
        ),
        ({"num_label": 3}, "'num_label', which is unknown; did you mean 'num_labels'"),
        ({"dtype": torch.int8}, r"dtype is torch.int8; allowed: 'auto', or float32"),
    ):
        with pytest.raises(InputError, match=message):
            head.from_pretrained(tmp_path, **options)
    with pytest.raises(InputError, match="no such file"):
        config.from_pretrained(tmp_path / "again.json")
    other = BartConfig if config is BertConfig else BertConfig
    with pytest.raises(InputError, match="model_type .*allowed"):
        other.from_pretrained(tmp_path)


def test_wrong_inputs() -> None:
    bert, bart = BertModel(BertConfig(**SIZES)), BartModel(BartConfig(**TINY))
    ids = torch.ones(2, 5, dtype=torch.long)
    for model, given, message in (
        (bert, {}, "needs input_ids"),
        (bert, {"input_ids": ids[0]}, r"input_ids are torch.int64 \(5,\); allowed: integers \(texts, length\)"),
        (bert, {"input_ids": ids, "attention_mask": ids[:, 1:]}, r"attention_mask is \(2, 4\); allowed: \(2, 5\)"),
        (bert, {"input_ids": ids + 200}, "input_ids hold 201 to 201; allowed: ids from 0 to 96"),
        (bert, {"input_ids": ids, "output_attentions": True}, "got output_attentions, which is bool True; use tran"),
        (bert, {"input_ids": ids, "position_ids": ids}, "BertModel got position_ids, which is Tensor .*; allowed: inp"),
        (bert, {"input_ids": ids, "token_type_ids": ids * 2}, "token_type_ids hold 2 to 2; allowed: ids from 0 to 1"),
        (bart, {"input_ids": ids, "decoder_input_ids": ids[:1]}, "targets have 1 rows; allowed: 2"),
        (bart, {"encoder_outputs": torch.zeros(2, 5, 32)}, "needs input_ids, and got none"),
        (bart, {"input_ids": ids, "decoder_input_ids": ids.float()}, "decoder_input_ids are torch.float32"),
    ):
        with pytest.raises(InputError, match=message):
            model(**given)


@pytest.mark.parametrize("model_class", [BartModel, BartForConditionalGeneration, BertModel, BertForMaskedLM])
@pytest.mark.parametrize("size", [101, 90])
def test_resized_embeddings(model_class: type, size: int, tmp_path: Path) -> None:
    """transformers computes the same from what is stored; ids that both vocabularies have keep what they had."""
    torch.manual_seed(0)
    config = BertConfig(**SIZES) if "Bert" in model_class.__name__ else BartConfig(**TINY)
    model = model_class(config).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2]])}
    if model_class is BartForConditionalGeneration:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    before = model(**inputs)[0]
    if model_class is BartForConditionalGeneration:
        before[..., 9] = model.final_logits_bias[0, 9] = -torch.inf  # a token that is never generated
    assert model.resize_token_embeddings(size) is model.get_input_embeddings()
    model.save_pretrained(tmp_path)
    theirs = getattr(transformers, model_class.__name__).from_pretrained(tmp_path)
    given_ids = {name: torch.tensor([[5, 6, size - 1, 2]]) for name in inputs}
    torch.testing.assert_close(model(**given_ids)[0], theirs(**given_ids)[0])
    after, kept = model(**inputs)[0], min(size, 97) if "For" in model_class.__name__ else None
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    assert after.shape[-1] == (size if kept else 32)
    model.resize_token_embeddings(size, keep=False)
    assert model(**inputs)[0].isfinite().all()
    with pytest.raises(InputError, match="vocab_size"):
        model.resize_token_embeddings(0)


@pytest.mark.skipif(not os.path.isdir(WEIGHTS), reason="BERT_WEIGHTS names no folder of BERT's weights")
def test_real_weights() -> None:
    folder = WEIGHTS
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    texts = ["The quick brown fox jumps over the lazy dog.", "Grüße aus 東京 🗼", "a " * 200]
    given = dict(BertTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt"))
    expected = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    assert all(torch.equal(given[name], expected[name]) for name in given)
    ours, read = BertModel.from_pretrained(folder), given["attention_mask"].bool()
    with torch.no_grad():
        whole = theirs(**given)
        for model in (ours, ours.for_inference()):
            output = model(**given)
            torch.testing.assert_close(output[0][read], whole[0][read], rtol=0, atol=1e-5)
            torch.testing.assert_close(output.pooler_output, whole.pooler_output, rtol=0, atol=1e-5)
        assert_same_outputs(theirs.double()(**given), ours.double()(**given))
