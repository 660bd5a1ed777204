"""Training speed beside transformers' Trainer: the same weights, batches and hyperparameters, in turns.

    python scripts/benchmarks/training.py --shape xsum --precision bf16 --device cuda --output results.json
    python scripts/benchmarks/training.py --shape base --tokenizer DIR

- ours: finetune.py with the options of scripts/run_summarization.sh;
- transformers: its Trainer with its BartForConditionalGeneration, torch's fused AdamW, and our batches in our order,
  which it pads; by itself it would draw them at random. On CPUs ours computes no padding.

Every run is a process of its own. The first steps warm up. All the time from the end of the last of these to the end of
the last step counts, loading and logging too, but not validation and checkpoints behind it. Peak memory is that of
tensors on a GPU and that of the process on a CPU. Articles are made up of the sample corpus's words, as many as XSum's,
or CNN-DM's, have.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.training")

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration, shift_tokens_right
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks import measuring
from scripts.benchmarks.throughput import LOG_EVERY, with_warm_up
from utils.app.cli import option, parse_dataclass
from utils.app.machine import ROOT
from utils.app.memory import peak_memory_gb
from utils.app.run_directory import METRICS, read_metrics
from utils.corpora.sample_corpus import sample_stories
from utils.data.batches import Pair, TokenPairs, collate_pairs
from utils.data.order import TrainOrder
from utils.data.tables import read_pairs
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.training.options import POLYNOMIAL_END

# Every process loads this module; Lightning, which takes seconds to load, is imported where it is used.

MODES = ("ours", "transformers")
# Words of a document and of a summary: means (Narayan et al., 2018, table 1; See et al., 2017, section 4), and a
# log-normal's spread.
WORDS = {
    "XSum": {"source": (431, 0.6), "target": (23, 0.3)},
    "CNN-DM": {"source": (781, 0.4), "target": (56, 0.4)},
}
SEED = 42  # of the order
# The hyperparameters of both.
LEARNING_RATE, WARMUP_STEPS, LABEL_SMOOTHING, WEIGHT_DECAY, GRADIENT_CLIP = 1e-4, 1, 0.1, 0.1, 0.1
WORKERS = 2  # processes that load batches
COLUMNS = {"mode": "mode", "rate": "samples/s", "speed_up": "speed-up", "peak_memory_gb": "peak GB"}


@dataclass(frozen=True)
class TrainingShape:
    config: str  # a file in configs/
    batch_size: int
    max_source_length: int
    max_target_length: int
    words: str  # of WORDS
    dropout: float = 0.1  # and that of attention
    is_sorted: bool = True  # by --sortish_sampler, into batches of like length; else there is more padding


SHAPES = {
    "xsum": TrainingShape("config.json", 40, 1024, 60, "XSum"),
    "cnn_dm": TrainingShape("config.json", 40, 1024, 142, "CNN-DM"),
    "base": TrainingShape("config_base.json", 8, 512, 60, "XSum"),
    "base_unsorted": TrainingShape("config_base.json", 8, 512, 60, "XSum", is_sorted=False),
    "tiny": TrainingShape("config_tiny.json", 4, 64, 24, "XSum", dropout=0.0),
}


@dataclass(frozen=True, kw_only=True)
class TrainerArguments(measuring.BenchmarkOptions):
    shape: str = measuring.shape_option("xsum", SHAPES)
    precision: str = option("fp32", choices=("fp32", "tf32", "bf16", "fp16"), help="of both, under autocast")
    tokenizer: str = option("facebook/bart-large", help="vocabulary: a Hub name or directory")
    steps: int = option(
        20, least=1, help=f"optimizer steps that are timed, after {LOG_EVERY} to warm up; multiples of {LOG_EVERY}"
    )
    modes: tuple[str, ...] = option(
        MODES, choices=MODES, help="what is run, in this order; speed-ups are over the last"
    )


def recipe(args: TrainerArguments, folder: Path) -> list[str]:
    """The command line of finetune.py."""
    shape = SHAPES[args.shape]
    options = {
        "data_dir": folder / "data",
        "config_path": folder / "model" / "config.json",
        "model_name_or_path": folder / "model",
        "gpus": int(args.device == "cuda"),
        "seed": SEED,
        "learning_rate": LEARNING_RATE,
        "train_batch_size": shape.batch_size,
        "num_workers": WORKERS,
        "max_steps": with_warm_up(args.steps),
        "warmup_steps": WARMUP_STEPS,
        "lr_scheduler": "polynomial",
        "max_source_length": shape.max_source_length,
        **{f"{kind}max_target_length": shape.max_target_length for kind in ("", "val_", "test_")},
        "label_smoothing": LABEL_SMOOTHING,
        "weight_decay": WEIGHT_DECAY,
        "gradient_clip_val": GRADIENT_CLIP,
        "eval_beams": 0,
        "log_every_n_steps": LOG_EVERY,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    if args.precision != "fp32":
        words.append(f"--{args.precision}")
    if shape.is_sorted:
        words.append("--sortish_sampler")
    return [*words, "--do_train", "--freeze_embeds"]


def prepare(args: TrainerArguments, folder: Path) -> None:
    """Write weights, vocabulary and data."""
    shape = SHAPES[args.shape]
    tokenizer = BartTokenizer.from_pretrained(args.tokenizer)
    fields = {"vocab_size": len(tokenizer), "pre_ln": False}  # the peer lacks Pre-LN
    fields |= dict.fromkeys(("dropout", "attention_dropout"), shape.dropout)
    config = BartConfig.from_pretrained(ROOT / "configs" / shape.config, **fields)
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(folder / "model", tokenizer)
    for split, count in (("train", shape.batch_size * with_warm_up(args.steps)), ("val", shape.batch_size)):
        write_articles(folder / "data", split, count, WORDS[shape.words])


def write_articles(folder: Path, split: str, count: int, words: Mapping[str, tuple[float, float]]) -> None:
    """Write a split of `count` pairs, whose texts are spans of the sample corpus with so many words."""
    corpus = " ".join(story.article for story in sample_stories("train", 20_000)).split()
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for side, (mean, spread) in words.items():
        lengths = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count).astype(int) + 1
        starts = rng.integers(0, len(corpus) - lengths.max(), count)
        texts = (" ".join(corpus[start : start + length]) for start, length in zip(starts, lengths, strict=True))
        (folder / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def training_examples(args: TrainerArguments, folder: Path) -> list[Pair]:
    """The training examples in the order in which finetune.py takes them."""
    shape, tokenizer = SHAPES[args.shape], BartTokenizer.from_pretrained(folder / "model")
    sources, targets = read_pairs(str(folder / "data"), "train")
    lengths = shape.max_source_length, shape.max_target_length
    examples = TokenPairs.from_texts(sources, targets, (tokenizer, tokenizer), *lengths)
    order = TrainOrder(examples.lengths, shape.batch_size, SEED, group_by_length=shape.is_sorted)
    return [examples[number] for [batch] in order.steps(0) for number in batch]


def train(mode: str, args: TrainerArguments, folder: Path) -> dict[str, Any]:
    """Train in one of MODES: samples per second, peak memory, and the mean loss of every LOG_EVERY steps."""
    from finetune import main as finetune
    from utils.training.measurements import seconds, stamp

    device, ends = torch.device(args.device), []  # of the optimizer's steps, whoever takes them
    hook = register_optimizer_step_post_hook(lambda *_: ends.append((stamp(device), peak_memory_gb(device))))
    with TemporaryDirectory(dir=folder) as output:
        if mode == "transformers":
            losses = train_transformers(args, folder, Path(output))
        else:
            finetune([*recipe(args, folder), "--output_dir", output])
            losses = [*read_metrics(Path(output) / METRICS)["train_loss"].values()]
    hook.remove()
    timed = with_warm_up(args.steps) - LOG_EVERY
    # Steps that fp16's loss scaler skips are not seen; they come first.
    (start, _), (end, peak) = ends[-1 - timed], ends[-1]
    rate = timed * SHAPES[args.shape].batch_size / seconds(start, end)
    return {"rate": rate, "peak_memory_gb": peak, "losses": losses}


def inputs_of_trainer(pairs: Sequence[Pair], pad_token_id: int, decoder_start_token_id: int) -> dict[str, Any]:
    """A batch as DataCollatorForSeq2Seq makes it."""
    inputs = collate_pairs(pairs, pad_token_id)
    return {**inputs, "decoder_input_ids": shift_tokens_right(inputs["labels"], pad_token_id, decoder_start_token_id)}


def train_transformers(args: TrainerArguments, folder: Path, output: Path) -> list[float]:
    """Train by transformers' Trainer; return the mean losses of every LOG_EVERY steps."""
    from transformers import BartForConditionalGeneration as TransformersBart
    from transformers import PrinterCallback, Trainer, TrainingArguments

    model = TransformersBart.from_pretrained(folder / "model")
    for embeddings in (model.model.shared, model.model.encoder.embed_positions, model.model.decoder.embed_positions):
        embeddings.requires_grad_(False)
    ids = {name: getattr(model.config, name) for name in ("pad_token_id", "decoder_start_token_id")}
    settings = TrainingArguments(
        str(output),
        per_device_train_batch_size=SHAPES[args.shape].batch_size,
        max_steps=with_warm_up(args.steps),
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        lr_scheduler_type="polynomial",
        lr_scheduler_kwargs={"lr_end": POLYNOMIAL_END},
        weight_decay=WEIGHT_DECAY,
        label_smoothing_factor=LABEL_SMOOTHING,
        max_grad_norm=GRADIENT_CLIP,
        seed=SEED,
        optim="adamw_torch_fused",
        bf16=args.precision == "bf16",
        fp16=args.precision == "fp16",
        tf32=True if args.precision == "tf32" else None,
        use_cpu=args.device == "cpu",
        train_sampling_strategy="sequential",
        dataloader_num_workers=WORKERS,
        dataloader_pin_memory=args.device == "cuda",
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, settings, partial(inputs_of_trainer, **ids), training_examples(args, folder))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(TrainerArguments, argv, str(__doc__))
    parse_finetune_arguments(recipe(args, Path()))  # refuses precisions that a CPU lacks
    runs = measuring.beside_peers(args, prepare, train)
    results = measuring.compared(runs, args.modes[-1])
    for row in results:
        row["losses"] = runs[row["mode"]][0]["losses"]
    measuring.report(args, COLUMNS, results, ["accelerate"])
