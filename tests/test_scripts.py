"""The shell scripts, with stand-ins for the programs that they start, which record their arguments."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from utils.benchmark import PretrainingArguments, Row
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.recipes.pretraining_arguments import parse_pretraining_arguments

ROOT = Path(__file__).parents[1]
PRESETS = (ROOT / "docs/presets.md").read_text(encoding="utf-8")
SETS = ("cnn_dm", "xsum")
PRECISIONS = ("fp16", "bf16", "tf32")
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]


@dataclass(frozen=True)
class Documented:
    """A preset for one data set as the documented table has it: options by their names in the programs."""

    effective_batch: int
    train: dict[str, Any]
    score: dict[str, Any]
    eval_preset: dict[str, Any]


def documented_rows() -> dict[tuple[str, str], Documented]:
    """The presets of docs/presets.md, by data set and name."""
    rows = {}
    for data, section in zip(SETS, re.split(r"^## ", PRESETS, flags=re.MULTILINE)[1:], strict=False):
        source, target, beams = map(int, re.search(r"source (\d+), target (\d+), (\d+) beams", section).groups())
        eval_batch = re.search(r"`(\w+)_eval` has a PRED_BS\s+of\s+(\d+)", section)
        lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
        names, _, *table = [[cell.strip(" `") for cell in line.split("|")] for line in lines]
        for cells in table:
            of = dict(zip(names, cells, strict=True))
            flags = {flag: flag == of["PREC"] for flag in PRECISIONS}
            lengths = {"max_source_length": source, "max_target_length": target}
            train = {
                "gpus": int(of["NUM_GPU"]),
                "train_batch_size": int(of["BS"]),
                "gradient_accumulation_steps": int(of["ACCUM"]),
                "learning_rate": float(of["LR"]),
                "max_steps": int(of["TRAIN_STEPS"]),
                "warmup_steps": int(of["WARMUP_STEPS"]),
                "eval_batch_size": int(of["EVAL_BS"]),
                "val_check_interval": float(of["VAL_CHECK_INTERVAL"]),
                "early_stopping_patience": int(of["PATIENCE"]),
                "val_max_target_length": target,
                **lengths,
                **flags,
            }
            score = {"bs": int(of["PRED_BS"]), "eval_beams": beams, "eval_max_gen_length": target, "device": "cuda"}
            score |= {**lengths, **flags}
            other = {"bs": int(eval_batch[2])} if eval_batch and eval_batch[1] == of["preset"] else {}
            rows[data, of["preset"]] = Documented(int(of["effective batch"]), train, score, score | other)
    return rows


def shell(
    command: str, path: str = os.environ["PATH"], cwd: Path = ROOT, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run a bash command line, from the root of the repository unless told otherwise."""
    read = ("SEED", "RESULTS_DIR", "LAUNCH", "SCORE", "PYTHON", "VENV", "CONDA_DEFAULT_ENV", "PYTHONPATH")
    read += ("DATA_DIR", "PHASE1_CKPT", "LENGTH_PHASE1", "LENGTH_PHASE2", "INIT_CHECKPOINT", "VOCAB_FILE")
    read += ("SHARDS_PHASE1", "SHARDS_PHASE2")
    environment = {key: value for key, value in os.environ.items() if key not in read}
    # An environment that is active, so that `python` is what PATH says.
    environment |= {"PATH": path, "VIRTUAL_ENV": "active", **{key: str(value) for key, value in variables.items()}}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True)


def presets(data: str) -> list[str]:
    """The presets of a file, without its helpers."""
    names = shell(f"source scripts/params/{data}_params.sh && compgen -A function").stdout.split()
    return [name for name in names if not name.startswith("_")]


