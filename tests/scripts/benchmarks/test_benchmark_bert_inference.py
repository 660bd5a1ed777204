"""scripts/benchmarks/benchmark_bert_inference.py: a whole run on a tiny model, and bad options."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bart.errors import InputError
from scripts.benchmarks import measuring


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, one_thread: None) -> ModuleType:
    """The script, which runs everything in this process: loading torch anew would take longer than all the rest."""
    script = load_script("benchmark_bert_inference")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for module in (script, measuring):
        monkeypatch.setattr(module, "in_new_process", lambda work, *arguments: work(*arguments))
    return script


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's, about itself
def test_peers_agree_on_random_weights(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    output = tmp_path / "out.json"
    script.main(["--shape", "tiny", "--threads", "1", "--repeats", "2", "--output", str(output)])
    head, _, *rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    assert head == ["mode", "sequences/s", "seconds", "speed-up", "peak GB", "error"]
    assert [row[0] for row in rows] == script.MODES
    report = json.loads(output.read_text())
    assert {"torch", "transformers", "onnxruntime"} < report["machine"]["versions"].keys()
    results = {result["mode"]: result for result in report["results"]}
    for mode, result in results.items():
        assert len(result["rates"]) == 2
        assert result["rate"] * result["seconds"] == pytest.approx(3)
        # An fp32 result is the end of some 1,000 additions in a row: 450 in a layer. Another model's has the root of 2.
        assert result["error"] < (1000 * 2**-24 if mode.endswith("fp32") else 0.5)


def test_modes_of_a_gpu(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--device is cuda; this machine has no CUDA device"):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        script.main(["--device", "cuda", "--modes", "ours_fp32"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="--modes is ours_int8; allowed with --device cuda: transformers_fp32, "):
        script.main(["--device", "cuda", "--modes", "ours_int8"])


def test_bad_options(script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="--output is 'no/such/folder/x.json'"):
        script.main(["--modes", "ours_fp32", "--output", "no/such/folder/x.json"])
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--modes holds onnx, which needs `pip install -r requirements-dev.txt`"):
        script.main(["--modes", "onnxruntime_fp32"])
