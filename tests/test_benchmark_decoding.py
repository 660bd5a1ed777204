"""scripts/benchmark_decoding.py: whole runs on tiny models, what it counts, and bad options."""

from __future__ import annotations

import json
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
from utils.cli import parse_dataclass

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


def measured(folder: Path, *options: object, repeats: int = 1) -> tuple[dict[str, Any], list[str]]:
    """The JSON and the lines of the table of a run that succeeds."""
    done = benchmark(folder, "--repeats", repeats, *options, "--threads", 1, "--output", folder / "out.json")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout.splitlines()


@pytest.fixture
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("benchmark_decoding")


def test_two_peers_agree_on_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    modes = ["transformers_fp32", "ctranslate2_fp32"]
    report, table = measured(tmp_path, "--shape", "tiny", "--modes", ",".join(modes), repeats=2)
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


def write_text_run(folder: Path, **config: Any) -> list[object]:
    """Write a model and 36 articles, whose summaries differ in their ids and lengths; return the options for them."""
    write_tiny_run(folder, n_test=36)
    given = json.loads((folder / "config.json").read_text()) | {"no_repeat_ngram_size": 3}
    torch.manual_seed(0)
    # Large weights, and an EOS that is likely.
    model = BartForConditionalGeneration(BartConfig(**{**given, "init_std": 0.6, **config}))
    model.final_logits_bias[0, 2] = 4.0
    model.save_pretrained(folder / "model", BartTokenizer.from_pretrained(folder / "tokenizer"))
    return ["--shape", "text", "--model", folder / "model", "--data_dir", folder / "data"]


def test_text_with_natural_stopping(tmp_path: Path) -> None:
    options = [*write_text_run(tmp_path), "--limit", 35, "--batch_size", 8]
    modes = ["transformers_fp32", "ours_fp32", "ours_static_fp32", "ours_single_fp32"]
    report, table = measured(tmp_path, *options, "--modes", ",".join(modes))
    decoding = report["decoding"]
    assert (decoding["num_beams"], decoding["no_repeat_ngram_size"], decoding["max_length"]) == (2, 3, 12)
    assert [result["identical_share"] for result in report["results"]] == [1] * 4
    assert {key for result in report["results"] for key in result} == PER_MODE | {"speed_to_ours_static_fp32"}
    seconds = {result["mode"]: result["median_seconds"] for result in report["results"]}
    for result in report["results"]:
        assert result["articles_per_second"] * result["median_seconds"] == pytest.approx(35)
        static = seconds["ours_static_fp32"] / result["median_seconds"]
        assert result["speed_to_ours_static_fp32"] == pytest.approx(static)
    assert "x ours static fp32" in table[0]
    same = {"different": [], "different_in_double": []}
    assert report["ours_fp32_against"] == {"transformers_fp32": same, "ours_single_fp32": same}
    assert table[5:] == [
        "ours_fp32 and transformers_fp32 differ in 0 of 35 articles",
        "ours_fp32 and ours_single_fp32 differ in 0 of 35 articles",
    ]


def prepare(script: ModuleType, folder: Path, modes: list[str], **config: Any) -> tuple[Path, dict[str, Any]]:
    """A folder with a model for the modes, and inputs with 35 articles in batches of 8."""
    options = [*write_text_run(folder, **config), "--limit", 35, "--batch_size", 8, "--modes", ",".join(modes)]
    (folder / "prepared").mkdir()
    arguments = parse_dataclass(script.BenchmarkArguments, [*map(str, options)], "")
    return folder / "prepared", script.prepare(arguments, folder / "prepared")


