"""What the benchmarks share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.benchmarks.measuring import compared, in_new_process, in_turns
from utils.app.tables import markdown_table
from utils.runs.machine import ROOT, process_memory_gb


def who(mode: str, number: int) -> dict[str, object]:
    return {"mode": mode, "number": number, "process": os.getpid()}


def test_every_run_is_a_process_of_its_own_and_modes_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    results = in_turns(["one", "other"], 2, who, 7)
    assert {mode: [run["mode"] for run in runs] for mode, runs in results.items()} == {
        "one": ["one", "one"],
        "other": ["other", "other"],
    }
    runs = [run for done in results.values() for run in done]
    assert len({run["process"] for run in runs} | {os.getpid()}) == 5
    assert {run["number"] for run in runs} == {7}
    order = ["one, 1", "other, 1", "one, 2", "other, 2"]
    assert capfd.readouterr().err.splitlines() == [f"running {turn} of 2" for turn in order]


def test_the_memory_of_a_process_is_its_own() -> None:
    held = np.ones(2**25)  # 0.27 GB
    assert process_memory_gb() > held.nbytes / 1e9
    assert 0 < in_new_process(process_memory_gb) < held.nbytes / 1e9


def test_a_process_ends_with_the_one_that_called_it() -> None:
    program = "import time; from scripts.benchmarks.measuring import in_new_process; print('begun', flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}; in_new_process(time.sleep, 60)"], stdout=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(found := children.read_text().split()) < 2:  # the function's, and Python's tracker of resources
        time.sleep(0.01)
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in found):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_medians_are_compared_with_a_peer() -> None:
    rates = {"ours": [8.0, 1.0, 6.0], "theirs": [3.0, 2.0, 4.0]}
    runs = {mode: [{"rate": rate, "peak_memory_gb": rate} for rate in found] for mode, found in rates.items()}
    ours, theirs = compared(runs, "theirs")
    assert ours == {"mode": "ours", "rate": 6, "speed_up": 2, "peak_memory_gb": 8, "rates": rates["ours"]}
    assert theirs["speed_up"] == 1


def test_tables_have_a_place_for_what_is_not_known() -> None:
    rows = [{"name": "a", "rate": 1234.5, "count": 3}, {"name": "b", "rate": 0.01234}]
    head, _, *rest = markdown_table(rows, {"name": "name", "rate": "per second", "count": "count"}).splitlines()
    assert head.split() == ["|", "name", "|", "per", "second", "|", "count", "|"]
    assert [line.replace("|", "").split() for line in rest] == [["a", "1,234", "3"], ["b", "0.0123", "-"]]
