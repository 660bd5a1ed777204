"""Training steps of the whole recipe against a plain loop around Hugging Face's model."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import Optimizer
from transformers import AutoModelForSeq2SeqLM, get_scheduler
from transformers.optimization import Adafactor

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.arguments import parse_train_arguments
from utils.data.datamodule import SummarizationDataModule
from utils.data.token_cache import check_pairs

# 24 examples in batches of 3 and windows of 3 batches: steps of 9, 9 and 6 examples, 7 epochs.
STEPS, ACCUMULATION, CLIP = 21, 3, 0.5

OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], float], Optimizer]] = {
    "adamw": lambda groups, lr: torch.optim.AdamW(groups, lr=lr),
    "adafactor": lambda groups, lr: Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=0.9),
}


@pytest.mark.parametrize(
    ("name", "rate", "scheduler", "theirs", "frozen"),
    [
        ("adamw", 1e-2, "polynomial", "polynomial", False),
        ("adamw", 1e-2, "cosine", "cosine", True),
        ("adafactor", 1e-2, "linear", "linear", False),
        ("sgd", 0.3, "constant", "constant_with_warmup", False),
    ],
)
def test_twenty_steps_give_the_losses_of_a_plain_transformers_loop(
    tmp_path: Path, name: str, rate: float, scheduler: str, theirs: str, frozen: bool
) -> None:
    argv = write_tiny_run(tmp_path, n_train=24)
    initial, output = tmp_path / "initial", tmp_path / "run"
    config = BartConfig.from_json(tmp_path / "config.json")
    torch.manual_seed(0)
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    BartForConditionalGeneration(config).save_pretrained(initial, tokenizer)
    argv += ["--do_train", "--output_dir", str(output), "--model_name_or_path", str(initial)]
    argv += ["--max_steps", str(STEPS), "--train_batch_size", "3", "--gradient_accumulation_steps", str(ACCUMULATION)]
    argv += ["--learning_rate", str(rate), "--warmup_steps", "5", "--lr_scheduler", scheduler, "--optimizer", name]
    argv += ["--label_smoothing", "0.1", "--gradient_clip_val", str(CLIP), "--dropout", "0", "--attention_dropout", "0"]
    argv += ["--sortish_sampler", "--weight_decay", "0.1"] + ["--freeze_embeds"] * frozen
    finetune.main(argv)
    with (output / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]

    model = AutoModelForSeq2SeqLM.from_pretrained(initial, dropout=0.0, attention_dropout=0.0)
    if frozen:
        for key, parameter in model.named_parameters():
            parameter.requires_grad_("shared" not in key and "embed_positions" not in key)
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and not ("bias" in n or "norm" in n)]
    plain = [p for n, p in model.named_parameters() if p.requires_grad and ("bias" in n or "norm" in n)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[name](groups, rate)
    schedule = get_scheduler(theirs, optimizer, 5, STEPS)
    files = {split: check_pairs(tmp_path / "data", split) for split in ("train", "val")}
    data = SummarizationDataModule(parse_train_arguments(argv), tokenizer, files)
    order = data.train_batches()
    expected: list[float] = []
    norms: list[float] = []
    for epoch in range(STEPS // 3):
        batches = [data.collate([data.train_set[i] for i in indices]) for indices in order.batches(epoch)]
        for start in range(0, len(batches), ACCUMULATION):
            window = batches[start : start + ACCUMULATION]
            tokens = sum((batch["labels"] >= 0).sum().item() for batch in window)
            loss = torch.zeros(())
            for batch in window:
                logits = model(**{key: batch[key] for key in ("input_ids", "attention_mask", "labels")}).logits
                summed = F.cross_entropy(
                    logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1, reduction="sum"
                )
                loss = loss + summed / tokens
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(decayed + plain, CLIP).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            expected.append(loss.item())
    assert expected[-1] < expected[0] - 0.3  # it learns, so equal losses mean equal updates
    for name, values in (("train_loss", expected), ("grad_norm", norms)):
        actual = torch.tensor([float(row[name]) for row in rows])
        torch.testing.assert_close(actual, torch.tensor(values), rtol=0, atol=1e-5)
    assert frozen or min(norms) > CLIP
    trained = dict(BartForConditionalGeneration.from_pretrained(output / "last.ckpt").named_parameters())
    for key, parameter in model.named_parameters():
        if "k_proj.bias" in key:
            continue  # softmax is blind to it: its gradient is rounding noise, which Adam scales up to full steps
        torch.testing.assert_close(trained[key], parameter, rtol=0, atol=1e-4, msg=key)