@dataclass(frozen=True)
class Recorder:
    """Runs scripts with stand-ins for the programs that they start."""

    folder: Path

    def stand_in(self, name: str, behaviour: str = "") -> None:
        """Put a program on PATH that records its arguments and then runs a few lines of bash."""
        program = self.folder / name
        program.write_text(
            "#!/usr/bin/env bash\n"
            '[[ $1 != -c ]] || { echo "${GPUS:-16}"; exit; } # python is asked how many GPUs there are\n'
            '{ printf "%s\\x1f" "${0##*/}" "$@"; echo; } >>"$RECORD"\n'
            '[[ " $* " != *" ${FAIL:-none} "* ]] || exit 3\n'
            f"{behaviour}\n"
        )
        program.chmod(0o755)

    def __call__(
        self, command: str, cwd: Path = ROOT, **variables: object
    ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """The finished script, and the argument list of each program started, its name first."""
        record = self.folder / "record"
        record.write_text("")
        done = shell(command, f"{self.folder}:{os.environ['PATH']}", cwd, RECORD=record, **variables)
        return done, [call.split("\x1f")[:-1] for call in record.read_text().split("\n")[:-1]]

    def succeed(self, command: str, cwd: Path = ROOT, **variables: object) -> list[list[str]]:
        """The argument lists of the programs that a script starts, none of which fails."""
        done, calls = self(command, cwd, **variables)
        assert done.returncode == 0, done.stderr
        return calls


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    programs = tmp_path / "programs"
    programs.mkdir()
    recorder = Recorder(programs)
    recorder.stand_in("python")
    return recorder


def place_of(program: str, call: list[str]) -> int:
    """Where a recorded call names one of the repository's programs, by its whole path."""
    return next(place for place, word in enumerate(call) if word.endswith(f"/{program}"))


def train_settings(call: list[str]) -> dict[str, Any]:
    """All options of finetune.py by name, as a recorded call sets them."""
    args = parse_finetune_arguments(call[place_of("finetune.py", call) + 1 :])
    return args.settings() | {"processes": args.hardware.processes}


def eval_settings(call: list[str]) -> dict[str, Any]:
    """All options of run_eval.py by name, as a recorded call sets them."""
    return parse_eval_arguments(call[place_of("run_eval.py", call) + 1 :]).settings()


@pytest.mark.parametrize("data", SETS)
def test_every_preset_stands_in_the_readme_and_has_an_eval_twin(data: str) -> None:
    names = {name for of, name in documented_rows() if of == data}
    assert {"dgxa100_8gpu_fp16", "h200_1gpu_bf16"} < names
    names.add("cpu_smoke")
    assert set(presets(data)) == names | {f"{name}_eval" for name in names}


@pytest.mark.parametrize(("data", "name"), documented_rows())
def test_presets_give_the_programs_what_the_readme_says(data: str, name: str, recorded: Recorder) -> None:
    row = documented_rows()[data, name]
    source = f"source scripts/params/{data}_params.sh"
    train, score = recorded.succeed(f"bash scripts/run_summarization.sh $({source} && {name})", RESULTS_DIR="out")
    args = train_settings(train)
    assert row.train.items() <= args.items()
    assert args["processes"] * args["train_batch_size"] * args["gradient_accumulation_steps"] == row.effective_batch
    assert (args["do_train"], args["do_predict"]) == (True, False)
    files = {"data_dir": args["data_dir"], "config_path": args["config_path"], "save_dir": "out"}
    assert (row.score | files | {"model": "out/export"}).items() <= eval_settings(score).items()
    [score] = recorded.succeed(
        f"bash scripts/run_eval_summarization.sh ckpt $({source} && {name}_eval)", RESULTS_DIR="out"
    )
    assert (row.eval_preset | files | {"model": "ckpt"}).items() <= eval_settings(score).items()
    gpus = row.train["gpus"]
    assert score[: place_of("run_eval.py", score)] == ([*TORCHRUN, str(gpus)] if gpus > 1 else ["python"])


def test_the_training_scripts_defaults_and_fixed_flags(recorded: Recorder) -> None:
    train, score = recorded.succeed("bash scripts/run_summarization.sh data/cnn_dm/")
    args, defaults = train_settings(train), parse_finetune_arguments(["--do_train", "--gpus", "8"]).settings()
    assert re.fullmatch(r"results/bart_pyt_\d{6}_\d{6}", args["output_dir"])
    assert {name: value for name, value in args.items() if name not in defaults or value != defaults[name]} == {
        "output_dir": args["output_dir"],
        "processes": 8,
        "data_dir": "data/cnn_dm/",
        "config_path": "configs/config.json",
        "max_source_length": 1024,
        **dict.fromkeys([f"{kind}max_target_length" for kind in ("", "val_", "test_")], 142),
        "learning_rate": 1e-4,
        "train_batch_size": 24,
        "fp16": True,
        "max_steps": 20000,
        "warmup_steps": 500,
        "lr_scheduler": "polynomial",
        "label_smoothing": 0.1,
        "weight_decay": 0.1,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "gradient_clip_val": 0.1,
        "freeze_embeds": True,
        "sortish_sampler": True,
        "eval_beams": 0,
        "eval_batch_size": 128,
        "val_check_interval": 0.3,
        "early_stopping_patience": 2,
    }
    scored = eval_settings(score)
    assert (scored["bs"], scored["eval_beams"], scored["save_dir"]) == (64, 4, args["output_dir"])


def test_the_evaluation_scripts_defaults(recorded: Recorder) -> None:
    [score] = recorded.succeed("bash scripts/run_eval_summarization.sh some.ckpt")
    assert score[: len(TORCHRUN) + 2] == [*TORCHRUN, "8", f"{ROOT}/run_eval.py"]
    args = eval_settings(score)
    assert re.fullmatch(r"results/bart_pyt_inference_\d{6}_\d{6}", args["save_dir"])
    words = ["some.ckpt", "configs/config.json", "data/cnn_dm/", args["save_dir"]]
    defaults = parse_eval_arguments(words).settings()
    assert {name: value for name, value in args.items() if value != defaults[name]} == {
        **{"bs": 128, "device": "cuda", "fp16": True, "eval_beams": 4},
        **{"max_source_length": 1024, "max_target_length": 142, "eval_max_gen_length": 142},
    }


def test_further_options_are_passed_on_and_win(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --dropout 0.3 --n_train 7 --no_freeze_embeds --tokenizer 'a b'"
    train, _ = recorded.succeed(command, SEED=7, RESULTS_DIR="out/x")
    args = train_settings(train)
    assert (args["data_dir"], args["dropout"], args["n_train"], args["freeze_embeds"]) == ("data/x", 0.3, 7, False)
    assert (args["seed"], args["output_dir"], args["tokenizer"], args["learning_rate"]) == (7, "out/x", "a b", 1e-4)
    command = "bash scripts/run_eval_summarization.sh some.ckpt 8 --n_obs 5 --type_path val --max_source_length 512"
    [score] = recorded.succeed(command)
    args = eval_settings(score)
    assert (args["bs"], args["n_obs"], args["type_path"], args["max_source_length"]) == (8, 5, "val", 512)


def test_options_that_bear_on_the_scores_reach_the_scoring(recorded: Recorder) -> None:
    stream = "hub:a/b --max_steps 3 --val_check_interval 9"
    options = "--source-field=text --target_field 'a summary' --task translation --eval_max_gen_length=50 --n_test -1"
    train, score = recorded.succeed(f"bash scripts/run_summarization.sh {stream} {options}")
    given = {"source_field": "text", "target_field": "a summary", "task": "translation", "eval_max_gen_length": 50}
    assert (given | {"n_test": -1, "max_steps": 3}).items() <= train_settings(train).items()
    assert (given | {"n_obs": -1}).items() <= eval_settings(score).items()


@pytest.mark.parametrize(
    "option",
    [
        *("--max_source_length 512", "--max-source-length=512", "--max_target_length 9", "--val_max_target_length 9"),
        *("--test-max-target-length 9", "--data_dir x", "--config-path=x", "--output_dir x", "--gpus=2"),
        *("--fp16", "--no_fp16", "--bf16", "--tf32"),
    ],
)
def test_options_that_have_a_place_are_refused(recorded: Recorder, option: str) -> None:
    done, started = recorded(f"bash scripts/run_summarization.sh data --dropout 0.1 {option}")
    assert (done.returncode, started) == (2, [])
    word = option.split()[0]
    expected = f"run_summarization.sh: error: {word}; give it by its place, and the output directory as RESULTS_DIR\n"
    assert done.stderr == expected


@pytest.mark.parametrize("option", ["task", "dropout", "max_source_length"])
def test_a_file_of_options_may_not_hold_what_would_not_be_obeyed(
    recorded: Recorder, tmp_path: Path, option: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"n_train: 7\n{option}: 1\n")
    done, started = recorded(f"bash scripts/run_summarization.sh data --config {file}")
    assert (done.returncode, started) == (2, [])
    expected = f"--config {file} sets {option}, which would not be obeyed there; give it as --{option}, or by its place"
    assert expected in done.stderr
    file.write_text("n_train: 7\n")
    train, _ = recorded.succeed(f"bash scripts/run_summarization.sh data --config={file}")
    assert train_settings(train)["n_train"] == 7


@pytest.mark.parametrize(("step", "calls"), [("finetune.py", 1), ("run_eval.py", 2)])
@pytest.mark.parametrize("pipe", ["", " | tee /dev/null"])
def test_a_step_that_fails_fails_the_script(recorded: Recorder, step: str, calls: int, pipe: str) -> None:
    done, started = recorded(f"set -o pipefail; bash scripts/run_summarization.sh data{pipe}", FAIL=f"{ROOT}/{step}")
    assert (done.returncode, len(started)) == (3, calls)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("run_summarization.sh d c 0 1e-4 8 1 fp8", "PREC is 'fp8'; allowed: fp16, bf16, tf32, fp32"),
        ("run_summarization.sh d c 0 1e-4 8 1 int8", "PREC is 'int8'; allowed: fp16, bf16, tf32, fp32"),
        (
            "run_summarization.sh 1 2 3 4 5 6 fp16 8 9 10 11 12 13 14 15 16 17",
            "17 is one positional value too many; 16",
        ),
        ("run_summarization.sh d c 0 1e-4 8 1 fp32 8 9 10 11 0", "EVAL_BEAMS is '0'; allowed: a whole number"),
        ("quickstart.sh results/mine", "results/mine is an argument too many; it takes none"),
        ("docker/launch.sh python finetune.py --do_train", "--do_train is no argument; COMMAND is one word"),
        ("docker/launch.sh bash 0 1", "1 is one positional value too many; 2 are known"),
        ("docker/launch.sh bash some", "GPUS is 'some'; allowed: all, none, or numbers such as 0,1"),
        ("slurm/run_summarization.sbatch data/x", "this is no SLURM job; start it by: sbatch"),
        ("setup_env.sh nope.txt", "no file 'nope.txt'; from the root of the repository: source scripts/setup_env.sh"),
        ("run_eval_summarization.sh", "0 positional values; a checkpoint"),
        ("run_eval_summarization.sh 1 2 3 fp16 5 6 7 8 9 10", "10 is one positional value too many; 9 are known"),
        ("run_eval_summarization.sh ckpt 8 1 fp8", "PRECISION is 'fp8'; allowed: fp16, bf16, tf32, fp32, int8"),
        ("run_eval_summarization.sh ckpt 8 two", "NUM_GPU is 'two'; allowed: a number of GPUs, 0 for the CPU"),
        ("run_eval_summarization.sh ckpt 8 17", "NUM_GPU is 17; this machine has 16 CUDA devices"),
        ("run_pretraining.sh 0", "TRAIN_BATCH_SIZE_PHASE1 is '0'; allowed: a whole number, at least 1"),
        ("run_pretraining.sh 1 08", "TRAIN_BATCH_SIZE_PHASE2 is '08'; allowed: a whole number, at least 1"),
        ("run_pretraining.sh 1 1 1e-3 fast", "LEARNING_RATE_PHASE2 is 'fast'; allowed: a number above 0"),
        ("run_pretraining.sh 1 1 1 1 int8", "PRECISION is 'int8'; allowed: fp16, bf16, tf32, fp32"),
        ("run_pretraining.sh 1 1 1 1 fp32 yes", "USE_PRELN is 'yes'; allowed: true, false"),
        ("run_pretraining.sh 1 1 1 1 fp32 true -1", "NUM_GPUS is '-1'; allowed: a whole number, at least 0"),
        (
            "run_pretraining.sh 1 1 1 1 fp32 true 0 5 9 10 9",
            "WARMUP_STEPS_PHASE2 is 9; allowed: fewer than TRAIN_STEPS_PHASE2, which is 9",
        ),
        ("run_pretraining.sh 1 2 3 4 fp16 true 7 8 9 10 11 12 13 14 15 16", "16 is one positional value too many; 15"),
        ("run_pretraining.sh --max-source-length=64", "--max-source-length=64 is set for each phase; RESULTS_DIR, "),
        ("run_pretraining.sh --resume_from_checkpoint last", "--resume_from_checkpoint is set for each phase; "),
        ("run_pretraining.sh --data_dir nowhere", "no manifest.json in nowhere/pretrain_lddl_128, the data of phase 1"),
        ("bert/run_pretraining.sh many", "TRAIN_BATCH_SIZE is 'many'; allowed: a whole number, at least 1"),
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
        ("run_stability.sh", "0 values; the number of seeds is expected"),
        ("run_stability.sh 1", "N is '1'; allowed: a whole number, at least 2"),
        ("run_stability.sh 2 data/x --seed 3", "--seed is set for each run; SEED in the environment is the first"),
        (
            "run_stability.sh 2 scripts/bert/run_squad.sh",
            "SCRIPT is 'bert/run_squad.sh'; allowed: run_summarization.sh",
        ),
        ("run_stability.sh 2 run_pretraining.sh", "SCRIPT is 'run_pretraining.sh'; allowed: run_summarization.sh, "),
        ("slurm/run_pretraining.sbatch", "this is no SLURM job; start it by: sbatch scripts/slurm/run_pretraining.sb"),
    ],
)
def test_bad_values_end_in_one_line_and_status_2(recorded: Recorder, command: str, named: str) -> None:
    done, started = recorded(f"bash scripts/{command}")
    assert (done.returncode, started) == (2, [])
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("launch", ["torchrun --nproc_per_node=2", "srun -l torchrun"])
def test_launch_holds_the_words_that_start_the_training(recorded: Recorder, launch: str) -> None:
    recorded.stand_in(launch.split()[0])
    train, score = recorded.succeed("bash scripts/run_summarization.sh data/x", LAUNCH=launch)
    words = [*launch.split(), f"{ROOT}/finetune.py"]
    assert train[: len(words)] == words
    assert train_settings(train)["data_dir"] == "data/x"
    assert score[: len(TORCHRUN)] == TORCHRUN


