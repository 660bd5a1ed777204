"""scripts/benchmarks/benchmark_growth.py: what it varies, and what it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bart.errors import InputError


def test_each_dimension_is_doubled_alone(
    load_script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "growth.json"
    load_script("benchmark_growth").main(["--steps", "2", "--doublings", "1", "--output", str(output)])
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


def test_bad_input(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="--device is cuda"):
        load_script("benchmark_growth").main(["--device", "cuda"])


def test_torch_is_loaded_with_what_utils_sets(load_script: Callable[[str], ModuleType]) -> None:
    """The library of threads says what it has read."""
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, load_script("benchmark_growth").__file__, "--help"]
    done = subprocess.run(command, env=environment | {"OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True)
    assert "GOMP_SPINCOUNT = '2000'" in done.stderr
