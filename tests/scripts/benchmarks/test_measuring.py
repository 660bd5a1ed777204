"""The scaffold of the benchmarks, and errors and imports that several programs have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from bart.errors import InputError
from scripts.benchmarks import bert_inference, decoding, measuring, training
from scripts.benchmarks.measuring import beside_peers, compared, in_new_process
from tests.scripts.benchmarks.processes import folder_of, who
from utils.app.machine import process_memory_gb


def test_every_run_is_a_process_of_its_own_and_modes_take_turns(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    args = SimpleNamespace(modes=("first", "second"), rounds=2)
    folder, runs = beside_peers(args, folder_of, who)
    assert [(mode, run["mode"]) for mode, done in runs.items() for run in done] == [
        *[("first", "first")] * 2,
        *[("second", "second")] * 2,
    ]
    assert len({run["process"] for done in runs.values() for run in done} | {os.getpid()}) == 5
    assert not folder.exists()
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
    with pytest.raises(InputError, match="--modes: allowed with --device cuda: transformers_fp32, "):
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