def test_processes_on_the_cpu_train_together_and_one_scores(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x configs/config.json 0 1e-4 8 1 fp32"
    train, score = recorded.succeed(f"{command} --accelerator cpu --devices 2")
    expected = {"accelerator": "cpu", "devices": 2, "gpus": 0, "processes": 2}
    assert expected.items() <= train_settings(train).items()
    assert score[:2] == ["python", f"{ROOT}/run_eval.py"] and eval_settings(score)["device"] == "cpu"


def test_an_interrupted_run_goes_on_in_its_folder(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --resume_from_checkpoint last"
    train, score = recorded.succeed(command, RESULTS_DIR="results/mine")
    assert {"resume_from_checkpoint": "last", "output_dir": "results/mine"}.items() <= train_settings(train).items()
    assert eval_settings(score)["model"] == "results/mine/export"
    assert len(recorded.succeed(command, SCORE=0)) == 1


# ---- Pretraining

NVIDIAS = "200 32 5e-3 4e-3 bf16 true 8 2166 200 95040 7560 100 40 120 configs/config.json"
# A stand-in that leaves what a run of so many steps leaves, and what make_shards and sample_corpus do.
PRETRAINS = """
folder() { printf %s "$*" | sed -n "s/.*--output[_a-z]* \\([^ ]*\\).*/\\1/p"; }
made=$(folder "$@")
case "$*" in
*make_shards*) mkdir -p "$made" && touch "$made/manifest.json" ;;
*train_tokenizer*) mkdir -p "$made" && echo {} >"$made/tokenizer_config.json" ;;
*sample_corpus*) mkdir -p "$made" && seq 20 | tee "$made/"{train,val}.source >"$made/test.target" ;;
*run_pretraining.py*)
    steps=$(printf %s "$*" | sed -n "s/.*--max_steps \\([0-9]*\\).*/\\1/p")
    mkdir -p "$made" && touch "$made/last.ckpt"
    [[ ${KILLED:-} != "${made##*/}" ]] || exit 143
    printf '{\\n  "steps": %s,\\n}\\n' "$steps" >"$made/train_summary.json"
    ;;
esac
"""


def made_shards(folder: Path) -> Path:
    """A folder of shards, as far as the scripts look at them."""
    for length in (128, 512):
        (folder / f"pretrain_lddl_{length}").mkdir(parents=True)
        (folder / f"pretrain_lddl_{length}/manifest.json").touch()
    return folder


def settings_of(call: list[str]) -> dict[str, Any]:
    """All options of run_pretraining.py by name, as a recorded call sets them; None for flags."""
    words = call[place_of("run_pretraining.py", call) + 1 :]
    parse_pretraining_arguments(words)  # refuses what it does not know
    values = [None if after.startswith("--") else after for after in [*words[1:], "--"]]
    return {word[2:]: value for word, value in zip(words, values, strict=True) if word.startswith("--")}


@pytest.fixture
def pretrain(recorded: Recorder, tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Runs run_pretraining.sh, or another script, in a folder with shards; gives its status and the runs' options."""
    recorded.stand_in("python", PRETRAINS)
    made_shards(tmp_path / "work/data")

    def run(words: str = "", script: str = "run_pretraining.sh", **variables: object) -> Any:
        done, calls = recorded(f"bash {ROOT}/scripts/{script} {words}", tmp_path / "work", **variables)
        return done.returncode, [settings_of(call) for call in calls if call[1].endswith(".py")]

    return run


def pretraining_rows(section: str = "Pretraining") -> list[dict[str, str]]:
    """The presets of pretraining in docs/presets.md."""
    section = PRESETS.split(f"\n## {section}\n")[1].split("\n## ")[0]
    names, _, *table = [
        [cell.strip(" `") for cell in line.split("|")] for line in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    ]
    return [dict(zip(names, cells, strict=True)) for cells in table]


@pytest.mark.parametrize("row", pretraining_rows(), ids=lambda row: row["preset"])
def test_presets_of_pretraining_have_the_published_batches(row: dict[str, str], pretrain: Any) -> None:
    preset = f"$(source {ROOT}/scripts/params/pretrain_params.sh && {row['preset']})"
    status, runs = pretrain(preset)
    assert (status, len(runs)) == (0, 2)
    for phase, length, published, args in zip((1, 2), ("128", "512"), (64_000, 30_720), runs, strict=True):
        shown = {"train_batch_size": row[f"batch {phase}"], "gradient_accumulation_steps": row[f"accumulation {phase}"]}
        shown |= {"gpus": row["NUM_GPUS"], row["PRECISION"]: None, "max_source_length": length}
        assert shown.items() <= args.items()
        batch = [int(args[name]) for name in ("gpus", "train_batch_size", "gradient_accumulation_steps")]
        assert math.prod(batch) == published == int(row[f"effective batch {phase}"].replace(",", ""))


def test_every_preset_of_pretraining_is_documented() -> None:
    assert set(presets("pretrain")) == {*(row["preset"] for row in pretraining_rows()), "cpu_smoke", "cpu_small"}
    assert set(presets("bert_pretrain")) == {*(row["preset"] for row in pretraining_rows("BERT")), "cpu_smoke"}


def test_pretrainings_defaults_and_fixed_flags_are_nvidias(pretrain: Any, tmp_path: Path) -> None:
    shared = {
        **{"config_path": f"{ROOT}/configs/config.json", "seed": "42", "gpus": "8", "num_workers": "1"},
        **dict.fromkeys(["bf16", "pre_ln", "lamb"]),
        **{"lr_scheduler": "polynomial", "weight_decay": "0.1", "dropout": "0.1", "attention_dropout": "0.1"},
        **{"gradient_clip_val": "0.1", "save_checkpoint_steps": "100", "log_freq": "100"},
    }
    status, runs = pretrain()
    assert (status, runs) == (
        0,
        [
            {
                **shared,
                **{"data_dir": "data/pretrain_lddl_128", "max_source_length": "128", "train_batch_size": "200"},
                **{"gradient_accumulation_steps": "40", "learning_rate": "5e-3", "warmup_steps": "2166"},
                **{"max_steps": "95040", "output_dir": "results/bart_pyt_pretraining/phase_1"},
                "resume_from_checkpoint": "last",
            },
            {
                **shared,
                **{"data_dir": "data/pretrain_lddl_512", "max_source_length": "512", "train_batch_size": "32"},
                **{"gradient_accumulation_steps": "120", "learning_rate": "4e-3", "warmup_steps": "200"},
                **{"max_steps": "7560", "output_dir": "results/bart_pyt_pretraining/phase_2"},
                "resume_from_checkpoint": "results/bart_pyt_pretraining/phase_1/last.ckpt",
                **dict.fromkeys(["load_model_weights_only", "overwrite_output_dir"]),
            },
        ],
    )
    shutil.rmtree(tmp_path / "work/results")
    assert pretrain(NVIDIAS) == (0, runs)


def test_pretraining_without_pre_ln_in_other_precisions(pretrain: Any) -> None:
    _, [first, second] = pretrain("8 8 1e-3 1e-3 fp32 false 0 --dropout 0.3 --lamb --no_nvlamb", SEED=7)
    for args in (first, second):
        assert {"no_pre_ln": None, "dropout": "0.3", "seed": "7", "gpus": "0"}.items() <= args.items()
        assert not {"pre_ln", "bf16", "fp16", "tf32"} & args.keys()


def test_a_killed_pretraining_goes_on_and_a_phase_that_is_done_is_not_trained_again(
    pretrain: Any, tmp_path: Path
) -> None:
    results = tmp_path / "work/results/bart_pyt_pretraining"
    status, [first] = pretrain(KILLED="phase_1")
    assert (status, first["resume_from_checkpoint"]) == (143, "last")
    status, [again, second] = pretrain(KILLED="phase_2")
    assert (status, again) == (143, first)
    assert second["resume_from_checkpoint"] == "results/bart_pyt_pretraining/phase_1/last.ckpt"
    (results / "phase_2/last.ckpt").unlink()  # as if it was killed before its first one
    (results / "phase_2/metrics.csv").touch()
    assert pretrain(KILLED="phase_2") == (143, [second])
    status, [third] = pretrain()
    assert (status, third["resume_from_checkpoint"]) == (0, "last")
    assert not {"load_model_weights_only", "overwrite_output_dir"} & third.keys()
    assert pretrain() == (0, [])
    (results / "phase_2/train_summary.json").unlink()
    results.rename(tmp_path / "work/[a] b")  # checkpoints are found whatever the name
    _, [second] = pretrain(RESULTS_DIR="[a] b")
    assert (second["output_dir"], second["resume_from_checkpoint"]) == ("[a] b/phase_2", "last")
    (tmp_path / "work/[a] b").rename(results)
    (results / "phase_1/last.ckpt").unlink()  # its export is enough
    shutil.rmtree(results / "phase_2")
    _, [second] = pretrain(script="run_pretraining_phase2.sh")
    assert second["resume_from_checkpoint"] == "results/bart_pyt_pretraining/phase_1"
    _, [longer, _] = pretrain(f"{' '.join(NVIDIAS.split()[:9])} 95041 7561")
    assert (longer["max_steps"], longer["resume_from_checkpoint"]) == ("95041", "last")


@pytest.mark.parametrize("row", pretraining_rows("BERT"), ids=lambda row: row["preset"])
def test_presets_of_bert_have_nvidias_batches_and_schedule(row: dict[str, str], pretrain: Any, tmp_path: Path) -> None:
    for length in (128, 512):
        (tmp_path / f"work/data/pretrain_lddl_{length}").rename(tmp_path / f"work/data/pretrain_mlm_nsp_{length}")
    preset = f"$(source {ROOT}/scripts/params/bert_pretrain_params.sh && {row['preset']})"
    status, (first, second) = pretrain(preset, "bert/run_pretraining.sh")
    shared = {
        **{"task": "mlm_nsp", "config_path": f"{ROOT}/configs/bert_large.json", "seed": "42", "gpus": row["NUM_GPUS"]},
        **{"lr_scheduler": "poly_sqrt", "weight_decay": "0.01", "gradient_clip_val": "1", "adam_epsilon": "1e-6"},
        **{"num_workers": "4", "lamb": None, "save_checkpoint_steps": "200"},
    } | ({} if row["PRECISION"] == "fp32" else {row["PRECISION"]: None})
    expected = [
        shared | {"max_source_length": "128", "learning_rate": "6e-3", "max_steps": "7038", "warmup_steps": "2001"},
        shared | {"max_source_length": "512", "learning_rate": "4e-3", "max_steps": "1563", "warmup_steps": "200"},
    ]
    assert status == 0
    for phase, published, args, asked in zip((1, 2), (65_536, 32_768), (first, second), expected, strict=True):
        assert asked.items() <= args.items() and not {"pre_ln", "no_pre_ln", "nvlamb"} & {*args}
        assert args["data_dir"] == f"data/pretrain_mlm_nsp_{args['max_source_length']}"
        assert args["output_dir"] == f"results/bert_lamb_pretraining/phase_{phase}"
        assert args["gradient_accumulation_steps"] == row[f"accumulation {phase}"]
        micro_batch = int(row[f"batch {phase}"]) // int(row[f"accumulation {phase}"])
        assert int(args["train_batch_size"]) == micro_batch
        assert int(row["NUM_GPUS"]) * int(row[f"batch {phase}"]) == published


def test_bert_begins_with_given_weights_and_makes_shards_that_are_missing(
    recorded: Recorder, pretrain: Any, tmp_path: Path
) -> None:
    (tmp_path / "work/texts").mkdir()
    words = (
        "64 6e-3 fp32 0 .5 7 3 true false true 8 5 job true true 32 4e-3 0 9 8 made/a made/b /code weights texts 3 2"
    )
    done, calls = recorded(
        f"bash {ROOT}/scripts/bert/run_pretraining.sh {words}", tmp_path / "work", VOCAB_FILE="words"
    )
    assert done.returncode == 0, done.stderr
    *shards, first, second = calls
    made = ["--task", "mlm_nsp", "--input", "texts", "--output"]
    further = ["--tokenizer", "words", "--sequence_length"]
    counted = ["--workers", "3", "--shards", "6"]
    bins = ["--bins", *(str(length) for length in range(64, 513, 64))]
    assert [call[3:] for call in shards] == [
        [*made, "made/a", *further, "128", *counted], [*made, "made/b", *further, "512", *counted, *bins],
    ]  # fmt: skip
    begun = {"resume_from_checkpoint": "weights", "load_model_weights_only": None, "seed": "5", "warmup_steps": "4"}
    begun |= {"train_batch_size": "8", "output_dir": "results/job/phase_1"}
    assert begun.items() <= settings_of(first).items()
    assert settings_of(second)["resume_from_checkpoint"] == "results/job/phase_1/last.ckpt"
    without = words.replace("true true 32", "true true 64").replace("true false true", "true false false")
    without = without.replace("weights", "None")
    _, [first, _] = pretrain(f"{without} --n_val 3", "bert/run_pretraining.sh", RESULTS_DIR="other")
    assert (first["gradient_accumulation_steps"], first["train_batch_size"]) == ("1", "64")
    assert (first["resume_from_checkpoint"], first["n_val"]) == ("last", "3")


@pytest.mark.parametrize("name", sorted(presets("bert_squad")))
def test_presets_of_bert_for_squad(name: str, recorded: Recorder) -> None:
    preset = f"$(source scripts/params/bert_squad_params.sh && {name})"
    train, score = recorded.succeed(f"bash scripts/bert/run_squad.sh {preset} --n_val 7")
    args = train_settings(train)
    gpus = 1 if "1gpu" in name else 8
    expected = {
        **{"task": "question_answering", "model_name_or_path": "google-bert/bert-large-uncased", "max_epochs": 2},
        **{"max_steps": -1, "learning_rate": 4.6e-5, "warmup_proportion": 0.2, "warmup_steps": 0, "gpus": gpus},
        **{"seed": 1, "data_dir": "hub:rajpurkar/squad", "max_source_length": 384, "n_val": 7},
        **{"config_path": "configs/bert_large.json", "output_dir": "results/bert_squad"},
    }
    assert expected.items() <= args.items()
    assert gpus * args["train_batch_size"] == (128 if "fp32" in name else 256)
    precision = name.rsplit("_", 1)[1]
    assert precision == "fp32" or args[precision]
    scored = {"model": "results/bert_squad/export", "type_path": "val", "bs": 8, "n_obs": 7}
    assert scored.items() <= eval_settings(score).items()


def test_berts_squad_trains_or_scores_alone(recorded: Recorder) -> None:
    words = "ckpt 3 4 5e-5 .1 bf16 1 9 data/x vocab out"
    [train] = recorded.succeed(f"bash scripts/bert/run_squad.sh {words} train configs/bert_base.json 50")
    expected = {"max_steps": 50, "tokenizer": "vocab", "seed": 9, "train_batch_size": 4, "output_dir": "out"}
    assert expected.items() <= train_settings(train).items()
    assert train_settings(train)["max_epochs"] is None
    [score] = recorded.succeed(f"bash scripts/bert/run_squad.sh {words} eval configs/bert_base.json -1 --n_obs 3")
    expected = {"model": "ckpt", "save_dir": "out", "tokenizer": "vocab", "bs": 8, "n_obs": 3, "device": "cuda"}
    assert expected.items() <= eval_settings(score).items()


def test_each_phase_has_a_script(recorded: Recorder, pretrain: Any, tmp_path: Path) -> None:
    status, [first] = pretrain(NVIDIAS, "run_pretraining_phase1.sh", PHASE1_CKPT=tmp_path)
    assert (status, first["output_dir"]) == (0, "results/bart_pyt_pretraining/phase_1")
    status, [second] = pretrain(NVIDIAS, "run_pretraining_phase2.sh")
    assert (status, second["output_dir"]) == (0, "results/bart_pyt_pretraining/phase_2")
    shutil.rmtree(tmp_path / "work/results")
    for script in ("run_pretraining.sh", "run_pretraining_phase2.sh"):
        done, calls = recorded(f"bash {ROOT}/scripts/{script}", tmp_path / "work", PHASE1_CKPT="gone/last.ckpt")
        assert (done.returncode, calls) == (2, [])
        assert done.stderr == f"{script}: error: PHASE1_CKPT is 'gone/last.ckpt'; no such file or folder\n"
        assert "0 positional values: NVIDIA's are used, which --help lists, on 8 GPUs\n" in done.stdout
    for script in ("run_pretraining.sh", "run_pretraining_phase2.sh"):
        _, [second] = pretrain(script=script, PHASE1_CKPT=tmp_path, RESULTS_DIR=script)
        assert (second["resume_from_checkpoint"], second["output_dir"]) == (str(tmp_path), f"{script}/phase_2")
    _, [second] = pretrain(
        NVIDIAS.replace("7560", "7561"), "run_pretraining_phase2.sh", PHASE1_CKPT="gone", RESULTS_DIR=script
    )
    assert second["resume_from_checkpoint"] == "last"  # it goes on, and no longer needs phase 1
    unfinished = tmp_path / "work/results/bart_pyt_pretraining/phase_1"
    unfinished.mkdir(parents=True)
    (unfinished / "last.ckpt").touch()
    assert pretrain(script="run_pretraining_phase2.sh") == (2, [])
    (unfinished / "train_summary.json").write_text("{}")
    os.utime(unfinished / "train_summary.json", (0, 0))  # of fewer steps, before it went on
    assert pretrain(script="run_pretraining_phase2.sh") == (2, [])


def test_where_pretraining_finds_its_data(pretrain: Any, tmp_path: Path) -> None:
    (tmp_path / "work/data").rename(tmp_path / "work/more")
    assert pretrain() == (2, [])
    for words, data in (("", "more"), ("--data-dir=more/ --seed 3", "data"), ("--data_dir more", "data")):
        _, runs = pretrain(words, RESULTS_DIR=f"results{len(words)}", DATA_DIR=data)
        assert [args["data_dir"] for args in runs] == ["more/pretrain_lddl_128", "more/pretrain_lddl_512"]
    (tmp_path / "work/more/pretrain_lddl_512").rename(tmp_path / "work/more/pretrain_lddl_1024")
    assert pretrain("--data_dir more", RESULTS_DIR="new") == (2, [])  # before phase 1 is trained
    _, runs = pretrain("--data_dir more", RESULTS_DIR="new", LENGTH_PHASE2=1024)
    assert [args["max_source_length"] for args in runs] == ["128", "1024"]


def test_the_benchmark_of_pretraining_runs_the_recipe_at_one_length(recorded: Recorder, tmp_path: Path) -> None:
    made_shards(tmp_path / "more")
    args = PretrainingArguments(batch_size=32, length=512, data_dir=str(tmp_path / "more"), steps=7)
    [call] = recorded.succeed(shlex.join(args.command(Row(2, "tf32"))), RESULTS_DIR="out")
    asked = {"data_dir": f"{tmp_path}/more/pretrain_lddl_512", "output_dir": "out/phase_1", "gpus": "2", "tf32": None}
    asked |= {"max_source_length": "512", "train_batch_size": "32", "gradient_accumulation_steps": "1", "lamb": None}
    assert (asked | {"max_steps": "15", "log_freq": "5", "n_val": "64"}).items() <= settings_of(call).items()


def test_a_file_of_options_is_refused_where_it_would_not_be_obeyed(pretrain: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("n_val: 7\nmax_steps: 8\n")
    assert pretrain(f"--config {tmp_path}/run.yaml") == (2, [])
    (tmp_path / "run.yaml").write_text("n_val: 7\n")
    assert pretrain(f"--config {tmp_path}/run.yaml")[0] == 0


def test_the_smoke_preset_of_pretraining_makes_all_it_needs(recorded: Recorder, clone: Path) -> None:
    recorded.stand_in("python", PRETRAINS)
    command = "bash scripts/run_pretraining.sh $(source scripts/params/pretrain_params.sh && cpu_smoke)"
    corpus, vocabulary, *shards, first, second = recorded.succeed(command, clone)
    assert (corpus[2], vocabulary[2]) == ("utils.corpora.sample_corpus", "utils.corpora.train_tokenizer")
    documents = "data/sample/documents"
    for length, call in zip(("128", "512"), shards, strict=True):
        given = ["--input", f"{documents}/train.txt", "--val_input", f"{documents}/val.txt"]
        made = ["--output", f"data/sample/pretrain_lddl_{length}", "--sequence_length", length]
        assert call[2:] == ["utils.corpora.make_shards", *given, "--tokenizer", "data/sample/tokenizer", *made]
    texts = (clone / documents / "train.txt").read_text().split("\n\n")
    assert [text.split() for text in texts] == [[str(n) for n in range(a, min(a + 8, 21))] for a in (1, 9, 17)]
    for args, length in ((settings_of(first), "128"), (settings_of(second), "512")):
        assert (args["data_dir"], args["gpus"]) == (f"data/sample/pretrain_lddl_{length}", "0")
    shutil.rmtree(clone / "results")
    assert recorded.succeed(command, clone) == [first, second]
    # Texts that are there are not written again: shards of them that a killed run has begun would be refused.
    os.utime(clone / documents / "train.txt", (1, 1))
    (clone / "data/sample/pretrain_lddl_128/manifest.json").unlink()
    shutil.rmtree(clone / "results")
    assert recorded.succeed(command, clone) == [shards[0], first, second]
    assert (clone / documents / "train.txt").stat().st_mtime == 1
    assert {path.name for path in (clone / documents).iterdir()} == {"train.txt", "val.txt"}


def test_the_smoke_preset_of_bert_has_a_vocabulary_of_its_own(recorded: Recorder, clone: Path) -> None:
    recorded.stand_in("python", PRETRAINS)
    command = "bash scripts/bert/run_pretraining.sh $(source scripts/params/bert_pretrain_params.sh && cpu_smoke)"
    corpus, vocabulary, *shards, first, second = recorded.succeed(command, clone)
    tokenizer = "data/sample/bert_tokenizer"
    assert corpus[2] == "utils.corpora.sample_corpus"
    assert vocabulary[5:] == ["--output_dir", tokenizer, "--vocab_size", "1600", "--model_type", "bert"]
    for call in shards:
        assert call[-2:] == ["--task", "mlm_nsp"] and call[call.index("--tokenizer") + 1] == tokenizer
    assert [settings_of(call)["data_dir"] for call in (first, second)] == [
        call[call.index("--output") + 1] for call in shards
    ]
    assert recorded.succeed(command, clone) == []


def test_the_small_pretraining_goes_from_texts_to_an_export(recorded: Recorder, tmp_path: Path) -> None:
    recorded.stand_in("python", PRETRAINS)
    (tmp_path / "texts").mkdir()
    command = f"bash {ROOT}/scripts/pretrain_small.sh texts --seed 3"
    vocabulary, *shards, first, second = recorded.succeed(command, tmp_path)
    results = "results/pretrain_small"
    tokenizer = f"{results}/data/tokenizer"
    expected = ["--input", "texts", "--output_dir", tokenizer, "--vocab_size", "16000"]
    assert vocabulary[2:] == ["utils.corpora.train_tokenizer", *expected]
    for length, call in zip(("128", "512"), shards, strict=True):
        made = ["--output", f"{results}/data/pretrain_lddl_{length}", "--sequence_length", length]
        assert call[2:] == ["utils.corpora.make_shards", "--input", "texts", "--tokenizer", tokenizer, *made]
    for number, args in ((1, settings_of(first)), (2, settings_of(second))):
        assert (args["output_dir"], args["seed"]) == (f"{results}/phase_{number}", "3")
        assert args["config_path"] == f"{ROOT}/configs/config_small.json"
    again = recorded.succeed(command, tmp_path)
    assert again == shards  # which say that they are there


@pytest.mark.slow
def test_the_smoke_preset_of_pretraining_learns_and_can_be_fine_tuned(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    preset = f"$(source {ROOT}/scripts/params/pretrain_params.sh && cpu_smoke)"
    done = shell(f"bash {ROOT}/scripts/run_pretraining.sh {preset}", path, tmp_path, RESULTS_DIR="out")
    assert done.returncode == 0, done.stderr
    losses = [json.loads((tmp_path / f"out/phase_{n}/train_summary.json").read_text())["val_loss"] for n in (1, 2)]
    assert max(losses) < 3 < math.log(1600)  # the loss of a guess among all tokens
    # The script takes the repository's corpus where a quickstart has made it.
    data = next(folder / "data/sample" for folder in (tmp_path, ROOT) if (folder / "data/sample").exists())
    options = f"--data_dir {data} --model_name_or_path out/phase_2 --max_steps 1 --n_val 4 --max_source_length 64"
    done = shell(f"python {ROOT}/finetune.py --do_train --output_dir tuned {options}", path, tmp_path)
    assert done.returncode == 0, done.stderr


SBATCHES = ("scripts/slurm/run_summarization.sbatch", "scripts/slurm/run_pretraining.sbatch")


@dataclass(frozen=True)
class Slurm:
    """A job of two nodes with eight GPUs each."""

    recorded: Recorder
    folder: Path

    def __call__(
        self, kind: str = "summarization", preset: str = "xsum", **variables: object
    ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """Run the job once. OUT_OF_TIME=1: near its time limit, where training saves a checkpoint."""
        # SLURM starts a copy of the script that lies elsewhere, in the folder of submission.
        shutil.copyfile(self.folder / f"scripts/slurm/run_{kind}.sbatch", self.folder / "slurm_script")
        values = f"$(source scripts/params/{preset}_params.sh && h100_8gpu_bf16)"
        return self.recorded(
            f"BATCH_SHELL=$$ exec bash slurm_script {values} --seed 7",
            self.folder,
            SLURM_JOB_ID=14711,
            SLURM_JOB_NODELIST="node[07-08]",
            SLURM_JOB_NUM_NODES=2,
            SLURM_GPUS_ON_NODE=8,
            **variables,
        )


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


def programs(calls: list[list[str]]) -> list[str]:
    """The programs started; of scontrol its command too, of python the script."""
    names = []
    for call in calls:
        script = [Path(word).name for word in call if word.endswith("run_eval.py")]
        names.append(" ".join([call[0], *(call[1:2] if call[0] == "scontrol" else script)]))
    return names


def test_a_slurm_job_trains_on_all_nodes_and_scores_on_one(job: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    done, calls = job()
    assert done.returncode == 0, done.stderr
    assert programs(calls) == ["scontrol show", "srun", "torchrun", "python run_eval.py"]
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
    assert calls[3][: len(TORCHRUN) + 1] == [*TORCHRUN, "8"]
    assert eval_settings(calls[3])["model"] == "results/bart_pyt_14711/export"


def test_a_slurm_job_out_of_time_queues_again_and_goes_on(job: Slurm) -> None:
    done, first = job(OUT_OF_TIME=1)
    assert done.returncode == 1
    assert programs(first) == ["scontrol show", "srun", "torchrun", "scancel", "scontrol requeue"]
    assert first[3][1:] == ["--signal=TERM", "14711"]
    assert first[4][1:] == ["requeue", "14711"]
    done, second = job()
    assert done.returncode == 0, done.stderr
    assert programs(second) == ["scontrol show", "srun", "torchrun", "python run_eval.py"]
    assert second[2] == first[2]  # the same folder, and from the last checkpoint


def test_a_slurm_job_that_cannot_save_does_not_queue_for_ever(job: Slurm) -> None:
    saved = job.folder / "results/bart_pyt_14711/last.ckpt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    os.utime(saved, (0, 0))  # an earlier run's
    done, calls = job(OUT_OF_TIME="unsaved")
    assert (done.returncode, programs(calls)[-1]) == (1, "scancel")
    assert "no checkpoint was written before time ran out" in done.stderr


def test_a_slurm_job_that_fails_neither_queues_again_nor_scores(job: Slurm) -> None:
    done, calls = job(FAIL=job.folder / "finetune.py")
    assert (done.returncode, programs(calls)) == (3, ["scontrol show", "srun"])


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


def test_an_interpreter_that_will_not_do_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = shell("bash scripts/quickstart.sh", PYTHON=broken, VENV=tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no Python 3.10 to 3.13 with the venv module: tried {broken};")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


# ---- Where scripts run, and what they find there

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


def test_seeds_are_trained_once_each_and_compared(recorded: Recorder, tmp_path: Path) -> None:
    recorded.stand_in("python", '[[ $1 == -m ]] || mkdir -p "$RESULTS_DIR"')
    command = f"bash {ROOT}/scripts/run_stability.sh 2 scripts/run_glue.sh data configs/config_tiny.json 0"
    variables = {"RESULTS_DIR": tmp_path / "out", "SEED": 7}
    (tmp_path / "out/seed_8").mkdir(parents=True)  # of a run that was killed
    calls = recorded.succeed(command, tmp_path, **variables)
    assert [Path(call[1]).name for call in calls] == ["finetune.py", "run_eval.py"] * 2 + ["-m"]
    for seed, call in ((7, calls[0]), (8, calls[2])):
        values = [call[call.index(f"--{name}") + 1] for name in ("seed", "output_dir")]
        assert values == [str(seed), str(tmp_path / f"out/seed_{seed}")]
        assert (call[-2:] == ["--resume_from_checkpoint", "last"]) == (seed == 8)
    assert calls[-1][2:] == ["utils.evaluation.stability", *(str(tmp_path / f"out/seed_{seed}") for seed in (7, 8))]
    assert recorded.succeed(command, tmp_path, **variables) == calls[-1:]


@pytest.mark.parametrize("preset", ["$(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp61)", "$(false)", '""'])
def test_a_mistyped_preset_trains_nothing(preset: str, recorded: Recorder) -> None:
    done, started = recorded(f"bash scripts/run_summarization.sh {preset} --n_train 7")
    assert (done.returncode, started) == (2, [])
    last = done.stderr.splitlines()[-1]
    assert last.startswith("run_summarization.sh: error: 0 positional values; ")
    assert all(f" {name}" in last for name in presets("xsum") if not name.endswith("_eval"))


@pytest.fixture
def clone(recorded: Recorder, tmp_path: Path) -> Path:
    """A copy of the scripts with an environment of its own, whose `python` records itself as `venv`."""
    shutil.copytree(ROOT / "scripts", tmp_path / "clone/scripts")
    recorded.stand_in("venv")
    (tmp_path / "clone/.venv/bin").mkdir(parents=True)
    (tmp_path / "clone/.venv/bin/python").write_text(f'#!/bin/sh\nexec {tmp_path}/programs/venv "$@"\n')
    (tmp_path / "clone/.venv/bin/python").chmod(0o755)
    return tmp_path / "clone"


@pytest.mark.parametrize(
    ("script", "program", "variables", "interpreter"),
    [
        ("run_summarization.sh data/x", "finetune.py", {}, "venv"),
        ("run_eval_summarization.sh ckpt 8 1", "run_eval.py", {}, "venv"),
        ("get_data.sh", "utils.corpora.get_data", {}, "venv"),
        ("get_pretraining_data.sh out", "utils.corpora.get_pretraining_data", {}, "venv"),
        ("serve.sh model", "utils.serving", {}, "venv"),
        ("run_training_benchmark.sh", "utils.benchmark", {}, "venv"),
        ("run_inference_benchmark.sh", "utils.benchmark", {}, "venv"),
        ("run_pretraining_benchmark.sh", "utils.benchmark", {}, "venv"),
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
    found = {}
    for name in ("both", "mine", "theirs", "none"):
        config = "configs/config.json" * (name != "none")  # which is the default, too
        command = f"bash {clone}/scripts/run_summarization.sh data/{name} {config} --cache_dir data/{name}"
        train, score = recorded.succeed(command, tmp_path / "elsewhere", RESULTS_DIR="out")
        args, scored = train_settings(train), eval_settings(score)
        assert args["data_dir"] == scored["data_dir"] == args["cache_dir"]
        assert args["config_path"] == f"{clone}/configs/config.json" == scored["config_path"]
        assert (args["output_dir"], scored["model"]) == ("out", "out/export")
        found[name] = args["data_dir"]
    theirs = f"{clone}/data/theirs"
    assert found == {"both": "data/both", "mine": "data/mine", "theirs": theirs, "none": "data/none"}


def test_the_preset_for_laptops_makes_its_data_and_needs_no_further_words(recorded: Recorder, clone: Path) -> None:
    def succeed(data: str) -> list[list[str]]:
        preset = f"$(source scripts/params/{data}_params.sh && cpu_smoke)"
        return recorded.succeed(f"bash scripts/run_summarization.sh {preset}", clone, RESULTS_DIR="out")

    corpus, vocabulary, train, score = succeed("cnn_dm")
    assert corpus[2:] == ["utils.corpora.sample_corpus", "--output_dir", "data/sample"]
    assert vocabulary[2:4] == ["utils.corpora.train_tokenizer", "--data_dir"]
    expected = {"data_dir": "data/sample", "tokenizer": "data/sample/tokenizer", "model_name_or_path": "scratch"}
    assert (expected | {"gpus": 0, "max_target_length": 64, "max_steps": 600}).items() <= train_settings(train).items()
    for name in ("test.target", "tokenizer/tokenizer_config.json"):
        (clone / "data/sample" / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / "data/sample" / name).write_text("there")
    assert succeed("cnn_dm") == succeed("xsum") == [train, score]
    preset = "$(source scripts/params/xsum_params.sh && cpu_smoke_eval)"
    command = f"bash scripts/run_eval_summarization.sh out/export {preset} --overwrite_output_dir"
    [alone] = recorded.succeed(command, clone, RESULTS_DIR="out")
    assert eval_settings(alone) == eval_settings(score)


@pytest.mark.slow
def test_the_preset_for_laptops_beats_the_lead_baseline(tmp_path: Path) -> None:
    command = f"bash {ROOT}/scripts/run_summarization.sh $(source {ROOT}/scripts/params/cnn_dm_params.sh && cpu_smoke)"
    done = shell(command, f"{Path(sys.executable).parent}:{os.environ['PATH']}", tmp_path, RESULTS_DIR="out")
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "out/test_scores.json").read_text())
    assert scores["rouge1"] > 60 > scores["baselines"]["first 3 sentences"]["rouge1"]


# ---- Signals


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("script", "sent", "to_group"),
    [
        *(("run_summarization.sh data/x", TERM, False), ("run_summarization.sh data/x", INT, False)),
        ("run_summarization.sh data/x", INT, True),
        *(("quickstart.sh", TERM, False), ("quickstart.sh", INT, True)),
        *(("run_eval_summarization.sh ckpt 8 1", TERM, False), ("serve.sh model", TERM, False)),
        *(("run_training_benchmark.sh", INT, True), ("slurm/run_summarization.sbatch data/x", TERM, False)),
        *(("run_pretraining.sh --data_dir data", TERM, False), ("run_pretraining.sh --data_dir data", INT, True)),
        *(("run_pretraining_phase1.sh --data_dir data", INT, True), ("pretrain_small.sh data", TERM, False)),
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
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    child = Path(f"{record}.child")
    while not (child.exists() and child.read_text()):
        time.sleep(0.01)
    (os.killpg if to_group else os.kill)(running.pid, sent)
    output = running.communicate(timeout=10)[0]
    assert running.returncode == 128 + sent, output
    assert Path(f"{record}.signals").read_text() == f"{sent.name.removeprefix('SIG')}\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)
    calls = [line for line in record.read_text().splitlines() if line.startswith("python")]
    assert len(calls) <= 1, calls


def test_the_quickstart_does_what_is_not_done(tmp_path: Path) -> None:
    contents = {
        "requirements.txt": "",
        "scripts/run_summarization.sh": "echo training",
        "scripts/run_eval_summarization.sh": "echo scoring again",
        ".venv/bin/python": "#!/bin/sh\nexit 0\n",
        **dict.fromkeys(("data/sample/test.target", "data/sample/tokenizer/tokenizer_config.json"), "there"),
    }
    for name in ("quickstart.sh", "setup_env.sh", "arguments.sh", "params/cnn_dm_params.sh"):
        contents[f"scripts/{name}"] = (ROOT / "scripts" / name).read_text()
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / ".venv/bin/python").chmod(0o755)

    def done() -> tuple[bool, bool]:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VENV")}
        command = ["bash", str(tmp_path / "scripts/quickstart.sh")]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return "\ntraining\n" in printed, "scoring again" in printed

    results = tmp_path / "results/quickstart"
    results.mkdir(parents=True)
    (results / "step10.ckpt").write_text("of an interrupted run")
    assert done() == (True, False)
    assert not results.exists()
    results.mkdir()
    (results / "train_summary.json").write_text("{}")
    assert done() == (False, True)
    (results / "report.html").write_text("of the training")
    (results / "test_scores.json").write_text("{}")
    os.utime(results / "report.html", (1, 1))
    assert done() == (False, True)
    os.utime(results / "test_scores.json", (0, 0))
    assert done() == (False, False)


TASK_SCRIPTS = {"glue": "classification", "tagging": "tagging", "squad": "question_answering"}


@pytest.mark.parametrize("data", TASK_SCRIPTS)
def test_presets_of_tasks_are_options_of_both_programs(data: str, recorded: Recorder) -> None:
    for preset in presets(data):
        started = recorded.succeed(
            f"bash scripts/run_{data}.sh $(source scripts/params/{data}_params.sh && {preset}) --seed 7",
            RESULTS_DIR="out",
        )
        [train] = [call for call in started if any("finetune.py" in word for word in call)]
        scored = [call for call in started if any("run_eval.py" in word for word in call)]
        trained = train_settings(train)
        assert (trained["task"], trained["seed"], trained["output_dir"]) == (TASK_SCRIPTS[data], 7, "out")
        assert len(scored) == {"glue": 4 if preset == "mnli" else 2, "squad": 1, "tagging": 1}[data] - (
            data == "glue" and preset == "cpu_smoke"
        )
        for call in scored:
            settings = eval_settings(call)
            same = trained.keys() & settings.keys() - {"seed", "tokenizer", "overwrite_output_dir"}
            assert {name: settings[name] for name in same} == {
                **{name: trained[name] for name in same},
                **({"mismatched": settings["mismatched"]} if data == "glue" else {}),
            }
            assert settings["device"] == ("cpu" if preset == "cpu_smoke" else "cuda")


def test_translation_is_scored_with_its_beams(recorded: Recorder) -> None:
    values = "data/x '' 0 1e-4 8 1 fp32 100 10 128 32 64 4"
    train, score = recorded.succeed(f"bash scripts/run_translation.sh {values} --n_test=5 --n_val 9", RESULTS_DIR="out")
    trained, scored = train_settings(train), eval_settings(score)
    assert (trained["config_path"], trained["max_target_length"], trained["n_val"]) == (
        "configs/config_translation.json",
        64,
        9,
    )
    assert (scored["eval_beams"], scored["eval_max_gen_length"], scored["n_obs"], scored["task"]) == (
        4,
        64,
        5,
        "translation",
    )
    assert len(recorded.succeed(f"bash scripts/run_translation.sh {values}", SCORE=0)) == 1


@pytest.mark.parametrize("script", ["glue", "tagging", "squad"])
def test_a_mistyped_preset_of_a_task_lists_them(script: str, recorded: Recorder) -> None:
    done, started = recorded(f"bash scripts/run_{script}.sh $(source scripts/params/{script}_params.sh && typo)")
    assert (done.returncode, started) == (2, [])
    assert all(f" {preset}" in done.stderr for preset in presets(script))
    done, started = recorded(f"bash scripts/run_{script}.sh data/x --max_source_length 5")
    assert (done.returncode, started) == (2, [])
    assert "--max_source_length; give it by its place" in done.stderr
