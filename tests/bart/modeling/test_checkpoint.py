"""Weights in and out: every format is written by the test itself from one tiny model and must bring it back exactly."""

from __future__ import annotations

import argparse
import collections
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from bart.configuration.configuration import stored_configs
from bart.configuration.configuration_bart import BartConfig
from bart.files import write_json
from bart.generation import GenerationConfig
from bart.modeling.heads import BartForSequenceClassification
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tensor_files import checksum_of
from tests.bart.modeling.stored import COPIES, EMBEDDINGS, TINY, assert_same, fails, make_model, weights


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    return make_model()


def fairseq_weights(model: BartForConditionalGeneration, fused: bool = False) -> dict[str, Tensor]:
    """The state under fairseq's names."""
    state = {name.removeprefix("model."): tensor for name, tensor in weights(model).items()}
    state.pop("final_logits_bias")
    embeddings = state.pop("shared.weight")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state[name] = embeddings
    state["encoder.version"] = state["decoder.version"] = torch.tensor([3.0])
    state["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    if fused:
        for name in [name for name in state if ".q_proj." in name]:
            owner, kind = name.split(".q_proj.")
            state[f"{owner}.in_proj_{kind}"] = torch.cat([state.pop(f"{owner}.{part}_proj.{kind}") for part in "qkv"])
    return state


def write_shards(directory: Path, state: dict[str, Tensor], kind: str) -> None:
    names = sorted(state)
    weight_map = {}
    for part, chunk in enumerate((names[::2], names[1::2]), 1):
        if kind == "safetensors":
            file = f"model-0000{part}-of-00002.safetensors"
            safetensors.torch.save_file({name: state[name] for name in chunk}, directory / file)
        else:
            file = f"pytorch_model-0000{part}-of-00002.bin"
            torch.save({name: state[name] for name in chunk}, directory / file)
        weight_map |= dict.fromkeys(chunk, file)
    index = "model.safetensors.index.json" if kind == "safetensors" else "pytorch_model.bin.index.json"
    (directory / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


SAVED = {  # forms of one file: how it is written, its name, and what a user passes to from_pretrained
    "safetensors directory": (safetensors.torch.save_file, "model.safetensors", ""),
    "safetensors file": (safetensors.torch.save_file, "best.safetensors", "best.safetensors"),
    "safetensors called .bin": (safetensors.torch.save_file, "pytorch_model.bin", ""),
    "zip called .safetensors": (torch.save, "model.safetensors", ""),
    "bin directory": (torch.save, "pytorch_model.bin", ""),
    "only the head's copy": (safetensors.torch.save_file, "model.safetensors", ""),
}
FORMS = [*SAVED, "safetensors shards", "bin shards"]
FORMS += ["lightning 'model.'", "lightning ''", "lightning 'module.wrapped.net.'"]


def write(form: str, directory: Path, model: BartForConditionalGeneration) -> Path:
    """Writes one of the formats with a config.json beside it; returns what a user passes to from_pretrained."""
    write_json(directory / "config.json", model.config.to_dict())
    state = weights(model)
    if form.endswith("shards"):
        write_shards(directory, state, form.split()[0])
        return directory
    if form.startswith("lightning"):
        prefix = form.split()[1].strip("'")
        state = {prefix + name: tensor for name, tensor in (state | dict.fromkeys(COPIES, state[EMBEDDINGS])).items()}
        torch.save({"epoch": 1, "hyper_parameters": {"a": 1}, "state_dict": state}, directory / "_epoch1_step2.ckpt")
        return directory / "_epoch1_step2.ckpt"
    if form == "only the head's copy":
        state["lm_head.weight"] = state.pop(EMBEDDINGS)
    save, name, given = SAVED[form]
    save(collections.OrderedDict(state), directory / name)
    return directory / given


@pytest.mark.parametrize("form", FORMS)
def test_each_format_brings_the_model_back(form: str, tmp_path: Path, model: BartForConditionalGeneration) -> None:
    loaded = BartForConditionalGeneration.from_pretrained(write(form, tmp_path, model))
    assert_same(loaded, model)
    assert loaded.config.to_dict() == model.config.to_dict()
    assert not loaded.training
    shared = loaded.model.shared.weight
    assert all(loaded.get_parameter(name) is shared for name in COPIES)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    ids = torch.tensor([[0, 5, 6, 2]])
    assert torch.equal(loaded(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)


def test_a_str_path_and_an_explicit_config(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    write("safetensors directory", tmp_path, model)
    (tmp_path / "config.json").write_text("not read")
    (tmp_path / "generation_config.json").write_text("not read")
    config = BartConfig(**TINY, dropout=0.4, num_beams=3, max_length=9)
    loaded = BartForConditionalGeneration.from_pretrained(str(tmp_path), config=config)
    assert_same(loaded, model)
    assert loaded.config.dropout == 0.4
    loaded.resize_token_embeddings(7)
    assert config.vocab_size == TINY["vocab_size"], "the config is the caller's"
    assert loaded.generation_config.to_dict() == GenerationConfig.from_model_config(config.to_dict()).to_dict()
    assert loaded.generation_config.num_beams == 3


@pytest.mark.parametrize("fused", [False, True], ids=["q k v", "fused"])
@pytest.mark.parametrize("bare", [False, True], ids=["zip", "bare pickle"])
def test_fairseq(tmp_path: Path, fused: bool, bare: bool) -> None:
    model = make_model(pre_ln=True)
    content = {
        "args": argparse.Namespace(arch="bart_large"),
        "model": fairseq_weights(model, fused),
        "optimizer_history": [{"num_updates": 1}],
        "extra_state": {"epoch": 3},
    }
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=not bare)
    model.final_logits_bias.zero_()
    for path in (tmp_path, tmp_path / "model.pt"):
        assert_same(BartForConditionalGeneration.from_pretrained(path, config=model.config), model)
    fails(tmp_path / "model.pt", "pass a config")


def test_unused_weights_of_fairseq_0_12(tmp_path: Path) -> None:
    """Its encoder layers hold copies for a fused operator beside the real weights, and do not train them."""
    model = make_model()
    model.final_logits_bias.zero_()
    state = fairseq_weights(model)
    for layer in range(2):
        for part, rows in {"in_proj": 24, "out_proj": 8, "fc1": 12, "fc2": 8}.items():
            state[f"encoder.layers.{layer}.{part}_weight"] = torch.randn(rows, 12 if part == "fc2" else 8)
            state[f"encoder.layers.{layer}.{part}_bias"] = torch.randn(rows)
    torch.save({"model": state}, tmp_path / "model.pt")
    assert_same(BartForConditionalGeneration.from_pretrained(tmp_path, config=model.config), model)
    del state["encoder.layers.1.fc1.weight"]
    torch.save({"model": state}, tmp_path / "model.pt")
    fails(tmp_path, "1 missing: model.encoder.layers.1.fc1.weight", config=model.config)


@pytest.mark.parametrize("prefix", ["", "model.", "net.bart."])
def test_losses_and_metrics_of_a_lightning_module_are_left_out(
    prefix: str, tmp_path: Path, model: BartForConditionalGeneration, caplog: pytest.LogCaptureFixture
) -> None:
    beside = {"criterion.weight": torch.ones(24), "class_weights": torch.ones(3)}
    beside |= {"val_acc.f1.tp": torch.ones(3, dtype=torch.long), "matrix.confmat": torch.ones(3, 3, dtype=torch.long)}
    state = {f"{prefix}{name}": weight for name, weight in weights(model).items()}
    torch.save({"state_dict": state | beside, "epoch": 1}, tmp_path / "a.ckpt")
    assert_same(BartForConditionalGeneration.from_pretrained(tmp_path / "a.ckpt", config=model.config), model)
    assert "entries that are no weights are left out: criterion.weight, class_weights, val_acc.f1.tp" in caplog.text
    state |= {"pointer.weight": torch.ones(2, 8), "pointer.bias": torch.ones(2)}  # a layer, which changes results
    torch.save({"state_dict": state, "epoch": 1}, tmp_path / "a.ckpt")
    fails(tmp_path / "a.ckpt", "2 unexpected: pointer.bias, pointer.weight", config=model.config)


def test_a_head_of_fairseq_is_taken_or_left_out_with_a_warning(
    tmp_path: Path, model: BartForConditionalGeneration, caplog: pytest.LogCaptureFixture
) -> None:
    head = {"dense.weight": (8, 8), "dense.bias": (8,), "out_proj.weight": (2, 8), "out_proj.bias": (2,)}
    stored = {f"classification_heads.rte.{name}": torch.randn(shape) for name, shape in head.items()}
    torch.save({"model": fairseq_weights(model) | stored}, tmp_path / "model.pt")
    loaded = BartForSequenceClassification.from_pretrained(tmp_path, model.config, new_head=False)
    for name, weight in stored.items():
        assert torch.equal(loaded.get_parameter(name.replace("heads.rte", "head")), weight)
    assert "left out" not in caplog.text
    BartForConditionalGeneration.from_pretrained(tmp_path, config=model.config)
    assert "classification_heads.rte.dense.weight" in caplog.text


def test_half_weights_are_widened(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    write("safetensors directory", tmp_path, model)
    halves = {name: tensor.half() for name, tensor in weights(model).items()}
    safetensors.torch.save_file(halves, tmp_path / "model.safetensors")
    loaded = BartForConditionalGeneration.from_pretrained(tmp_path)
    for name, tensor in halves.items():
        assert torch.equal(loaded.state_dict()[name], tensor.float())


@pytest.mark.parametrize("form", ["safetensors file", "lightning 'model.'"])
def test_the_model_outlives_its_file(form: str, tmp_path: Path, model: BartForConditionalGeneration) -> None:
    path = write(form, tmp_path, model)
    loaded = BartForConditionalGeneration.from_pretrained(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert_same(loaded, model)


def test_our_lightning_checkpoint_carries_its_config(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    content = {
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "config": model.config.to_dict(),
        "generation_config": GenerationConfig(num_beams=5, max_length=8).to_dict(),
        "tokenizer_json": "{}",
    }
    torch.save(content, tmp_path / "last.ckpt")
    (tmp_path / "config.json").write_text("the checkpoint's own config goes first")
    loaded = BartForConditionalGeneration.from_pretrained(tmp_path / "last.ckpt")
    assert_same(loaded, model)
    assert (loaded.generation_config.num_beams, loaded.generation_config.max_length) == (5, 8)


def test_the_config_that_lies_with_the_weights(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    for form in ("safetensors directory", "bin shards", "lightning 'model.'"):
        directory = tmp_path / form
        directory.mkdir()
        path = write(form, directory, model)
        assert stored_configs(path, [BartConfig])[0] == model.config
        (directory / "config.json").unlink()
        assert stored_configs(path, [BartConfig]) == (None, None)
    generation = GenerationConfig(num_beams=3)
    write_json(tmp_path / "config.json", model.config.to_dict())  # without any weights
    write_json(tmp_path / "generation_config.json", generation.to_dict())
    assert stored_configs(tmp_path, [BartConfig]) == (model.config, generation)


# ------------------------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize("pre_ln", [False, True])
def test_save_and_load(tmp_path: Path, pre_ln: bool) -> None:
    model = make_model(pre_ln=pre_ln, num_beams=4, no_repeat_ngram_size=3, torch_dtype="float16", comment="kept")
    model.generation_config = GenerationConfig.from_dict(model.generation_config.to_dict() | {"num_beams": 2})
    directory = tmp_path / "new" / "export"
    model.save_pretrained(directory)
    model.save_pretrained(directory)  # over itself
    assert sorted(os.listdir(directory)) == ["config.json", "generation_config.json", "model.safetensors"]
    with safetensors.safe_open(directory / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "crc32": checksum_of(weights(model))}
        assert set(file.keys()) == weights(model).keys()
    fields = json.loads((directory / "config.json").read_text())
    assert fields["model_type"] == ("mbart" if pre_ln else "bart")
    assert fields["dtype"] == "float32"
    assert fields["comment"] == "kept"
    assert not fields.keys() & {"num_beams", "no_repeat_ngram_size", "torch_dtype"}
    loaded = BartForConditionalGeneration.from_pretrained(directory)
    assert_same(loaded, model)
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
    assert (loaded.generation_config.num_beams, loaded.generation_config.no_repeat_ngram_size) == (2, 3)
    assert {name: getattr(loaded.config, name) for name in TINY} == TINY
    assert loaded.config.pre_ln is pre_ln
