"""scripts/benchmarks/train_with_transformers.py: it learns, and writes a model that ours takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import train_with_transformers
from tests.tiny_run import write_tiny_run


def test_the_peer_of_translation(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_run(tmp_path)
    monkeypatch.setattr(train_with_transformers, "LOG_STEPS", 12)  # two epochs
    files = {"data_dir": "data", "tokenizer": "tokenizer", "config_path": "config.json", "output_dir": "model"}
    words = [word for name, file in files.items() for word in (f"--{name}", str(tmp_path / file))]
    train_with_transformers.main([*words, "--max_steps", "36", "--train_batch_size", "4", "--warmup_steps", "6"])
    losses = [float(loss) for loss in re.findall(r"^step \d+  loss ([\d.]+)  ", capsys.readouterr().out, re.MULTILINE)]
    assert len(losses) == 3 and losses[2] < losses[1] < losses[0]
    model = BartForConditionalGeneration.from_pretrained(tmp_path / "model")
    assert model.config.pre_ln and len(BartTokenizer.from_pretrained(tmp_path / "model")) == model.config.vocab_size
