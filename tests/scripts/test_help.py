"""Every script that is run prints its arguments for --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, Recorder

SOURCED = {"arguments.sh", "task.sh", "slurm/job.sh"}  # and presets
SCRIPTS = {str(path.relative_to(ROOT / "scripts")) for path in (ROOT / "scripts").rglob("*.s*")}
HEADED = sorted(name for name in SCRIPTS - SOURCED if not name.startswith("params/"))


@pytest.mark.parametrize("script", HEADED)
def test_help_prints_the_scripts_arguments_and_runs_nothing(script: str, recorded: Recorder, tmp_path: Path) -> None:
    recorded.stand_in("docker")
    words = "--help" if script in ("quickstart.sh", "setup_env.sh") else "data/x 1 -h --n_train 7"
    done, started = recorded(f"bash {ROOT}/scripts/{script} {words}", tmp_path)
    assert (done.returncode, started, done.stderr) == (0, [], "")
    assert f"scripts/{script}" in done.stdout and "set -euo" not in done.stdout and "#" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]
