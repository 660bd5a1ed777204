"""Bad input ends an entry point with one line that names the thing, status 2, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch

import finetune
import run_eval
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG
from utils.app.cli import run_main

ROOT = Path(__file__).parents[1]
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an entry point's main as a shell would, and returns the one line it ends with."""

    def refuse(module: ModuleType, *argv: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, argv)])
        with pytest.raises(SystemExit) as stop:
            run_main(module.main)
        error = capsys.readouterr().err
        assert stop.value.code == 2, error
        lines = [line for line in error.splitlines() if "error: " in line]
        assert len(lines) == 1
        assert error.splitlines()[-1] == lines[0]
        return lines[0]

    return refuse


@pytest.fixture
def argv(tiny: list[str], tmp_path: Path) -> list[object]:
    return [*tiny, "--do_predict", "--output_dir", tmp_path / "run", "--max_steps", "1"]


def save_model(folder: Path, shrink: int = 0) -> Path:
    """A model of the tiny config in Hub format, with so many ids less than its vocabulary."""
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    model = BartForConditionalGeneration(BartConfig.from_pretrained(folder / "config.json"))
    model.resize_token_embeddings(len(tokenizer) - shrink)
    model.save_pretrained(folder / f"model{shrink}", tokenizer)
    return folder / f"model{shrink}"


def test_line_files(argv: list[object], tmp_path: Path, run: Run) -> None:
    assert "nowhere" in run(finetune, *argv, "--data_dir", tmp_path / "nowhere")
    for split in ("train", "val", "test"):
        target, source = (tmp_path / "data" / f"{split}.{side}" for side in ("target", "source"))
        aside = target.rename(tmp_path / "aside")
        assert f"{split}.target: no such file" in run(finetune, *argv)
        aside.rename(target)
        before = source.read_bytes()
        for content, message in (
            (b"one\ntwo\n", "has 2"),
            (b"one\n\nthree\n", "line 2: blank"),
            (b"one\n\xff\n", "line 2: not UTF-8"),
        ):
            source.write_bytes(content)
            error = run(finetune, *argv)
            assert f"{split}.source" in error and message in error
        source.write_bytes(before)
    # All splits are looked at before anything is written; the lock goes with its folder as the process ends.
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_options_and_configs(argv: list[object], tmp_path: Path, run: Run) -> None:
    assert "--train_batch_size: '-1'" in run(finetune, *argv, "--train_batch_size", "-1")
    assert "--max_source_length is 65; the model has 64" in run(finetune, *argv, "--max_source_length", "65")
    assert "--val_max_target_length is 99" in run(finetune, *argv, "--val_max_target_length", "99")
    assert "needs --tokenizer" in run(finetune, *[word for word in argv if "tokenizer" not in str(word)])
    assert "absent.json: cannot be read: No such file" in run(
        finetune, *argv, "--config_path", tmp_path / "absent.json"
    )
    (tmp_path / "file").write_text("")
    assert "file: cannot be written" in run(finetune, *argv, "--output_dir", tmp_path / "file")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "encoder_layer": 3}))
    assert "'encoder_layer' is unknown; did you mean 'encoder_layers'" in run(finetune, *argv)


def test_checkpoints(argv: list[object], tmp_path: Path, run: Run, no_pictures: None) -> None:
    good = save_model(tmp_path)
    weights = (good / "model.safetensors").read_bytes()
    cases = {
        "missing.ckpt": None,
        "truncated.safetensors": weights[: len(weights) // 2],
        "empty.ckpt": b"",
        "picture.ckpt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20,
        "text.pt": b"hello\n" * 100,
    }
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert name in run(finetune, *argv, "--model_name_or_path", tmp_path / name)
        assert name in run(finetune, *argv, "--resume_from_checkpoint", tmp_path / name)
    assert "missing.ckpt" in run(run_eval, tmp_path / "missing.ckpt", tmp_path / "config.json", tmp_path / "data", "x")
    safetensors.torch.save_file({"fc.weight": torch.zeros(3, 3)}, tmp_path / "resnet.safetensors")
    assert "resnet.safetensors" in run(finetune, *argv, "--model_name_or_path", tmp_path / "resnet.safetensors")
    model = good / "model.safetensors"
    assert "model.safetensors" in run(finetune, *argv, "--resume_from_checkpoint", model)
    finetune.main([*map(str, argv), "--no_do_predict"])
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "encoder_ffn_dim": 48}))
    error = run(finetune, *argv, "--model_name_or_path", good, "--overwrite_output_dir")
    assert "wrong shape: model.encoder.layers.0.fc1.bias (32,) where the model has (48,)" in error
    error = run(finetune, *argv, "--resume_from_checkpoint", "last")
    assert "its encoder_ffn_dim is 32, this run's is 48" in error


def test_a_vocabulary_that_does_not_fit(argv: list[object], tmp_path: Path, run: Run) -> None:
    small = save_model(tmp_path, shrink=5)
    size = len(BartTokenizer.from_pretrained(tmp_path / "tokenizer"))
    error = run(finetune, *argv, "--model_name_or_path", small)
    assert f"the tokenizer has {size} ids, the model's vocab_size is {size - 5}" in error
    error = run(run_eval, small, tmp_path / "config.json", tmp_path / "data", tmp_path / "out", "--device", "cpu")
    assert "the vocabulary does not fit the model" in error


def test_scoring(tiny: list[str], tmp_path: Path, run: Run) -> None:
    """Each line names the option, its value and what is allowed; nothing is written."""
    model = save_model(tmp_path)
    place = tmp_path / "out"
    words = [model, tmp_path / "config.json", tmp_path / "data", place, "--device", "cpu"]
    (tmp_path / "file").write_text("")
    for options, message in [
        (["--num_beam_groups", 3], "unknown argument --num_beam_groups; leave it off"),
        (["--eval_beams", 4, "--num_return_sequences", 5], "--num_return_sequences is 5; allowed: at most num_beams"),
        (["--eval_beams", 0], "argument --eval_beams: '0' is not allowed: it takes an integer at least 1"),
        (["--top_p", 1.5], "--top_p is 1.5; allowed: above 0 and at most 1"),
        (["--eval_max_gen_length", 99], "--eval_max_gen_length is 99; the model has 64 positions"),
        (["--json-summary", tmp_path / "no" / "such"], "such'; allowed: a file in a directory that exists"),
    ]:
        assert message in run(run_eval, *words, *options), options
    assert not list(place.glob("*"))
    assert "file: cannot be written" in run(run_eval, *words[:3], tmp_path / "file", "--device", "cpu")


def test_from_a_shell() -> None:
    command = ["finetune.py", "--do_train", "--nonsense"]
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("finetune.py: error: ")
    assert result.stderr.count("\n") == 1
