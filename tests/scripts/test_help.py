"""Every script that is run prints its arguments for --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recording import ROOT, SETS, Recorder

HEADED = [
    "run_summarization.sh", "run_eval_summarization.sh", "run_training_benchmark.sh", "run_inference_benchmark.sh",
    "run_pretraining.sh", "run_pretraining_phase1.sh", "run_pretraining_phase2.sh", "run_pretraining_benchmark.sh",
    "pretrain_small.sh", "get_data.sh", "get_pretraining_data.sh", "serve.sh", "quickstart.sh", "run_tests.sh",
    "docker/build.sh", "docker/launch.sh", "slurm/run_summarization.sbatch", "slurm/run_pretraining.sbatch",
    "setup_env.sh", "run_glue.sh", "run_squad.sh", "run_tagging.sh", "run_translation.sh",
    "bert/run_pretraining.sh", "bert/run_squad.sh", "run_stability.sh", "run_gpu_checks.sh",
]  # fmt: skip


@pytest.mark.parametrize("script", HEADED)
def test_help_prints_the_scripts_arguments_and_runs_nothing(script: str, recorded: Recorder, tmp_path: Path) -> None:
    recorded.stand_in("docker")
    words = "--help" if script in ("quickstart.sh", "setup_env.sh") else "data/x 1 -h --n_train 7"
    done, started = recorded(f"bash {ROOT}/scripts/{script} {words}", tmp_path)
    assert (done.returncode, started, done.stderr) == (0, [], "")
    assert f"scripts/{script}" in done.stdout and "set -euo" not in done.stdout and "#" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


def test_every_script_that_is_run_has_help() -> None:
    scripts = {str(path.relative_to(ROOT / "scripts")) for path in (ROOT / "scripts").rglob("*.s*")}
    params = (
        f"params/{name}_params.sh"
        for name in (*SETS, "pretrain", "glue", "squad", "tagging", "bert_pretrain", "bert_squad")
    )
    sourced = {"arguments.sh", "task.sh", "slurm/job.sh", *params}
    assert scripts - sourced == {*HEADED}
