"""A signal to a script reaches the program that it runs, once, and nothing follows it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, Slurm, made_shards

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("script", "sent", "to_group"),
    [
        *(("run_summarization.sh data/x", TERM, False), ("run_summarization.sh data/x", INT, True)),
        ("quickstart.sh", INT, True),
        *(("run_eval_summarization.sh ckpt 8 1", TERM, False), ("serve.sh model", TERM, False)),
        *(("run_training_benchmark.sh", INT, True), ("slurm/run_summarization.sbatch data/x", TERM, False)),
        *(("run_pretraining.sh --data_dir data", TERM, False), ("pretrain_small.sh data", TERM, False)),
        ("slurm/run_pretraining.sbatch --data_dir data", TERM, False),
    ],
)
def test_a_signal_reaches_the_child_once_and_nothing_follows_it(
    script: str, sent: signal.Signals, to_group: bool, job: Slurm, tmp_path: Path
) -> None:
    job.recorded.stand_in(
        "python",
        """
        trap 'echo TERM >>"$RECORD.signals"; sleep 0.1; exit 143' TERM
        trap 'echo INT >>"$RECORD.signals"; sleep 0.1; exit 130' INT
        echo $$ >"$RECORD.child"
        for ((i = 0; i < 500; i++)); do sleep 0.02; done
        """,
    )
    shutil.copyfile(tmp_path / "programs/python", tmp_path / "programs/torchrun")
    (tmp_path / "programs/torchrun").chmod(0o755)
    folder, record = tmp_path / "repository", tmp_path / "record"
    # For the quickstart: an environment that is there, and that pip finds complete.
    (folder / ".venv/bin").mkdir(parents=True)
    interpreter = folder / ".venv/bin/python"
    interpreter.write_text(
        f'#!/bin/sh\ncase "$2" in pip | "import sys"*) exit 0 ;; esac\nexec {tmp_path}/programs/python "$@"\n'
    )
    interpreter.chmod(0o755)
    (folder / "requirements.txt").touch()
    made_shards(folder / "data")
    command = ["bash", *f"scripts/{script}".split()]
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "1"}
    environment = {**os.environ, "RECORD": str(record), "PATH": f"{tmp_path}/programs:{os.environ['PATH']}"}
    environment |= slurm if "slurm" in script else {}
    environment.pop("VENV", None)
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    child = Path(f"{record}.child")
    while running.poll() is None and not (child.exists() and child.read_text()):
        time.sleep(0.01)
    (os.killpg if to_group else os.kill)(running.pid, sent)
    output = running.communicate(timeout=10)[0]
    assert running.returncode == 128 + sent, output
    assert Path(f"{record}.signals").read_text() == f"{sent.name.removeprefix('SIG')}\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)
    calls = [line for line in record.read_text().splitlines() if line.startswith("python")]
    assert len(calls) <= 1, calls


@pytest.mark.parametrize("status", [0, 7])
def test_a_command_that_ends_under_a_trap_keeps_its_status(tmp_path: Path, status: int) -> None:
    """As one that saves its checkpoint and ends before scancel does.

    The command waits for the trap, because bash loses the status of what ends in the very moment of a signal.
    """
    command = f"kill -USR1 $PPID; until [[ -e {tmp_path}/trapped ]]; do sleep 0.01; done; exit {status}"
    program = f"source scripts/arguments.sh; trap '>{tmp_path}/trapped; sleep 0.5' USR1; run bash -c '{command}'"
    assert subprocess.run(["bash", "-c", program], cwd=ROOT).returncode == status
