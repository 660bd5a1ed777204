"""scripts/benchmark_data.py on a small set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bart.tokenization.tokenization_bart import BartTokenizer
from utils import measuring


def test_all_is_measured(
    load_script: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Loading torch in processes of their own would take longer than all the rest.
    monkeypatch.setattr(measuring, "in_new_process", lambda work, *arguments: work(*arguments))
    BartTokenizer.train(["The new mayor has spoken."] * 2, 300).save_pretrained(tmp_path / "vocabulary")
    options = "--examples 300 --compare 60 --rounds 1 --batches 3".split()
    output = tmp_path / "data.json"
    load_script("benchmark_data").main([*options, "--tokenizer", str(tmp_path / "vocabulary"), "--output", str(output)])
    report = json.loads(output.read_text())
    rates = {(row["what"], row["mode"].split(",")[0]): row["rate"] for row in report["rates"]}
    assert rates.keys() == {
        *(("tokenising", mode) for mode in ("ours", "datasets.map")),
        *(("loading", f"loader processes: {count}") for count in (0, 1, 2)),
    }
    assert min(rates.values()) > 0
    assert report["opening"]["examples"] == 300
    assert 0 < report["opening"]["peak_gb_before"] <= report["opening"]["peak_gb"]
    for row in report["rates"][-3:]:
        padding = row["padding"]
        assert padding["source"] <= padding["both"] <= padding["target"] < 0.5
        assert padding == report["rates"][-1]["padding"]
    printed = [line.replace("|", "").split()[0] for line in capsys.readouterr().out.splitlines()]
    assert printed[-5:] == [*["loading"] * 3, "opening", "padding:"]
