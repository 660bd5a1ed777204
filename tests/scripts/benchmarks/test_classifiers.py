"""scripts/benchmarks/classifiers.py: both train alike, and what they learned is scored."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from bert.tokenization.tokenization_bert import BertTokenizer
from scripts.benchmarks import classifiers
from tests.tiny_run import OF_BERT

KINDS = {"alice": 0, "bruno": 0, "paris": 1, "rome": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences with a name, whose kind is its tag and the sentence's class; random weights without dropout."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("files")
    for split, count in (("train", 120), ("val", 6), ("test", 30)):
        rows = []
        for _ in range(count):
            words = ["we", "saw", rng.choice([*KINDS])]
            rng.shuffle(words)
            # Every tenth name is of the other kind, so that nobody is always right.
            kind = next(KINDS[word] for word in words if word in KINDS) ^ (rng.random() < 0.1)
            tags = [f"B-{kind}" if word in KINDS else "O" for word in words]
            rows.append({"text": " ".join(words), "label": f"class {kind}", "words": words, "tags": tags})
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tokenizer = BertTokenizer.train(["we saw the " + " ".join(KINDS)] * 2, vocab_size=100)
    tokenizer.save_pretrained(folder / "weights")
    torch.manual_seed(0)
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(**OF_BERT, **dropouts, vocab_size=len(tokenizer))).save_pretrained(folder / "weights")
    return folder


@pytest.mark.parametrize("task", [pytest.param("classification", marks=pytest.mark.slow), "tagging"])
def test_both_train_alike_and_are_scored(
    task: str,
    files: Path,
    tmp_path: Path,
    in_this_process: None,
    no_pictures: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    options = {"task": task, "data_dir": files, "model_name_or_path": files / "weights", "max_source_length": 16}
    options |= {"steps": 45, "train_batch_size": 7, "learning_rate": 1e-2, "rounds": 1, "output": tmp_path / "out.json"}
    classifiers.main([str(word) for name, value in options.items() for word in (f"--{name}", value)])
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["train_examples"] == 120
    ours, peer = report["results"]
    losses = torch.tensor([result["losses"][0] for result in (ours, peer)])
    assert losses.shape == (2, 5) and losses[0, 4] < 0.9 * losses[0, 0]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=0)
    for result in (ours, peer):
        assert 50 < result["mean"] < 100 and result["standard_error"] is None and result["rate"] > 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[-2:]] == ["ours", "transformers"]
