"""Weights that cannot be loaded are refused in one line, which names the file."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.files import write_json
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.bart.modeling.stored import COPIES, EMBEDDINGS, TINY, fails, make_model, weights


@pytest.fixture(scope="module")
def model() -> BartForConditionalGeneration:
    return make_model()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter of peft: merge it into its base model"),
        (["adapter_config.json", "config.json", "model.safetensors"], "an adapter of peft: merge it into its base"),
        (["config.json", "tf_model.h5"], "a directory without weights; it must hold export/ or one of model.safe"),
    ],
    ids=str,
)
def test_what_other_programs_leave_is_not_taken_for_weights(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    fails(tmp_path, message)


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(64), "neither"),
    "text": (b"It was a dark and stormy night.\n", "neither"),
    "json": (b'{"a": 1}', "neither"),
    "brace": (b"12345678{", "foreign safetensors"),
    "zip": (b"PK\x03\x04" + bytes(64), "foreign torch"),
    "pickle": (b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94.", "foreign torch"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
}


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin", "model.ckpt"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_foreign_files(tmp_path: Path, kind: str, name: str) -> None:
    content, message = BAD_FILES[kind]
    (tmp_path / name).write_bytes(content)
    fails(tmp_path / name, message, config=BartConfig(**TINY))


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
@pytest.mark.parametrize("form", ["safetensors", "zip", "bare pickle"])
def test_truncated_files(tmp_path: Path, model: BartForConditionalGeneration, form: str, kept: float) -> None:
    path = tmp_path / "weights"
    if form == "safetensors":
        safetensors.torch.save_file(weights(model), path)
    else:
        torch.save(weights(model), path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    fails(path, "truncated", config=model.config)


def test_no_flipped_bit_of_an_export_is_used(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in random.Random(0).sample(range(8 * begin, 8 * len(whole)), 200):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        fails(tmp_path, "model.safetensors: a damaged safetensors file (its checksum does not fit)")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model.decoder.layers.0.fc1.weight", "final_logits_bias"])
def test_weights_that_are_no_numbers(
    name: str, value: float, tmp_path: Path, model: BartForConditionalGeneration
) -> None:
    state = weights(model)
    state[name] = state[name].clone().half()
    state[name].view(-1)[3] = value
    torch.save(state, tmp_path / "a.bin")
    fails(tmp_path / "a.bin", f"1 of its weights hold NaN or infinite numbers: {name}", config=model.config)


def test_more_layers_than_weights_are_refused_before_a_model_is_built(
    tmp_path: Path, model: BartForConditionalGeneration
) -> None:
    torch.save(weights(model), tmp_path / "a.bin")
    config = BartConfig(**TINY | {"decoder_layers": 10_000_000})
    fails(tmp_path / "a.bin", "its config has decoder_layers 10000000, for 66 weights", config=config)


class Foreign:
    """A class that no checkpoint may bring."""


def test_other_pickled_classes_are_refused(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    torch.save({"state_dict": weights(model), "hparams": Foreign()}, tmp_path / "a.ckpt")
    fails(tmp_path / "a.ckpt", "Foreign", "only tensors", config=model.config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"conv1.weight": torch.ones(2, 2), "layer1.0.bn1.weight": torch.ones(2)}, "no BART network"),
        ({"epoch": 3, "step": 4}, "no weights"),
        ({}, "no weights"),
        ([torch.ones(1)], "holds a list"),
        (torch.ones(1), "holds a Tensor"),
        ({"a.shared.weight": torch.ones(1), "b.shared.weight": torch.ones(1)}, "2 BART networks"),
    ],
)
def test_checkpoints_of_something_else(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "other.bin")
    fails(tmp_path / "other.bin", message, config=BartConfig(**TINY))


def test_weights_that_do_not_fit_are_listed(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    state = weights(model)
    safetensors.torch.save_file(state, tmp_path / "b.safetensors")
    larger = BartConfig(**TINY | {"vocab_size": 30})
    fails(tmp_path / "b.safetensors", "model.shared.weight (24, 8)", "(30, 8)", config=larger)
    gone = sorted(name for name in state if name.startswith("model.encoder.layers.1."))
    for name in gone:
        del state[name]
    state |= {"model.encoder.extra": torch.ones(1), "loss.weight": torch.ones(2)}
    state["model.encoder.layers.0.fc1.weight"] = torch.ones(5, 8)
    state["model.encoder.layers.0.fc2.bias"] = torch.ones(8, dtype=torch.int8)
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    fails(
        tmp_path / "a.safetensors",
        f"16 missing: {gone[0]}, {gone[1]}, {gone[2]} and 13 more",
        "2 unexpected: loss.weight, model.encoder.extra",
        "2 wrong shape: model.encoder.layers.0.fc1.weight (5, 8) where the model has (12, 8), "
        "model.encoder.layers.0.fc2.bias of type torch.int8",
        config=model.config,
    )


@pytest.mark.parametrize("name", COPIES)
def test_embeddings_must_be_tied(tmp_path: Path, model: BartForConditionalGeneration, name: str) -> None:
    state = weights(model)
    torch.save(state | {name: state[EMBEDDINGS] + 1}, tmp_path / "a.bin")
    fails(tmp_path / "a.bin", f"{name} differs from {EMBEDDINGS}", "tied", config=model.config)


def test_directories(tmp_path: Path, model: BartForConditionalGeneration) -> None:
    fails(tmp_path, "without weights", "model.safetensors")
    safetensors.torch.save_file(weights(model), tmp_path / "model.safetensors")
    fails(tmp_path, "config.json", "pass a config")
    config = tmp_path / "config.json"
    for content, message in [
        ("{", "not valid JSON"),
        ("[1]", "JSON list"),
        ('{"model_type": "gpt2", "n_embd": 8}', "'gpt2'"),
        ('{"d_modle": 8}', "d_modle"),
    ]:
        config.write_bytes(content.encode("utf-8", "surrogateescape"))
        fails(tmp_path, str(config), message)
    write_json(config, model.config.to_dict())
    (tmp_path / "generation_config.json").write_text("{")
    fails(tmp_path, "generation_config.json", "not valid JSON")
    fails(tmp_path / "absent" / "deep" / "model.bin")


@pytest.mark.parametrize("name", ["gone.safetensors", "../gone.safetensors", "", "/etc/hostname"])
def test_shards_that_are_not_there(tmp_path: Path, model: BartForConditionalGeneration, name: str) -> None:
    write_json(tmp_path / "config.json", model.config.to_dict())
    (tmp_path.parent / "gone.safetensors").write_bytes(b"outside")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    fails(tmp_path, str(index), repr(name))
    for content in ("{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'):
        index.write_text(content)
        fails(tmp_path, str(index), "weight_map")
