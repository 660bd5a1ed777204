"""scripts/benchmarks/decoding.py: a whole run on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bart.errors import InputError
from scripts.benchmarks import decoding

TRANSFORMERS, CTRANSLATE2, OURS = "transformers_fp32", "ctranslate2_fp32", "ours_fp32"


@pytest.fixture(autouse=True)
def peer_is_there(in_this_process: None) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


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
        # Two beams may be closer than rounding; of three articles at most one differs.
        assert result["identical_share"] > 0.6


def test_parts_of_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.json"
    decoding.main(["--shape", "tiny", "--threads", "1", "--modes", OURS, "--parts", "--output", str(output)])
    rows = {row["part"]: row for row in json.loads(output.read_text())["results"]}
    logits = rows["product 9 x 128 x 300"]  # of 3 articles with 3 beams, in each of 12 steps
    assert logits["calls"] == 12 and logits["gflop_s"] > 0 and logits["bound"] > 0
    assert rows["attention to the source"]["calls"] == rows["attention to itself"]["calls"] == 24  # of 2 layers
    assert sum(row["share"] for row in rows.values()) == pytest.approx(2)  # the parts, and all
    assert "product 9 x 128 x 300" in capsys.readouterr().out
    with pytest.raises(InputError, match="--parts with --modes transformers_fp32 .* allowed: ours, cpu"):
        decoding.main(["--parts", "--modes", TRANSFORMERS])


def test_ctranslate2_computes_in_half_precision_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctranslate2

    kinds: list[str] = []
    monkeypatch.setattr(ctranslate2, "Translator", lambda *_, compute_type, **__: kinds.append(compute_type))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for precision, device in (("fp32", "cpu"), ("int8", "cpu"), ("fp16", "cuda"), ("int8", "cuda")):
        folder = tmp_path / f"ctranslate2_{precision}"
        folder.mkdir(exist_ok=True)
        (folder / "shared_vocabulary.json").write_text("[]")
        decoding.load_ctranslate2(tmp_path, {"articles": [], "decoding": {}}, precision, device)
    assert kinds == ["float32", "int8", "float16", "int8_float16"]
