"""The shell scripts, with stand-ins for the programs that they start, which record their arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils.arguments import TrainArguments, parse_train_arguments
from utils.evaluation.arguments import EvalArguments, parse_eval_arguments

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted([*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("scripts/**/*.sbatch"), ROOT / ".ci/run"])
SETS = ("cnn_dm", "xsum")

# The published table: learning rate, batch, steps, warm-up, evaluation batch, prediction batch, interval[, patience].
PUBLISHED = """
| dgxa100_8gpu_fp16 | 1.25e-4, 40, 2000, 50, 128, 128, 0.3 | 1.25e-4, 40, 2000, 50, 128, 128, 0.1 |
| dgxa100_8gpu_tf32 | 1.25e-4, 24, 3333, 50, 128, 64, 0.3 | 1.25e-4, 24, 3333, 50, 128, 64, 0.1 |
| dgx2_16gpu_fp16 | 1e-4, 14, 3500, 100, 128, 96, 0.3 | 1e-4, 14, 3500, 100, 128, 96, 0.3, 1 |
| dgx2_16gpu_fp32 | 7e-5, 8, 6125, 150, 96, 32, 0.3 | 1.25e-4, 8, 6125, 150, 96, 32, 0.3, 1 |
| dgx1_8gpu_fp16 | 5.5e-5, 14, 7000, 150, 128, 96, 0.3 | 7e-5, 14, 7000, 200, 128, 64 (eval preset 96), 0.3, 1 |
| dgx1_8gpu_fp32 | 5.5e-5, 8, 12250, 150, 96, 32, 0.3 | 7e-5, 8, 12250, 200, 96, 32, 0.3, 1 |
"""
# Data, config, target length and beams of each set.
FIXED = {
    "cnn_dm": ("data/cnn_dm/", "configs/config.json", "142", "4"),
    "xsum": ("data/xsum", "configs/config_xsum.json", "60", "6"),
}


@dataclass(frozen=True)
class Preset:
    """One cell of the table."""

    data: str
    name: str
    values: list[str]
    eval_batch: str

    @property
    def gpus(self) -> str:
        return re.search(r"_(\d+)gpu_", self.name)[1]

    @property
    def precision(self) -> str:
        return self.name.rsplit("_", 1)[1]


def published() -> list[Preset]:
    presets = []
    for line in PUBLISHED.strip().splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for data, cell in zip(SETS, cells, strict=True):
            other = re.search(r" \(eval preset (\d+)\)", cell)
            values = re.sub(r" \(.*?\)", "", cell).split(", ")
            presets.append(Preset(data, name, values, other[1] if other else values[5]))
    return presets


@dataclass(frozen=True)
class Row:
    """A preset for one data set as README's table has it: options by their names in the programs."""

    effective_batch: int
    train: dict[str, object]
    score: dict[str, object]
    eval_preset: dict[str, object]


def readme_rows() -> dict[tuple[str, str], Row]:
    """README's presets, by data set and name."""
    shapes = {
        name: [int(number) for number in numbers]
        for name, *numbers in re.findall(
            r"`(?:scripts/params/)?(\w+?)(?:_params\.sh)?`\s+\(source (\d+), target (\d+), (\d+) beams", README
        )
    }
    usual_patience = re.search(r"beams, patience (\d+)\)", README)[1]
    rows = {}
    for name, precision, gpus, batch, accumulation, product, *cells in re.findall(
        r"^\| `(\w+)` \| (\w+) \| (CPU|\d+) × (\d+) × (\d+) = (\d+) \| (.*) \| (.*) \|$", README, re.MULTILINE
    ):
        for data, cell in zip(SETS, cells, strict=True):
            source, target, beams = shapes.get(name) or shapes[data]
            in_eval_preset = re.search(r" \(eval (\d+)\)", cell)
            values = re.sub(r" \(.*?\)", "", cell).split(", ")
            rate, steps, warmup, eval_batch, pred_batch, interval, *patience = values
            train = {
                "gpus": 0 if gpus == "CPU" else int(gpus),
                "train_batch_size": int(batch),
                "gradient_accumulation_steps": int(accumulation),
                "learning_rate": float(rate),
                "max_steps": int(steps),
                "warmup_steps": int(warmup),
                "eval_batch_size": int(eval_batch),
                "val_check_interval": float(interval),
                "early_stopping_patience": int(patience[0] if patience else usual_patience),
                "max_source_length": source,
                "max_target_length": target,
                "val_max_target_length": target,
                **{flag: flag == precision for flag in ("fp16", "bf16", "tf32")},
            }
            score = {
                "bs": int(pred_batch),
                "gpus": train["gpus"],
                "precision": precision,
                "eval_beams": beams,
                "max_source_length": source,
                "max_target_length": target,
                "eval_max_gen_length": target,
            }
            other_batch = {"bs": int(in_eval_preset[1])} if in_eval_preset else {}
            rows[data, name] = Row(int(product), train, score, score | other_batch)
    return rows


