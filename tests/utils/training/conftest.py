from __future__ import annotations

import pytest

from utils.evaluation import report


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their PNGs, which would take longer than a tiny run."""
    monkeypatch.setattr(report, "draw", lambda chart, path: None)
