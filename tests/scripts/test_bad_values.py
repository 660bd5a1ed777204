"""Bad values end every script in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.recording import Recorder


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("run_summarization.sh d c 0", "PREC is 'fp16'; allowed where NUM_GPU is 0: bf16, fp32"),
        ("quickstart.sh results/mine", "results/mine is an argument too many; it takes none"),
        ("docker/launch.sh python finetune.py --do_train", "--do_train is no argument; COMMAND is one word"),
        ("docker/launch.sh bash some", "GPUS is 'some'; allowed: all, none, or numbers such as 0,1"),
        ("slurm/run_summarization.sbatch data/x", "this is no SLURM job; start it by: sbatch"),
        ("setup_env.sh nope.txt", "no file 'nope.txt'; from the root of the repository: source scripts/setup_env.sh"),
        ("run_eval_summarization.sh ckpt 8 1 fp8", "PRECISION is 'fp8'; allowed: fp16, bf16, tf32, fp32, int8"),
        (
            "run_eval_summarization.sh ckpt 8 17",
            "NUM_GPU is 17; this machine has 16 CUDA devices (NUM_GPU 0: the CPU; values given: 3)",
        ),
        ("run_pretraining.sh 0", "TRAIN_BATCH_SIZE_PHASE1 is '0'; allowed: a whole number, at least 1"),
        ("run_pretraining.sh 1 1 1e-3 fast", "LEARNING_RATE_PHASE2 is 'fast'; allowed: a number above 0"),
        ("run_pretraining.sh 1 1 1 1 fp32 yes", "USE_PRELN is 'yes'; allowed: true, false"),
        (
            "run_pretraining.sh 1 1 1 1 fp32 true 0 5 9 10 9",
            "WARMUP_STEPS_PHASE2 is 9; allowed: fewer than TRAIN_STEPS_PHASE2, which is 9",
        ),
        ("run_pretraining.sh --max-source-length=64", "--max-source-length=64 is set for each phase; RESULTS_DIR, "),
        ("run_pretraining.sh --data_dir nowhere", "no manifest.json in nowhere/pretrain_lddl_128, the data of phase 1"),
        (
            "bert/run_pretraining.sh --data-dir=x",
            "--data_dir; give DATA_DIR_PHASE1 and DATA_DIR_PHASE2 by their places",
        ),
        (
            "bert/run_pretraining.sh 100",
            "TRAIN_BATCH_SIZE is 100; allowed: a multiple of GRADIENT_ACCUMULATION_STEPS, which is 128",
        ),
        ("bert/run_pretraining.sh 128 1 fp32 1 1.2", "WARMUP_PROPORTION is '1.2'; allowed: 0 or more, below 1"),
        (
            "bert/run_pretraining.sh",
            "no manifest.json in data/pretrain_mlm_nsp_128, and no texts to make it from: WIKIPEDIA_SOURCE is",
        ),
        ("bert/run_squad.sh x 2.5", "EPOCHS is '2.5'; allowed: a whole number, at least 1"),
        ("bert/run_squad.sh x 2 3 4 .1 fp16 1 1 d v o test", "MODE is 'test'; allowed: train, eval, 'train eval'"),
        (
            "run_pretraining_phase2.sh",
            "phase 1 is not done: no results/bart_pyt_pretraining/phase_1/train_summary.json",
        ),
        ("pretrain_small.sh", "0 positional values; the folder with the text is expected"),
        ("run_gpu_checks.sh", "0 values; the folder for the results is expected"),
        ("run_stability.sh", "N is ''; allowed: a whole number, at least 2"),
        ("run_stability.sh 2 data/x --seed 3", "allowed: SEED, the first seed, in place of --seed"),
        ("run_stability.sh 2 scripts/bert/run_squad.sh", "SCRIPT is 'bert/run_squad.sh', which --help does not name"),
    ],
)
def test_bad_values_end_in_one_line_and_status_2(recorded: Recorder, command: str, named: str) -> None:
    done, started = recorded(f"bash scripts/{command}")
    assert (done.returncode, started) == (2, [])
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_results_in_an_object_store_are_refused(recorded: Recorder) -> None:
    done, started = recorded("bash scripts/run_pretraining.sh", RESULTS_DIR="s3://bucket/run")
    assert (done.returncode, started) == (2, [])
    assert done.stderr.startswith("run_pretraining.sh: error: RESULTS_DIR is 's3://bucket/run'; allowed: a folder of ")


def test_an_environment_takes_the_place_of_no_other_files(recorded: Recorder, tmp_path: Path) -> None:
    recorded.stand_in("snake")
    venv = tmp_path / "mine"
    venv.mkdir()
    (venv / "notes").touch()
    command = "bash scripts/setup_env.sh requirements.txt"
    done, started = recorded(command, VENV=venv, PYTHON="snake")
    assert (done.returncode, started) == (2, [])
    assert done.stderr == f"error: VENV is '{venv}'; allowed: a virtual environment, an empty folder, or none yet\n"
    (venv / "pyvenv.cfg").touch()  # an environment without a Python that works
    made = [call[1:] for call in recorded.succeed(command, VENV=venv, PYTHON="snake") if "venv" in call]
    assert made == [["-m", "venv", "--clear", str(venv)]]
    for path in venv.iterdir():
        path.unlink()
    made = [call[1:] for call in recorded.succeed(command, VENV=venv, PYTHON="snake") if "venv" in call]
    assert made == [["-m", "venv", str(venv)]]
