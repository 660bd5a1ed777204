"""A data directory, vocabulary and config so small that a training run takes a second; and what such a run leaves."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.checkpoint import read
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.pretrained import PretrainedModel
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.data.batches import Examples
from utils.data.order import TrainOrder
from utils.recipes.finetuning_arguments import parse_finetune_arguments

Train = Callable[..., Path]  # the fixture `train`

SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
}
CONFIG = {**SIZES, "init_std": 0.1, "num_beams": 2, "max_length": 12}
OF_BERT = {
    **{"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 32, "max_position_embeddings": 128, "initializer_range": 0.1},
}


def tiny_bart(
    head: type[PretrainedModel] = BartForConditionalGeneration, seed: int = 0, **fields: Any
) -> PretrainedModel:
    """A random network of SIZES and 50 tokens, where `fields` do not say otherwise."""
    torch.manual_seed(seed)
    return head(BartConfig(**{"vocab_size": 50, **SIZES, **fields}))


def write_tiny_run(folder: Path, n_train: int = 22, n_val: int = 5, n_test: int = 7) -> list[str]:
    """Write `folder/{data,tokenizer,config.json}`; return the options of finetune.py that use them."""
    rng = random.Random(0)
    words = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()
    data = folder / "data"
    data.mkdir(parents=True)
    for split, count in (("train", n_train), ("val", n_val), ("test", n_test)):
        sources = [" ".join(rng.choices(words, k=rng.randint(3, 30))) for _ in range(count)]
        targets = [" ".join(source.split()[: rng.randint(1, 6)]) for source in sources]
        (data / f"{split}.source").write_text("".join(f"{line}\n" for line in sources))
        (data / f"{split}.target").write_text("".join(f"{line}\n" for line in targets))
    tokenizer = BartTokenizer.train(words * 3, vocab_size=300)
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": len(tokenizer)}))
    lengths = [f"--{name}_length" for name in ("max_source", "max_target", "val_max_target", "test_max_target")]
    options = {
        "--data_dir": data,
        "--config_path": folder / "config.json",
        "--tokenizer": folder / "tokenizer",
        "--model_name_or_path": "scratch",
        "--gpus": 0,
        "--num_workers": 0,
        "--eval_beams": 0,
        "--log_every_n_steps": 1,
        **dict.fromkeys(lengths, 40),
    }
    return [str(word) for pair in options.items() for word in pair]


def compute_in_double() -> None:
    """Let everything that torch would compute in fp32 be fp64, so that other orders of summation agree to ALIKE."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign, assignment]


# How far the losses, gradients and weights of equal runs in fp64 may be apart. A gradient of the tiny network is off by
# less than 1e-14. Adam divides it by at least its epsilon, 1e-8, and a step by a learning rate of 1e-2 is then off by
# less than 1e-8. A mean of means, or a target that is counted twice, makes 1e-4 and more.
ALIKE = 1e-7


def rows(output: Path, column: str = "train_loss") -> list[dict[str, float]]:
    """What a run logged wherever it logged this column, over all files of a run that was resumed."""
    found = []
    for path in sorted(output.glob("metrics*.csv"), key=lambda path: (path.name == "metrics.csv", path.name)):
        with path.open() as file:
            # The last line of a run that was killed may be half a line.
            found += [row for row in csv.DictReader(file) if row.get(column) and None not in row.values()]
    return [{name: float(value) for name, value in row.items() if value} for row in found]


def order_of(options: Sequence[str]) -> tuple[Examples, TrainOrder]:
    """The training examples of a run in one process, and their order."""
    args = parse_finetune_arguments(options)
    task = args.make_task()
    examples = task.encode(task.read("train"), "train", task.initial_model(args.model, None))
    order = TrainOrder(
        *(examples.lengths, args.batches.train_batch_size, args.run.seed),
        accumulation=args.batches.gradient_accumulation_steps,
        group_by_length=args.epochs.sortish_sampler,
    )
    return examples, order


def checkpoint_of(output: Path, name: str = "last.ckpt") -> dict[str, Any]:
    return torch.load(output / name, weights_only=True)


def weights(output: Path) -> dict[str, Tensor]:
    """Of tied ones that under their first name, since several processes write no other."""
    state = read(output / "last.ckpt")["state_dict"]
    names = {tensor.data_ptr(): name for name, tensor in reversed(state.items())}
    return {name: state[name] for name in names.values()}


def same(one: Any, other: Any) -> bool:
    """Whether nested values are equal, tensors to their last bit."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
