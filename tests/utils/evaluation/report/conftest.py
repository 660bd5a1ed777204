from __future__ import annotations

from pathlib import Path

import pytest

from tests.scored_run import write_run
from utils.evaluation import report


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a report's time; `test_charts_are_drawn_as_png` draws all kinds."""
    monkeypatch.setattr(report, "draw", lambda path, *charts: path.write_bytes(b"picture"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"
