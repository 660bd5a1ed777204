from __future__ import annotations

import pytest

from utils.progress import progress


def test_the_first_process_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**named: bool) -> list[str]:
        assert list(progress("decoding", 40, "articles", range(40), **named)) == list(range(40))
        return capsys.readouterr().err.split("\r")

    first, *others, last = said()
    assert (first, len(others)) == ("", 1)  # without a terminal, where it begins and where it ends
    assert others[0].startswith("decoding:   0%|") and "| 0/40 [" in others[0]
    assert last.startswith("decoding: 100%|") and last.endswith(" articles/s]\n")
    assert said(shown=False) == [""]
    monkeypatch.setenv("RANK", "1")
    assert said() == [""]
