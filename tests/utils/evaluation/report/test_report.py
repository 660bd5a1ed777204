from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.report import write_report
from utils.evaluation.report.__main__ import main


def test_the_command_prints_where_the_report_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run)])
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    main([str(run), "--output", str(run / "deep" / "page.html")])
    assert (run / "deep" / "page.html").exists() and (run / "deep" / "page_figures" / "loss.png").exists()
    (run / "file").write_text("")
    with pytest.raises(InputError, match="page.html: cannot be written"):
        main([str(run), "--output", str(run / "file" / "page.html")])


def test_a_finished_run_is_never_broken_by_its_report(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write_report(run)
    assert (run / "report.html").exists() and caplog.records == []
    (run / "test_scores.json").write_text("{")
    write_report(run)
    write_report(run / "none")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "report.html was not written: InputError" in caplog.text and "test_scores.json: damaged" in caplog.text
