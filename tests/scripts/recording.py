"""Runs the shell scripts with stand-ins for the programs that they start, and reads what these record."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.app.cli import all_settings
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.recipes.pretraining_arguments import parse_pretraining_arguments

ROOT = Path(__file__).parents[2]
PRESETS = (ROOT / "docs/presets.md").read_text(encoding="utf-8")
SETS = {"cnn_dm": "CNN-DM", "xsum": "XSum"}  # and their titles in docs/presets.md
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
# A stand-in that leaves what a run of so many steps leaves, and what make_shards and sample_corpus do.
PRETRAINS = """
folder() { printf %s "$*" | sed -n "s/.*--output[_a-z]* \\([^ ]*\\).*/\\1/p"; }
made=$(folder "$@")
case "$*" in
*make_shards*) mkdir -p "$made" && touch "$made/manifest.json" ;;
*train_tokenizer*) mkdir -p "$made" && echo {} >"$made/tokenizer_config.json" ;;
*sample_corpus*) mkdir -p "$made/questions" && seq 20 | tee "$made/"{train,val}.source >"$made/questions/test.jsonl" ;;
*run_pretraining.py*)
    steps=$(printf %s "$*" | sed -n "s/.*--max_steps \\([0-9]*\\).*/\\1/p")
    mkdir -p "$made" && touch "$made/last.ckpt"
    [[ ${KILLED:-} != "${made##*/}" ]] || exit 143
    printf '{\\n  "steps": %s,\\n}\\n' "$steps" >"$made/train_summary.json"
    ;;
esac
"""


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


def section_of(title: str) -> str:
    """A section of docs/presets.md."""
    return PRESETS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def preset_rows(title: str) -> list[dict[str, str]]:
    """The rows of a section's table, by the names of their columns."""
    lines = re.findall(r"^\|(.*)\|$", section_of(title), re.MULTILINE)
    names, _, *table = [[cell.strip(" `") for cell in line.split("|")] for line in lines]
    return [dict(zip(names, cells, strict=True)) for cells in table]


def made_shards(folder: Path) -> Path:
    """A folder of shards, as far as the scripts look at them."""
    for length in (128, 512):
        (folder / f"pretrain_lddl_{length}").mkdir(parents=True)
        (folder / f"pretrain_lddl_{length}/manifest.json").touch()
    return folder


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


def place_of(program: str, call: list[str]) -> int:
    """Where a recorded call names one of the repository's programs, by its whole path."""
    return next(place for place, word in enumerate(call) if word.endswith(f"/{program}"))


def train_settings(call: list[str]) -> dict[str, Any]:
    """All options of finetune.py by name, as a recorded call sets them."""
    args = parse_finetune_arguments(call[place_of("finetune.py", call) + 1 :])
    return args.settings() | {"processes": args.hardware.processes}


def eval_settings(call: list[str]) -> dict[str, Any]:
    """All options of run_eval.py by name, as a recorded call sets them."""
    return all_settings(parse_eval_arguments(call[place_of("run_eval.py", call) + 1 :]))


def settings_of(call: list[str]) -> dict[str, Any]:
    """All options of run_pretraining.py by name, as a recorded call sets them; None for flags."""
    words = call[place_of("run_pretraining.py", call) + 1 :]
    parse_pretraining_arguments(words)  # refuses what it does not know
    values = [None if after.startswith("--") else after for after in [*words[1:], "--"]]
    return {word[2:]: value for word, value in zip(words, values, strict=True) if word.startswith("--")}
