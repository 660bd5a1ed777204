"""scripts/benchmarks/training.py: both train alike, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import measuring, training


@pytest.fixture(autouse=True)
def peer_is_there(in_this_process: None) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")


@pytest.mark.slow
def test_both_train_alike_and_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BartTokenizer.train(["The new mayor has spoken."] * 2, 300).save_pretrained(tmp_path / "vocabulary")
    steps: list[list[dict[str, Any]]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        names = ("lr", "weight_decay", "betas", "eps")
        sizes = [sum(parameter.numel() for parameter in group["params"]) for group in optimizer.param_groups]
        settings = [{name: group[name] for name in names} for group in optimizer.param_groups]
        steps.append([{**group, "parameters": size} for group, size in zip(settings, sizes, strict=True)])

    hook = register_optimizer_step_post_hook(note)
    options = ["--shape", "tiny", "--steps", "5", "--rounds", "1"]
    output = tmp_path / "training.json"
    training.main([*options, "--tokenizer", str(tmp_path / "vocabulary"), "--output", str(output)])
    hook.remove()
    assert len(steps) == 20
    for ours, peer in zip(steps[:10], steps[10:], strict=True):
        assert [group["weight_decay"] for group in ours] == [0.1, 0]
        for group, peer_group in zip(ours, peer, strict=True):
            assert group.pop("lr") == pytest.approx(peer_group.pop("lr"), rel=1e-9)
            assert group == peer_group
    report = json.loads(output.read_text())
    ours, peer = report["results"]
    assert (ours["mode"], peer["mode"], peer["speed_up"]) == ("ours", "transformers", 1)
    losses = [result["losses"] for result in (ours, peer)]
    assert [len(run) for run in losses] == [2, 2]
    # A loss is the end of more than 2,600 additions in a row. From one step to the next it moves by more than their
    # rounding.
    rounding = 2600 * torch.finfo(torch.float32).eps
    assert losses[0] == pytest.approx(losses[1], rel=rounding)
    assert losses[0][0] != pytest.approx(losses[0][1], rel=rounding)
    for result in (ours, peer):
        assert result["rate"] > 0 and result["peak_memory_gb"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.replace("|", "").split()[0] for line in lines[-2:]] == ["ours", "transformers"]


def test_a_precision_that_cpus_lack_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(measuring, "in_new_process", lambda *_: pytest.fail("something was begun"))
    with pytest.raises(InputError, match="--fp16"):
        training.main(["--precision", "fp16", "--shape", "tiny"])
