"""scripts/benchmarks/decoding.py: whole runs on tiny models, and bad options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import decoding
from tests.tiny_run import write_tiny_run

TRANSFORMERS, CTRANSLATE2, OURS = "transformers_fp32", "ctranslate2_fp32", "ours_fp32"
# Of the articles. In fp32 two beams may be closer to each other than rounding; with other options nearly all differ.
SAME_IDS = 0.9


@pytest.fixture(autouse=True)
def peer_is_there(in_this_process: None) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


@pytest.fixture
def decode(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Decodes 12 articles in batches of 8 with a model of some config, in these modes; gives the report."""

    def run(modes: list[str], **config: Any) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write_tiny_run(folder, n_test=36)
        given = json.loads((folder / "config.json").read_text()) | {"no_repeat_ngram_size": 3}
        torch.manual_seed(0)
        # With large weights, and an EOS that is likely, summaries differ in their ids and lengths.
        model = BartForConditionalGeneration(BartConfig(**{**given, "init_std": 0.6, **config}))
        model.final_logits_bias[0, 2] = 4.0
        model.save_pretrained(folder / "model", BartTokenizer.from_pretrained(folder / "tokenizer"))
        options = ["--shape", "text", "--model", folder / "model", "--data_dir", folder / "data", "--modes", *modes]
        options += ["--limit", 12, "--batch_size", 8, "--threads", 1, "--rounds", 1, "--output", folder / "out.json"]
        decoding.main([str(word) for word in options])
        return json.loads((folder / "out.json").read_text())

    return run


def test_peers_agree_on_random_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes, output = [TRANSFORMERS, CTRANSLATE2, OURS], tmp_path / "out.json"
    options = ["--shape", "tiny", "--threads", "1", "--rounds", "2", "--modes", *modes]
    decoding.main([*options, "--output", str(output)])
    head, _, *rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    assert head == ["mode", "articles/s", "seconds", "speed-up", "peak GB", "same ids"]
    assert [row[0] for row in rows] == modes
    report = json.loads(output.read_text())
    assert {"torch", "transformers", "ctranslate2"} < report["machine"]["versions"].keys()
    for mode, result in zip(modes, report["results"], strict=True):
        assert (result["mode"], len(result["rates"])) == (mode, 2)
        assert result["rate"] * result["seconds"] == pytest.approx(3)
        assert result["identical_share"] > 0.6  # at most one of three differs, see SAME_IDS


def test_articles_that_stop_by_themselves(decode: Callable[..., dict[str, Any]]) -> None:
    report = decode([TRANSFORMERS, OURS])
    assert report["results"][1]["identical_share"] >= SAME_IDS


def test_ctranslate2_decodes_text(decode: Callable[..., dict[str, Any]]) -> None:
    # It stops as early_stopping=True does, and its n-gram ban is another one.
    report = decode([TRANSFORMERS, CTRANSLATE2], early_stopping=True, no_repeat_ngram_size=0)
    assert report["results"][1]["identical_share"] >= SAME_IDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "text"], "--shape text needs --model and --data_dir"),
        (["--data_dir", "x"], "--shape text needs --model and --data_dir, which no other shape takes"),
        (["--shape", "text", "--data_dir", "x", "--model", "./nowhere"], "./nowhere: no such file or folder"),
    ],
)
def test_bad_options(options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        decoding.main(options)


def test_the_peers_have_no_pre_ln(decode: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="is Pre-LN, which the peers lack; allowed: --modes of ours alone"):
        decode([OURS, CTRANSLATE2], pre_ln=True)
    decode([OURS], pre_ln=True)
