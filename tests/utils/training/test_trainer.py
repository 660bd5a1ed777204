"""The length of a run, its validations, and what it refuses."""

from __future__ import annotations

import json
import logging
import platform
from pathlib import Path

import pytest
import torch

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import Train, checkpoint_of, rows

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--max_epochs", 2, "--val_check_interval", 0.67), [4, 8, 12]),  # through epochs, which have 6 steps
        (("--max_epochs", 2, "--val_check_interval", 16), [4, 8, 12]),
        (("--max_steps", 10, "--min_epochs", 5, "--val_check_interval", 16), [4, 8, 10]),
        (("--max_steps", 7, "--max_epochs", 1, "--val_check_interval", 0.5), [3, 6]),
        (("--gradient_accumulation_steps", 2), [3]),
    ],
)
def test_validations_and_the_end_of_a_run(train: Train, options: tuple[object, ...], expected: list[int]) -> None:
    """The last step is validated and saved, also where the interval does not divide the run."""
    output = train("run", *options)
    assert [row["step"] + 1 for row in rows(output, "val_loss")] == expected
    assert [row["step"] for row in rows(output)] == list(range(expected[-1]))
    per_epoch = 3 if "--gradient_accumulation_steps" in options else 6
    assert [row["epoch"] for row in rows(output)] == [step // per_epoch for step in range(expected[-1])]
    assert checkpoint_of(output)["global_step"] == expected[-1]


def test_batches_of_tokens_validate_by_samples_and_say_their_size(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = ("--max_tokens_per_batch", 160, "--gradient_accumulation_steps", 2, "--val_check_interval", 11)
    output = train("run", *options, "--max_epochs", 2)
    steps = len(rows(output)) // 2
    mean = 22 / steps
    assert f"for {2 * steps} steps of about {mean:.0f} examples" in caplog.text
    every = round(11 / mean)
    assert 1 < every < steps
    assert len(rows(output, "val_loss")) == -(-2 * steps // every)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--warmup_proportion", 1), "--warmup_proportion makes 6; allowed: fewer than the run's 6 steps"),
        (("--warmup_proportion", 0.5, "--warmup_steps", 1), "--warmup_steps and --warmup_proportion exclude"),
        (("--gpus", 0, "--devices", 2, "--n_val", 1), "1 validation examples cannot be shared by 2 processes"),
        (
            ("--gpus", 0, "--devices", 2, "--strategy", "fsdp", "--decoder_layerdrop", 0.1),
            "--strategy fsdp and layer dropout",
        ),
        (("--max_tokens_per_batch", 39), "--max_tokens_per_batch is 39; allowed: at least 56, which the longest"),
    ],
)
def test_what_a_run_cannot_do(train: Train, options: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train("run", *options)


def test_a_share_of_the_steps_is_warm_up(train: Train) -> None:
    by_share = rows(train("share", "--warmup_proportion", 0.3, "--max_steps", 7), "lr")
    by_steps = rows(train("steps", "--warmup_steps", 2, "--max_steps", 7), "lr")
    rates = [row["lr"] for row in by_share]
    assert rates == [row["lr"] for row in by_steps] and rates[0] < rates[1] < rates[2] > rates[3]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_bf16_levels_train_on_the_cpu(train: Train, level: str) -> None:
    """Beams in validation, with a rule, as the shipped configs have it."""
    beams = ("--eval_beams", 2, "--no_repeat_ngram_size", 2, "--eval_max_gen_length", 5)
    output = train("run", "--bf16", "--amp_level", level, "--max_epochs", 5, "--learning_rate", 5e-3, *beams)
    curve = [row["train_loss"] for row in rows(output)]
    assert sum(curve[-6:]) / 6 < sum(curve[:6]) / 6 - 0.2
    dtypes = {tensor.dtype for tensor in checkpoint_of(output)["state_dict"].values()}
    assert dtypes == {torch.bfloat16 if level == "O2" else torch.float32}
    BartForConditionalGeneration.from_pretrained(output / "export")


@pytest.mark.parametrize(("level", "has_bf16"), [("O1", True), ("O1", False), ("O0", False)])
def test_bf16_that_a_processor_only_emulates_is_warned_of(
    train: Train, level: str, has_bf16: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})
    train("run", "--bf16", "--amp_level", level, "--max_steps", 1)
    assert ("has no bf16 instructions" in caplog.text) == (level == "O1" and not has_bf16)


def test_early_stopping(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    """A rate of 1e-9 learns nothing; beams in validation find nothing better either."""
    caplog.set_level(logging.INFO)
    options = ("--max_epochs", 30, "--learning_rate", 1e-9, "--early_stopping_patience", 1, "--val_metric", "rouge2")
    for beams, min_epochs, expected in ((0, 1, 12), (2, 1, 12), (0, 4, 24)):
        more = ("--eval_beams", beams, "--eval_max_gen_length", 5, "--min_epochs", min_epochs)
        output = train(f"run{beams}{min_epochs}", *options, *more)
        summary = json.loads((output / "train_summary.json").read_text())
        metric = "val_rouge2" if beams else "val_rouge2_forced"
        assert (summary["steps"], metric in summary) == (expected, True)
        assert f"early stopping: {metric} did not get better in 1 validations" in caplog.text
    content = checkpoint_of(output)
    state, best = content["callbacks"]["Session"], content["callbacks"]["Session"]["BestCheckpoints"]
    state["Patience"] = {name: best.pop(name) for name in ("best_score", "wait_count", "stopped")}
    for _ in range(2):  # a run that lost patience does not go on when it is resumed, nor does one of earlier code
        train(output.name, *options, *more, "--resume_from_checkpoint", "last")
        assert json.loads((output / "train_summary.json").read_text())["steps"] == 24
        torch.save(content, output / "last.ckpt")


def test_a_longer_run_follows_its_own_schedule_at_once(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    """Not a step later: the optimizer of the checkpoint has the rate at which the shorter run ended, 0."""
    caplog.set_level(logging.INFO)
    options = ("--lr_scheduler", "linear", "--learning_rate", 1e-3)
    train("run", *options, "--max_steps", 2)
    output = train("run", *options, "--max_steps", 4, "--resume_from_checkpoint", "last")
    assert [row["lr"] for row in rows(output)[2:]] == [5e-4, 2.5e-4]
    assert "of a run of 2 steps, this one has 4: its learning rate goes on at 0.0005" in caplog.text


def test_equal_scores_are_told_apart_by_the_loss_and_then_the_step(train: Train) -> None:
    """ROUGE-2 is the same after each of 4 steps, as the next to last of them are of a run that was resumed."""
    options = ("--val_metric", "rouge2", "--val_check_interval", 0.17, "--save_top_k", 2, "--learning_rate", 1e-2)
    train("run", *options, "--max_steps", 2, "--lr_scheduler", "constant")
    options += ("--resume_from_checkpoint", "last", "--lr_scheduler", "constant")
    output = train("run", *options, "--max_steps", 4)
    scores = [(row["val_rouge2_forced"], -row["val_loss"], row["step"] + 1) for row in rows(output, "val_loss")]
    assert len(scores) == 4 and len({score for score, _, _ in scores}) < 4
    expected = [f"_epoch0_step{step:.0f}.ckpt" for _, _, step in sorted(scores, reverse=True)[:2]]
    assert sorted(path.name for path in output.glob("_epoch*")) == sorted(expected)
    assert json.loads((output / "train_summary.json").read_text())["best_checkpoint"] == expected[0]


def test_a_run_that_is_done_keeps_its_best_checkpoint_whatever_validation_would_now_be(train: Train) -> None:
    options = ("--val_check_interval", 4, "--learning_rate", 1, "--lr_scheduler", "constant", "--no_sortish_sampler")
    options += ("--val_metric", "loss", "--max_steps", 4)
    output = train("run", *options)
    export, best = (output / "export/model.safetensors").read_bytes(), [path.name for path in output.glob("_epoch*")]
    for _ in range(3):  # the same bytes, by which the predictions of a run that was broken off are known
        train("run", *options, "--length_penalty", 2, "--resume_from_checkpoint", "last")
        assert (output / "export/model.safetensors").read_bytes() == export
    summary = json.loads((output / "train_summary.json").read_text())
    assert [summary["best_checkpoint"]] == best != ["_epoch0_step4.ckpt"] and "val_loss" not in summary
    train("run", *options, "--max_steps", 5, "--length_penalty", 2, "--resume_from_checkpoint", "last")
    assert json.loads((output / "train_summary.json").read_text())["best_checkpoint"] == "_epoch0_step5.ckpt"
