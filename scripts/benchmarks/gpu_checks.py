"""What `run_gpu_checks.sh` runs: checks, each a line of bash, and the table of what came of them."""

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
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import torch

from bart.errors import InputError, naming
from bart.files import write_json
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.benchmark import LOG_EVERY, measure, training_figures
from utils.runs.machine import ROOT, environment

UNFINISHED = 3  # exit status
COLUMNS = {
    "name": "check", "result": "result", "rate": "figure", "unit": "", "peer_rate": "peer", "peer": "",
    "ratio": "ratio", "peak_memory_gb": "peak GB", "mfu": "MFU", "seconds": "seconds", "why": "why",
}  # fmt: skip
# Options of fine-tuning runs of a tiny model.
FINE_TUNING = {
    "fp32": "", "tf32": "--tf32", "bf16": "--bf16", "fp16": "--fp16",
    "bf16 O2": "--bf16 --amp_level O2", "bf16 O3": "--bf16 --amp_level O3",
    "fp16 O0": "--fp16 --amp_level O0", "fp16 O2": "--fp16 --amp_level O2", "fp16 O3": "--fp16 --amp_level O3",
    **{name: f"--bf16 --optimizer {name}" for name in "fused_adam lamb fused_lamb adafactor sgd".split()},
    "fused_lamb fp16 O2": "--fp16 --amp_level O2 --optimizer fused_lamb",
    "activation checkpointing": "--bf16 --activation_checkpointing",
    "compiled": "--bf16 --compile",
    "accumulation": "--bf16 --gradient_accumulation_steps 4",
    "ddp": "--bf16 --strategy ddp", "fsdp": "--bf16 --strategy fsdp",
    "ddp compiled": "--bf16 --strategy ddp --compile", "fsdp compiled": "--bf16 --strategy fsdp --compile",
}  # fmt: skip
# Network, tokens, batch, and sequences per second of the large one on an A100 in half precision, by NVIDIA's pages.
PRETRAINING = (
    ("bart", 128, 200, 326.53),
    ("bart", 512, 32, 69.31),
    ("bert", 128, 256, 580.0),
    ("bert", 512, 32, 210.0),
)
Figures = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """A line of bash, which finds the repository at $ROOT and its folder at $OUT, and what it leaves there.

    Attributes:
        figures: of the folder, some of COLUMNS.
        minutes: it may take.
        gpus: it needs.
    """

    name: str
    command: str
    figures: Callable[[Path], Figures]
    minutes: float = 5
    gpus: int = 0


@dataclass(frozen=True)
class Arguments:
    out: str = option(positional=True, help="folder for the results; one that is there is gone on with")
    checks: tuple[str, ...] = option((), positional=True, help="names, or first words of names; by default all")


