"""What `run_gpu_checks.sh` runs: checks, each a command of this repository, and the table of what came of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bart.errors import InputError
from utils.benchmark import LOG_EVERY, reason, run, training_figures
from utils.cli import option, parse_dataclass, run_main
from utils.files import write_json
from utils.machine import ROOT, environment
from utils.measuring import table

UNFINISHED = 3  # exit status
COLUMNS = {
    "name": "check", "result": "result", "rate": "figure", "unit": "", "peer_rate": "peer", "peer": "",
    "ratio": "ratio", "peak_memory_gb": "peak GB", "mfu": "MFU", "seconds": "seconds", "why": "why",
}  # fmt: skip
# Network, tokens, batch, and sequences per second of the large one on an A100 in half precision, by NVIDIA's pages.
PRETRAINING = (
    ("bart", 128, 200, 326.53),
    ("bart", 512, 32, 69.31),
    ("bert", 128, 256, 580.0),
    ("bert", 512, 64, 210.0),
)
# Options of fine-tuning runs, and those that need a GPU.
FINE_TUNING = {
    "fp32": "", "tf32": "--tf32", "bf16": "--bf16", "fp16": "--fp16",
    "bf16 O2": "--bf16 --amp_level O2", "bf16 O3": "--bf16 --amp_level O3",
    "fp16 O0": "--fp16 --amp_level O0", "fp16 O2": "--fp16 --amp_level O2", "fp16 O3": "--fp16 --amp_level O3",
    **{name: f"--bf16 --optimizer {name}" for name in "adamw fused_adam lamb fused_lamb adafactor sgd".split()},
    "fused_lamb fp16 O2": "--fp16 --amp_level O2 --optimizer fused_lamb",
    "ddp": "--bf16 --strategy ddp", "fsdp": "--bf16 --strategy fsdp",
    "activation checkpointing": "--bf16 --activation_checkpointing", "LoRA": "--bf16 --lora_rank 8",
    "accumulation": "--bf16 --gradient_accumulation_steps 4",
}  # fmt: skip
ON_GPUS = ("--tf32", "--fp16")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """A line of bash, which finds the repository at $ROOT and its folder at $OUT, and what it leaves there.

    Attributes:
        figures: of the folder, some of COLUMNS.
        minutes: it may take.
    """

    name: str
    command: str
    figures: Callable[[Path], Figures]
    minutes: float = 8
    needs_gpu: bool = False


@dataclass(frozen=True)
class Arguments:
    out: str = option(positional=True, help="folder for the results; one that is there is gone on with")
    checks: tuple[str, ...] = option((), positional=True, help="names, or first words of names; by default all")


def all_checks(on_gpu: bool) -> list[Check]:
    """Everything there is to check; on a CPU with tiny models."""
    gpus, device, vocabulary = (1, "cuda", "$TOKENIZER") if on_gpu else (0, "cpu", "data/sample/tokenizer")
    checks = [Check("tests", 'python -m pytest -q -m gpu -p no:cacheprovider "$ROOT"', passed, needs_gpu=True)]
    tiny = (
        '--config_path "$ROOT/configs/config_tiny.json" --tokenizer data/sample/tokenizer --model_name_or_path scratch'
    )
    steps = f"--max_steps 40 --log_every_n_steps {LOG_EVERY} --n_val 32 --eval_beams 0 --dropout 0.1"
    for name, options in FINE_TUNING.items():
        run = f'python "$ROOT/finetune.py" --do_train --data_dir data/sample --output_dir "$OUT/run" --gpus {gpus}'
        needs_gpu = any(option in options for option in ON_GPUS)
        checks.append(Check(f"fine-tuning {name}", f"{run} {tiny} {steps} {options}", trained, 2, needs_gpu))

    def benchmark(name: str, script: str, options: str, **others: Any) -> Check:
        return Check(
            name, f'python "$ROOT/scripts/{script}" --output "$OUT/figures.json" {options}', compared, **others
        )

    once = f"--device {device} --repeats 1 --modes"
    modes = "transformers_fp32 transformers_bf16 ours_fp32 ours_bf16"
    for shape in ("base", "large", "large_batch1") if on_gpu else ("tiny",):
        checks.append(benchmark(f"decoding {shape}", "benchmark_decoding.py", f"--shape {shape} {once} {modes}"))
    eager = replace(checks[-1], name=f"{checks[-1].name} without graphs", needs_gpu=True)
    checks.append(replace(eager, command=f"BART_GRAPHS=0 {eager.command}"))
    options = f"--gpus {gpus} --rounds 1 --steps 10 --tokenizer {vocabulary}"
    for shape in ("xsum", "cnn_dm") if on_gpu else ("tiny",):
        for precision in ("bf16", "tf32") if on_gpu else ("fp32",):
            given = f"--shape {shape} --precision {precision} {options}"
            checks.append(benchmark(f"training {shape} {precision}", "benchmark_training.py", given))
    for kind, length, batch, rate in PRETRAINING:
        bert = kind == "bert"
        config = {True: ("config", "bert_large"), False: ("config_tiny", "bert_tiny")}[on_gpu][bert]
        task, names = ("--task mlm_nsp", "bert_tokenizer") if bert else ("", "tokenizer")
        shards = (
            f"python -m utils.corpora.make_shards {task} --input data/sample/documents/train.txt --output $OUT/shards"
        )
        shards += f" --tokenizer data/sample/{names} --sequence_length {length}{' --duplicate_factor 1' * bert}"
        run = f'python "$ROOT/run_pretraining.py" {task} --data_dir "$OUT/shards" --output_dir "$OUT/run" --gpus {gpus}'
        run += f' --config_path "$ROOT/configs/{config}.json" --max_source_length {length} --max_steps 30 --n_val 16'
        run += f" --train_batch_size {batch if on_gpu else 4} --log_freq {LOG_EVERY} {'--bf16' * on_gpu}"
        published = {"peer": "A100, published", "peer_rate": rate} if on_gpu else {}
        figures = partial(trained, **published)
        checks.append(Check(f"pretraining {kind} {length}", f"{shards} && {run}", figures))
    shape = "large" if on_gpu else "tiny"
    checks.append(benchmark("bert inference", "bert/benchmark_inference.py", f"--shape {shape} {once} {modes}"))
    return checks


def compared(folder: Path) -> Figures:
    """Of a benchmark: the fastest of ours beside the fastest of the peers."""
    report = json.loads((folder / "figures.json").read_bytes())
    ours, peers = ([one for one in report["results"] if one["mode"].startswith("ours") == own] for own in (True, False))
    best, peer = (max(rows, key=lambda row: row["rate"]) for rows in (ours, peers))
    unit = "samples/s" if "sample" in report else "sequences/s" if "error" in best else "articles/s"
    return {
        **{name: best[name] for name in ("rate", "peak_memory_gb", "mfu") if name in best},
        **{"unit": f"{unit}, {best['mode']}", "peer_rate": peer["rate"], "peer": peer["mode"]},
    }


def trained(folder: Path, **others: Any) -> Figures:
    """Of a training run: its speed, and that its loss is a number; and other figures."""
    figures = training_figures(folder / "run/metrics.csv")
    summary = json.loads((folder / "run/train_summary.json").read_bytes())
    if not summary["train_loss"] < float("inf"):
        raise ValueError(f"the loss is {summary['train_loss']}")
    named = {name: figures[name] for name in ("peak_memory_gb", "mfu") if name in figures}
    return {"rate": figures["throughput"], "unit": "samples/s", **named, **others}


def passed(folder: Path) -> Figures:
    """Of pytest: how many tests passed; it fails where none is."""
    found = re.findall(r"(\d+) passed", (folder / "output.txt").read_text(encoding="utf-8"))
    if not found:
        raise ValueError("no test was run")
    return {"rate": int(found[-1]), "unit": "tests"}


def run_check(check: Check, folder: Path, on_gpu: bool) -> Figures:
    """Run a check; the row of the table."""
    row: Figures = {"name": check.name}
    if check.needs_gpu and not on_gpu:
        return row | {"result": "skipped", "why": "it needs a CUDA device"}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    os.environ |= {"ROOT": str(ROOT), "OUT": str(folder.resolve())}
    status = run(["bash", "-c", check.command], folder, 60 * check.minutes)
    row["seconds"] = round(time.monotonic() - started)
    why = None
    if status is None:
        why = f"it took longer than {check.minutes:g} minutes"
    elif status:
        output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        why = reason(output.splitlines()) or f"it ended with status {status}"
    else:
        try:
            row |= check.figures(folder)
        except (OSError, ValueError, KeyError) as error:
            why = f"it left no figures ({type(error).__name__}: {error})"
    for path in [*folder.rglob("*.ckpt"), *folder.rglob("export")]:  # gigabytes that nobody asked for
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if why is not None:
        return row | {"result": "failed", "why": why.replace("|", "/")}
    if "peer_rate" in row:
        row["ratio"] = row["rate"] / row["peer_rate"]
    return row | {"result": "passed"}


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_dataclass(Arguments, argv, str(__doc__))
    given = os.environ.get("MINUTES", "9")
    if not re.fullmatch(r"\d{1,4}(\.\d+)?", given):
        raise InputError(f"MINUTES is {given!r}; allowed: a number of minutes")
    limit, started, out = 60 * float(given), time.monotonic(), Path(args.out)
    on_gpu = torch.cuda.is_available()
    os.environ.setdefault("TOKENIZER", "facebook/bart-large")
    checks = all_checks(on_gpu)
    for name in args.checks:
        if not any(check.name.startswith(name) for check in checks):
            raise InputError(f"no check begins with {name!r}; there are: {', '.join(check.name for check in checks)}")
    path = out / "checks.json"
    rows: dict[str, Figures] = json.loads(path.read_bytes())["rows"] if path.exists() else {}
    chosen = [one for one in checks if not args.checks or one.name.startswith(args.checks)]
    # Skipped ones too, as the machine may have got a GPU.
    left = [
        one for one in chosen if rows.get(one.name, {}).get("result") not in ("passed", *["failed"] * (not args.checks))
    ]
    info = environment(torch.cuda.device_count())
    out.mkdir(parents=True, exist_ok=True)
    for number, check in enumerate(left):
        if number and time.monotonic() - started + 60 * check.minutes > limit:
            print(f"{len(left) - number} checks are left: the same command goes on", file=sys.stderr)
            return UNFINISHED
        print(f"[{number + 1}/{len(left)}] {check.name}", file=sys.stderr, flush=True)
        rows[check.name] = run_check(check, out / check.name.replace(" ", "_"), on_gpu)
        write_json(path, {"machine": info, "rows": rows})
        devices = ", ".join([*info["devices"], f"torch {info['versions']['torch']}", info["date"]])
        shown = [rows[one.name] for one in checks if one.name in rows]
        (out / "checks.md").write_text(f"{devices}\n\n{table(shown, COLUMNS)}\n", encoding="utf-8")
    print((out / "checks.md").read_text(encoding="utf-8"))
    return int(any(rows[one.name]["result"] == "failed" for one in chosen))


if __name__ == "__main__":
    run_main(main)
