"""What a terminal of 24 lines shows while commands work, by a terminal that is written in Python; and a pipe."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.console import Console

from tests import forked

SIZE = (24, 80)  # lines, columns
PROGRESS = re.compile(r"(step|predicting|reading|tokenising|ROUGE) [\d,]+(/[\d,]+)?( |$)")
Frame = list[str]


def attached(terminal: str, folder: Path, main: Callable[[Sequence[str]], object], options: Sequence[str]) -> None:
    """Run a command in a process of its own whose output is a terminal; its lines are drawn at every step."""
    from utils.app import progress
    from utils.evaluation.report import charts

    os.chdir(folder)
    descriptor = os.open(terminal, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(descriptor, number)
    os.environ["TERM"] = "xterm"
    os.environ.pop("COLUMNS", None)
    progress.console = Console(stderr=True)  # which looks at its terminal when it is made
    progress.REDRAW = 0
    charts.draw = lambda *_: ""
    main(options)


def shown(folder: Path, main: Callable[[Sequence[str]], object], options: Sequence[str]) -> list[Frame]:
    """Every state of the screen while a command runs. It is wider than the command knows, so that nothing wraps."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    process = forked.CONTEXT.Process(target=attached, args=(os.ttyname(theirs), folder, main, options))
    process.start()
    screen = pyte.Screen(4 * SIZE[1], SIZE[0])
    stream = pyte.ByteStream(screen)
    frames: list[Frame] = []
    while select.select([ours], [], [], 0.1)[0] or process.is_alive():
        if select.select([ours], [], [], 0)[0]:
            for part in re.split(rb"(?=\r)", os.read(ours, 1 << 16)):  # at its end no line is half drawn
                stream.feed(part)
                frames.append([line.rstrip() for line in screen.display])
    process.join()
    os.close(ours)
    os.close(theirs)
    assert process.exitcode == 0, "\n".join(frames[-1])
    assert (screen.cursor.x, screen.cursor.hidden) == (0, False)
    return frames


def lines_of_progress(frame: Frame) -> list[str]:
    return [line for line in frame if PROGRESS.match(line)]


def check(frames: Sequence[Frame]) -> str:
    """Look at every frame; returns the lines of progress there were."""
    for frame in frames:
        assert all(len(line) <= SIZE[1] for line in frame), "\n".join(frame)
        assert len(lines_of_progress(frame)) <= 1, "\n".join(frame)
    assert lines_of_progress(frames[-1]) == []
    return "\n".join(dict.fromkeys(line for frame in frames for line in lines_of_progress(frame)))


def finetune_main(options: Sequence[str]) -> Any:
    import finetune

    return finetune.main(options)


@pytest.mark.slow
def test_training_and_scoring_show_one_line(tiny: list[str], tmp_path: Path) -> None:
    options = [*tiny, "--max_epochs", "2", "--do_predict", "--output_dir", "run"]
    frames = shown(tmp_path, finetune_main, options)
    lines = check(frames)
    assert lines.startswith("step 0/12\n")
    assert re.search(
        r"^step 7/12  \d:\d\d left  loss \d\.\d{4}  [\d,.]+ tokens/s  next validation in 5 steps$", lines, re.M
    )
    assert re.search(r"^step 6/12  .*  validating 1/1$", lines, re.M)
    assert re.search(r"^predicting 7/7 examples  \d:\d\d left  [\d,.]+ examples/s$", lines, re.M)
    final = "\n".join(frames[-1])
    assert "test: 7 examples" in final and "report: run/report.html" in final
    everything = "\n".join(line for frame in frames for line in frame)
    assert re.search(r"^\d\d:\d\d:\d\d  val 12  loss \d\.\d{4}  rouge1_forced [\d.]+", everything, re.M)
    assert not re.search(r"^\d\d:\d\d:\d\d  step", everything, re.M)  # the line says it
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("/12  ") == 12 and "rougeLsum_forced" in log and "\x1b" not in log