def shell(
    command: str, path: str = os.environ["PATH"], cwd: Path = ROOT, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run a bash command line, from the root of the repository unless told otherwise."""
    environment = {key: value for key, value in os.environ.items() if key not in ("SEED", "RESULTS_DIR", "LAUNCH")}
    environment |= {"PATH": path, **{key: str(value) for key, value in variables.items()}}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True)


def preset_values(data: str, function: str) -> list[str]:
    done = shell(f"source scripts/params/{data}_params.sh && {function}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def functions(data: str) -> list[str]:
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


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    programs = tmp_path / "programs"
    programs.mkdir()
    recorder = Recorder(programs)
    recorder.stand_in("python")
    return recorder


def train_arguments(call: list[str]) -> TrainArguments:
    assert call[:2] == ["python", "finetune.py"]
    return parse_train_arguments(call[2:])


def eval_arguments(call: list[str]) -> EvalArguments:
    return parse_eval_arguments(call[call.index("run_eval.py") + 1 :])


def values_of(args: TrainArguments | EvalArguments, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(args, name) for name in names}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("preset", published(), ids=lambda preset: f"{preset.data}-{preset.name}")
def test_presets_are_the_published_ones(preset: Preset) -> None:
    data, config, target, beams = FIXED[preset.data]
    rate, batch, steps, warmup, eval_batch, pred_batch, interval, *patience = preset.values
    assert preset_values(preset.data, preset.name) == [
        *(data, config, preset.gpus, rate, batch, "1", preset.precision, steps, warmup, "1024", target, beams),
        *(eval_batch, pred_batch, interval, *patience),
    ]
    assert preset_values(preset.data, f"{preset.name}_eval") == [
        *(preset.eval_batch, preset.gpus, preset.precision, beams, "1024", target, data, config)
    ]


@pytest.mark.parametrize("data", SETS)
def test_every_preset_stands_in_the_readme_and_has_an_eval_twin(data: str) -> None:
    names = {name for of, name in readme_rows() if of == data}
    assert {preset.name for preset in published()} < names
    assert set(functions(data)) == names | {f"{name}_eval" for name in names}


@pytest.mark.parametrize(("data", "name"), [(data, name) for data in SETS for name in functions(data)])
def test_presets_give_the_programs_what_the_readme_says(data: str, name: str, recorded: Recorder) -> None:
    training = name.removesuffix("_eval")
    row = readme_rows()[data, training]
    preset = f"$(source scripts/params/{data}_params.sh && {name})"
    if name != training:
        done, (score,) = recorded(f"bash scripts/run_eval_summarization.sh ckpt {preset}", RESULTS_DIR="out")
        assert done.returncode == 0, done.stderr
        scored = eval_arguments(score)
        assert values_of(scored, row.eval_preset) == row.eval_preset
        assert [scored.data_dir, scored.config_path] == preset_values(data, training)[:2]
        assert (scored.model, scored.save_dir) == ("ckpt", "out")
        return
    done, (train, score) = recorded(f"bash scripts/run_summarization.sh {preset}", RESULTS_DIR="out")
    assert done.returncode == 0, done.stderr
    args, scored = train_arguments(train), eval_arguments(score)
    assert values_of(args, row.train) == row.train
    assert args.processes * args.train_batch_size * args.gradient_accumulation_steps == row.effective_batch
    assert args.do_train and not args.do_predict
    assert values_of(scored, row.score) == row.score
    assert (scored.model, scored.save_dir) == ("out/export", "out")
    assert (scored.data_dir, scored.config_path) == (args.data_dir, args.config_path)


def test_the_training_scripts_defaults_and_fixed_flags(recorded: Recorder) -> None:
    done, (train, score) = recorded("bash scripts/run_summarization.sh")
    assert done.returncode == 0, done.stderr
    args = train_arguments(train)
    assert re.fullmatch(r"results/bart_pyt_\d{6}_\d{6}", args.output_dir)
    assert args == TrainArguments(
        output_dir=args.output_dir,
        do_train=True,
        data_dir="data/cnn_dm/",
        config_path="configs/config.json",
        gpus=8,
        learning_rate=1e-4,
        train_batch_size=24,
        gradient_accumulation_steps=1,
        fp16=True,
        amp_level="O1",
        max_steps=20000,
        warmup_steps=500,
        lr_scheduler="polynomial",
        max_source_length=1024,
        max_target_length=142,
        val_max_target_length=142,
        label_smoothing=0.1,
        weight_decay=0.1,
        dropout=0.1,
        attention_dropout=0.1,
        gradient_clip_val=0.1,
        freeze_embeds=True,
        sortish_sampler=True,
        n_val=-1,
        num_sanity_val_steps=0,
        eval_beams=0,
        eval_batch_size=128,
        val_check_interval=0.3,
        early_stopping_patience=2,
        seed=42,
    )
    assert (eval_arguments(score).bs, eval_arguments(score).eval_beams) == (64, 4)
    assert eval_arguments(score).save_dir == args.output_dir
    assert args.output_dir in done.stdout


def test_the_evaluation_scripts_defaults(recorded: Recorder) -> None:
    done, (score,) = recorded("bash scripts/run_eval_summarization.sh some.ckpt")
    assert done.returncode == 0, done.stderr
    args = eval_arguments(score)
    assert re.fullmatch(r"results/bart_pyt_inference_\d{6}_\d{6}", args.save_dir)
    assert args == EvalArguments(
        model="some.ckpt",
        config_path="configs/config.json",
        data_dir="data/cnn_dm/",
        save_dir=args.save_dir,
        bs=128,
        gpus=8,
        precision="fp16",
        eval_beams=4,
        max_source_length=1024,
        max_target_length=142,
        eval_max_gen_length=142,
    )


def test_further_arguments_are_passed_on_and_win(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --dropout 0.3 --n_train 7 --no_freeze_embeds --tokenizer 'a b'"
    done, (train, _) = recorded(command, SEED=7, RESULTS_DIR="out/x")
    assert done.returncode == 0, done.stderr
    args = train_arguments(train)
    assert (args.data_dir, args.dropout, args.n_train, args.freeze_embeds) == ("data/x", 0.3, 7, False)
    assert (args.seed, args.output_dir, args.tokenizer, args.learning_rate) == (7, "out/x", "a b", 1e-4)
    done, (score,) = recorded("bash scripts/run_eval_summarization.sh some.ckpt 8 --n_obs 5 --type_path val")
    assert done.returncode == 0, done.stderr
    args = eval_arguments(score)
    assert (args.bs, args.n_obs, args.type_path) == (8, 5, "val")


@pytest.mark.parametrize(("step", "calls"), [("finetune.py", 1), ("run_eval.py", 2)])
@pytest.mark.parametrize("pipe", ["", " | tee /dev/null"])
def test_a_step_that_fails_fails_the_script(recorded: Recorder, step: str, calls: int, pipe: str) -> None:
    done, started = recorded(f"set -o pipefail; bash scripts/run_summarization.sh{pipe}", FAIL=step)
    assert (done.returncode, len(started)) == (3, calls)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("run_summarization.sh d c 0 1e-4 8 1 fp8", "PREC is 'fp8'"),
        ("run_summarization.sh 1 2 3 4 5 6 fp16 8 9 10 11 12 13 14 15 16 17", "17 positional values"),
        ("run_summarization.sh data --output_dir elsewhere", "--output_dir; give it by its place"),
        ("run_summarization.sh data --gpus=2", "--gpus=2; give it by its place"),
        ("run_eval_summarization.sh", "a checkpoint"),
        ("run_eval_summarization.sh 1 2 3 fp16 5 6 7 8 9 10", "10 positional values"),
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
    done, (train, score) = recorded("bash scripts/run_summarization.sh data/x", LAUNCH=launch)
    assert done.returncode == 0, done.stderr
    words = [*launch.split(), "finetune.py"]
    assert train[: len(words)] == words
    assert parse_train_arguments(train[len(words) :]).data_dir == "data/x"
    assert score[:2] == ["python", "run_eval.py"]


def test_processes_on_the_cpu_train_together_and_one_scores(recorded: Recorder) -> None:
    preset = "$(source scripts/params/xsum_params.sh && cpu_smoke)"
    done, (train, score) = recorded(f"bash scripts/run_summarization.sh {preset} --accelerator cpu --devices 2")
    assert done.returncode == 0, done.stderr
    args = train_arguments(train)
    assert (args.accelerator, args.devices, args.gpus, args.processes) == ("cpu", 2, 0, 2)
    assert eval_arguments(score).gpus == 0


def test_an_interrupted_run_is_taken_up_in_its_folder(recorded: Recorder) -> None:
    command = "bash scripts/run_summarization.sh data/x --resume_from_checkpoint last"
    done, (train, score) = recorded(command, RESULTS_DIR="results/mine")
    assert done.returncode == 0, done.stderr
    assert (train_arguments(train).resume_from_checkpoint, train_arguments(train).output_dir) == (
        "last",
        "results/mine",
    )
    assert eval_arguments(score).model == "results/mine/export"


SBATCH = "scripts/slurm/run_summarization.sbatch"


@dataclass(frozen=True)
class Slurm:
    """A job of two nodes with eight GPUs each."""

    recorded: Recorder
    folder: Path

    def __call__(self, **variables: object) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """Run the job once. OUT_OF_TIME=1: near its time limit, where training saves a checkpoint."""
        # SLURM starts a copy of the script that lies elsewhere, in the folder of submission.
        shutil.copyfile(self.folder / SBATCH, self.folder / "slurm_script")
        return self.recorded(
            "BATCH_SHELL=$$ exec bash slurm_script $(source scripts/params/xsum_params.sh && h100_8gpu_bf16) --seed 7",
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
        mkdir -p "$RESULTS_DIR"
        if [[ ${OUT_OF_TIME:-} ]]; then
            trap '[[ $OUT_OF_TIME == unsaved ]] || touch "$RESULTS_DIR/last.ckpt"; exit 1' TERM # torchrun's own status
            echo $$ >"$RECORD.torchrun"
            kill -USR1 "$BATCH_SHELL"
            for ((i = 0; i < 500; i++)); do sleep 0.02; done
        fi
        """,
    )
    return Slurm(recorded, tmp_path / "repository")


