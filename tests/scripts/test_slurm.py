"""SLURM jobs train and score on all nodes, and queue again when they are out of time."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.scripts.recording import ROOT, Slurm, made_shards, settings_of, train_settings

SBATCHES = ("scripts/slurm/run_summarization.sbatch", "scripts/slurm/run_pretraining.sbatch")


def programs(calls: list[list[str]]) -> list[str]:
    """The programs started; of scontrol its command too."""
    return [" ".join(call[:2]) if call[0] == "scontrol" else call[0] for call in calls]


def test_a_slurm_job_trains_and_scores_on_all_nodes(job: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    done, calls = job()
    assert done.returncode == 0, done.stderr
    assert programs(calls) == ["scontrol show", "srun", "torchrun"]
    assert calls[0][1:] == ["show", "hostnames", "node[07-08]"]
    assert "--ntasks-per-node=1" in calls[1][: calls[1].index("torchrun")]
    launch = get_args_parser().parse_args(calls[2][1:])
    assert (launch.nnodes, launch.nproc_per_node, launch.rdzv_backend) == ("2", "8", "c10d")
    assert (launch.rdzv_id, launch.rdzv_endpoint) == ("14711", "node07:24711")
    assert launch.training_script == f"{job.folder}/finetune.py"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", launch.nproc_per_node)
    monkeypatch.setenv("WORLD_SIZE", "16")
    args = train_settings(calls[2])
    assert {
        "gpus": 8,
        "processes": 16,
        "seed": 7,
        "bf16": True,
        "output_dir": "results/bart_pyt_14711",
    }.items() <= args.items()
    assert args["resume_from_checkpoint"] == "last"
    assert args["do_predict"]


def test_processes_of_a_slurm_job_may_be_started_again(job: Slurm) -> None:
    from torch.distributed.run import get_args_parser

    done, calls = job(TORCHRUN="torchrun --max-restarts=3")
    assert done.returncode == 0, done.stderr
    launch = get_args_parser().parse_args(calls[2][1:])
    assert launch.max_restarts == 3 and train_settings(calls[2])["resume_from_checkpoint"] == "last"
    shell = "source scripts/arguments.sh; printenv TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True).stdout == "1\n"


def test_a_slurm_job_out_of_time_queues_again_and_goes_on(job: Slurm) -> None:
    done, first = job(OUT_OF_TIME=1)
    assert done.returncode == 1
    assert programs(first) == ["scontrol show", "srun", "torchrun", "scancel", "scontrol requeue"]
    assert first[3][1:] == ["--signal=TERM", "14711"]
    assert first[4][1:] == ["requeue", "14711"]
    done, second = job()
    assert done.returncode == 0, done.stderr
    assert programs(second) == ["scontrol show", "srun", "torchrun"]
    assert second[2] == first[2]  # the same folder, and from the last checkpoint


def test_a_slurm_job_that_cannot_save_does_not_queue_for_ever(job: Slurm) -> None:
    saved = job.folder / "results/bart_pyt_14711/last.ckpt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    os.utime(saved, (0, 0))  # an earlier run's
    done, calls = job(OUT_OF_TIME="unsaved")
    assert (done.returncode, programs(calls)[-1]) == (1, "scancel")
    assert "no checkpoint was written before time ran out" in done.stderr


def test_a_slurm_job_pretrains_on_all_nodes_and_queues_again_when_out_of_time(job: Slurm) -> None:
    made_shards(job.folder / "data")
    done, first = job("pretraining", "pretrain", OUT_OF_TIME=1)
    assert done.returncode == 1
    assert programs(first) == ["scontrol show", "srun", "torchrun", "scancel", "scontrol requeue"]
    done, second = job("pretraining", "pretrain")
    assert done.returncode == 0, done.stderr
    assert programs(second) == ["scontrol show", *["srun", "torchrun"] * 2]
    assert second[2] == first[2]
    results = "results/bart_pyt_pretraining_14711"
    for call, phase in ((second[2], 1), (second[4], 2)):
        assert "--nnodes=2" in call
        expected = {"output_dir": f"{results}/phase_{phase}", "gpus": "8", "seed": "7"}
        assert expected.items() <= settings_of(call).items()


@pytest.mark.parametrize("sbatch", SBATCHES)
def test_slurm_is_asked_for_enough_time_to_save(sbatch: str) -> None:
    script = (ROOT / sbatch).read_text()
    before_any_command = re.match(r"(?:#.*\n|\n)*", script)[0]
    directives = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert directives == re.findall(r"^#SBATCH (.*)$", before_any_command, re.MULTILINE)  # SLURM reads no others
    assert {"--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(directives)
    (seconds,) = (int(line.removeprefix("--signal=B:USR1@")) for line in directives if line.startswith("--signal"))
    job = (ROOT / "scripts/slurm/job.sh").read_text()
    patience = int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", job)[1])
    assert patience + 30 < seconds