def test_ctranslate2_decodes_text(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    # It stops as early_stopping=True does, and its n-gram ban is another one.
    modes = ["transformers_fp32", "ctranslate2_fp32"]
    folder, inputs = prepare(script, tmp_path, modes, early_stopping=True, no_repeat_ngram_size=0)
    theirs, others = (script.measure(folder, mode, 1, {}) for mode in modes)
    assert len(theirs["ids"]) == len(inputs["articles"]) == 35
    assert others["ids"] == theirs["ids"]
    assert script.CTranslate2Peer(folder, modes[1], inputs, 1).options["max_batch_size"] == 8


@pytest.fixture
def prepared(script: ModuleType, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return prepare(script, tmp_path, ["ours_fp32"])


def test_who_shares_a_batch_and_until_when(script: ModuleType, prepared: tuple[Path, dict[str, Any]]) -> None:
    folder, inputs = prepared
    lengths = [len(article) for article in inputs["articles"]]
    encoded: dict[str, list[tuple[int, int]]] = {}  # (articles, source length) of each encoding
    running: dict[str, list[list[int]]] = {}  # articles in each step, in a list per encoding
    ids = []
    for mode in ("ours_fp32", "ours_static_fp32", "ours_single_fp32"):
        peer = script.TorchPeer(folder, mode, inputs, 1)
        encode, decode = peer.model.encode, peer.model.decode
        encoded[mode], running[mode] = [], []

        def encode_and_note(ids: Any, mask: Any, mode: str = mode, encode: Any = encode) -> Any:
            encoded[mode].append(tuple(ids.shape))
            running[mode].append([])
            return encode(ids, mask)

        def decode_and_note(ids: Any, cache: Any, mode: str = mode, decode: Any = decode) -> Any:
            running[mode][-1].append(len(ids))
            return decode(ids, cache)

        peer.model.encode, peer.model.decode = encode_and_note, decode_and_note
        ids.append(peer.ids(peer.decode(peer.load(inputs["articles"]))))
    assert ids[0] == ids[1] == ids[2]
    steps = [len(row) + 1 for row in ids[0]]
    assert len(set(steps)) > 3

    chunks = [slice(start, start + 8) for start in range(0, 35, 8)]
    assert encoded["ours_static_fp32"] == [(len(lengths[chunk]), max(lengths[chunk])) for chunk in chunks]
    for chunk, articles in zip(chunks, running["ours_static_fp32"], strict=True):
        assert set(articles) == {len(steps[chunk])}
        assert min(max(steps[chunk]), 11) <= len(articles) <= 11
    assert encoded["ours_single_fp32"] == [(1, length) for length in lengths]

    ordered = sorted(lengths, reverse=True)
    assert encoded["ours_fp32"] == [(len(ordered[chunk]), ordered[chunk][0]) for chunk in chunks]
    # Those of one encoding join while others are in the batch, which stays full as long as there are more.
    assert [articles[0] for articles in running["ours_fp32"][:-1] if articles] == [8] * 4
    together, static = (sum(map(len, running[mode])) for mode in ("ours_fp32", "ours_static_fp32"))
    assert together < static


@pytest.mark.parametrize("reference", ["transformers_fp32", "ours_single_fp32"])
def test_what_is_compared_in_double(
    reference: str, script: ModuleType, prepared: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, inputs = prepared
    alone, many = BartForConditionalGeneration.generate, BartForConditionalGeneration.generate_many
    batches = []

    def generate_many(model: BartForConditionalGeneration, sources: list[list[int]], size: int) -> Any:
        assert next(model.parameters()).dtype == torch.float64
        batches.append((len(sources), size))
        return many(model, sources, size)

    monkeypatch.setattr(BartForConditionalGeneration, "generate_many", generate_many)
    assert script.different_in_double(*prepared, reference, [3, 30]) == []
    assert batches == ([(8, 8)] if reference == "ours_single_fp32" else [])

    def draw_out_article_30(model: BartForConditionalGeneration, ids: torch.Tensor, **options: Any) -> Any:
        return alone(model, ids, **options, min_length=12 * (ids[0].tolist() == inputs["articles"][30]))

    monkeypatch.setattr(BartForConditionalGeneration, "generate", draw_out_article_30)
    assert script.different_in_double(folder, inputs, reference, [3, 30]) == [30]


def test_the_floor(script: ModuleType) -> None:
    net = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 16}
    inputs = {
        "architecture": {**net, "vocab_size": 10},
        "decoding": {"num_beams": 2, "max_length": 4},
        "articles": [[0] * 5, [0] * 7],
        "batch_size": 2,
    }
    # The first article ends in its second step, the other one is cut after the third.
    ids = [[9], [9, 9, 9]]
    encoder, cross, decoder = 2 * (4 * 16 + 2 * 32), 3 * 2 * 16, 3 * (6 * 16 + 2 * 64) + 10 * 4
    # Bytes for nothing: only operations count.
    attention = 2 * 4 * 4 * (25 + 49)
    operations = 2 * encoder * 12 + attention + 2 * cross * 12
    operations += 2 * (2 * 2 * 2 * decoder + 2 * 3 * 4 * 4 * 12) + 2 * 2 * decoder + 2 * 3 * 4 * 4 * 7
    assert script.floor_seconds(inputs, ids, "ours_bf16", {"bf16": 2.0, "bytes": 1e30}) == pytest.approx(operations / 2)
    # And the other way round.
    numbers = encoder + cross + 3 * decoder + 2 * 3 * 4 * (12 + 12 + 7)
    for precision, size in (("fp32", 4), ("bf16", 2), ("int8", 1)):
        floor = script.floor_seconds(inputs, ids, f"ours_{precision}", {precision: 1e30, "bytes": 5.0})
        assert floor == pytest.approx(numbers * size / 5)
    # Alone, each article has the weights read for itself; and so it is with a batch of one.
    numbers += encoder + cross + 2 * decoder
    for mode, batch_size in (("ours_single_fp32", 2), ("ours_fp32", 1)):
        floor = script.floor_seconds(inputs | {"batch_size": batch_size}, ids, mode, {"fp32": 1e30, "bytes": 5.0})
        assert floor == pytest.approx(numbers * 4 / 5)
    # Four such articles in batches of two: five steps with a full batch each, though one batch may take three.
    twice = inputs | {"articles": 2 * inputs["articles"]}
    numbers = 2 * (encoder + cross) + 5 * decoder + 2 * 2 * 3 * 4 * (12 + 12 + 7)
    floor = script.floor_seconds(twice, 2 * ids, "ours_fp32", {"fp32": 1e30, "bytes": 5.0})
    assert floor == pytest.approx(numbers * 4 / 5)


@pytest.mark.parametrize("reference", ["transformers_fp32", "ours_single_fp32"])
@pytest.mark.parametrize(("ours", "in_double", "status"), [([7, 8], None, 0), ([7, 9], [], 0), ([7, 9], [2], 1)])
def test_other_ids_of_ours_are_an_error_unless_they_are_the_same_in_double(
    ours: list[int],
    in_double: list[int] | None,
    status: int,
    reference: str,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    inputs = {
        **{"shape": "text", "articles": [[4], [5], [6]], "batch_size": 2},
        "architecture": {**net, "vocab_size": 10},
        "decoding": {"num_beams": 2, "max_length": 3},
    }

    def canned(work: Any, *arguments: Any) -> Any:
        if work is script.prepare:
            return inputs
        if work is script.machine_rates:
            return dict.fromkeys(("fp32", "bf16", "int8", "bytes"), 1e9)
        if work is script.different_in_double:
            assert arguments[1:] == (inputs, reference, [2])
            return in_double
        # transformers in bf16 always differs, which is no error.
        last = {reference: [7, 8], "transformers_bf16": [7], "ours_fp32": ours}[arguments[1]]
        return {"seconds": 2.0, "ids": [[4, 5], [6], last], "peak_memory_gb": 1.0}

    monkeypatch.setattr(script, "in_new_process", canned)
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")  # main sets them; this has them restored
    options = ["--shape", "text", "--model", "x", "--data_dir", "x"]
    assert script.main([*options, "--modes", f"{reference},transformers_bf16,ours_fp32"]) == status
    *lines, check = capsys.readouterr().out.splitlines()
    shares = [line.split()[-1] for line in lines]
    has_shares = reference == "transformers_fp32"
    assert shares[1:] == (["1.00", "0.67", "1.00" if in_double is None else "0.67"] if has_shares else ["-"] * 3)
    found = "0 of 3 articles"
    if in_double is not None:
        found = f"1 of 3 articles: [2], counted from 0; in double precision in {in_double}"
    assert check == f"ours_fp32 and {reference} differ in {found}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "huge"], "--shape: 'huge' is not allowed: it takes one of base, large, large_batch1, tiny, text"),
        (["--modes", "ours_fp64"], "--modes holds 'ours_fp64'; allowed with --shape tiny, each once: "),
        (["--modes", "ours_fp32,ours_fp32"], "--modes holds 'ours_fp32'; allowed with --shape tiny, each once: "),
        (["--modes", "ours_static_fp32"], "--modes holds 'ours_static_fp32'; allowed with --shape tiny, each once: "),
        (["--modes", "ours_single_fp32"], "--modes holds 'ours_single_fp32'; allowed with --shape tiny, each once: "),
        (["--batch_size", "0"], "--batch_size: '0' is not allowed: it takes an integer at least 1"),
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


def test_the_modes_of_a_shape(script: ModuleType) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    text = script.BenchmarkArguments(shape="text", model="x", data_dir="x")
    assert text.chosen == [*script.BenchmarkArguments().chosen, "ours_static_fp32", "ours_single_fp32"]


@pytest.mark.parametrize(
    ("field", "mode", "message"),
    [
        ({"pre_ln": True}, "transformers_fp32", "is Pre-LN, which transformers lacks; allowed: modes of ours alone"),
        ({"pre_ln": True}, "ctranslate2_int8", "is Pre-LN, which ctranslate2 lacks; allowed: modes of ours alone"),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, "transformers_fp32", "its num_beam_groups is on"),
        ({"bad_words_ids": [[5]]}, "ctranslate2_int8", "its bad_words_ids is on; allowed with ctranslate2: off"),
    ],
)
def test_a_model_is_refused_for_a_peer_that_lacks_what_it_asks_for(
    field: dict[str, Any], mode: str, message: str, tmp_path: Path, script: ModuleType
) -> None:
    if mode.startswith("ctranslate2"):
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    (tmp_path / "refused").mkdir()
    with pytest.raises(InputError, match=re.escape(message)):
        prepare(script, tmp_path / "refused", ["ours_fp32", mode], **field)
    # Without the peer it is decoded.
    folder, _ = prepare(script, tmp_path, ["ours_fp32", "ours_single_fp32"], **field)
    together, alone = (script.measure(folder, mode, 1, {}) for mode in ("ours_fp32", "ours_single_fp32"))
    assert together["ids"] == alone["ids"]


def test_sampling_is_refused_and_what_a_peer_has_is_not(tmp_path: Path, script: ModuleType) -> None:
    (tmp_path / "refused").mkdir()
    with pytest.raises(InputError, match="its do_sample is on; allowed: off"):
        prepare(script, tmp_path / "refused", ["ours_fp32"], do_sample=True)
    prepare(script, tmp_path, ["transformers_fp32"], bad_words_ids=[[5]], encoder_no_repeat_ngram_size=2)
