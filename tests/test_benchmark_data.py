from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bart.tokenization.tokenization_bart import BartTokenizer

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "benchmark_data.py"


def test_all_is_measured_on_a_small_set(tmp_path: Path) -> None:
    BartTokenizer.train(["The new mayor has spoken."] * 2, 300).save_pretrained(tmp_path / "vocabulary")
    options = f"--examples 300 --compare 60 --rounds 1 --batches 3 --output {tmp_path / 'data.json'}"
    command = [sys.executable, SCRIPT, "--tokenizer", tmp_path / "vocabulary", *options.split()]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = json.loads((tmp_path / "data.json").read_text())
    assert {mode.split(",")[0] for mode in report["tokenising"]} == {"ours", "datasets.map"}
    assert report["opening"]["examples"] == 300
    assert report["opening"]["seconds"] < report["opening"]["first_seconds"]
    assert 0 < report["opening"]["peak_mb_before"] <= report["opening"]["peak_mb"]
    assert set(report["loading"]["examples_per_second"]) == {f"{count} loader processes" for count in (0, 1, 2)}
    assert 0 <= report["loading"]["padding"]["both"] < 0.5
    assert [line.split()[0] for line in printed.splitlines()][-5:] == ["opening", *["loading"] * 3, "padding"]
