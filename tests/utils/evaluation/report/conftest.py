from __future__ import annotations

from pathlib import Path

import pytest

from tests.scored_run import write_run
from utils.evaluation.report import charts


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a report's time; tests/utils/app/test_charts.py and test_browser.py draw."""
    monkeypatch.setattr(charts, "draw", lambda *_: "<svg></svg>")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"
