"""scripts/benchmarks/waiting.py: the table of the share of time in which ranks wait."""

from __future__ import annotations

import pytest

from scripts.benchmarks import waiting


def test_only_likeness_of_lengths_makes_ranks_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 - 492 / 1024 of the time, and a little more for attention, where one rank has all of the longest."""
    monkeypatch.setattr(waiting, "DATA", {"XSum": waiting.DATA["XSum"]})
    waiting.main(["--examples", "6400", "--ranks", "16"])
    *lines, _, _, without_bins, in_bin = (line.split("|") for line in capsys.readouterr().out.splitlines()[2:])
    shares = {cells[1].strip(): float(cells[2].rstrip("% ")) for cells in lines}
    assert shares.keys() == waiting.ORDERS.keys()
    dealt = ("default", "`--sortish_sampler`", "`--max_tokens_per_batch`")
    assert all(shares[name] < 1 for name in dealt)
    assert 50 < shares["like lengths together, as formerly"] < 55
    assert shares["padded, 4 micro-batches"] < 5
    most, least = ([float(cell.rstrip("% ")) for cell in cells[2:-1]] for cells in (without_bins, in_bin))
    assert most == sorted(most, reverse=True) and least == sorted(least, reverse=True)
    assert 0 < least[-1] < most[-1] < 3 and least[0] < most[0] / 3
