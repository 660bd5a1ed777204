"""scripts/benchmark_decoding.py: whole runs on tiny models, what it counts, and bad options."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "benchmark_decoding.py"
PER_MODE = {
    *("mode", "seconds", "median_seconds", "articles_per_second", "peak_memory_gb", "environment"),
    *("floor_seconds", "share_of_floor", "identical_share", "different_articles"),
    *("speed_to_transformers_fp32", "speed_to_ctranslate2_int8"),
}


def benchmark(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Run the script as a user would, from another directory."""
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def measured(folder: Path, *options: object) -> tuple[dict[str, Any], list[str]]:
    """The JSON and the lines of the table of a run that succeeds."""
    done = benchmark(folder, *options, "--threads", 1, "--repeats", 2, "--output", folder / "out.json")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout.splitlines()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("benchmark_decoding", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_decoding", module)
    spec.loader.exec_module(module)
    return module


def test_two_peers_agree_on_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    modes = ["transformers_fp32", "ctranslate2_fp32"]
    report, table = measured(tmp_path, "--shape", "tiny", "--modes", ",".join(modes))
    assert [line.split()[0] for line in table] == ["mode", *modes]
    assert report["versions"].keys() == {"python", "torch", "transformers", "ctranslate2"}
    assert report["versions"]["torch"] == torch.__version__
    assert report["hardware"].keys() == {"processor", "cores", "memory_gb"}
    assert report["rates"].keys() == {"fp32", "bf16", "int8", "bytes"}
    assert (report["threads"], report["shape"], report["date"][:2]) == (1, "tiny", "20")
    assert "--shape tiny" in report["command"]
    assert (report["decoding"]["num_beams"], report["decoding"]["max_length"]) == (3, 13)
    for mode, result in zip(modes, report["results"], strict=True):
        assert result.keys() == PER_MODE
        assert result["mode"] == mode
        assert len(result["seconds"]) == 2
        assert result["median_seconds"] == pytest.approx(sum(result["seconds"]) / 2)
        assert result["articles_per_second"] == pytest.approx(3 / result["median_seconds"])
        assert result["share_of_floor"] == pytest.approx(result["floor_seconds"] / result["median_seconds"])
        assert result["speed_to_ctranslate2_int8"] is None
        assert (result["identical_share"], result["different_articles"]) == (1, [])
    theirs, other = report["results"]
    assert other["speed_to_transformers_fp32"] == pytest.approx(theirs["median_seconds"] / other["median_seconds"])
    # It loads no torch. Were memory inherited from the process that prepared the weights, it would be as much.
    assert 0 < other["peak_memory_gb"] < theirs["peak_memory_gb"] / 2


def test_text_with_natural_stopping(tmp_path: Path) -> None:
    write_tiny_run(tmp_path, n_test=40)
    # Large weights, and an EOS that is likely: the summaries differ in their ids and lengths.
    config = json.loads((tmp_path / "config.json").read_text()) | {"init_std": 0.3, "no_repeat_ngram_size": 3}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**config))
    model.final_logits_bias[0, 2] = 2.0
    model.save_pretrained(tmp_path / "model", BartTokenizer.from_pretrained(tmp_path / "tokenizer"))
    options = ("--shape", "text", "--model", tmp_path / "model", "--data_dir", tmp_path / "data", "--limit", 36)
    report, _ = measured(tmp_path, *options, "--modes", "transformers_fp32,ours_fp32")
    decoding = report["decoding"]
    assert (decoding["num_beams"], decoding["no_repeat_ngram_size"], decoding["max_length"]) == (2, 3, 12)
    assert [result["identical_share"] for result in report["results"]] == [1, 1]
    rates = [result["articles_per_second"] * result["median_seconds"] for result in report["results"]]
    assert rates == pytest.approx([36, 36])


