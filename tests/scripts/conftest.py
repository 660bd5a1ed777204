"""Scripts with stand-ins for their programs: in the repository, in a clone of it and in a SLURM job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.recording import PRETRAINS, ROOT, Recorder, Slurm, made_shards, settings_of


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    programs = tmp_path / "programs"
    programs.mkdir()
    recorder = Recorder(programs)
    recorder.stand_in("python")
    return recorder


@pytest.fixture
def pretrain(recorded: Recorder, tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Runs run_pretraining.sh, or another script, in a folder with shards; gives its status and the runs' options."""
    recorded.stand_in("python", PRETRAINS)
    made_shards(tmp_path / "work/data")

    def run(words: str = "", script: str = "run_pretraining.sh", **variables: object) -> Any:
        done, calls = recorded(f"bash {ROOT}/scripts/{script} {words}", tmp_path / "work", **variables)
        return done.returncode, [settings_of(call) for call in calls if call[1].endswith(".py")]

    return run


@pytest.fixture
def clone(recorded: Recorder, tmp_path: Path) -> Path:
    """A copy of the scripts with an environment of its own, whose `python` records itself as `venv`."""
    shutil.copytree(ROOT / "scripts", tmp_path / "clone/scripts")
    recorded.stand_in("venv")
    (tmp_path / "clone/.venv/bin").mkdir(parents=True)
    (tmp_path / "clone/.venv/bin/python").write_text(f'#!/bin/sh\nexec {tmp_path}/programs/venv "$@"\n')
    (tmp_path / "clone/.venv/bin/python").chmod(0o755)
    return tmp_path / "clone"


@pytest.fixture
def job(recorded: Recorder, tmp_path: Path) -> Slurm:
    shutil.copytree(ROOT / "scripts", tmp_path / "repository" / "scripts")
    recorded.stand_in("scontrol", '[[ $1 != show ]] || printf "node07\\nnode08\\n"')
    recorded.stand_in("scancel", 'kill -TERM "$(cat "$RECORD.torchrun")"')
    recorded.stand_in("srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    recorded.stand_in(
        "torchrun",
        """
        output=$(printf %s "$*" | sed "s/.*--output_dir \\([^ ]*\\).*/\\1/")
        mkdir -p "$output"
        if [[ ${OUT_OF_TIME:-} ]]; then
            trap '[[ $OUT_OF_TIME == unsaved ]] || touch "$output/last.ckpt"; exit 1' TERM # torchrun's own status
            echo $$ >"$RECORD.torchrun"
            kill -USR1 "$BATCH_SHELL"
            for ((i = 0; i < 500; i++)); do sleep 0.02; done
        fi
        """,
    )
    return Slurm(recorded, tmp_path / "repository")
