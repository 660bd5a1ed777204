"""Training steps of the whole recipe against a plain loop around Hugging Face's model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM, get_polynomial_decay_schedule_with_warmup

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.arguments import parse_train_arguments
from utils.data.datamodule import SummarizationDataModule
from utils.data.line_files import read_pairs

# 24 examples in batches of 3 and windows of 3 batches: steps of 9, 9 and 6 examples, 7 epochs.
STEPS, ACCUMULATION, CLIP = 21, 3, 0.5


@pytest.mark.parametrize("frozen", [False, True], ids=["all", "frozen embeddings"])
def test_twenty_adamw_steps_give_the_losses_of_a_plain_transformers_loop(tmp_path: Path, frozen: bool) -> None:
    argv = write_tiny_run(tmp_path, n_train=24)
    initial, output = tmp_path / "initial", tmp_path / "run"
    config = BartConfig.from_json(tmp_path / "config.json")
    torch.manual_seed(0)
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    BartForConditionalGeneration(config).save_pretrained(initial, tokenizer)
    argv += ["--do_train", "--output_dir", str(output), "--model_name_or_path", str(initial)]
    argv += ["--max_steps", str(STEPS), "--train_batch_size", "3", "--gradient_accumulation_steps", str(ACCUMULATION)]
    argv += ["--learning_rate", "1e-2", "--warmup_steps", "5", "--lr_scheduler", "polynomial", "--weight_decay", "0.1"]
    argv += ["--label_smoothing", "0.1", "--gradient_clip_val", str(CLIP), "--dropout", "0", "--attention_dropout", "0"]
    argv += ["--sortish_sampler"] + ["--freeze_embeds"] * frozen
    finetune.main(argv)
    with (output / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]

    model = AutoModelForSeq2SeqLM.from_pretrained(initial, dropout=0.0, attention_dropout=0.0)
    if frozen:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("shared" not in name and "embed_positions" not in name)
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and not ("bias" in n or "norm" in n)]
    plain = [p for n, p in model.named_parameters() if p.requires_grad and ("bias" in n or "norm" in n)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-2
    )
    schedule = get_polynomial_decay_schedule_with_warmup(optimizer, 5, STEPS)
    pairs = {split: read_pairs(tmp_path / "data", split) for split in ("train", "val")}
    data = SummarizationDataModule(parse_train_arguments(argv), tokenizer, pairs)
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
    for name, theirs in model.named_parameters():
        if "k_proj.bias" in name:
            continue  # softmax is blind to it: its gradient is rounding noise, which Adam scales up to full steps
        torch.testing.assert_close(trained[name], theirs, rtol=0, atol=1e-4, msg=name)
