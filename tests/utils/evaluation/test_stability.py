from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.stability import main


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Three runs, with ROUGE and a count."""
    folders = [tmp_path / f"seed_{number}" for number in range(3)]
    for folder, score in zip(folders, (43.5, 45.0, 44.25), strict=True):
        folder.mkdir()
        (folder / "test_scores.json").write_text(json.dumps({"examples": 7, "rouge1": score}))
    return [*map(str, folders)]


def test_mean_deviation_and_range(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(runs)
    title, _, head, _, row = capsys.readouterr().out.splitlines()
    assert title == "3 runs"
    names = ["score", "mean", "deviation", "least", "greatest", "seed_0", "seed_1", "seed_2"]
    assert head.strip("|").replace(" ", "").split("|") == names
    assert statistics.stdev((43.5, 45.0, 44.25)) == 0.75
    assert row.strip("|").replace(" ", "").split("|") == "testROUGE-1 44.25 0.75 43.50 45.00 43.50 45.00 44.25".split()


def test_runs_with_other_options_are_told_of(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As where one folder of run_stability.sh got seeds of two learning rates."""
    for number, folder in enumerate(runs):
        options = f"seed: {number}\noutput_dir: {folder}\nlearning_rate: {0.1 if number else 0.2}\n"
        (Path(folder) / "arguments.yaml").write_text(options)
    main(runs)
    named = "\n\nThe runs differ in more than their seed: learning_rate (0.2, 0.1, 0.1)\n"
    assert capsys.readouterr().out.endswith(named)
    main(runs[1:])
    assert "differ" not in capsys.readouterr().out


def test_runs_that_cannot_be_compared(runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="allowed: 2 or more"):
        main(runs[:1])
    (tmp_path / "seed_1/test_scores.json").write_text('{"accuracy": 0.5}')
    for folder in runs[:2]:
        (Path(folder) / "train_summary.json").write_text('{"steps": 1}')
    with pytest.raises(InputError, match="seed_1: its scores are test accuracy; allowed: those of .*seed_0"):
        main(runs)
    (tmp_path / "seed_0/test_scores.json").unlink()
    with pytest.raises(InputError, match="seed_0: its scores are none; allowed"):
        main(runs)
