"""Training steps of the whole recipe against a plain loop around Hugging Face's model, both in fp64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import Optimizer
from transformers import AutoModelForSeq2SeqLM, get_scheduler
from transformers.optimization import Adafactor

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import ALIKE, Train, order_of, rows
from utils.data.batches import collate_pairs

# 22 examples in batches of 3 and windows of 3 batches: steps of 9, 9 and 4 examples, 7 epochs.
STEPS, ACCUMULATION, CLIP = 21, 3, 0.5

OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], float], Optimizer]] = {
    "adamw": lambda groups, lr: torch.optim.AdamW(groups, lr=lr),
    "adafactor": lambda groups, lr: Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=0.9),
}


@pytest.mark.parametrize(
    ("name", "rate", "scheduler", "theirs", "frozen"),
    [
        pytest.param("adamw", 1e-2, "polynomial", "polynomial", False, marks=pytest.mark.slow),
        ("adamw", 1e-2, "cosine", "cosine", True),
        ("adafactor", 1e-2, "linear", "linear", False),
        pytest.param("sgd", 0.3, "constant", "constant_with_warmup", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("double")
def test_twenty_steps_give_the_losses_of_a_plain_transformers_loop(
    train: Train,
    tiny: list[str],
    tmp_path: Path,
    name: str,
    rate: float,
    scheduler: str,
    theirs: str,
    frozen: bool,
) -> None:
    initial = tmp_path / "initial"
    torch.manual_seed(0)
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "tokenizer")
    config = BartConfig.from_pretrained(tmp_path / "config.json")
    BartForConditionalGeneration(config).save_pretrained(initial, tokenizer)
    tiny += ["--train_batch_size", "3", "--gradient_accumulation_steps", str(ACCUMULATION)]
    output = train(
        "run",
        *("--model_name_or_path", initial, "--max_steps", STEPS, "--dropout", 0, "--attention_dropout", 0),
        *("--learning_rate", rate, "--warmup_steps", 5, "--lr_scheduler", scheduler, "--optimizer", name),
        *("--label_smoothing", 0.1, "--gradient_clip_val", CLIP, "--weight_decay", 0.1, *["--freeze_embeds"] * frozen),
    )

    model = AutoModelForSeq2SeqLM.from_pretrained(initial, dropout=0.0, attention_dropout=0.0, dtype=torch.float64)
    if frozen:
        for key, parameter in model.named_parameters():
            parameter.requires_grad_("shared" not in key and "embed_positions" not in key)
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and not ("bias" in n or "norm" in n)]
    plain = [p for n, p in model.named_parameters() if p.requires_grad and ("bias" in n or "norm" in n)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[name](groups, rate)
    schedule = get_scheduler(theirs, optimizer, 5, STEPS)
    examples, order = order_of(tiny)
    expected: list[float] = []
    norms: list[float] = []
    for step in (step for epoch in range(STEPS // 3) for step in order.steps(epoch)):
        batches = [collate_pairs([examples[i] for i in numbers], tokenizer.pad_token_id) for numbers in step]
        tokens = sum((batch["labels"] >= 0).sum().item() for batch in batches)
        loss = torch.zeros(())
        for batch in batches:
            logits = model(**batch).logits
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
    assert len(expected) == STEPS
    assert expected[-1] < expected[0] - 0.3  # it learns, so equal losses mean equal updates
    assert [row["train_loss"] for row in rows(output)] == pytest.approx(expected, abs=ALIKE, rel=0)
    assert [row["grad_norm"] for row in rows(output)] == pytest.approx(norms, abs=ALIKE, rel=0)
    assert frozen or min(norms) > CLIP
    trained = BartForConditionalGeneration.from_pretrained(output / "last.ckpt")
    ours, expected_weights = (dict(network.named_parameters()) for network in (trained, model))
    if name == "adafactor":
        # Softmax is blind to these: their gradient is but rounding, and Adafactor makes steps of it however small.
        ours, expected_weights = (
            {k: v for k, v in part.items() if "k_proj.bias" not in k} for part in (ours, expected_weights)
        )
    torch.testing.assert_close(ours, expected_weights, rtol=0, atol=ALIKE)
