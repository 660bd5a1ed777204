"""The checks of `run_gpu_checks.sh`, each a line of bash, and the table of their results."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
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
    "tf32 adafactor": "--tf32 --optimizer adafactor",
    "bf16 O2 and beams in validation": "--bf16 --amp_level O2 --eval_beams 2",
    "fp16 O0 sgd": "--fp16 --amp_level O0 --optimizer sgd",
    "fp16 O2 fused_lamb": "--fp16 --amp_level O2 --optimizer fused_lamb",
    "fused_adam accumulation": "--bf16 --optimizer fused_adam --gradient_accumulation_steps 4",
    "lamb activation checkpointing": "--bf16 --optimizer lamb --activation_checkpointing",
    **{name: f"--bf16 --gpus 2 --strategy {name}" for name in ("ddp", "fsdp")},
}
TINY = '"$ROOT/configs/config_tiny.json"'
# Sources of 1 to 12 times the sample's length.
VARIED = """mkdir "$OUT/data" && cp data/sample/{train,val}.target "$OUT/data" && for split in train val; do
    awk '{ text = $0; for (i = 0; i < NR % 12; i++) text = text " " $0; print text }' \\
        "data/sample/$split.source" >"$OUT/data/$split.source"; done &&"""
# Dropout in attention, too: kernels must drop the same weights in both passes, or training does not learn.
DROPPING = f"""sed -E 's/"pre_ln": true/"pre_ln": false/; s/dropout": 0.0/dropout": 0.1/' {TINY} >"$OUT/tiny.json" &&"""
DECODING = {  # modes by shape; the last two have CTranslate2, if it is installed
    "base": "transformers_fp32 ours_fp32",
    "xsum": "transformers_bf16 ctranslate2_fp16 ours_bf16",
    "large_batch1": "transformers_bf16 ctranslate2_fp16 ctranslate2_int8 ours_bf16",
}
MINUTES, ALL_MINUTES = 2, 15  # that a check may take, and after which no other begins
CPU_LOSS, MOST_TIMES_CPU_LOSS = 1.80, 1.1  # of the checks "learning"
PRETRAINING = (("bart", 128, 200), ("bert", 512, 32))  # network, tokens, batch of NVIDIA's phases
Result = dict[str, Any]  # of a check: a row of the table


@dataclass(frozen=True)
class Check:
    """A line of bash, which finds the repository at $ROOT and its folder at $OUT."""

    name: str
    command: str
    metrics: Callable[[Path], Result]  # reads some of COLUMNS from the folder
    gpus: int = 0  # that it needs


@dataclass(frozen=True)
class CheckArguments:
    out: str = option(positional=True, help="folder for the results, which is not there yet")
    checks: tuple[str, ...] = option((), positional=True, help="names, or first words of names; by default all")


def all_checks(on_gpu: bool) -> list[Check]:
    """All checks, the ones that say most first; those of a machine without a GPU have tiny models."""
    tests = Check("tests", 'python -m pytest -q -m gpu -p no:cacheprovider "$ROOT"', passed, gpus=1)
    tiny = [
        Check(f"fine-tuning {name}", tune(TINY, more), trained, gpus_of(more)) for name, more in FINE_TUNING.items()
    ]
    return [tests, *learning_checks(on_gpu), *benchmark_checks(on_gpu), *pretraining_checks(on_gpu), *tiny]


def tune(config: str, options: str) -> str:
    """A line of bash that fine-tunes a random model of a config on the sample."""
    command = f'python "$ROOT/finetune.py" --do_train --config_path {config} --n_val 32 --eval_beams 0 --dropout 0.1'
    command += " --model_name_or_path scratch --tokenizer data/sample/tokenizer --data_dir data/sample --max_steps 40"
    return f'{command} --log_every_n_steps {LOG_EVERY} --output_dir "$OUT/run" {options}'


def gpus_of(options: str) -> int:
    return 2 if "--gpus 2" in options else int("fp16" in options or "tf32" in options)


def learning_checks(on_gpu: bool) -> list[Check]:
    """Runs that must learn, keep their memory, and not depend on whether steps are recorded."""
    checks, varied = [], '--bf16 --data_dir "$OUT/data"'
    for name, more in {"fp32": "", "bf16": "--bf16", "fp16": "--fp16"}.items():
        learning = tune('"$OUT/tiny.json"', f"--learning_rate 2e-3 --max_steps 400 --n_val 64 {more}")
        checks.append(Check(f"learning {name}", f"{DROPPING} {learning}", learned, gpus_of(more)))
    # The same batches in each epoch, of which 100 steps are several. A CPU keeps memory for each size that it has seen.
    size = "--max_source_length 32 --max_target_length 4"
    if on_gpu:
        size = "--max_tokens_per_batch 8192 --n_train 640 --max_source_length 512"
    for config in ("config_base", "config") if on_gpu else ("config_tiny",):
        run = tune(f'"$ROOT/configs/{config}.json"', f"{varied} {size} --max_steps 200 --log_every_n_steps 20")
        checks.append(Check(f"memory {config}", f"{VARIED} {run}", constant))
    steps = 200 if on_gpu else 40
    run, eager = (tune(TINY, f"{varied} --dropout 0 --max_steps {steps} {more}") for more in ("", "--no_graphs"))
    lora = tune(TINY, '--model_name_or_path "$OUT/first/export" --lora_rank 8 --bf16')
    return [
        *checks,
        Check("sizes", f'{VARIED} {run} && mv "$OUT/run" "$OUT/recorded" && {eager}', alike),
        Check("fine-tuning LoRA", f'{tune(TINY, "")} && mv "$OUT/run" "$OUT/first" && {lora}', trained),
    ]


def benchmark_checks(on_gpu: bool) -> list[Check]:
    """The benchmarks beside transformers and CTranslate2, one run of each mode."""
    device, checks = "cuda" if on_gpu else "cpu", []

    def benchmark(name: str, unit: str, program: str, options: str) -> None:
        command = f'python "$ROOT/scripts/benchmarks/{program}" --rounds 1 --device {device} {options}'
        checks.append(Check(name, f'{command} --output "$OUT/figures.json"', partial(fastest, unit=unit)))

    left_out = "ctranslate2" if find_spec("ctranslate2") is None else "none"
    decoding = DECODING if on_gpu else {"tiny": "transformers_fp32 ctranslate2_fp32 ours_fp32"}
    for shape, modes in decoding.items():
        modes = " ".join(mode for mode in modes.split() if not mode.startswith(left_out))
        benchmark(f"decoding {shape}", "articles/s", "decoding.py", f"--shape {shape} --modes {modes}")
    options = '--precision bf16 --tokenizer "$TOKENIZER"' if on_gpu else "--tokenizer data/sample/tokenizer"
    for shape in ("xsum", "base") if on_gpu else ("tiny",):
        benchmark(f"training {shape}", "samples/s", "training.py", f"{options} --shape {shape} --steps 10")
    return checks


def pretraining_checks(on_gpu: bool) -> list[Check]:
    precision = "--bf16" if on_gpu else ""
    vocabulary = "$TOKENIZER" if on_gpu else "data/sample/tokenizer"
    checks = []
    for network, length, batch_size in PRETRAINING:
        if network == "bart":
            config, task, tokenizer, duplicates = "config" if on_gpu else "config_tiny", "", vocabulary, ""
        else:  # whose loss is of few tokens, so that a vocabulary of 1,600 saves little
            config, task = "bert_large" if on_gpu else "bert_tiny", "--task mlm_nsp"
            tokenizer, duplicates = "data/sample/bert_tokenizer", "--duplicate_factor 1"
        command = f"""awk '{{ print }} NR % 40 == 0 {{ print "" }}' data/sample/train.source >"$OUT/train.txt" &&
            python -m utils.corpora.make_shards {task} --input "$OUT/train.txt" --output "$OUT/shards" \\
                --val_ratio 0.05 --tokenizer "{tokenizer}" --sequence_length {length} {duplicates} &&
            python "$ROOT/run_pretraining.py" {task} {precision} --data_dir "$OUT/shards" --output_dir "$OUT/run" \\
                --config_path "$ROOT/configs/{config}.json" --max_source_length {length} --max_steps 20 --n_val 16 \\
                --val_check_interval 1.0 --train_batch_size {batch_size if on_gpu else 4} --log_freq {LOG_EVERY}"""
        checks.append(Check(f"pretraining {network} {length}", command, trained))
    return checks


def fastest(folder: Path, unit: str) -> Result:
    """The fastest mode of ours and the fastest of the peers, from the report of a benchmark."""
    results = read_json(folder / "figures.json")["results"]
    results.sort(key=lambda result: result["rate"])
    ours = [result for result in results if result["mode"].startswith("ours")][-1]
    peer = [result for result in results if not result["mode"].startswith("ours")][-1]
    return {**ours, "unit": f"{unit}, {ours['mode']}", "peer_rate": peer["rate"], "peer": peer["mode"]}


def trained(folder: Path) -> Result:
    """The speed of a training run, whose loss must be a number."""
    metrics = training_metrics(folder / "run")
    loss = read_json(folder / "run/train_summary.json")["train_loss"]
    if not loss < float("inf"):
        raise ValueError(f"the loss is {loss}")
    return metrics | {"rate": metrics["throughput"], "unit": "samples/s"}


def learned(folder: Path) -> Result:
    """The loss on validation examples, which must be near that of a run on the CPU, in fp32."""
    loss = read_json(folder / "run/train_summary.json")["val_loss"]
    if loss > MOST_TIMES_CPU_LOSS * CPU_LOSS:
        raise ValueError(f"the validation loss is {loss:.3f}; on a CPU it is {CPU_LOSS}")
    return {"rate": loss, "unit": "val loss", "peer_rate": CPU_LOSS, "peer": "a CPU"}


def constant(folder: Path) -> Result:
    """The most memory that was ever held at step 200, which must be what it was at step 100."""
    peaks = [*read_metrics(folder / "run" / METRICS)["peak_memory_gb"].values()]
    first, last = peaks[len(peaks) // 2 - 1], peaks[-1]
    if last > 1.02 * first:  # on CPUs a process holds more than its tensors
        raise ValueError(f"the peak of memory is {first:.3f} GB at step 100 and {last:.3f} GB at step 200")
    return {"rate": last, "unit": "GB, step 200", "peer_rate": first, "peer": "step 100"}


def alike(folder: Path) -> Result:
    """The last loss of a run of recorded steps, all of whose losses must be near those of eager ones."""
    losses = [[*read_metrics(folder / run / METRICS)["train_loss"].values()] for run in ("recorded", "run")]
    eager = [line for line in output_of(folder) if "steps are eager from now on" in line]
    if eager or any(abs(ours - theirs) > 0.02 * theirs for ours, theirs in zip(*losses, strict=True)):
        raise ValueError(eager[0] if eager else f"the losses are {losses[0]}, and {losses[1]} without recordings")
    return {"rate": losses[0][-1], "unit": "train loss", "peer_rate": losses[1][-1], "peer": "without recordings"}


def output_of(folder: Path) -> list[str]:
    return (folder / "output.txt").read_text(encoding="utf-8").splitlines()


def passed(folder: Path) -> Result:
    """The number of tests that passed, which must not be 0."""
    counts = re.findall(r"(\d+) passed", "\n".join(output_of(folder)))
    if not counts:
        raise ValueError("no test was run")
    return {"rate": int(counts[-1]), "unit": "tests"}


def run_check(check: Check, folder: Path, gpus: int) -> Result:
    """The row of a check, which is run if there are enough GPUs."""
    if check.gpus > gpus:
        return {"name": check.name, "result": "skipped", "why": f"it needs {check.gpus} CUDA devices, and has {gpus}"}
    os.environ |= {"ROOT": str(ROOT), "OUT": str(folder.resolve())}
    started = time.monotonic()
    metrics, why = measure(["bash", "-c", check.command], check.metrics, folder, 60 * MINUTES)
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
    machine, rows, started = environment(gpus), [], time.monotonic()
    chosen = [check for check in checks if not args.checks or check.name.startswith(args.checks)]
    for number, check in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {check.name}", file=sys.stderr, flush=True)
        if time.monotonic() - started > 60 * ALL_MINUTES:
            rows.append({"name": check.name, "result": "skipped", "why": f"{ALL_MINUTES} minutes were over; name it"})
        else:
            rows.append(run_check(check, out / check.name.replace(" ", "_"), gpus))
        write_json(out / "checks.json", {"machine": machine, "rows": rows})
        text = ", ".join([*machine["devices"], f"torch {machine['versions']['torch']}", machine["date"]])
        text += f"\n\n{markdown_table(rows, COLUMNS)}\n"
        (out / "checks.md").write_text(text, encoding="utf-8")
    print(text)
    return int(any(row["result"] == "failed" for row in rows))
