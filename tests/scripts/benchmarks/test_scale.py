"""scripts/benchmarks/scale.py: the table of the share of time in which processes wait, and that of reading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks import scale
from tests.tiny_shards import write_tiny_shards


def table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if {*line} - {*"|:-"}]


def test_only_likeness_of_lengths_makes_processes_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 - 492 / 1024 of the time, and a little less, where one process pads all to the longest."""
    monkeypatch.setattr(scale, "DATA", {"XSum": scale.DATA["XSum"]})
    scale.main(["--examples", "6400", "--ranks", "16"])
    lines = table(capsys.readouterr().out)
    shares = {line[0]: [float(cell.rstrip("% ")) for cell in line[1:]] for line in lines if "%" in line[1]}
    dealt = ("default", "`--sortish_sampler`", "`--max_tokens_per_batch`")
    assert all(shares[name][0] < 1 for name in dealt)
    assert 45 < shares["padded, default"][0] < 55
    assert shares["padded, 4 micro-batches"][0] < 5
    most, least = shares["without bins"], shares["a bin of 97 to 128 tokens"]
    assert most == sorted(most, reverse=True) and least == sorted(least, reverse=True)
    assert 0 < least[-1] < most[-1] < 3 and least[0] < most[0] / 3


def test_processes_that_read_shards(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "shards", bins=(32,), train=64)
    command = [sys.executable, scale.__file__, "--shards", tmp_path / "shards", "--steps", "4"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    head, *lines = table(done.stdout)
    assert head == ["processes", "sequences/s", "CPU s of each"]
    assert [line[0] for line in lines] == ["1", "2", "4"]
