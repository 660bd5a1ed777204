"""scripts/benchmarks/bert_inference.py: a whole run on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.benchmarks import bert_inference


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's, about itself
def test_peers_agree_on_random_weights(
    in_this_process: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    output = tmp_path / "out.json"
    bert_inference.main(["--shape", "tiny", "--threads", "1", "--rounds", "2", "--output", str(output)])
    head, _, *rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    assert head == ["mode", "sequences/s", "seconds", "speed-up", "peak GB", "error"]
    report = json.loads(output.read_text())
    assert {"torch", "transformers", "onnxruntime"} < report["machine"]["versions"].keys()
    results = {result["mode"]: result for result in report["results"]}
    assert [row[0] for row in rows] == [*results] and len(results) == 7
    for mode, result in results.items():
        assert len(result["rates"]) == 2
        assert result["rate"] * result["seconds"] == pytest.approx(3)
        # An fp32 result is the end of more than 1,000 additions in a row. Another model's has the root of 2.
        assert result["error"] < (1000 * 2**-24 if mode.endswith("fp32") else 0.5)
