"""scripts/benchmark_training.py: both train alike, and what it counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG


@pytest.fixture
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("benchmark_training")


def test_both_train_alike_and_are_measured(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    BartTokenizer.train(["The new mayor has spoken."] * 2, 300).save_pretrained(tmp_path / "vocabulary")
    options = ["--shape", "tiny", "--gpus", "0", "--steps", "5", "--rounds", "1"]
    monkeypatch.setattr(os, "environ", dict(os.environ))
    # A new process loads torch, Lightning and transformers anew, which takes longer than all the rest.
    monkeypatch.setattr(script, "in_new_process", lambda work, *arguments: work(*arguments))
    script.main([*options, "--tokenizer", str(tmp_path / "vocabulary"), "--output", str(tmp_path / "training.json")])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "training.json").read_text())
    ours, theirs = report["results"]
    assert (ours["mode"], theirs["mode"], theirs["speed_to_transformers"]) == ("ours", "transformers", 1)
    losses = [result["runs"][0]["losses"] for result in (ours, theirs)]
    assert [len(run) for run in losses] == [2, 2]
    assert losses[0][0] != losses[0][1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    settings = [result["runs"][0]["settings"] for result in (ours, theirs)]
    assert settings[0]["clip"] == 0.1
    assert [group["weight_decay"] for group in settings[0]["groups"]] == [0.1, 0]
    assert settings[0]["groups"] == settings[1]["groups"]
    rates = [np.array(one.pop("rates")) for one in settings]
    assert rates[0].shape == (10, 2)
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)
    assert settings[0] == settings[1]
    for result in (ours, theirs):
        assert result["tokens_per_second"] == pytest.approx(result["samples_per_second"] * report["sample"]["tokens"])
        rate = result["samples_per_second"] * report["sample"]["operations"]
        assert result["tflops_per_second"] == pytest.approx(rate / 1e12)
        assert result["mfu"] == pytest.approx(rate / report["peak"]["operations"])
        assert 0.2 < result["peak_memory_gb"] < 5
    lines = printed.splitlines()
    assert lines[0].startswith("tiny in fp32 on ")
    assert [line.split()[0] for line in lines[-3:]] == ["ours", "transformers", "MFU"]


def test_operations_are_those_that_torch_counts(script: ModuleType) -> None:
    """But for the decoder's own attention, of which torch counts the full square."""
    config = BartConfig(**{**CONFIG, "encoder_layers": 3, "decoder_layers": 3}, vocab_size=500, dropout=0.0)
    model = BartForConditionalGeneration(config).train()
    network = model.model
    for table in (network.shared, network.encoder.embed_positions, network.decoder.embed_positions):
        table.requires_grad_(False)
    source, target = torch.randint(3, 500, (1, 24)), torch.randint(3, 500, (1, 16))
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(source, labels=target).loss.backward()
    half = 3 * 4 * config.d_model * 3 * (16 * 16 - 16 * 17 / 2)  # of the decoder's own attention, which is masked
    counted = script.training_operations(config, np.array([24.0]), np.array([16.0]))[0] + half
    assert counted == pytest.approx(counter.get_total_flops(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "1"], "--gpus is 1; this machine has 0 CUDA devices"),
        (["--gpus", "0", "--precision", "fp16", "--shape", "tiny"], "--fp16"),
        (["--gpus", "0", "--precision", "tf32", "--shape", "tiny"], "--tf32"),
        (["--output", "nowhere/at/all.json"], "--output is 'nowhere/at/all.json'"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    script: ModuleType, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(script, "in_new_process", lambda *_: pytest.fail("something was begun"))
    with pytest.raises(InputError, match=message):
        script.main(options)
