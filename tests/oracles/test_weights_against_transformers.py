"""Weights through transformers and back: bit for bit, with no complaint from its loader, and with equal logits."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration

SIZES = {
    "vocab_size": 24,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 10,
}
POST_LN = ("bart", transformers.BartConfig, transformers.BartForConditionalGeneration)
PRE_LN = ("mbart", transformers.MBartConfig, transformers.MBartForConditionalGeneration)
each_arrangement = pytest.mark.parametrize("pre_ln", [False, True], ids=["post-LN", "Pre-LN"])


def randomise(model: nn.Module) -> nn.Module:
    """Every weight random, also norms and biases, so that a misplaced one shows."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for tensor in dict.fromkeys([*model.parameters(), *model.buffers()]):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model.eval()


def make_theirs(pre_ln: bool, **fields: object) -> transformers.PreTrainedModel:
    _, config_class, model_class = PRE_LN if pre_ln else POST_LN
    return randomise(model_class(config_class(**SIZES, **fields)))


def make_ours(pre_ln: bool, **fields: object) -> BartForConditionalGeneration:
    return randomise(BartForConditionalGeneration(BartConfig(**SIZES, pre_ln=pre_ln, **fields)))


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name]), name


def assert_same_logits(ours: BartForConditionalGeneration, theirs: nn.Module) -> None:
    ids = torch.tensor([[0, 5, 6, 7, 23, 2], [0, 9, 2, 1, 1, 1]])
    mask = ids.ne(1).long()
    target = torch.tensor([[2, 0, 11, 12], [2, 0, 3, 2]])
    ours, theirs = copy.deepcopy(ours).double(), copy.deepcopy(theirs).double()
    with torch.no_grad():
        actual = ours(ids, mask, decoder_input_ids=target).logits
        expected = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.fixture
def spoken() -> Iterator[list[str]]:
    """What transformers logs, and what anyone warns, at the level of a warning or above."""
    messages: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    ear = Ear(logging.WARNING)
    logger = logging.getLogger("transformers")
    logger.addHandler(ear)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
        messages.extend(str(warning.message) for warning in caught)
    logger.removeHandler(ear)
    assert messages == []


@each_arrangement
def test_ours_to_theirs_to_ours(tmp_path: Path, pre_ln: bool, spoken: list[str]) -> None:
    ours = make_ours(pre_ln, num_beams=4, length_penalty=2.0, early_stopping=True, max_length=9, forced_bos_token_id=0)
    ours.save_pretrained(tmp_path / "ours")
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is (PRE_LN if pre_ln else POST_LN)[2]
    assert_same_weights(theirs, ours)
    assert_same_logits(ours, theirs)
    for name, value in {"num_beams": 4, "length_penalty": 2.0, "max_length": 9, "forced_bos_token_id": 0}.items():
        assert getattr(theirs.generation_config, name) == value, name
    assert theirs.generation_config.early_stopping is True

    theirs.save_pretrained(tmp_path / "theirs")
    again = BartForConditionalGeneration.from_pretrained(tmp_path / "theirs")
    assert_same_weights(again, ours)
    assert again.generation_config == ours.generation_config
    assert {name: getattr(again.config, name) for name in SIZES} == SIZES
    assert again.config.pre_ln is pre_ln
    assert (
        load_file(tmp_path / "ours" / "model.safetensors").keys()
        == load_file(tmp_path / "theirs" / "model.safetensors").keys()
    )


def test_a_pre_ln_export_says_how_transformers_loads_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The test above loads it so. BartForConditionalGeneration leaves out its final norms, and only warns."""
    make_ours(False).save_pretrained(tmp_path / "post")
    assert not caplog.messages
    make_ours(True).save_pretrained(tmp_path / "pre")
    [message] = caplog.messages
    assert "its Auto classes load it, Bart's do not" in message


@each_arrangement
@pytest.mark.parametrize("max_shard_size", ["50GB", "4KB"], ids=["whole", "shards"])
def test_theirs_to_ours_to_theirs(tmp_path: Path, pre_ln: bool, max_shard_size: str, spoken: list[str]) -> None:
    theirs = make_theirs(pre_ln, scale_embedding=True, decoder_start_token_id=2)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=max_shard_size)
    shards = list((tmp_path / "theirs").glob("model-*-of-*.safetensors"))
    assert (len(shards) > 1) is (max_shard_size == "4KB")
    ours = BartForConditionalGeneration.from_pretrained(tmp_path / "theirs")
    assert_same_weights(ours, theirs)
    assert_same_logits(ours, theirs)
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    assert_same_weights(again, theirs)
    assert_same_logits(ours, again)


@each_arrangement
def test_a_bare_model_of_theirs(tmp_path: Path, pre_ln: bool) -> None:
    """As facebook/bart-large is stored: no `model.` prefix and no final_logits_bias."""
    theirs = make_theirs(pre_ln)
    theirs.model.save_pretrained(tmp_path)
    assert "shared.weight" in load_file(tmp_path / "model.safetensors")
    ours = BartForConditionalGeneration.from_pretrained(tmp_path)
    theirs.final_logits_bias.zero_()
    assert_same_weights(ours, theirs)
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "bare pickle"])
def test_an_old_bin_of_theirs(tmp_path: Path, zipped: bool) -> None:
    """Files of transformers 2 to 4 hold the tied copies, and a config.json with decoding options and odd fields."""
    theirs = make_theirs(False)
    state = theirs.state_dict() | {"model.encoder.version": torch.ones(1), "model.decoder.version": torch.ones(1)}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    fields = theirs.config.to_dict() | {
        "_num_labels": 3,
        "add_final_layer_norm": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "num_beams": 4,
        "no_repeat_ngram_size": 3,
        "prefix": " ",
        "task_specific_params": {"summarization": {"num_beams": 4}},
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    ours = BartForConditionalGeneration.from_pretrained(tmp_path)
    assert_same_weights(ours, theirs)
    assert_same_logits(ours, theirs)
    assert (ours.generation_config.num_beams, ours.generation_config.no_repeat_ngram_size) == (4, 3)


@pytest.mark.parametrize("key", ["model_state_dict", "module", "net", "anything"])
def test_weights_below_the_key_of_a_training_loop(tmp_path: Path, key: str) -> None:
    """Torch's own recipe, DeepSpeed's, and DistributedDataParallel's names within; beside them, other tensors."""
    theirs = make_theirs(False)
    theirs.config.save_pretrained(tmp_path)
    state, table = theirs.state_dict(), {"step": torch.tensor(3), "weight": torch.ones(3, 3)}
    beside = {
        "epoch": 3,
        "scale": torch.tensor(2.0),
        "scaler": {"scale": torch.ones(1)},
        "rng": {"cpu": torch.ones(9).byte()},
    }
    beside |= {"optimizer_state_dict": {"state": {0: table}, "param_groups": [{"lr": 0.1}]}, "model": {"layers": 2}}
    for prefix in ("", "module."):
        torch.save({key: {prefix + name: tensor for name, tensor in state.items()}, **beside}, tmp_path / "a.pt")
        ours = BartForConditionalGeneration.from_pretrained(tmp_path / "a.pt")
        assert_same_weights(ours, theirs)
    torch.save({key: state, "ema": state}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=f"weights below {key}, ema; allowed: one of them"):
        BartForConditionalGeneration.from_pretrained(tmp_path / "a.pt")


def test_a_half_model_keeps_its_precision_there(tmp_path: Path) -> None:
    ours = make_ours(False).half()
    ours.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.float16
    assert_same_weights(theirs, ours)
