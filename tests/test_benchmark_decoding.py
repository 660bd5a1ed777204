"""scripts/benchmark_decoding.py: whole runs on tiny models, which articles share a batch, and bad options."""

from __future__ import annotations

import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils import measuring
from utils.cli import parse_dataclass

TRANSFORMERS, CTRANSLATE2 = "transformers_fp32", "ctranslate2_fp32"
OURS, STATIC, SINGLE = "ours_fp32", "ours_static_fp32", "ours_single_fp32"
# Of the articles. In fp32 two beams may be closer to each other than rounding; with other options nearly all differ.
SAME_IDS = 0.9


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, one_thread: None) -> ModuleType:
    """The script, which runs everything in this process: loading torch anew would take longer than all the rest."""
    script = load_script("benchmark_decoding")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for module in (script, measuring):
        monkeypatch.setattr(module, "in_new_process", lambda work, *arguments: work(*arguments))
    return script


def write_text_run(folder: Path, **config: Any) -> list[str]:
    """Write a model and 36 articles, whose summaries differ in their ids and lengths; return the options for them."""
    write_tiny_run(folder, n_test=36)
    given = json.loads((folder / "config.json").read_text()) | {"no_repeat_ngram_size": 3}
    torch.manual_seed(0)
    # Large weights, and an EOS that is likely.
    model = BartForConditionalGeneration(BartConfig(**{**given, "init_std": 0.6, **config}))
    model.final_logits_bias[0, 2] = 4.0
    model.save_pretrained(folder / "model", BartTokenizer.from_pretrained(folder / "tokenizer"))
    options = ["--shape", "text", "--model", folder / "model", "--data_dir", folder / "data"]
    return [*map(str, options), "--limit", "12", "--batch_size", "8", "--threads", "1", "--repeats", "1"]