def all_checks(on_gpu: bool) -> list[Check]:
    """Everything there is to check; on a CPU with tiny models."""
    device, vocabulary = ("cuda", "$TOKENIZER") if on_gpu else ("cpu", "data/sample/tokenizer")
    checks = [Check("tests", 'python -m pytest -q -m gpu -p no:cacheprovider "$ROOT"', passed, 8, gpus=1)]
    tune = 'python "$ROOT/finetune.py" --do_train --data_dir data/sample --config_path "$ROOT/configs/config_tiny.json"'
    tune += f" --max_steps 40 --log_every_n_steps {LOG_EVERY} --n_val 32 --eval_beams 0 --dropout 0.1 --output_dir"
    scratch = "--model_name_or_path scratch --tokenizer data/sample/tokenizer"
    for name, options in FINE_TUNING.items():
        needed = 2 if "--strategy" in options else int(any(flag in options for flag in ("fp16", "tf32", "compile")))
        line = f'{tune} "$OUT/run" {scratch} --gpus {max(needed, int(on_gpu))} {options}'
        checks.append(Check(f"fine-tuning {name}", line, trained, 5 if "compile" in options else 2, gpus=needed))
    first = f'{tune} "$OUT/first" {scratch} --gpus {int(on_gpu)}'
    line = f'{tune} "$OUT/run" --model_name_or_path "$OUT/first/export" --lora_rank 8 --gpus {int(on_gpu)} --bf16'
    checks.append(Check("fine-tuning LoRA", f"{first} && {line}", trained, 3))

    def beside(name: str, unit: str, script: str, options: str) -> Check:
        line = f'python "$ROOT/scripts/benchmarks/{script}" --output "$OUT/figures.json" {options}'
        return Check(name, line, partial(compared, unit=unit))

    once = f"--device {device} --repeats 1 --modes transformers_fp32 transformers_bf16 ours_fp32 ours_bf16"
    for shape in ("base", "large", "large_batch1") if on_gpu else ("tiny",):
        checks.append(beside(f"decoding {shape}", "articles/s", "benchmark_decoding.py", f"--shape {shape} {once}"))
    eager = f"BART_GRAPHS=0 {checks[-1].command}"
    checks.append(replace(checks[-1], name=f"{checks[-1].name} without graphs", command=eager, gpus=1))
    options = f'--gpus {int(on_gpu)} --rounds 1 --steps 10 --tokenizer "{vocabulary}"'
    for shape in ("xsum", "cnn_dm") if on_gpu else ("tiny",):
        for precision in ("bf16", "tf32") if on_gpu else ("fp32",):
            given = f"--shape {shape} --precision {precision} {options}"
            checks.append(beside(f"training {shape} {precision}", "samples/s", "benchmark_training.py", given))
            compiled = f"{checks[-1].command} --modes ours_compiled transformers"
            checks.append(replace(checks[-1], name=f"{checks[-1].name} compiled", command=compiled, minutes=7, gpus=1))
    for kind, length, batch, rate in PRETRAINING:
        bert = kind == "bert"
        task, words = ("--task mlm_nsp", "data/sample/bert_tokenizer") if bert else ("", vocabulary)
        size = ("bert_large" if bert else "config") if on_gpu else ("bert_tiny" if bert else "config_tiny")
        stories = 60_000 if on_gpu else 4000
        line = f"""python -m utils.corpora.sample_corpus --output_dir "$OUT/corpus" --n_train {stories} &&
            awk '{{ print }} NR % 40 == 0 {{ print "" }}' "$OUT/corpus/train.source" >"$OUT/train.txt" &&
            python -m utils.corpora.make_shards {task} --input "$OUT/train.txt" --output "$OUT/shards" \\
                --val_ratio 0.05 --tokenizer "{words}" --sequence_length {length} {"--duplicate_factor 1" * bert} &&
            python "$ROOT/run_pretraining.py" {task} --data_dir "$OUT/shards" --output_dir "$OUT/run" \\
                --config_path "$ROOT/configs/{size}.json" --max_source_length {length} --max_steps 30 --n_val 16 \\
                --val_check_interval 1.0 --train_batch_size {batch if on_gpu else 4} --log_freq {LOG_EVERY} \\
                --gpus {int(on_gpu)} {"--bf16" * on_gpu}"""
        published = {"peer": "A100, published", "peer_rate": rate} if on_gpu else {}
        # BERT's loss is of few tokens, so that a vocabulary of 1,600 saves little.
        checks.append(Check(f"pretraining {kind} {length}", line, partial(trained, **published)))
    longer = r"\1 " * 40  # contexts of several windows, so that nearly all of these are full
    line = f"""python -m utils.corpora.sample_tasks --output_dir "$OUT/data" --n_train 400 --n_val 16 --n_test 1 &&
        sed -E -i.once 's/"context": "(.*)", "answers"/"context": "{longer}", "answers"/' \
            "$OUT"/data/questions/*.jsonl &&
        python "$ROOT/finetune.py" --task question_answering --do_train --data_dir "$OUT/data/questions" \
            --config_path "$ROOT/configs/bert_{"large" if on_gpu else "tiny"}.json" --model_name_or_path scratch \
            --tokenizer data/sample/bert_tokenizer --max_source_length 384 --train_batch_size {32 if on_gpu else 4} \
            --max_steps 30 --log_every_n_steps {LOG_EVERY} --val_check_interval 1.0 --output_dir "$OUT/run" \
            --gpus {int(on_gpu)} {"--bf16" * on_gpu}"""
    published = {"peer": "A100, published", "peer_rate": 110.0} if on_gpu else {}
    checks.append(Check("fine-tuning BERT on questions", line, partial(trained, **published)))
    given = f"--shape {'large' if on_gpu else 'tiny'} {once}"
    checks.append(beside("bert inference", "sequences/s", "benchmark_bert_inference.py", given))
    return checks


def compared(folder: Path, unit: str) -> Figures:
    """Of a benchmark: the fastest of ours beside the fastest of the peers."""
    rows = json.loads((folder / "figures.json").read_bytes())["results"]
    ours, peer = (
        max((row for row in rows if row["mode"].startswith("ours") == own), key=lambda row: row["rate"])
        for own in (True, False)
    )
    named = {"rate": ours["rate"], "unit": f"{unit}, {ours['mode']}", "peak_memory_gb": ours["peak_memory_gb"]}
    return named | {"peer_rate": peer["rate"], "peer": peer["mode"]}


