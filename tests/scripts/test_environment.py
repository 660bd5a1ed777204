"""The environment takes torch for CPUs where no NVIDIA driver is, and pip's own index where that cannot be had."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, Recorder

PIN = next(line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch=="))
INDEX = "https://download.pytorch.org/whl/cpu"
SETUP = "bash scripts/setup_env.sh requirements-dev.txt"


@pytest.fixture
def pip(tmp_path: Path) -> Recorder:
    """Records the calls of a pip that misses packages, and has the words of ABSENT not."""
    recorder = Recorder(tmp_path / "venv/bin")
    recorder.folder.mkdir(parents=True)
    recorder.stand_in("python", 'for word in ${ABSENT:---no-index}; do [[ " $* " != *" $word "* ]] || exit 1; done')
    recorder.stand_in("uname", "echo Linux")
    return recorder


def installs(pip: Recorder, command: str = SETUP, **variables: object) -> tuple[str, list[list[str]]]:
    """All that the script prints, and pip's words behind `install` where it may reach an index."""
    done, calls = pip(command, VENV=pip.folder.parent, **variables)
    assert done.returncode == 0, done.stderr
    words = [call[call.index("install") + 2 :] for call in calls if call[0] == "python"]
    return done.stdout + done.stderr, [call for call in words if "--no-index" not in call]


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists() or bool(shutil.which("nvidia-smi")), reason="a driver is here")
def test_torch_for_cpus_comes_first_where_no_driver_is(pip: Recorder) -> None:
    rest = ["--quiet", "-r", "requirements-dev.txt"]
    printed, [torch, *others] = installs(pip)
    assert torch[-3:] == ["--index-url", INDEX, PIN] and {"--no-deps", "--quiet"} <= {*torch} and others == [rest]
    assert f"no NVIDIA driver here: taking {PIN} for CPUs from {INDEX} (CPU_TORCH=0 " in printed
    printed, called = installs(pip, ABSENT="--no-index --index-url")
    assert called == [torch, rest] and f"{INDEX} does not give {PIN}: taking it from pip's own index" in printed
    assert installs(pip, CPU_TORCH=0)[1] == [rest]
    terminal = f"""{sys.executable} -c 'import pty; pty.spawn("{SETUP}".split())'"""
    assert [[word for word in call if word != "--quiet"] for call in (torch, rest)] == installs(pip, terminal)[1]
    pip.stand_in("uname", "echo Darwin")
    assert installs(pip)[1] == [rest]
    pip.stand_in("uname", "echo Linux")
    pip.stand_in("nvidia-smi")
    assert installs(pip)[1] == [rest]


def test_a_torch_that_is_there_stays(pip: Recorder) -> None:
    pip.stand_in("python", '[[ " $* " != *" -r "* || " $* " != *" --no-index "* ]] || exit 1')
    printed, called = installs(pip)
    assert [call[-1] for call in called] == ["requirements-dev.txt"] and "driver" not in printed
    pip.stand_in("python")  # and so does everything
    assert installs(pip) == ("", [])
