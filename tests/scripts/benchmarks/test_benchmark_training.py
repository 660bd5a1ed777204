"""scripts/benchmarks/benchmark_training.py: both train alike, and what it counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import measuring


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which runs everything in this process: loading torch anew would take longer than all the rest."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    script = load_script("benchmark_training")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for module in (script, measuring):
        monkeypatch.setattr(module, "in_new_process", lambda work, *arguments: work(*arguments))
    return script


@pytest.mark.slow
def test_both_train_alike_and_are_measured(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    BartTokenizer.train(["The new mayor has spoken."] * 2, 300).save_pretrained(tmp_path / "vocabulary")
    steps: list[list[dict[str, Any]]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        names = ("lr", "weight_decay", "betas", "eps")
        sizes = [sum(parameter.numel() for parameter in group["params"]) for group in optimizer.param_groups]
        settings = [{name: group[name] for name in names} for group in optimizer.param_groups]
        steps.append([{**group, "parameters": size} for group, size in zip(settings, sizes, strict=True)])

    hook = register_optimizer_step_post_hook(note)
    options = ["--shape", "tiny", "--gpus", "0", "--steps", "5", "--rounds", "1"]
    output = tmp_path / "training.json"
    script.main([*options, "--tokenizer", str(tmp_path / "vocabulary"), "--output", str(output)])
    hook.remove()
    assert len(steps) == 20
    for ours, theirs in zip(steps[:10], steps[10:], strict=True):
        assert [group["weight_decay"] for group in ours] == [0.1, 0]
        for one, other in zip(ours, theirs, strict=True):
            assert one.pop("lr") == pytest.approx(other.pop("lr"), rel=1e-9)
            assert one == other
    report = json.loads(output.read_text())
    ours, theirs = report["results"]
    assert (ours["mode"], theirs["mode"], theirs["speed_up"]) == ("ours", "transformers", 1)
    losses = [result["losses"] for result in (ours, theirs)]
    assert [len(run) for run in losses] == [2, 2]
    # A loss is the end of some 2,600 additions in a row: 416 in a layer of the encoder, 672 in one of the decoder, 428
    # in head, softmax and mean. From one step to the next it moves by more than their rounding.
    rounding = 2600 * torch.finfo(torch.float32).eps
    assert losses[0] == pytest.approx(losses[1], rel=rounding)
    assert losses[0][0] != pytest.approx(losses[0][1], rel=rounding)
    for result in (ours, theirs):
        rate = result["rate"]
        assert result["tokens_per_second"] == pytest.approx(rate * report["sample"]["tokens"])
        assert result["mfu"] == pytest.approx(rate * report["sample"]["operations"] / report["product_rate"])
        assert result["peak_memory_gb"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny in fp32 on ")
    assert [line.replace("|", "").split()[0] for line in lines[-3:]] == ["ours", "transformers", "MFU"]


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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(script, "in_new_process", lambda *_: pytest.fail("something was begun"))
    with pytest.raises(InputError, match=message):
        script.main(options)
