"""Bad input ends an entry point with one line that names the thing, status 2, and no traceback."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import finetune
import run_eval
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG, write_tiny_run
from utils.cli import run_main
from utils.data.dataset import TrainBatches

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[object, list[object]], str]:
    """Runs an entry point's main as a shell would, and returns the one line it ends with."""

    def refuse(module: object, argv: list[object]) -> str:
        monkeypatch.setattr(sys, "argv", ["finetune.py", *map(str, argv)])
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
def tiny(tmp_path: Path) -> tuple[Path, list[object]]:
    argv = write_tiny_run(tmp_path)
    return tmp_path, [*argv, "--do_train", "--do_predict", "--output_dir", tmp_path / "run", "--max_steps", "1"]


def test_missing_data(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    folder, argv = tiny
    assert "nowhere" in run(finetune, [*argv, "--data_dir", folder / "nowhere"])
    for split in ("train", "val", "test"):
        target = folder / "data" / f"{split}.target"
        aside = target.rename(folder / "aside")
        assert f"{split}.target: no such file" in run(finetune, argv)
        aside.rename(target)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"one\ntwo\n", "has 2"), (b"one\n\nthree\n", "line 2: blank"), (b"one\n\xff\n", "line 2: not UTF-8")],
)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_bad_line_files(
    split: str, content: bytes, message: str, tiny: tuple[Path, list[object]], run: Callable[..., str]
) -> None:
    folder, argv = tiny
    (folder / "data" / f"{split}.source").write_bytes(content)
    error = run(finetune, argv)
    assert f"{split}.source" in error
    assert message in error


