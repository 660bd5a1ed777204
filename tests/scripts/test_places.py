"""Where scripts run: the interpreter, the repository and the files that they find from any folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.scripts.recording import Recorder, made_shards, shell, train_settings


@pytest.mark.parametrize(
    ("script", "program", "variables", "interpreter"),
    [
        ("run_summarization.sh data/x", "finetune.py", {}, "venv"),
        ("run_eval_summarization.sh ckpt 8 1", "run_eval.py", {}, "venv"),
        ("get_data.sh", "utils.corpora.get_data", {}, "venv"),
        ("get_pretraining_data.sh out", "utils.corpora.get_pretraining_data", {}, "venv"),
        ("serve.sh model", "utils.serving", {}, "venv"),
        ("run_training_benchmark.sh", "scripts/benchmarks/throughput.py", {}, "venv"),
        ("run_inference_benchmark.sh", "scripts/benchmarks/throughput.py", {}, "venv"),
        ("run_pretraining_benchmark.sh", "scripts/benchmarks/throughput.py", {}, "venv"),
        ("run_pretraining.sh --data_dir data/", "run_pretraining.py", {}, "venv"),
        ("get_data.sh", "utils.corpora.get_data", {"CONDA_DEFAULT_ENV": "base"}, "venv"),
        ("get_data.sh", "utils.corpora.get_data", {"CONDA_DEFAULT_ENV": "mine"}, "python"),
        ("get_data.sh", "utils.corpora.get_data", {"VIRTUAL_ENV": "/mine"}, "python"),
    ],
)
def test_a_fresh_shell_in_any_folder_finds_python_and_the_repository(
    script: str, program: str, variables: dict[str, str], interpreter: str, recorded: Recorder, clone: Path
) -> None:
    for name in ("venv", "python"):
        recorded.stand_in(name, 'echo "PYTHONPATH $PYTHONPATH"')
    made_shards(clone / "data")
    done, [call, *_] = recorded(f"bash {clone}/scripts/{script}", Path("/"), **{"VIRTUAL_ENV": "", **variables})
    assert done.returncode == 0, done.stderr
    assert call[0] == interpreter
    assert call[1:3] == ["-m", program] if "." in program[:-3] else call[1] == f"{clone}/{program}"
    assert f"PYTHONPATH {clone}\n" in done.stdout


def test_without_any_python_one_line_says_what_to_run(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    (clone / "bin").mkdir()
    for name in ("bash", "dirname", "date"):
        (clone / "bin" / name).symlink_to(str(shutil.which(name)))
    for script in ("run_summarization.sh data/x", "serve.sh model", "run_eval_summarization.sh ckpt"):
        done = shell(f"bash scripts/{script}", str(clone / "bin"), clone, VIRTUAL_ENV="")
        assert done.returncode == 2
        install = f"run: cd {clone} && source scripts/setup_env.sh requirements.txt"
        assert done.stderr == f"{script.split()[0]}: error: no python is on PATH; {install}\n"


def test_a_relative_path_is_one_of_the_current_folder_or_else_of_the_repository(
    recorded: Recorder, clone: Path, tmp_path: Path
) -> None:
    (clone / "configs").mkdir()
    (clone / "configs/config.json").touch()
    for folder in (clone, tmp_path / "elsewhere"):
        (folder / "data/both").mkdir(parents=True)
    (tmp_path / "elsewhere/data/mine").mkdir()
    (clone / "data/theirs").mkdir()
    folders = {}
    for name in ("both", "mine", "theirs", "none"):
        config = "" if name == "none" else "configs/config.json"  # which is the default, too
        command = f"bash {clone}/scripts/run_summarization.sh data/{name} {config} --cache_dir data/{name}"
        [train] = recorded.succeed(command, tmp_path / "elsewhere", RESULTS_DIR="out")
        args = train_settings(train)
        assert args["data_dir"] == args["cache_dir"]
        assert (args["config_path"], args["output_dir"]) == (f"{clone}/configs/config.json", "out")
        folders[name] = args["data_dir"]
    theirs = f"{clone}/data/theirs"
    assert folders == {"both": "data/both", "mine": "data/mine", "theirs": theirs, "none": "data/none"}