def programs(calls: list[list[str]]) -> list[str]:
    return [" ".join(call[: 2 if call[0] in ("python", "scontrol") else 1]) for call in calls]


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
    assert launch.training_script == "finetune.py"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", launch.nproc_per_node)
    monkeypatch.setenv("WORLD_SIZE", "16")
    args = parse_train_arguments(launch.training_script_args)
    assert (args.gpus, args.processes, args.seed, args.bf16) == (8, 16, 7, True)
    assert (args.output_dir, args.resume_from_checkpoint) == ("results/bart_pyt_14711", "last")
    scored = eval_arguments(calls[3])
    assert (scored.model, scored.gpus) == ("results/bart_pyt_14711/export", 8)


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
    done, calls = job(FAIL="finetune.py")
    assert (done.returncode, programs(calls)) == (3, ["scontrol show", "srun"])


def test_slurm_is_asked_for_enough_time_to_save() -> None:
    script = (ROOT / SBATCH).read_text()
    before_any_command = re.match(r"(?:#.*\n|\n)*", script)[0]
    directives = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert directives == re.findall(r"^#SBATCH (.*)$", before_any_command, re.MULTILINE)  # SLURM reads no others
    assert {"--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(directives)
    (seconds,) = (int(line.removeprefix("--signal=B:USR1@")) for line in directives if line.startswith("--signal"))
    patience = int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", script)[1])
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


def test_the_quickstart_scores_again_what_has_no_report_of_its_scores(tmp_path: Path) -> None:
    contents = {
        "scripts/run_eval_summarization.sh": "echo scoring again",
        ".venv/bin/python": "#!/bin/sh\nexit 0\n",
        **dict.fromkeys(("requirements.txt", ".venv/installed-requirements.txt"), "torch"),
        **dict.fromkeys(("data/sample/test.target", "data/sample/tokenizer/tokenizer_config.json"), "there"),
        **dict.fromkeys((f"results/quickstart/{name}" for name in ("train_summary.json", "test_scores.json")), "there"),
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    for name in ("quickstart.sh", "setup_env.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")

    def quickstart() -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VENV")}
        command = ["bash", str(tmp_path / "scripts/quickstart.sh")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "scoring again" in quickstart()
    (tmp_path / "results/quickstart/report.html").touch()
    assert "scoring again" not in quickstart()
    os.utime(tmp_path / "results/quickstart/report.html", (0, 0))  # of the training alone
    assert "scoring again" in quickstart()
