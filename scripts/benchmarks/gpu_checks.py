"""The checks of `run_gpu_checks.sh`, each a line of bash, and the table of their results."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.gpu_checks")

import torch

from bart.errors import InputError, naming
from bart.files import read_json, write_json
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks.measuring import MODES_ON_CUDA
from scripts.benchmarks.throughput import LOG_EVERY, measure, new_folder, training_metrics
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import markdown_table
from utils.app.machine import ROOT, environment
from utils.app.run_directory import METRICS, read_metrics

COLUMNS = {
    "name": "check", "result": "result", "rate": "figure", "unit": "", "peer_rate": "peer", "peer": "",
    "ratio": "ratio", "peak_memory_gb": "peak GB", "mfu": "MFU",
    "seconds": "seconds", "why": "why",
}  # fmt: skip
# Options of fine-tuning runs of a tiny model.
FINE_TUNING = {
    "fp32": "", "tf32": "--tf32", "bf16": "--bf16", "fp16": "--fp16",
    "eager": "--bf16 --no_graphs",
    "bf16 O2": "--bf16 --amp_level O2", "fp16 O0": "--fp16 --amp_level O0", "fp16 O2": "--fp16 --amp_level O2",
    **{name: f"--bf16 --optimizer {name}" for name in "fused_adam lamb fused_lamb adafactor sgd".split()},
    "fused_lamb fp16 O2": "--fp16 --amp_level O2 --optimizer fused_lamb",
    "activation checkpointing": "--bf16 --activation_checkpointing",
    "compiled": "--bf16 --compile",
    "accumulation": "--bf16 --gradient_accumulation_steps 4",
    "and beams in validation": "--bf16 --amp_level O2 --eval_beams 2",
    **{name: f"--bf16 --gpus 2 --strategy {name}" for name in ("ddp", "fsdp")},
    **{f"{name} compiled": f"--bf16 --gpus 2 --strategy {name} --compile" for name in ("ddp", "fsdp")},
}  # fmt: skip
CPU_LOSS, MOST_TIMES_CPU_LOSS = 1.80, 1.1  # of the checks "learning"
# Network, tokens, batch, and sequences per second of the large network on an A100 in half precision, by NVIDIA's pages.
PRETRAINING = (
    ("bart", 128, 200, 326.53),
    ("bart", 512, 32, 69.31),
    ("bert", 128, 256, 580.0),
    ("bert", 512, 32, 210.0),
)
Result = dict[str, Any]  # of a check: a row of the table


@dataclass(frozen=True)
class Check:
    """A line of bash, which finds the repository at $ROOT and its folder at $OUT."""

    name: str
    command: str
    metrics: Callable[[Path], Result]  # reads some of COLUMNS from the folder
    minutes: float = 5  # that the line may take
    gpus: int = 0  # that it needs


@dataclass(frozen=True)
class CheckArguments:
    out: str = option(positional=True, help="folder for the results, which is not there yet")
    checks: tuple[str, ...] = option((), positional=True, help="names, or first words of names; by default all")


def all_checks(on_gpu: bool) -> list[Check]:
    """All checks; those of a machine without a GPU have tiny models."""
    tests = Check("tests", 'python -m pytest -q -m gpu -p no:cacheprovider "$ROOT"', passed, 8, gpus=1)
    return [tests, *fine_tuning_checks(), *benchmark_checks(on_gpu), *published_checks(on_gpu)]


def fine_tuning_checks() -> list[Check]:
    """Runs of a tiny model in each precision, with each optimizer and strategy, and with LoRA."""
    tune = 'python "$ROOT/finetune.py" --do_train --data_dir data/sample --config_path "$ROOT/configs/config_tiny.json"'
    tune += f" --max_steps 40 --log_every_n_steps {LOG_EVERY} --n_val 32 --eval_beams 0 --dropout 0.1 --output_dir"
    scratch = "--model_name_or_path scratch --tokenizer data/sample/tokenizer"
    checks = []
    for name, options in FINE_TUNING.items():
        needs_gpu = any(flag in options for flag in ("fp16", "tf32", "compile", "graphs"))
        gpus = 2 if "--gpus 2" in options else int(needs_gpu)
        command = f'{tune} "$OUT/run" {scratch} {options}'
        checks.append(Check(f"fine-tuning {name}", command, trained, 5 if "compile" in options else 2, gpus))
    # Dropout in attention, too: kernels must drop the same weights in both passes, or training does not learn.
    learning = f"""sed -E 's/"pre_ln": true/"pre_ln": false/; s/dropout": 0.0/dropout": 0.1/' \
        "$ROOT/configs/config_tiny.json" >"$OUT/config.json" &&
        {tune} "$OUT/run" {scratch} --config_path "$OUT/config.json" --learning_rate 2e-3 --max_steps 400 --n_val 64"""
    for precision in ("fp32", "bf16", "fp16", "eager"):
        gpus, command = int(precision in ("fp16", "eager")), f"{learning} {FINE_TUNING[precision]}"
        checks.append(Check(f"learning {precision}", command, learned, 3, gpus))
        # Examples are cut to one length, so that all steps need the same memory.
        command += " --max_source_length 32 --max_target_length 4 --max_steps 200 --log_every_n_steps 20"
        checks.append(Check(f"memory {precision}", command, constant, 3, gpus))
    lora = f'{tune} "$OUT/run" --model_name_or_path "$OUT/first/export" --lora_rank 8 --bf16'
    return [*checks, Check("fine-tuning LoRA", f'{tune} "$OUT/first" {scratch} && {lora}', trained, 3)]


def benchmark_checks(on_gpu: bool) -> list[Check]:
    """The benchmarks beside transformers, one run of each mode."""
    device = "cuda" if on_gpu else "cpu"

    def benchmark(name: str, unit: str, program: str, options: str) -> Check:
        command = f'python "$ROOT/scripts/benchmarks/{program}" --rounds 1 --device {device} {options}'
        return Check(name, f'{command} --output "$OUT/figures.json"', partial(fastest, unit=unit))

    modes, checks = f"--modes {' '.join(MODES_ON_CUDA)}", []
    for shape in ("base", "large", "xsum", "large_batch1") if on_gpu else ("tiny",):
        checks.append(benchmark(f"decoding {shape}", "articles/s", "decoding.py", f"--shape {shape} {modes}"))
    last = checks[-1]
    checks.append(replace(last, name=f"{last.name} without graphs", command=f"BART_GRAPHS=0 {last.command}", gpus=1))
    vocabulary = '--tokenizer "$TOKENIZER"' if on_gpu else "--tokenizer data/sample/tokenizer"
    for shape in ("xsum", "cnn_dm") if on_gpu else ("tiny",):
        for precision in ("bf16", "tf32") if on_gpu else ("fp32",):
            options = f"--shape {shape} --precision {precision} --steps 10 {vocabulary}"
            check = benchmark(f"training {shape} {precision}", "samples/s", "training.py", options)
            compiled = f"{check.command} --modes ours_compiled transformers"
            checks += [check, replace(check, name=f"{check.name} compiled", command=compiled, minutes=7, gpus=1)]
    options = f"--shape {'large' if on_gpu else 'tiny'} {modes}"
    return [*checks, benchmark("bert inference", "sequences/s", "bert_inference.py", options)]


def published_checks(on_gpu: bool) -> list[Check]:
    """Pretraining and BERT on questions; on a GPU beside published rates."""
    precision = "--bf16" if on_gpu else ""
    vocabulary = "$TOKENIZER" if on_gpu else "data/sample/tokenizer"
    checks = []
    for network, length, batch_size, rate in PRETRAINING:
        if network == "bart":
            config, task, tokenizer, duplicates = "config" if on_gpu else "config_tiny", "", vocabulary, ""
        else:  # whose loss is of few tokens, so that a vocabulary of 1,600 saves little
            config, task = "bert_large" if on_gpu else "bert_tiny", "--task mlm_nsp"
            tokenizer, duplicates = "data/sample/bert_tokenizer", "--duplicate_factor 1"
        command = f"""python -m utils.corpora.sample_corpus --output_dir "$OUT/corpus" \\
                --n_train {60_000 if on_gpu else 4000} &&
            awk '{{ print }} NR % 40 == 0 {{ print "" }}' "$OUT/corpus/train.source" >"$OUT/train.txt" &&
            python -m utils.corpora.make_shards {task} --input "$OUT/train.txt" --output "$OUT/shards" \\
                --val_ratio 0.05 --tokenizer "{tokenizer}" --sequence_length {length} {duplicates} &&
            python "$ROOT/run_pretraining.py" {task} {precision} --data_dir "$OUT/shards" --output_dir "$OUT/run" \\
                --config_path "$ROOT/configs/{config}.json" --max_source_length {length} --max_steps 30 --n_val 16 \\
                --val_check_interval 1.0 --train_batch_size {batch_size if on_gpu else 4} --log_freq {LOG_EVERY}"""
        checks.append(Check(f"pretraining {network} {length}", command, partial(trained, published=rate)))
    longer = r"\1 " * 40  # contexts of several windows, so that nearly all of these are full
    command = f"""python -m utils.corpora.sample_corpus --output_dir "$OUT/data" --n_train 400 --n_val 16 --n_test 1 &&
        sed -E -i.once 's/"context": "(.*)", "answers"/"context": "{longer}", "answers"/' \\
            "$OUT"/data/questions/*.jsonl &&
        python "$ROOT/finetune.py" --task question_answering --do_train {precision} --data_dir "$OUT/data/questions" \\
            --config_path "$ROOT/configs/bert_{"large" if on_gpu else "tiny"}.json" --model_name_or_path scratch \\
            --tokenizer data/sample/bert_tokenizer --max_source_length 384 --train_batch_size {32 if on_gpu else 4} \\
            --output_dir "$OUT/run" --max_steps 30 --log_every_n_steps {LOG_EVERY} --val_check_interval 1.0"""
    checks.append(Check("fine-tuning BERT on questions", command, partial(trained, published=110.0)))
    return checks if on_gpu else [replace(check, metrics=trained) for check in checks]


def fastest(folder: Path, unit: str) -> Result:
    """The fastest mode of ours and the fastest of the peers, from the report of a benchmark."""
    results = read_json(folder / "figures.json")["results"]
    results.sort(key=lambda result: result["rate"])
    ours = [result for result in results if result["mode"].startswith("ours")][-1]
    peer = [result for result in results if not result["mode"].startswith("ours")][-1]
    return {**ours, "unit": f"{unit}, {ours['mode']}", "peer_rate": peer["rate"], "peer": peer["mode"]}


def trained(folder: Path, published: float | None = None) -> Result:
    """The speed of a training run, whose loss must be a number, and perhaps a published rate."""
    metrics = training_metrics(folder / "run")
    loss = read_json(folder / "run/train_summary.json")["train_loss"]
    if not loss < float("inf"):
        raise ValueError(f"the loss is {loss}")
    row = metrics | {"rate": metrics["throughput"], "unit": "samples/s"}
    return row | ({"peer": "A100, published", "peer_rate": published} if published else {})


def learned(folder: Path) -> Result:
    """The loss on validation examples, which must be near that of a run on the CPU, in fp32."""
    loss = read_json(folder / "run/train_summary.json")["val_loss"]
    if loss > MOST_TIMES_CPU_LOSS * CPU_LOSS:
        raise ValueError(f"the validation loss is {loss:.3f}; on a CPU it is {CPU_LOSS}")
    return {"rate": loss, "unit": "val loss", "peer_rate": CPU_LOSS, "peer": "a CPU"}


def constant(folder: Path) -> Result:
    """The most memory that was ever held at step 200, which must be what it was at step 20."""
    first, *_, last = read_metrics(folder / "run" / METRICS)["peak_memory_gb"].values()
    if last > 1.02 * first:  # on CPUs a process holds more than its tensors
        raise ValueError(f"the peak of memory is {first:.3f} GB at step 20 and {last:.3f} GB at step 200")
    return {"rate": last, "unit": "GB, step 200", "peer_rate": first, "peer": "step 20"}


def passed(folder: Path) -> Result:
    """The number of tests that passed, which must not be 0."""
    counts = re.findall(r"(\d+) passed", (folder / "output.txt").read_text(encoding="utf-8"))
    if not counts:
        raise ValueError("no test was run")
    return {"rate": int(counts[-1]), "unit": "tests"}


def run_check(check: Check, folder: Path, gpus: int) -> Result:
    """The row of a check, which is run if there are enough GPUs."""
    if check.gpus > gpus:
        return {"name": check.name, "result": "skipped", "why": f"it needs {check.gpus} CUDA devices, and has {gpus}"}
    os.environ |= {"ROOT": str(ROOT), "OUT": str(folder.resolve())}
    started = time.monotonic()
    metrics, why = measure(["bash", "-c", check.command], check.metrics, folder, 60 * check.minutes)
    if "peer_rate" in metrics:
        metrics["ratio"] = metrics["rate"] / metrics["peer_rate"]
    row = {"name": check.name, "result": "failed" if why else "passed", "seconds": round(time.monotonic() - started)}
    return row | {"why": why.replace("|", "/")} if why else metrics | row


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_dataclass(CheckArguments, argv, str(__doc__))
    out, gpus = Path(args.out), torch.cuda.device_count()
    checks = all_checks(gpus > 0)
    for name in args.checks:
        if not any(check.name.startswith(name) for check in checks):
            raise InputError(f"no check begins with {name!r}; there are: {', '.join(check.name for check in checks)}")
    if gpus:
        tokenizer = os.environ.setdefault("TOKENIZER", "facebook/bart-large")
        with naming(f"TOKENIZER is {tokenizer!r}"):
            BartTokenizer.from_pretrained(tokenizer)
    new_folder("OUT", out)
    machine, rows = environment(gpus), []
    chosen = [check for check in checks if not args.checks or check.name.startswith(args.checks)]
    for number, check in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {check.name}", file=sys.stderr, flush=True)
        rows.append(run_check(check, out / check.name.replace(" ", "_"), gpus))
        write_json(out / "checks.json", {"machine": machine, "rows": rows})
        text = ", ".join([*machine["devices"], f"torch {machine['versions']['torch']}", machine["date"]])
        text += f"\n\n{markdown_table(rows, COLUMNS)}\n"
        (out / "checks.md").write_text(text, encoding="utf-8")
    print(text)
    return int(any(row["result"] == "failed" for row in rows))
