"""Training speed beside transformers' Trainer: the same weights, batches and hyperparameters, in turns.

    python scripts/benchmarks/benchmark_training.py --shape xsum --precision bf16 --output results.json
    python scripts/benchmarks/benchmark_training.py --shape base --tokenizer DIR

- ours: finetune.py with the options of scripts/run_summarization.sh; ours_compiled: with --compile, too;
- transformers: its Trainer with its BartForConditionalGeneration, torch's fused AdamW, and our batches in our order,
  which it pads; by itself it would draw them at random. On CPUs ours computes no padding.

Every run is a process of its own. The first steps warm up. All the time from the end of the last of these to the end of
the last step counts, loading and logging too, but not validation and checkpoints behind it. Peak memory is that of
tensors on a GPU and that of the process on a CPU. Articles are made up of the sample corpus's words, as many as XSum's,
or CNN-DM's, have.

MFU, model FLOP utilisation (Chowdhery et al., 2022, appendix B), is the rate of the operations of the matrix products
of an example of mean length, as a share of the rate of one large matrix product on the same device.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from bart.files import write_json
from bart.modeling.modeling_bart import BartForConditionalGeneration, shift_tokens_right
from bart.tokenization.tokenization_bart import BartTokenizer
from scripts.benchmarks.measuring import (
    compared,
    in_new_process,
    in_turns,
    made_up_config,
)
from utils import cost
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.benchmark import LOG_EVERY, with_warm_up
from utils.corpora.sample_corpus import sample_stories
from utils.data.batches import Batch, Batches
from utils.data.order import RunOrder, TrainOrder
from utils.data.pairs import TokenPairs, collate_pairs
from utils.data.token_cache import check_pairs
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.runs.machine import check_gpus, environment
from utils.runs.memory import peak_memory_gb
from utils.runs.outputs import check_output
from utils.training.measurements import seconds, stamp
from utils.training.options import POLYNOMIAL_END

OURS, COMPILED, THEIRS = MODES = ("ours", "ours_compiled", "transformers")
# Words of a document and of a summary: means (Narayan et al., 2018, table 1; See et al., 2017, section 4), and a
# log-normal's spread.
XSUM = {"source": (431, 0.6), "target": (23, 0.3)}
CNN_DM = {"source": (781, 0.4), "target": (56, 0.4)}
COLUMNS = {
    "mode": "mode",
    "rate": "samples/s",
    "tokens_per_second": "tokens/s",
    "speed_up": "speed-up",
    "mfu": "MFU",
    "peak_memory_gb": "peak GB",
}


@dataclass(frozen=True)
class Shape:
    """A network, and the batches that it trains on."""

    network: str  # of scripts.benchmarks.measuring.NETWORKS
    batch_size: int
    max_source_length: int
    max_target_length: int
    words: Mapping[str, tuple[float, float]]
    dropout: float = 0.1  # and that of attention
    is_sorted: bool = True  # by --sortish_sampler, into batches of like length


SHAPES = {
    "xsum": Shape("large", 40, 1024, 60, XSUM),
    "cnn_dm": Shape("large", 40, 1024, 142, CNN_DM),
    "base": Shape("base", 8, 512, 60, XSUM),
    "base_unsorted": Shape("base", 8, 512, 60, XSUM, is_sorted=False),
    "tiny": Shape("tiny", 4, 64, 24, XSUM, dropout=0.0),
}


@dataclass(frozen=True)
class Arguments:
    shape: str = option(
        "xsum",
        choices=tuple(SHAPES),
        help="what is trained: xsum is bart-large and the batches of XSum's half-precision presets, 40 examples of at "
        "most 1024 and 60 tokens; cnn_dm likewise, of 1024 and 142; base is bart-base, 8, 512 and 60; base_unsorted "
        "has batches at random, with more padding; tiny is for trying this out, without dropout, so that both have the "
        "same losses",
    )
    precision: str = option("fp32", choices=("fp32", "tf32", "bf16", "fp16"), help="of both, under autocast")
    tokenizer: str = option("facebook/bart-large", help="vocabulary: a Hub name or directory")
    gpus: int = option(int(torch.cuda.is_available()), least=0, most=1, help="0 trains on the CPU")
    steps: int = option(
        20, least=1, help=f"optimizer steps that are timed, after {LOG_EVERY} to warm up; multiples of {LOG_EVERY}"
    )
    rounds: int = option(3, least=1, help="runs of each, in turns; the table has their medians")
    modes: tuple[str, ...] = option(
        (OURS, THEIRS), choices=MODES, help="what is run, in this order; speed-ups are over the last"
    )
    output: str | None = option(None, help="JSON file for all figures")

    def __post_init__(self) -> None:
        check_output("output", self.output)

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
    flags = [f"--{args.precision}"] * (args.precision != "fp32") + ["--sortish_sampler"] * shape.is_sorted
    return [*words, "--do_train", "--freeze_embeds", *flags]


def prepare(args: Arguments, folder: Path) -> dict[str, float]:
    """Write weights, vocabulary, data and its token ids; return the mean tokens and operations of a timed sample."""
    shape = SHAPES[args.shape]
    tokenizer = BartTokenizer.from_pretrained(args.tokenizer)
    dropouts = {"dropout": shape.dropout, "attention_dropout": shape.dropout}
    config = made_up_config(shape.network, vocab_size=len(tokenizer), max_position_embeddings=1024, **dropouts)
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(folder / "model", tokenizer)
    for split, count in (("train", shape.batch_size * args.all_steps), ("val", shape.batch_size)):
        write_articles(folder / "data", split, count, shape.words)
    examples, order = training_order(args, folder)
    timed = [number for step in list(order)[LOG_EVERY:] for batch in step for number in batch]
    lengths = examples.lengths[timed].mean(axis=0)
    costs = cost.training(config, (1, *map(round, lengths.tolist())), half=False)
    return {"tokens": float(lengths.sum()), "operations": costs.operations}


def write_articles(folder: Path, split: str, count: int, words: Mapping[str, tuple[float, float]]) -> None:
    """Write a split of `count` pairs, whose texts are spans of the sample corpus with so many words."""
    told = " ".join(story.article for story in sample_stories("train", 20_000)).split()
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for side, (mean, spread) in words.items():
        lengths = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count).astype(int) + 1
        starts = rng.integers(0, len(told) - lengths.max(), count)
        texts = (" ".join(told[start : start + length]) for start, length in zip(starts, lengths, strict=True))
        (folder / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def training_order(args: Arguments, folder: Path) -> tuple[TokenPairs, RunOrder]:
    """The training examples, and the batches of each step as finetune.py makes them."""
    options = parse_finetune_arguments(recipe(args, folder))
    tokenizer = BartTokenizer.from_pretrained(folder / "model")
    lengths = (options.task_options.max_source_length, options.task_options.max_target_length)
    files = check_pairs(options.data.data_dir, "train")
    examples = TokenPairs(*(file.tokenized(tokenizer, longest) for file, longest in zip(files, lengths, strict=True)))
    data = options.data
    order = TrainOrder(examples.lengths, data.train_batch_size, options.run.seed, group_by_length=data.sortish_sampler)
    return examples, RunOrder(order, args.all_steps)


def train(mode: str, args: Arguments, folder: Path) -> dict[str, Any]:
    """Train in one of MODES: samples per second, peak memory, and the mean loss of every LOG_EVERY steps."""
    device = torch.device("cuda" if args.gpus else "cpu")
    ends = []  # of each optimizer step, whoever takes it: when, and how much memory had been held by then
    hook = register_optimizer_step_post_hook(lambda *_: ends.append((stamp(device), peak_memory_gb(device))))
    losses = train_theirs(args, folder) if mode == THEIRS else train_ours(args, folder, mode == COMPILED)
    hook.remove()
    timed = args.all_steps - LOG_EVERY
    # Steps that fp16's loss scaler skips are not seen; they come first.
    (start, _), (end, peak) = ends[-1 - timed], ends[-1]
    rate = timed * SHAPES[args.shape].batch_size / seconds(start, end)
    return {"rate": rate, "peak_memory_gb": peak, "losses": losses}


def train_ours(args: Arguments, folder: Path, compiled: bool) -> list[float]:
    from finetune import main

    with TemporaryDirectory(dir=folder) as output:
        main([*recipe(args, folder), "--output_dir", output, *["--compile"] * compiled])
        with (Path(output) / "metrics.csv").open(encoding="utf-8") as file:
            return [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]


def their_inputs(pad_token_id: int, decoder_start_token_id: int, step: list[Batch]) -> dict[str, torch.Tensor]:
    """The one micro-batch of a step as DataCollatorForSeq2Seq makes it."""
    [batch] = step
    shifted = shift_tokens_right(batch.inputs["labels"], pad_token_id, decoder_start_token_id)
    return {**batch.inputs, "decoder_input_ids": shifted}


def train_theirs(args: Arguments, folder: Path) -> list[float]:
    from transformers import BartForConditionalGeneration as Theirs
    from transformers import PrinterCallback, Trainer, TrainingArguments

    options = parse_finetune_arguments(recipe(args, folder))
    model = Theirs.from_pretrained(folder / "model")
    for embeddings in (model.model.shared, model.model.encoder.embed_positions, model.model.decoder.embed_positions):
        embeddings.requires_grad_(False)
    examples, order = training_order(args, folder)
    pad_token_id = model.config.pad_token_id
    loader = DataLoader(
        Batches(examples, partial(collate_pairs, pad_token_id=pad_token_id)),
        batch_sampler=order,
        collate_fn=partial(their_inputs, pad_token_id, model.config.decoder_start_token_id),
        num_workers=options.data.num_workers,
        pin_memory=bool(args.gpus),
    )
    losses: list[torch.Tensor] = []

    class Peer(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(loader)

        def training_step(self, *arguments: Any, **others: Any) -> torch.Tensor:
            losses.append(super().training_step(*arguments, **others))
            return losses[-1]

    trainer = Peer(
        model,
        TrainingArguments(
            str(folder / THEIRS),
            per_device_train_batch_size=options.data.train_batch_size,
            max_steps=options.optimisation.max_steps,
            learning_rate=options.optimisation.learning_rate,
            warmup_steps=options.optimisation.warmup_steps,
            lr_scheduler_type="polynomial",
            lr_scheduler_kwargs={"lr_end": POLYNOMIAL_END},
            weight_decay=options.optimisation.weight_decay,
            label_smoothing_factor=options.task_options.label_smoothing,
            max_grad_norm=options.optimisation.gradient_clip_val,
            optim="adamw_torch_fused",
            bf16=options.hardware.bf16,
            fp16=options.hardware.fp16,
            tf32=True if options.hardware.tf32 else None,
            use_cpu=not args.gpus,
            seed=options.run.seed,
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return torch.stack(losses).view(-1, LOG_EVERY).mean(dim=1).tolist()


def product_rate(args: Arguments) -> float:
    """Operations per second of a product of large matrices; the best of six."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.precision, torch.float32)
    device = torch.device("cuda" if args.gpus else "cpu")
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    matrix = torch.randn(8192 if args.gpus else 2048, 8192 if args.gpus else 2048, device=device).to(dtype)
    stamps = [stamp(device)]
    for _ in range(6):
        matrix @ matrix
        stamps.append(stamp(device))
    return 2 * len(matrix) ** 3 / min(seconds(*pair) for pair in pairwise(stamps))


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(Arguments, argv, str(__doc__))
    check_gpus(args.gpus)
    parse_finetune_arguments(recipe(args, Path()))  # refuses precisions that a CPU lacks
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    # Of several GPUs the Trainer would use all.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    info = environment(args.gpus, "accelerate")
    with TemporaryDirectory(prefix="benchmark_training_") as temporary:
        folder = Path(temporary)
        sample = in_new_process(prepare, args, folder)
        rate = in_new_process(product_rate, args)
        runs = in_turns(args.modes, args.rounds, train, args, folder)
    results = compared(runs, args.modes[-1])
    for row in results:
        row |= {"tokens_per_second": row["rate"] * sample["tokens"], "mfu": row["rate"] * sample["operations"] / rate}
        row["losses"] = runs[row["mode"]][0]["losses"]
    print(f"{args.shape} in {args.precision} on {info['devices'][0]}, {sample['tokens']:.0f} tokens a sample")
    print(table(results, COLUMNS))
    print(f"MFU is the share of {rate / 1e12:.3g} TFLOP/s, the rate of a large matrix product")
    if args.output is not None:
        report = {"machine": info, "arguments": asdict(args), "sample": sample, "product_rate": rate}
        write_json(Path(args.output), {**report, "results": results})


if __name__ == "__main__":
    run_main(main)
