"""The shell scripts, with `python` replaced by a stub that records its arguments."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils.arguments import EvalArguments, TrainArguments, parse_eval_arguments, parse_train_arguments

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*ROOT.glob("scripts/**/*.sh"), ROOT / ".ci/run"])
SETS = ("cnn_dm", "xsum")

# The table: learning rate, batch, steps, warm-up, evaluation batch, prediction batch, interval[, patience].
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


def shell(command: str, path: str = os.environ["PATH"], **variables: object) -> subprocess.CompletedProcess[str]:
    """Run a bash command line from the repository's root."""
    environment = {key: value for key, value in os.environ.items() if key not in ("SEED", "RESULTS_DIR")}
    environment |= {"PATH": path, **{key: str(value) for key, value in variables.items()}}
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)


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
    """Runs scripts with stubs for the commands that they start."""

    folder: Path

    def __call__(self, command: str, **variables: object) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """The finished script, and the argument list of each stub started, its name first."""
        record = self.folder / "record"
        record.write_text("")
        done = shell(command, f"{self.folder}:{os.environ['PATH']}", RECORD=record, **variables)
        return done, [call.split("\x1f")[:-1] for call in record.read_text().split("\n")[:-1]]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorder:
    stub = tmp_path / "python"
    stub.write_text(
        "#!/usr/bin/env bash\n"
        '{ printf "%s\\x1f" "${0##*/}" "$@"; echo; } >>"$RECORD"\n'
        '[[ " $* " != *" ${FAIL:-none} "* ]] || exit 3\n'
    )
    stub.chmod(0o755)
    return Recorder(tmp_path)


def train_arguments(call: list[str]) -> TrainArguments:
    assert call[:2] == ["python", "finetune.py"]
    return parse_train_arguments(call[2:])


def eval_arguments(call: list[str]) -> EvalArguments:
    return parse_eval_arguments(call[call.index("run_eval.py") + 1 :])


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
def test_no_preset_is_missing_or_without_its_eval_twin(data: str) -> None:
    ours = {"h200_1gpu_bf16", "h100_8gpu_bf16", "cpu_smoke"}
    names = {preset.name for preset in published()} | ours
    assert len(names) == 9
    assert set(functions(data)) == names | {f"{name}_eval" for name in names}
    for name in ("h200_1gpu_bf16", "h100_8gpu_bf16"):
        values = preset_values(data, name)
        assert values[2:7:4] == [re.search(r"_(\d)gpu", name)[1], "bf16"]
        assert int(values[2]) * int(values[4]) * int(values[5]) == 320  # the A100 recipe's global batch


@pytest.mark.parametrize("data", SETS)
def test_every_preset_runs_through_both_programs_options(data: str, recorded: Recorder) -> None:
    for name in functions(data):
        if name.endswith("_eval"):
            continue
        extras = "--model_name_or_path scratch --tokenizer t" if name == "cpu_smoke" else ""
        preset = f"$(source scripts/params/{data}_params.sh && {name})"
        done, (train, score) = recorded(f"bash scripts/run_summarization.sh {preset} {extras}", RESULTS_DIR="out")
        assert done.returncode == 0, done.stderr
        values = preset_values(data, name)
        args = train_arguments(train)
        assert args.do_train and not args.do_predict
        assert [args.data_dir, args.config_path, str(args.gpus)] == values[:3]
        assert [args.learning_rate, args.val_check_interval] == [float(values[3]), float(values[14])]
        given = [args.train_batch_size, args.gradient_accumulation_steps, args.max_steps, args.warmup_steps]
        assert given == [int(values[i]) for i in (4, 5, 7, 8)]
        assert [args.max_source_length, args.max_target_length, args.eval_batch_size] == [
            int(values[i]) for i in (9, 10, 12)
        ]
        assert args.val_max_target_length == args.max_target_length
        assert [flag for flag in ("fp16", "bf16", "tf32") if getattr(args, flag)] == [
            flag for flag in (values[6],) if flag != "fp32"
        ]
        assert args.early_stopping_patience == int(values[15] if len(values) > 15 else 2)

        scored = eval_arguments(score)
        assert [scored.model, scored.save_dir, scored.config_path, scored.data_dir] == [
            *("out/export", "out", values[1], values[0])
        ]
        assert [scored.bs, scored.eval_beams, scored.max_source_length, scored.max_target_length] == [
            int(values[i]) for i in (13, 11, 9, 10)
        ]
        assert scored.eval_max_gen_length == scored.max_target_length
        assert [scored.precision == name for name in ("fp16", "bf16", "tf32")] == [args.fp16, args.bf16, args.tf32]

        preset = f"$(source scripts/params/{data}_params.sh && {name}_eval)"
        done, (alone,) = recorded(f"bash scripts/run_eval_summarization.sh ckpt {preset}", RESULTS_DIR="out")
        assert done.returncode == 0, done.stderr
        eval_values = preset_values(data, f"{name}_eval")
        scored = eval_arguments(alone)
        assert [scored.model, scored.bs, scored.data_dir, scored.config_path] == [
            *("ckpt", int(eval_values[0]), eval_values[6], eval_values[7])
        ]


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


def test_an_interpreter_that_will_not_do_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = shell("bash scripts/quickstart.sh", PYTHON=broken, VENV=tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no Python 3.10 to 3.13 with the venv module: tried {broken};")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_launching_the_container(tmp_path: Path) -> None:
    stub = tmp_path / "docker"
    stub.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    default = shell("bash scripts/docker/launch.sh", path).stdout.splitlines()
    assert default[:2] == ["run", "--rm"]
    assert default[-4:] == ["bart_pyt", "bash", "-c", "bash"]
    assert default[default.index("--gpus") + 1] == "all"
    assert default[default.index("--volume") + 1] == f"{ROOT}:/workspace/bart"
    given = shell("bash scripts/docker/launch.sh 'nvidia-smi -L && ls' 0,3", path).stdout.splitlines()
    assert given[-4:] == ["bart_pyt", "bash", "-c", "nvidia-smi -L && ls"]
    assert given[given.index("--gpus") + 1] == '"device=0,3"'
    built = shell("bash scripts/docker/build.sh --build-arg A=b", path).stdout.splitlines()
    assert built == ["build", "--pull", "--tag", "bart_pyt", "--build-arg", "A=b", "."]
