"""The scaffold of the benchmarks, and errors and imports that several programs have in common."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bart.errors import InputError
from scripts.benchmarks import bert_inference, decoding, measuring, training
from scripts.benchmarks.measuring import compared, in_new_process, in_turns
from tests.scripts.benchmarks.processes import who
from utils.app.machine import ROOT, process_memory_gb


def test_every_run_is_a_process_of_its_own_and_modes_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    results = in_turns(["first", "second"], 2, who, 7)
    assert {mode: [run["mode"] for run in runs] for mode, runs in results.items()} == {
        "first": ["first", "first"],
        "second": ["second", "second"],
    }
    runs = [run for done in results.values() for run in done]
    assert len({run["process"] for run in runs} | {os.getpid()}) == 5
    assert {run["number"] for run in runs} == {7}
    order = ["first, 1", "second, 1", "first, 2", "second, 2"]
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
    while len(started := children.read_text().split()) < 2:  # the function's, and Python's tracker of resources
        time.sleep(0.01)
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in started):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_medians_are_compared_with_a_peer() -> None:
    rates = {"ours": [8.0, 1.0, 6.0], "peer": [3.0, 2.0, 4.0]}
    runs = {mode: [{"rate": rate, "peak_memory_gb": rate} for rate in mode_rates] for mode, mode_rates in rates.items()}
    ours, peer = compared(runs, "peer")
    assert ours == {"mode": "ours", "rate": 6, "speed_up": 2, "peak_memory_gb": 8, "rates": rates["ours"]}
    assert peer["speed_up"] == 1


INFERENCE = {"decoding": decoding, "bert_inference": bert_inference}
ON_DEVICES: dict[str, Callable[[list[str]], None]] = {
    **{name: program.main for name, program in INFERENCE.items()},
    "training": training.main,
}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_bad_options_of_all_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(measuring, "in_new_process", lambda *_: pytest.fail("something was begun"))
    with pytest.raises(InputError, match="--output is 'no/such/folder/x.json'"):
        ON_DEVICES[name](["--output", "no/such/folder/x.json"])
    with pytest.raises(InputError, match="--device is cuda; this machine has no CUDA device"):
        ON_DEVICES[name](["--device", "cuda"])


@pytest.mark.parametrize(
    ("program", "mode", "package"),
    [(decoding, "ctranslate2_fp32", "ctranslate2"), (bert_inference, "onnxruntime_fp32", "onnx")],
)
def test_modes_that_a_machine_lacks(
    program: ModuleType, mode: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="--modes is ours_int8; allowed with --device cuda: transformers_fp32, "):
        program.main(["--device", "cuda", "--modes", "ours_int8"])
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"--modes holds {package}, which needs `pip install -r requirements-dev.txt`"):
        program.main(["--modes", mode])


@pytest.mark.parametrize("name", INFERENCE)
def test_a_process_of_a_peer_holds_no_torch(name: str) -> None:
    """Its peak memory would be larger by that; the program is loaded anew in every process."""
    program = "import runpy, sys; runpy.run_path(sys.argv[1]); print({'torch', 'transformers'} & set(sys.modules))"
    command = [sys.executable, "-c", program, INFERENCE[name].__file__]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"
