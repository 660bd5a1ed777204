"""Training speed beside transformers' Trainer: the same weights, batches and hyperparameters, one after the other.

    python scripts/benchmark_training.py --shape xsum --precision bf16 --output results.json
    python scripts/benchmark_training.py --shape base --tokenizer DIR

- ours: finetune.py with the options of scripts/run_summarization.sh;
- transformers: its Trainer with its BartForConditionalGeneration, torch's fused AdamW, and the batches of ours in their
  order, so that neither pads more; by default it would draw them at random.

Every run is a process of its own, so that its peak memory is its own: of tensors on a GPU, of the process on a CPU.
The first steps warm up; from their end to that of the last step all counts, loading and logging too. Articles are made
up of the sample corpus's words, in numbers as in XSum.

Operations are those of matrix products on tokens that are not padding, forward and backward: two for each weight and
token, four times the width for each pair of positions that attend (half of them in the decoder's own attention), three
times that with the gradients; none for gradients of the embeddings, which are frozen. MFU, model FLOP utilisation
(Chowdhery et al., 2022, appendix B), is their share of the GPU's published dense peak; for other devices it is that of
a large matrix product, measured at the beginning.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bart.errors import InputError
from utils.arguments import parse_train_arguments
from utils.benchmark import AMPERE, LOG_EVERY, machine, plain_table, with_warm_up
from utils.cli import check_output, option, parse_dataclass, run_main
from utils.loading import check_gpus
from utils.processes import in_new_process
from utils.training.environment import processor

OURS, THEIRS = "ours", "transformers"
# Words of a document and of a summary: XSum's means (Narayan et al., 2018, table 1), and a log-normal's spread.
WORDS = {"source": (431, 0.6), "target": (23, 0.3)}
# Dense TFLOP/s as NVIDIA's data sheets have them, by a part of the device's name; the first that fits counts.
PEAKS = {
    "H200 NVL": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "H200": {"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "H100 PCIe": {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100 NVL": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "H100": {"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "A100": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "V100-PCIE": {"fp32": 14, "fp16": 112},
    "V100": {"fp32": 15.7, "fp16": 125},
}
# What the table calls a figure, and its decimals.
COLUMNS = {
    "samples_per_second": ("samples/s", 2),
    "tokens_per_second": ("tokens/s", 0),
    "speed_to_transformers": ("x transformers", 2),
    "tflops_per_second": ("TFLOP/s", 3),
    "mfu": ("MFU", 3),
    "peak_memory_gb": ("peak GB", 2),
    "last_loss": ("last loss", 3),
}


@dataclass(frozen=True)
class Shape:
    """A network, and the batches that it trains on."""

    batch_size: int
    max_source_length: int
    max_target_length: int
    d_model: int
    layers: int  # of the encoder, and as many of the decoder
    heads: int
    dropout: float = 0.1  # and that of attention


SHAPES = {
    "xsum": Shape(40, 1024, 60, 1024, 12, 16),
    "base": Shape(8, 512, 60, 768, 6, 12),
    "tiny": Shape(4, 64, 24, 32, 2, 4, dropout=0.0),
}


@dataclass(frozen=True)
class Arguments:
    shape: str = option(
        "xsum",
        choices=tuple(SHAPES),
        help="what is trained: xsum is bart-large and the batches of XSum's presets, 40 examples of 1024 and 60 tokens "
        "at most; base is bart-base, 8, 512 and 60; tiny is for trying this out, without dropout: both "
        "then have the same losses",
    )
    precision: str = option("fp32", choices=("fp32", "tf32", "bf16", "fp16"), help="of both, under autocast")
    tokenizer: str = option("facebook/bart-large", help="vocabulary: a Hub name or directory")
    gpus: int | None = option(None, least=0, most=1, help="0 trains on the CPU; by default 1 where there is one")
    steps: int = option(
        20, least=1, help=f"optimizer steps that are timed, after {LOG_EVERY} to warm up; multiples of {LOG_EVERY}"
    )
    rounds: int = option(3, least=1, help="runs of each, in turn; the table has their medians")
    output: str | None = option(None, help="JSON file for all figures")

    def __post_init__(self) -> None:
        check_output(self.output)

    @property
    def all_steps(self) -> int:
        return with_warm_up(self.steps)


def recipe(args: Arguments, folder: Path) -> list[str]:
    """The options of finetune.py."""
    shape = SHAPES[args.shape]
    options = {
        "data_dir": folder / "data",
        "config_path": folder / "model" / "config.json",
        "model_name_or_path": folder / "model",
        "output_dir": folder / OURS,
        "gpus": args.gpus,
        "learning_rate": 1e-4,
        "train_batch_size": shape.batch_size,
        "max_steps": args.all_steps,
        "warmup_steps": 1,
        "lr_scheduler": "polynomial",
        "max_source_length": shape.max_source_length,
        **{f"{kind}max_target_length": shape.max_target_length for kind in ("", "val_", "test_")},
        "label_smoothing": 0.1,
        "weight_decay": 0.1,
        "gradient_clip_val": 0.1,
        "eval_beams": 0,
        "log_every_n_steps": LOG_EVERY,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [
        *words,
        "--do_train",
        "--freeze_embeds",
        "--sortish_sampler",
        *([f"--{args.precision}"] * (args.precision != "fp32")),
    ]


def data_module(args: Arguments, folder: Path) -> Any:
    """Ours, with its options."""
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.data.datamodule import SummarizationDataModule
    from utils.data.token_cache import check_pairs

    options = parse_train_arguments(recipe(args, folder))
    splits = {split: check_pairs(options.data_dir, split) for split in ("train", "val")}
    return SummarizationDataModule(options, BartTokenizer.from_pretrained(folder / "model"), splits)


def prepare(args: Arguments, folder: Path) -> dict[str, float]:
    """Write weights, vocabulary and data, and tokenise them; what a sample takes, on average over the timed steps."""
    from bart.configuration.configuration_bart import BartConfig
    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.data.made_up import write_made_up_articles

    shape = SHAPES[args.shape]
    tokenizer = BartTokenizer.from_pretrained(args.tokenizer)
    sides = ("encoder", "decoder")
    config = BartConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        d_model=shape.d_model,
        **{f"{side}_layers": shape.layers for side in sides},
        **{f"{side}_attention_heads": shape.heads for side in sides},
        **{f"{side}_ffn_dim": 4 * shape.d_model for side in sides},
        dropout=shape.dropout,
        attention_dropout=shape.dropout,
    )
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(folder / "model", tokenizer)
    for split, count in (("train", shape.batch_size * args.all_steps), ("val", shape.batch_size)):
        write_made_up_articles(folder / "data", split, count, WORDS)
    data = data_module(args, folder)
    timed = [index for batch in data.train_batches().batches(0)[LOG_EVERY:] for index in batch]
    sources, targets = (side.lengths[timed].astype(float) for side in (data.train_set.sources, data.train_set.targets))
    operations = training_operations(config, sources, targets)
    return {"tokens": float((sources + targets).mean()), "operations": float(operations.mean())}


def training_operations(config: Any, sources: Any, targets: Any) -> Any:
    """Operations of a step with frozen embeddings for examples of so many source and target tokens."""
    width, layers = config.d_model, config.encoder_layers
    source_weights = layers * (4 * width**2 + 2 * width * config.encoder_ffn_dim) + layers * 2 * width**2
    target_weights = layers * (6 * width**2 + 2 * width * config.decoder_ffn_dim)
    pairs = layers * (sources**2 + targets * (targets + 1) / 2 + sources * targets)
    head = 2 * config.vocab_size * width * targets
    return 3 * (2 * (source_weights * sources + target_weights * targets) + 4 * width * pairs) + 2 * head


class Clock:
    """Notes what both runs are compared by, at the end of an optimizer step, ahead of validation and checkpoints."""

    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.times: dict[int, float] = {}
        self.rates: list[list[float]] = []
        self.groups: list[dict[str, Any]] = []
        self.peak_memory_gb = self.clip = 0.0

    def step_ends(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        from utils.memory import peak_memory_gb

        self.rates.append([group["lr"] for group in optimizer.param_groups])
        if step not in (LOG_EVERY, self.args.all_steps):
            return
        if self.args.gpus:
            torch.cuda.synchronize()
        self.times[step] = time.perf_counter()
        self.peak_memory_gb = peak_memory_gb(torch.device("cuda" if self.args.gpus else "cpu"))
        self.groups = [
            {"tensors": len(group["params"]), **{name: group[name] for name in ("weight_decay", "betas", "eps")}}
            for group in optimizer.param_groups
        ]

    def figures(self, losses: list[float]) -> dict[str, Any]:
        """Of one run; `settings` are to be equal in all."""
        timed = self.args.all_steps - LOG_EVERY
        seconds = self.times[self.args.all_steps] - self.times[LOG_EVERY]
        return {
            "samples_per_second": timed * SHAPES[self.args.shape].batch_size / seconds,
            "peak_memory_gb": self.peak_memory_gb,
            "losses": losses,
            "settings": {"groups": self.groups, "rates": self.rates, "clip": self.clip},
        }


def train_ours(args: Arguments, folder: Path) -> dict[str, Any]:
    """Samples per second, peak memory, the loss at every logged step, and how the optimizer was set."""
    import pytorch_lightning as pl

    from finetune import main
    from utils.training import run

    clock = Clock(args)

    class Stamp(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            clock.step_ends(trainer.global_step, trainer.optimizers[0])
            clock.clip = trainer.gradient_clip_val

    build = run.build_callbacks

    def with_stamp(options: Any) -> Any:
        checkpoints, callbacks = build(options)
        return checkpoints, [*callbacks, Stamp()]

    run.build_callbacks = with_stamp
    try:
        main(recipe(args, folder))
    finally:
        run.build_callbacks = build
    with (folder / OURS / "metrics.csv").open(encoding="utf-8") as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]
    return clock.figures(losses)


@dataclass
class TheirCollate:
    """Batches of ours as DataCollatorForSeq2Seq makes them."""

    collate: Callable[[Any], dict[str, torch.Tensor]]
    pad_token_id: int
    decoder_start_token_id: int

    def __call__(self, examples: Any) -> dict[str, torch.Tensor]:
        from bart.modeling.modeling_bart import shift_tokens_right

        batch = self.collate(examples)
        del batch["index"]
        shifted = shift_tokens_right(batch["labels"], self.pad_token_id, self.decoder_start_token_id)
        return {**batch, "decoder_input_ids": shifted}


def train_theirs(args: Arguments, folder: Path) -> dict[str, Any]:
    """The same of transformers' Trainer."""
    import pytorch_lightning as pl
    from transformers import (
        BartForConditionalGeneration,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from utils.arguments import POLYNOMIAL_END

    data = data_module(args, folder)
    options = data.args
    pl.seed_everything(options.seed, verbose=False)
    model = BartForConditionalGeneration.from_pretrained(folder / "model")
    for table in (model.model.shared, model.model.encoder.embed_positions, model.model.decoder.embed_positions):
        table.requires_grad_(False)
    data.collate = TheirCollate(data.collate, model.config.pad_token_id, model.config.decoder_start_token_id)
    clock = Clock(args)
    losses: list[torch.Tensor] = []

    class Stamp(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
            clock.step_ends(state.global_step, optimizer)

    class Peer(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(data.train_dataloader())

        def training_step(self, *arguments: Any, **others: Any) -> torch.Tensor:
            losses.append(super().training_step(*arguments, **others))
            return losses[-1]

    trainer = Peer(
        model,
        TrainingArguments(
            str(folder / THEIRS),
            per_device_train_batch_size=options.train_batch_size,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            warmup_steps=options.warmup_steps,
            lr_scheduler_type="polynomial",
            lr_scheduler_kwargs={"lr_end": POLYNOMIAL_END},
            weight_decay=options.weight_decay,
            label_smoothing_factor=options.label_smoothing,
            max_grad_norm=options.gradient_clip_val,
            optim="adamw_torch_fused",
            bf16=options.bf16,
            fp16=options.fp16,
            tf32=True if options.tf32 else None,
            use_cpu=not args.gpus,
            seed=options.seed,
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        callbacks=[Stamp()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    clock.clip = trainer.args.max_grad_norm
    return clock.figures([float(loss) for loss in losses[LOG_EVERY - 1 :: LOG_EVERY]])


def peak(args: Arguments) -> dict[str, Any]:
    """Operations per second of the device at most, and what says so."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.precision, torch.float32)
    if args.gpus:
        name = torch.cuda.get_device_name()
        for part, peaks in PEAKS.items():
            if part in name and args.precision in peaks:
                return {
                    "operations": peaks[args.precision] * 1e12,
                    "of": f"the data sheet's {peaks[args.precision]} TFLOP/s",
                }
        torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
    size = 8192 if args.gpus else 2048
    matrix = torch.randn(size, size, device="cuda" if args.gpus else "cpu").to(dtype)
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        matrix @ matrix
        if args.gpus:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    rate = 2 * size**3 / min(seconds)
    return {"operations": rate, "of": f"the {rate / 1e12:.3g} TFLOP/s of a product of {size} x {size} matrices"}


MODES = {OURS: train_ours, THEIRS: train_theirs}


def summarise(runs: dict[str, list[dict[str, Any]]], sample: dict[str, float], most: float) -> list[dict[str, Any]]:
    """One row of figures per mode."""
    medians = {mode: statistics.median(run["samples_per_second"] for run in done) for mode, done in runs.items()}
    return [
        {
            "mode": mode,
            "samples_per_second": median,
            "tokens_per_second": median * sample["tokens"],
            "tflops_per_second": median * sample["operations"] / 1e12,
            "mfu": median * sample["operations"] / most,
            "speed_to_transformers": median / medians[THEIRS],
            "peak_memory_gb": max(run["peak_memory_gb"] for run in runs[mode]),
            "last_loss": runs[mode][0]["losses"][-1],
            "runs": runs[mode],
        }
        for mode, median in medians.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, str(__doc__), prog="benchmark_training.py")
    if find_spec("accelerate") is None:
        raise InputError("transformers' Trainer needs accelerate: pip install -r requirements-dev.txt")
    if args.gpus is None:
        args = dataclasses.replace(args, gpus=int(torch.cuda.is_available()))
    check_gpus(args.gpus)
    parse_train_arguments(recipe(args, Path()))  # refuses precisions that a CPU lacks
    if args.gpus and args.precision in ("tf32", "bf16") and torch.cuda.get_device_capability() < AMPERE:
        raise InputError(f"--precision is {args.precision}, which this GPU lacks; allowed: fp32, fp16")
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    # Of several, the Trainer would use all.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with TemporaryDirectory(prefix="benchmark_training_") as temporary:
        folder = Path(temporary)
        sample = in_new_process(prepare, args, folder)
        most = in_new_process(peak, args)
        # In turns, so that a machine whose speed drifts is as fast for one as for the other.
        for number in range(1, args.rounds + 1):
            for mode, work in MODES.items():
                print(f"running {mode}, {number} of {args.rounds}", file=sys.stderr)
                runs[mode].append(in_new_process(work, args, folder))
                shutil.rmtree(folder / mode, ignore_errors=True)
    results = summarise(runs, sample, most["operations"])
    rows = [
        [result["mode"], *(f"{result[name]:,.{digits}f}" for name, (_, digits) in COLUMNS.items())]
        for result in results
    ]
    shape = SHAPES[args.shape]
    device = torch.cuda.get_device_name() if args.gpus else f"{processor()}, {os.cpu_count()} cores"
    print(f"{args.shape} in {args.precision} on {device}")
    print(f"batches of {shape.batch_size}, {sample['tokens']:.0f} tokens a sample")
    print(plain_table([["mode", *(title for title, _ in COLUMNS.values())], *rows]))
    print(f"MFU is of {most['of']}")
    if args.output is not None:
        report = {
            "date": started,
            "command": shlex.join(["python", *sys.argv]),
            "machine": machine(),
            "versions": {package: version(package) for package in ("torch", "transformers", "accelerate")},
            "arguments": vars(args),
            "sample": sample,
            "peak": most,
            "results": results,
        }
        Path(args.output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