def test_precision_and_devices(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    _, argv = tiny
    assert "--fp16 and --bf16 exclude" in run(finetune, [*argv, "--fp16", "--bf16"])
    assert "--fp16 needs a GPU" in run(finetune, [*argv, "--fp16"])
    if torch.cuda.device_count() < 64:
        assert "--gpus is 64" in run(finetune, [*argv, "--gpus", "64"])
    assert "unknown argument --fp17" in run(finetune, [*argv, "--fp17"])
    assert "--train_batch_size: '-1'" in run(finetune, [*argv, "--train_batch_size", "-1"])


def test_configs(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    folder, argv = tiny
    (folder / "config.json").write_text(json.dumps({**CONFIG, "encoder_layer": 3}))
    assert "'encoder_layer' is unknown; did you mean 'encoder_layers'" in run(finetune, argv)
    assert "no such config file" in run(finetune, [*argv, "--config_path", folder / "absent.json"])
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert "--max_source_length is 65; the model has 64" in run(finetune, [*argv, "--max_source_length", "65"])
    assert "--val_max_target_length is 99" in run(finetune, [*argv, "--val_max_target_length", "99"])
    assert "needs --tokenizer" in run(finetune, [word for word in argv if "tokenizer" not in str(word)])
    (folder / "file").write_text("")
    assert "file" in run(finetune, [*argv, "--output_dir", folder / "file"])


def test_checkpoints(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    folder, argv = tiny
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    good = folder / "good"
    BartForConditionalGeneration(BartConfig.from_json(folder / "config.json")).save_pretrained(good, tokenizer)
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
            (folder / name).write_bytes(content)
        error = run(finetune, [*argv, "--model_name_or_path", folder / name])
        assert name in error
    safetensors.torch.save_file({"fc.weight": torch.zeros(3, 3)}, folder / "resnet.safetensors")
    assert "resnet.safetensors" in run(finetune, [*argv, "--model_name_or_path", folder / "resnet.safetensors"])
    (folder / "config.json").write_text(json.dumps({**CONFIG, "encoder_ffn_dim": 48}))
    error = run(finetune, [*argv, "--model_name_or_path", good])
    assert "wrong shape: model.encoder.layers.0.fc1.bias (32,) where the model has (48,)" in error
    error = run(finetune, [*argv, "--resume_from_checkpoint", folder / "absent.ckpt"])
    assert "absent.ckpt" in error
    error = run(finetune, [*argv, "--resume_from_checkpoint", folder / "picture.ckpt"])
    assert "picture.ckpt" in error
    error = run(finetune, [*argv, "--resume_from_checkpoint", good / "model.safetensors"])
    assert "model.safetensors" in error
    (folder / "config.json").write_text(json.dumps(CONFIG))
    finetune.main([str(word) for word in argv])
    (folder / "config.json").write_text(json.dumps({**CONFIG, "encoder_ffn_dim": 48}))
    error = run(finetune, [*argv, "--resume_from_checkpoint", folder / "run" / "last.ckpt"])
    assert "its encoder_ffn_dim is 32, this run's is 48" in error
    assert "missing.ckpt" in run(run_eval, [folder / "missing.ckpt", folder / "config.json", folder / "data", folder])


def test_what_a_run_cannot_do(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    folder, argv = tiny
    error = run(finetune, [*argv, "--early_stopping_patience", 2, "--val_check_interval", 1000])
    assert "--early_stopping_patience is 2" in error and "first validation" in error
    sharded = ["--accelerator", "cpu", "--devices", 2, "--strategy", "fsdp", "--decoder_layerdrop", 0.1]
    assert "--strategy fsdp and layer dropout" in run(finetune, [*argv, *sharded])
    finetune.main([str(word) for word in argv])
    resume = [*argv, "--resume_from_checkpoint", "last"]
    for option, value, old in (("seed", 43, 42), ("train_batch_size", 3, 8), ("optimizer", "sgd", "adamw")):
        assert f"its {option} is {old}, this run's is {value}" in run(finetune, [*resume, f"--{option}", value])
    assert "its examples is 22, this run's is 20" in run(finetune, [*resume, "--n_train", 20])
    assert "its amp_level O2 is False, this run's is True" in run(finetune, [*resume, "--bf16", "--amp_level", "O2"])
    for side in ("target", "source"):
        path = folder / "data" / f"train.{side}"
        before = path.read_text()
        path.write_text("".join(reversed(before.splitlines(keepends=True))))
        assert "other data of the same size" in run(finetune, resume)
        path.write_text(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainBatches, "ORDER", TrainBatches.ORDER + 1)
        assert "another version of this code wrote it" in run(finetune, resume)


def test_a_vocabulary_that_does_not_fit(tiny: tuple[Path, list[object]], run: Callable[..., str]) -> None:
    folder, argv = tiny
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    model = BartForConditionalGeneration(BartConfig.from_json(folder / "config.json"))
    model.resize_token_embeddings(len(tokenizer) - 5)
    model.save_pretrained(folder / "small", tokenizer)
    error = run(finetune, [*argv, "--model_name_or_path", folder / "small"])
    assert f"the tokenizer has {len(tokenizer)} ids, the model's vocab_size is {len(tokenizer) - 5}" in error
    error = run(run_eval, [folder / "small", folder / "config.json", folder / "data", folder / "out"])
    assert "the vocabulary does not fit the model" in error


def test_scoring(tiny: tuple[Path, list[object]], run: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    """Each line names the option, its value and what is allowed; nothing is written."""
    folder, _ = tiny
    model = BartForConditionalGeneration(BartConfig.from_json(folder / "config.json"))
    model.save_pretrained(folder / "model", BartTokenizer.from_pretrained(folder / "tokenizer"))
    words = [folder / "model", folder / "config.json", folder / "data", folder / "out", "--gpus", 0]
    (folder / "file").write_text("")
    for options, message in [
        (["--num_beam_groups", 3], "--num_beam_groups is 3; allowed: divisors of num_beams (2)"),
        (["--eval_beams", 4, "--num_return_sequences", 5], "--num_return_sequences is 5; allowed: at most num_beams"),
        (["--num_beams", 0], "--num_beams is 0; allowed: an integer of at least 1"),
        (["--top_p", 1.5], "--top_p is 1.5; allowed: above 0 and at most 1"),
        (["--max_length", 99], "--max_length is 99; allowed: at most 65, for the model has 64 positions"),
        (["--eval_max_gen_length", 99], "--eval_max_gen_length is 99; the model has 64 positions"),
        (["--bad_words_ids", "[5]"], "--bad_words_ids is [5]; allowed: a list of lists of ids, none of them empty"),
        (["--forced_bos_token_id", 9999], "--forced_bos_token_id holds 9999; allowed: ids below the vocabulary's size"),
        (["--json-summary", folder / "no" / "such"], "such; allowed: a file in a directory that exists"),
        (["--json-summary", folder], "allowed: a file in a directory that exists"),
        (["--precision", "fp8"], "--precision: 'fp8' is not allowed: it takes one of fp32"),
        (["--type_path", "dev"], "--type_path: 'dev' is not allowed: it takes one of train, val, test"),
        (["--lenght-penalty", 2], "unknown argument --lenght_penalty; did you mean --length_penalty?"),
    ]:
        assert message in run(run_eval, [*words, *options]), options
    assert not list((folder / "out").glob("*"))
    words[3] = folder / "file"
    assert "file: cannot be written" in run(run_eval, words)
    if torch.cuda.device_count() < 64:
        assert "--device is cuda:64; this machine has" in run(run_eval, [*words[:4], "--device", "cuda:64"])
    if torch.cuda.device_count() == 0:
        assert "--device is cuda; this machine has 0" in run(run_eval, [*words[:4], "--device", "cuda"])
    assert "Traceback" not in caplog.text
    caplog.set_level("DEBUG")
    run(run_eval, [*words[:3], folder / "out", "--gpus", 0, "--top_p", 2, "--debug"])
    assert "Traceback" in caplog.text


def test_interactive(tiny: tuple[Path, list[object]], run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = tiny
    model = BartForConditionalGeneration(BartConfig.from_json(folder / "config.json"))
    model.save_pretrained(folder / "model", BartTokenizer.from_pretrained(folder / "tokenizer"))
    words = [folder / "model", folder / "config.json", "--interactive", "--gpus", 0]
    for piped, options, message in [
        (b"  \n", [], "standard input: blank"),
        (b"\xff", [], "standard input, line 1: not UTF-8"),
        (b"the dog", ["--max_source_length", 4], "max_source_length is 4; allowed: 8 to 64"),
        (b"the dog", ["--num_beam_groups", 3], "--num_beam_groups is 3"),
    ]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        assert message in run(run_eval, [*words, *options])


def test_from_a_shell() -> None:
    for command in (["finetune.py", "--do_train", "--nonsense"], ["run_eval.py", "a", "b", "no/such/folder/x", "d"]):
        result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 2
        assert result.stderr.startswith(f"{command[0]}: error: ")
        assert result.stderr.count("\n") == 1
