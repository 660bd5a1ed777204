"""scripts/benchmarks/training.py growth: the sizes, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.benchmarks import training


@pytest.mark.slow
def test_each_dimension_is_doubled_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "growth.json"
    training.main(["growth", "--rounds", "2", "--doublings", "1", "--output", str(output)])
    rows = json.loads(output.read_text())["results"]
    sizes = [(row["dimension"], row["size"]) for row in rows]
    assert sizes == [
        *(("batch", 4), ("batch", 8), ("source length", 128), ("source length", 256)),
        *(("vocabulary", 8192), ("vocabulary", 16384), ("layers", 1), ("layers", 2)),
    ]
    assert len({row["operations"] for row in rows[::2]}) == 1  # the first shape
    assert rows[1]["operations_growth"] == 2
    assert all(1 < row["operations_growth"] < 2 for row in rows[3::2])
    assert all(len(row["times"]) == 2 and min(row["times"]) <= row["seconds"] <= max(row["times"]) for row in rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("training steps in fp32 on ") and len(lines) == 3 + len(rows)