def test_the_floor(script: ModuleType) -> None:
    net = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 16}
    inputs = {
        "architecture": {**net, "vocab_size": 10},
        "decoding": {"num_beams": 2, "max_length": 4},
        "batches": [[[0] * 5, [0] * 7]],
    }
    # The first article ends in its second step, the other one is cut after the third.
    ids = [[[9], [9, 9, 9]]]
    encoder, cross, decoder = 2 * (4 * 16 + 2 * 32), 3 * 2 * 16, 3 * (6 * 16 + 2 * 64) + 10 * 4
    # Bytes for nothing: only operations count.
    attention = 2 * 4 * 4 * (25 + 49)
    operations = 2 * encoder * 12 + attention + 2 * cross * 12
    operations += 2 * (2 * 2 * 2 * decoder + 2 * 3 * 4 * 4 * 12) + 2 * 2 * decoder + 2 * 3 * 4 * 4 * 7
    assert script.floor_seconds(inputs, ids, "bf16", {"bf16": 2.0, "bytes": 1e30}) == pytest.approx(operations / 2)
    # And the other way round.
    numbers = encoder + cross + 3 * decoder + 2 * 3 * 4 * (12 + 12 + 7)
    for precision, size in (("fp32", 4), ("bf16", 2), ("int8", 1)):
        floor = script.floor_seconds(inputs, ids, precision, {precision: 1e30, "bytes": 5.0})
        assert floor == pytest.approx(numbers * size / 5)


@pytest.mark.parametrize(("ours", "in_double", "status"), [([7, 8], None, 0), ([7, 9], [], 0), ([7, 9], [2], 1)])
def test_other_ids_of_ours_are_an_error_unless_they_are_the_same_in_double(
    ours: list[int],
    in_double: list[int] | None,
    status: int,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    decoding = {"num_beams": 2, "max_length": 3}
    inputs = {"architecture": {**net, "vocab_size": 10}, "decoding": decoding, "batches": [[[4], [5]], [[6]]]}

    def canned(work: Any, *arguments: Any) -> Any:
        if work is script.prepare:
            return inputs
        if work is script.machine_rates:
            return dict.fromkeys(("fp32", "bf16", "int8", "bytes"), 1e9)
        if work is script.different_in_double:
            assert arguments[1] == {2: [6]}
            return in_double
        # transformers in bf16 always differs, which is no error.
        last = {"transformers_fp32": [7, 8], "transformers_bf16": [7], "ours_fp32": ours}[arguments[1]]
        ids = [[[4, 5], [6]], [last]]
        return {"seconds": [1.0, 3.0, 2.0], "ids": ids, "peak_memory_gb": 1.0, "environment": {}}

    monkeypatch.setattr(script, "in_new_process", canned)
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")  # main sets them; this has them restored
    assert script.main(["--modes", "transformers_fp32,transformers_bf16,ours_fp32"]) == status
    printed = capsys.readouterr()
    shares = [line.split()[-1] for line in printed.out.splitlines()]
    assert shares[:4] == ["ids", "1.00", "0.67", "1.00" if in_double is None else "0.67"]
    assert (f"differ in articles [2], counted from 0; in double precision in {in_double}" in printed.out) == (
        in_double is not None
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "huge"], "--shape: 'huge' is not allowed: it takes one of base, large, large_batch1, tiny, text"),
        (["--modes", "ours_fp64"], "--modes holds 'ours_fp64'; allowed, each once: transformers_fp32, "),
        (["--modes", "ours_fp32,ours_fp32"], "--modes holds 'ours_fp32'; allowed, each once"),
        (["--repeats", "0"], "--repeats: '0' is not allowed"),
        (["--thread", "2"], "unknown argument --thread; did you mean --threads?"),
        (["--shape", "text"], "--shape text needs --model and --data_dir"),
        (["--data_dir", "x"], "--data_dir is 'x'; allowed with --shape text alone"),
        (["--output", "no/such/folder/x.json"], "--output is 'no/such/folder/x.json'"),
        (["--modes", "ours_fp32", "--model", "./nowhere"], "./nowhere: no such file or folder"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path) -> None:
    # Were a bad option let through, the run would at least be a short one.
    done = benchmark(tmp_path, "--shape", "tiny", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("benchmark_decoding.py: error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_the_shapes_are_in_the_help(tmp_path: Path) -> None:
    text = benchmark(tmp_path, "--help").stdout
    assert "{base,large,large_batch1,tiny,text}" in text
    assert "articles of 1024 ids, 142 steps" in " ".join(text.split())


def test_models_that_not_all_peers_can_run(tmp_path: Path) -> None:
    write_tiny_run(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    refused = {
        "is Pre-LN": {"pre_ln": True},
        "its encoder_no_repeat_ngram_size is on": {"encoder_no_repeat_ngram_size": 2},
    }
    for message, field in refused.items():
        BartForConditionalGeneration(BartConfig(**config, **field)).save_pretrained(tmp_path / "model", tokenizer)
        options = ("--shape", "text", "--model", tmp_path / "model", "--data_dir", tmp_path / "data")
        done = benchmark(tmp_path, *options, "--modes", "ours_fp32")
        assert done.returncode == 2
        assert message in done.stderr