@pytest.fixture
def decode(script: ModuleType, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Decodes 12 articles in batches of 8 with a model of some config, in these modes; gives the report."""

    def run(modes: list[str], **config: Any) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        options = [*write_text_run(folder, **config), "--modes", ",".join(modes)]
        script.main([*options, "--output", str(folder / "out.json")])
        return json.loads((folder / "out.json").read_text())

    return run


def test_peers_agree_on_random_weights(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    modes, output = [TRANSFORMERS, CTRANSLATE2, OURS], tmp_path / "out.json"
    options = ["--shape", "tiny", "--threads", "1", "--repeats", "2", "--modes", ",".join(modes)]
    script.main([*options, "--output", str(output)])
    head, *rows = capsys.readouterr().out.splitlines()
    titles = ["mode", "seconds", "articles/s", "x transformers fp32", "peak GB", "same ids"]
    assert re.split(r"\s{2,}", head.strip()) == titles
    assert [row.split()[0] for row in rows] == modes
    report = json.loads(output.read_text())
    assert {"torch", "transformers", "ctranslate2"} < report["machine"]["versions"].keys()
    assert (report["threads"], report["arguments"]["shape"]) == (1, "tiny")
    assert (report["decoding"]["num_beams"], report["decoding"]["max_length"]) == (3, 13)
    theirs = report["results"][0]
    for mode, result in zip(modes, report["results"], strict=True):
        assert (result["mode"], len(result["seconds"])) == (mode, 2)
        assert result["median_seconds"] == pytest.approx(sum(result["seconds"]) / 2)
        assert result["articles_per_second"] == pytest.approx(3 / result["median_seconds"])
        speed = theirs["median_seconds"] / result["median_seconds"]
        assert result["speed_to_transformers_fp32"] == pytest.approx(speed)
        assert len(result["different_articles"]) <= 1  # of 3, see SAME_IDS
        assert result["identical_share"] == pytest.approx(1 - len(result["different_articles"]) / 3)


def test_articles_that_stop_by_themselves(
    decode: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    report = decode([TRANSFORMERS, OURS, STATIC, SINGLE])
    decoding = report["decoding"]
    assert (decoding["num_beams"], decoding["no_repeat_ngram_size"], decoding["max_length"]) == (2, 3, 12)
    assert all(result["identical_share"] >= SAME_IDS for result in report["results"])
    static = report["results"][2]["median_seconds"]
    for result in report["results"]:
        assert result["articles_per_second"] * result["median_seconds"] == pytest.approx(12)
        assert result["speed_to_ours_static_fp32"] == pytest.approx(static / result["median_seconds"])
    assert "x ours static fp32" in capsys.readouterr().out


def test_ctranslate2_decodes_text(decode: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    # It stops as early_stopping=True does, and its n-gram ban is another one.
    report = decode([TRANSFORMERS, CTRANSLATE2], early_stopping=True, no_repeat_ngram_size=0)
    assert report["results"][1]["identical_share"] >= SAME_IDS


def test_other_ids_are_counted(script: ModuleType) -> None:
    ids = {TRANSFORMERS: [[4], [5]], OURS: [[4], [6]]}
    runs = {mode: [{"seconds": 2.0, "ids": found, "peak_memory_gb": 1.0}] for mode, found in ids.items()}
    theirs, ours = script.summarise(runs)
    assert (theirs["identical_share"], ours["identical_share"], ours["different_articles"]) == (1, 0.5, [1])


def test_who_shares_a_batch_and_until_when(script: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    script.prepare(
        parse_dataclass(script.BenchmarkArguments, [*write_text_run(tmp_path), "--limit", "35", "--modes", OURS], ""),
        folder,
    )
    inputs = json.loads((folder / "inputs.json").read_text())
    lengths = [len(article) for article in inputs["articles"]]
    encoded: dict[str, list[tuple[int, ...]]] = {}  # (articles, source length) of each encoding
    running: dict[str, list[list[int]]] = {}  # articles in each step, in a list per encoding
    ids = {}
    for mode in (OURS, STATIC, SINGLE):
        peer = script.TorchPeer(folder, mode, True, inputs, 1)
        encoded[mode], running[mode] = [], []

        def encode(ids: Any, mask: Any, mode: str = mode, encode: Any = peer.model.encode) -> Any:
            encoded[mode].append(tuple(ids.shape))
            running[mode].append([])
            return encode(ids, mask)

        def decode(ids: Any, cache: Any, mode: str = mode, decode: Any = peer.model.decode) -> Any:
            running[mode][-1].append(len(ids))
            return decode(ids, cache)

        peer.model.encode, peer.model.decode = encode, decode
        ids[mode] = peer.ids(peer.decode(peer.load(inputs["articles"])))
    for mode in (OURS, SINGLE):
        assert sum(map(operator.eq, ids[mode], ids[STATIC])) >= SAME_IDS * 35
    steps = [len(row) + 1 for row in ids[STATIC]]
    assert len(set(steps)) > 3
    chunks = [slice(start, start + 8) for start in range(0, 35, 8)]
    assert encoded[STATIC] == [(len(lengths[chunk]), max(lengths[chunk])) for chunk in chunks]
    for chunk, articles in zip(chunks, running[STATIC], strict=True):
        assert set(articles) == {len(steps[chunk])}
        assert min(max(steps[chunk]), 11) <= len(articles) <= 11
    assert encoded[SINGLE] == [(1, length) for length in lengths]
    ordered = sorted(lengths, reverse=True)
    assert encoded[OURS] == [(len(ordered[chunk]), ordered[chunk][0]) for chunk in chunks]
    # Articles of one encoding join while others are in the batch, which stays full as long as there are more.
    assert [articles[0] for articles in running[OURS][:-1] if articles] == [8] * 4
    assert sum(map(sum, running[OURS])) < sum(map(sum, running[STATIC]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modes", "ours_fp64"], "--modes holds 'ours_fp64'; allowed with --shape base, each once: "),
        (["--modes", "ours_fp32,ours_fp32"], "--modes holds 'ours_fp32'; allowed with --shape base, each once: "),
        (["--modes", "ours_static_fp32"], "--modes holds 'ours_static_fp32'; allowed with --shape base, each once: "),
        (["--shape", "text"], "--shape text needs --model and --data_dir"),
        (["--data_dir", "x"], "--data_dir is 'x'; allowed with --shape text alone"),
        (["--output", "no/such/folder/x.json"], "--output is 'no/such/folder/x.json'"),
        (["--modes", "ours_fp32", "--model", "./nowhere"], "./nowhere: no such file or folder"),
    ],
)
def test_bad_options(script: ModuleType, options: list[str], message: str) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    with pytest.raises(InputError, match=re.escape(message)):
        script.main(options)


def test_the_modes_of_a_shape(script: ModuleType) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    text = script.BenchmarkArguments(shape="text", model="x", data_dir="x")
    assert text.chosen == [*script.BenchmarkArguments().chosen, STATIC, SINGLE]


@pytest.mark.parametrize(
    ("field", "mode", "message"),
    [
        ({"pre_ln": True}, TRANSFORMERS, "is Pre-LN, which transformers lacks; allowed: modes of ours alone"),
        ({"pre_ln": True}, CTRANSLATE2, "is Pre-LN, which ctranslate2 lacks; allowed: modes of ours alone"),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, TRANSFORMERS, "its num_beam_groups is on"),
        ({"bad_words_ids": [[5]]}, CTRANSLATE2, "its bad_words_ids is on; allowed with ctranslate2: off"),
        ({"do_sample": True}, OURS, "its do_sample is on; allowed: off"),
    ],
)
def test_a_model_is_refused_for_a_peer_that_lacks_what_it_asks_for(
    decode: Callable[..., dict[str, Any]], field: dict[str, Any], mode: str, message: str
) -> None:
    if mode == CTRANSLATE2:
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    with pytest.raises(InputError, match=re.escape(message)):
        decode([mode], **field)


def test_a_model_is_decoded_without_the_peers_that_lack_what_it_asks_for(decode: Callable[..., dict[str, Any]]) -> None:
    decode([OURS, SINGLE], pre_ln=True, num_beam_groups=2, diversity_penalty=0.5)
    decode([TRANSFORMERS], bad_words_ids=[[5]], encoder_no_repeat_ngram_size=2)


def test_a_process_of_ctranslate2_holds_no_torch(load_script: Callable[[str], ModuleType]) -> None:
    """Its peak memory would be larger by that; the script is loaded anew in every process."""
    program = "import runpy, sys; runpy.run_path(sys.argv[1]); print({'torch', 'transformers'} & set(sys.modules))"
    command = [sys.executable, "-c", program, load_script("benchmark_decoding").__file__]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"
