"""The scaffold of the benchmarks, and errors and imports that several programs have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from bart.errors import InputError
from scripts.benchmarks import bert_inference, decoding, measuring
from scripts.benchmarks.measuring import beside_peers, compared, in_new_process
from tests.scripts.benchmarks.processes import prepare, who
from utils.app.machine import process_memory_gb


def test_every_run_is_a_process_of_its_own_and_modes_take_turns(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    args = SimpleNamespace(modes=("first", "second"), rounds=2)
    runs = beside_peers(args, prepare, who)
    assert [(mode, run["mode"]) for mode, done in runs.items() for run in done] == [
        *[("first", "first")] * 2,
        *[("second", "second")] * 2,
    ]
    assert len({run["process"] for done in runs.values() for run in done} | {os.getpid()}) == 5
    assert not runs["first"][0]["folder"].exists()
    order = ["first, 1", "second, 1", "first, 2", "second, 2"]
    assert capfd.readouterr().err.splitlines() == [f"running {turn} of 2" for turn in order]


def test_the_memory_of_a_process_is_its_own() -> None:
    held = np.ones(2**25)  # 0.27 GB
    assert process_memory_gb() > held.nbytes / 1e9
    assert 0 < in_new_process(process_memory_gb) < held.nbytes / 1e9


def test_medians_are_compared_with_a_peer() -> None:
    rates = {"ours": [8.0, 1.0, 6.0], "peer": [3.0, 2.0, 4.0]}
    runs = {mode: [{"rate": rate, "peak_memory_gb": rate} for rate in mode_rates] for mode, mode_rates in rates.items()}
    ours, peer = compared(runs, "peer")
    assert ours == {"mode": "ours", "rate": 6, "speed_up": 2, "peak_memory_gb": 8, "rates": rates["ours"]}
    assert peer["speed_up"] == 1


def test_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="--output is 'no/such/folder/x.json'"):
        decoding.main(["--output", "no/such/folder/x.json"])
    with pytest.raises(InputError, match="--device is cuda; this machine has no CUDA device"):
        decoding.main(["--device", "cuda"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="--modes: allowed with --device cuda: transformers_fp32, "):
        decoding.main(["--device", "cuda", "--modes", "ours_int8"])
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    needed = "which needs `pip install -r requirements-dev.txt`"
    with pytest.raises(InputError, match=f"--modes holds ctranslate2, {needed}"):
        decoding.main(["--modes", "ctranslate2_fp32"])
    with pytest.raises(InputError, match=f"--modes holds onnxruntime, {needed}"):
        bert_inference.main(["--modes", "onnxruntime_fp32"])


@pytest.mark.parametrize("program", [decoding, bert_inference])
def test_a_process_of_a_peer_holds_no_torch(program: ModuleType) -> None:
    """Its peak memory would be larger by that; the program is loaded anew in every process."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print({'torch', 'transformers'} & set(sys.modules))"
    command = [sys.executable, "-c", code, str(program.__file__)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"
