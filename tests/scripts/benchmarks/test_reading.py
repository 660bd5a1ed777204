"""scripts/benchmarks/reading.py: a whole run on tiny shards, in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bart.errors import InputError
from scripts.benchmarks import reading
from tests.tiny_shards import write_tiny_shards


def test_numbers_of_processes_are_compared(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "shards", bins=(32,), train=64)
    command = [sys.executable, reading.__file__, tmp_path / "shards", "--processes", "1", "2", "--num_workers", "1"]
    command += ["--step_size", "8", "--steps", "4"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, env=variables)
    head, one, two = done.stdout.splitlines()
    assert re.split(" {2,}", head.strip()) == ["processes", "sequences/s", "CPU s of each"]
    assert [one.split()[0], two.split()[0]] == ["1", "2"]


def test_a_step_that_the_processes_cannot_share(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--step_size is 7; allowed: multiples of --processes, 2"):
        reading.main([str(tmp_path), "--step_size", "7", "--processes", "1", "2"])