def trained(folder: Path, **others: Any) -> Figures:
    """Of a training run: its speed, and that its loss is a number; and other figures."""
    figures = training_figures(folder / "run/metrics.csv")
    loss = json.loads((folder / "run/train_summary.json").read_bytes())["train_loss"]
    if not loss < float("inf"):
        raise ValueError(f"the loss is {loss}")
    named = {name: figures[name] for name in ("peak_memory_gb", "mfu") if name in figures}
    return {"rate": figures["throughput"], "unit": "samples/s", **named, **others}


def passed(folder: Path) -> Figures:
    """Of pytest: how many tests passed; it fails where none is."""
    found = re.findall(r"(\d+) passed", (folder / "output.txt").read_text(encoding="utf-8"))
    if not found:
        raise ValueError("no test was run")
    return {"rate": int(found[-1]), "unit": "tests"}


def run_check(check: Check, folder: Path, gpus: int) -> Figures:
    """Run a check where there are so many GPUs; the row of the table."""
    if check.gpus > gpus:
        return {"name": check.name, "result": "skipped", "why": f"it needs {check.gpus} CUDA devices, and has {gpus}"}
    shutil.rmtree(folder, ignore_errors=True)
    os.environ |= {"ROOT": str(ROOT), "OUT": str(folder.resolve())}
    started = time.monotonic()
    figures, why = measure(["bash", "-c", check.command], check.figures, folder, 60 * check.minutes)
    row = {"name": check.name, "result": "failed" if why else "passed", "seconds": round(time.monotonic() - started)}
    if why is not None:
        return row | {"why": why.replace("|", "/")}
    if "peer_rate" in figures:
        figures["ratio"] = figures["rate"] / figures["peer_rate"]
    return row | figures


def write_table(out: Path, info: Figures, rows: Sequence[Figures]) -> str:
    """Write checks.md, and return it."""
    text = ", ".join([*info["devices"], f"torch {info['versions']['torch']}", info["date"]])
    text += f"\n\n{table(rows, COLUMNS)}\n"
    (out / "checks.md").write_text(text, encoding="utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_dataclass(Arguments, argv, str(__doc__))
    given = os.environ.get("MINUTES", "8")
    if not re.fullmatch(r"\d{1,4}(\.\d+)?", given):
        raise InputError(f"MINUTES is {given!r}; allowed: a number of minutes")
    started, out, gpus = time.monotonic(), Path(args.out), torch.cuda.device_count()
    checks = all_checks(gpus > 0)
    for name in args.checks:
        if not any(check.name.startswith(name) for check in checks):
            raise InputError(f"no check begins with {name!r}; there are: {', '.join(check.name for check in checks)}")
    if gpus:
        tokenizer = os.environ.setdefault("TOKENIZER", "facebook/bart-large")
        with naming(f"TOKENIZER is {tokenizer!r}"):
            BartTokenizer.from_pretrained(tokenizer)
    path, info = out / "checks.json", environment(gpus)
    before = json.loads(path.read_bytes()) if path.exists() else {"machine": info, "rows": {}}
    if before["machine"]["devices"] != info["devices"]:
        was, now = (", ".join(machine["devices"]) for machine in (before["machine"], info))
        raise InputError(f"{out} has results of {was}, and this machine has {now}; name another folder")
    rows: dict[str, Figures] = before["rows"]
    chosen = [one for one in checks if not args.checks or one.name.startswith(args.checks)]
    done = {"passed", "skipped"} if args.checks else {"passed", "skipped", "failed"}
    left = [one for one in chosen if one.name not in rows or rows[one.name]["result"] not in done]
    left.sort(key=lambda one: one.name in rows)  # so that those that fail again do not keep off others
    out.mkdir(parents=True, exist_ok=True)
    put_off = 0
    for number, check in enumerate(left):
        if number and time.monotonic() - started + 60 * check.minutes > 60 * float(given):
            put_off += 1
            continue
        print(f"[{number + 1}/{len(left)}] {check.name}", file=sys.stderr, flush=True)
        rows[check.name] = run_check(check, out / check.name.replace(" ", "_"), gpus)
        write_json(path, {"machine": info, "rows": rows})
        write_table(out, info, [rows[one.name] for one in checks if one.name in rows])
    if put_off:
        print(f"{put_off} checks are left: the same command goes on", file=sys.stderr)
        return UNFINISHED
    print(write_table(out, info, [rows[one.name] for one in checks if one.name in rows]))
    return int(any(rows[one.name]["result"] == "failed" for one in chosen))


if __name__ == "__main__":
    run_main(main)
