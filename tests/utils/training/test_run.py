"""Whole runs of finetune.py on tiny data."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import yaml
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import write_tiny_run
from utils.arguments import TrainArguments, parse_train_arguments
from utils.data.datamodule import SummarizationDataModule
from utils.data.dataset import Collate, PairDataset
from utils.data.line_files import read_pairs
from utils.data.token_cache import check_pairs
from utils.training import run as run_module
from utils.training.loss import smoothed_loss, teacher_forced
from utils.training.precision import precision_of


def train(folder: Path, output: Path, *options: object) -> None:
    argv = [
        *_OPTIONS[folder],
        "--do_train",
        "--output_dir",
        str(output),
        "--train_batch_size",
        "4",
        "--sortish_sampler",
    ]
    finetune.main([*argv, *map(str, options)])


_OPTIONS: dict[Path, list[str]] = {}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    _OPTIONS[tmp_path] = write_tiny_run(tmp_path)
    return tmp_path


def losses(output: Path) -> list[str]:
    """Training losses as written, step by step, over an interrupted run's files and the last one."""
    rows = []
    for path in [*sorted(output.glob("metrics.*.csv")), output / "metrics.csv"]:
        with path.open() as file:
            rows += [row["train_loss"] for row in csv.DictReader(file) if row["train_loss"]]
    return rows


def validations(output: Path) -> list[dict[str, float]]:
    """What each validation logged."""
    with (output / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["val_loss"]]
    return [{name: float(value) for name, value in row.items() if name.startswith("val_")} for row in rows]


def data_of(folder: Path, args: TrainArguments) -> SummarizationDataModule:
    files = {split: check_pairs(folder / "data", split) for split in ("train", "val")}
    return SummarizationDataModule(args, BartTokenizer.from_pretrained(folder / "tokenizer"), files)


def test_a_run_leaves_everything_the_design_names(tiny: Path) -> None:
    output = tiny / "run"
    train(tiny, output, "--do_predict", "--max_epochs", 2, "--learning_rate", 1e-3, "--val_check_interval", 0.5)
    names = {path.name for path in output.iterdir()}
    assert {"arguments.yaml", "log.txt", "metrics.csv", "last.ckpt", "export"} <= names
    assert {"train_summary.json", "test_generations.txt", "test_scores.json"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    summary = json.loads((output / "train_summary.json").read_text())
    assert summary["steps"] == 12  # 22 examples in batches of 4, twice
    assert (output / summary["best_checkpoint"]).is_file()
    assert summary["best_checkpoint"].startswith("_epoch")
    scores = json.loads((output / "test_scores.json").read_text())
    assert scores["examples"] == 7
    assert scores["generation"]["num_beams"] == 2  # --eval_beams 0 is about validation
    assert {"test_articles.jsonl", "test_speed.json"} <= names and ".test_progress" not in names
    assert len((output / "test_generations.txt").read_text().split("\n")) == 7 + 1
    arguments = yaml.safe_load((output / "arguments.yaml").read_text())
    assert arguments["learning_rate"] == 1e-3
    assert len(losses(output)) == 12
    validated = [row["val_loss"] for row in csv.DictReader((output / "metrics.csv").open()) if row["val_loss"]]
    assert len(validated) == 4


@pytest.mark.parametrize(("epochs", "expected"), [(None, [4, 8, 10]), (2, [4, 8, 12])])
def test_the_last_step_is_validated_and_saved(tiny: Path, epochs: int | None, expected: list[int]) -> None:
    """Where the interval does not divide the run, and with more epochs demanded than early stopping may cut."""
    length = ("--max_epochs", epochs) if epochs else ("--max_steps", 10, "--min_epochs", 5)
    train(tiny, tiny / "run", *length, "--val_check_interval", 16)
    with (tiny / "run" / "metrics.csv").open() as file:
        assert [int(row["step"]) + 1 for row in csv.DictReader(file) if row["val_loss"]] == expected
    assert torch.load(tiny / "run" / "last.ckpt", weights_only=True)["global_step"] == expected[-1]


def test_export_loads_in_transformers_and_checkpoints_need_neither_config_nor_tokenizer(tiny: Path) -> None:
    output = tiny / "run"
    train(tiny, output, "--max_steps", 3)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(output / "export")
    ids = AutoTokenizer.from_pretrained(output / "export")("the dog sat", return_tensors="pt")["input_ids"]
    for place in (output / "export", output / "last.ckpt"):
        ours, tokenizer = BartForConditionalGeneration.from_pretrained(place), BartTokenizer.from_pretrained(place)
        assert tokenizer("the dog sat", return_tensors="pt")["input_ids"].tolist() == ids.tolist()
        assert ours.generate(ids).tolist() == theirs.generate(ids).tolist()


def test_training_runs_in_training_mode(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """from_pretrained gives eval mode; dropout must be on all the same, also after a validation."""
    train(tiny, tiny / "first", "--max_steps", 1)
    seen = []
    step = run_module.SummarizationModule.training_step

    def spy(self: pl.LightningModule, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        seen.append(all(module.training for module in self.model.modules()))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(run_module.SummarizationModule, "training_step", spy)
    options = ("--model_name_or_path", tiny / "first" / "export", "--max_steps", 4, "--val_check_interval", 0.3)
    train(tiny, tiny / "second", *options)
    assert seen == [True] * 4


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_equals_the_uninterrupted_one(
    tiny: Path, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted behind every validation of two epochs in turn: same losses, same weights, bit for bit."""
    common = ("--max_epochs", 2, "--learning_rate", 1e-3, "--val_check_interval", 0.34, "--val_metric", "loss")
    common += ("--gradient_accumulation_steps", accumulation)
    train(tiny, tiny / "whole", *common)
    expected = losses(tiny / "whole")
    final = torch.load(tiny / "whole" / "last.ckpt", weights_only=True)["state_dict"]

    class Interrupted(Exception):
        pass

    class InterruptAt(pl.Callback):
        def __init__(self, count: int) -> None:
            self.count = count

        def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
            done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
            if done > self.count:
                raise Interrupted

    build = run_module.build_callbacks
    for count in (3, 5, 7, 9):
        output = tiny / f"interrupted{count}"

        def interrupting(args: object, count: int = count) -> tuple[object, list[pl.Callback]]:
            checkpoints, callbacks = build(args)
            return checkpoints, [*callbacks, InterruptAt(count)]

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "build_callbacks", interrupting)
            with pytest.raises(Interrupted):
                train(tiny, output, *common)
        steps = torch.load(output / "last.ckpt", weights_only=True)["global_step"]
        train(tiny, output, *common, "--resume_from_checkpoint", output / "last.ckpt")
        with (output / "metrics.csv").open() as file:
            resumed = [row["train_loss"] for row in csv.DictReader(file) if row["train_loss"]]
        assert resumed == expected[steps:], count
        again = torch.load(output / "last.ckpt", weights_only=True)["state_dict"]
        assert all(torch.equal(again[name], tensor) for name, tensor in final.items()), count


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--max_steps", "7"], 7),
        (["--max_epochs", "3"], 9),
        (["--max_steps", "7", "--max_epochs", "2"], 6),
        ([], 3),
        (["--gradient_accumulation_steps", "2"], 2),
    ],
)
def test_total_steps(options: list[str], expected: int) -> None:
    args = parse_train_arguments(["--do_train", *options])
    assert run_module.steps_of(args, batches_per_epoch=3) == expected


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("1", {"val_check_interval": 100}),
        ("0.3", {"val_check_interval": 30}),
        ("0.001", {"val_check_interval": 1}),
        ("80", {"val_check_interval": 19, "check_val_every_n_epoch": None}),
        ("3", {"val_check_interval": 1, "check_val_every_n_epoch": None}),
    ],
)
def test_validation_interval(interval: str, expected: dict[str, object]) -> None:
    args = parse_train_arguments(["--do_train", "--val_check_interval", interval])
    assert run_module.validation_schedule(args, batches_per_epoch=100, examples_per_step=4.2) == expected


@pytest.mark.parametrize(("interval", "expected"), [("0.5", 48), ("0.01", 8), ("1", 96), ("100", 24), ("5", 8)])
def test_validation_falls_between_optimizer_steps(interval: str, expected: int) -> None:
    args = parse_train_arguments(["--do_train", "--val_check_interval", interval, "--gradient_accumulation_steps", "8"])
    assert run_module.validation_schedule(args, 96, examples_per_step=32)["val_check_interval"] == expected
    assert run_module.validation_schedule(args, 8, examples_per_step=32)["val_check_interval"] == (
        8 if float(interval) <= 1 else expected
    )


NO_DROPOUT = ("--dropout", 0, "--attention_dropout", 0)


def cut(batch_size: int, accumulation: int) -> tuple[object, ...]:
    return ("--train_batch_size", batch_size, "--gradient_accumulation_steps", accumulation)


def train_in_processes(folder: Path, output: Path, count: int, *options: object) -> None:
    command = [sys.executable, "finetune.py", *_OPTIONS[folder], "--do_train", "--output_dir", output, *options]
    gpus = command.index("--gpus")
    command[gpus : gpus + 2] = ["--accelerator", "cpu", "--devices", count]
    root = Path(__file__).parents[3]
    result = subprocess.run([str(word) for word in command], cwd=root, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


def assert_trained_alike(output: Path, other: Path) -> None:
    """The same steps: losses, validations, weights and momenta (what gradients were) to 1e-6."""
    for row, same in zip(validations(output), validations(other), strict=True):
        assert row == pytest.approx(same, abs=1e-6)
    curves = ([float(loss) for loss in losses(place)] for place in (output, other))
    torch.testing.assert_close(*curves, rtol=0, atol=1e-6)
    ours, theirs = (torch.load(place / "last.ckpt", weights_only=True) for place in (output, other))
    momenta = ([state["exp_avg"] for state in run["optimizer_states"][0]["state"].values()] for run in (ours, theirs))
    torch.testing.assert_close(*momenta, rtol=0, atol=1e-6)
    for name, tensor in theirs["state_dict"].items():
        if "k_proj.bias" in name:
            continue  # softmax is blind to it: its gradient is rounding noise, which Adam scales up to full steps
        torch.testing.assert_close(ours["state_dict"][name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("whole", "cuts", "on_two"),
    [
        ((*cut(8, 1), "--sortish_sampler"), [cut(4, 2), cut(1, 8)], cut(4, 1)),
        ((*cut(8, 1), "--no_sortish_sampler"), [cut(2, 4)], cut(1, 4)),
        ((*cut(8, 4), "--max_tokens_per_batch", 160), [], cut(8, 2)),
    ],
    ids=["like lengths", "random", "tokens"],
)
def test_training_does_not_depend_on_how_a_step_is_cut(
    tiny: Path, whole: tuple[object, ...], cuts: list[tuple[object, ...]], on_two: tuple[object, ...]
) -> None:
    """Two epochs of 22 examples, in steps of 8, 8 and 6: at once, in micro-batches, and on 2 processes."""
    common = (*NO_DROPOUT, "--learning_rate", 1e-3, "--lr_scheduler", "constant", "--max_epochs", 2)
    common += ("--gradient_clip_val", 1.0, "--eval_batch_size", 2, *whole)
    train(tiny, tiny / "whole", *common)
    for number, options in enumerate(cuts):
        train(tiny, tiny / str(number), *common, *options)
        assert_trained_alike(tiny / "whole", tiny / str(number))
    train_in_processes(tiny, tiny / "processes", 2, *common, *on_two)
    assert_trained_alike(tiny / "whole", tiny / "processes")


def test_lightning_steps_where_steps_end_and_validates_between(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 6, 6, 6 and 4 examples in 6 micro-batches, validated behind every third one of three epochs."""
    taken: list[int] = []
    steps: list[set[int]] = []
    validated: list[int] = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, _: int) -> None:
            taken.extend(batch["index"][(batch["labels"] >= 0).any(dim=1)].tolist())

        def on_before_optimizer_step(self, *_: object) -> None:
            assert len(set(taken)) == len(taken)
            steps.append(set(taken))
            taken.clear()

        def on_validation_start(self, *_: object) -> None:
            assert not taken
            validated.append(len(steps))

    build = run_module.build_callbacks

    def watched(args: TrainArguments) -> tuple[object, list[pl.Callback]]:
        checkpoints, callbacks = build(args)
        return checkpoints, [*callbacks, Watch()]

    monkeypatch.setattr(run_module, "build_callbacks", watched)
    train(tiny, tiny / "run", *cut(1, 6), "--max_epochs", 3, "--val_check_interval", 18)
    args = parse_train_arguments([*_OPTIONS[tiny], "--do_train", *map(str, cut(6, 1)), "--sortish_sampler"])
    whole = data_of(tiny, args).train_batches()
    assert steps == [set(batch) for epoch in range(3) for batch in whole.batches(epoch)]
    assert validated == [3, 6, 9, 12]


def test_batches_of_tokens_validate_by_samples_and_say_their_size(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    options = ("--max_tokens_per_batch", 160, "--gradient_accumulation_steps", 2, "--val_check_interval", 11)
    train(tiny, tiny / "run", *options, "--max_epochs", 2)
    args = parse_train_arguments([*_OPTIONS[tiny], "--do_train", *map(str, options)])
    steps = data_of(tiny, args).train_batches().steps
    mean = 22 / steps
    assert f"for {2 * steps} steps of about {mean:.0f} examples and at most 320 tokens" in caplog.text
    every = round(11 / mean)
    assert 1 < every < steps
    assert len(validations(tiny / "run")) == math.ceil(2 * steps / every)


@pytest.mark.parametrize("fraction", [0.9, 1.1], ids=["clipped", "not clipped"])
def test_clipping_acts_on_the_gradient_of_the_whole_step(tiny: Path, fraction: float) -> None:
    """Gradients that the optimizer gets, against a plain loop's: the mean over all targets, then clipped."""
    config = BartConfig.from_json(tiny / "config.json")
    tokenizer = BartTokenizer.from_pretrained(tiny / "tokenizer")
    model = BartForConditionalGeneration(config).eval()
    model.save_pretrained(tiny / "initial", tokenizer)
    data = PairDataset.from_texts(*read_pairs(tiny / "data", "train", 12), tokenizer, 40, 40)
    for example in data:
        batch = Collate(tokenizer.pad_token_id)([example])
        logits = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        (loss / data.targets.lengths.sum()).backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    torch.nn.utils.clip_grad_norm_(model.parameters(), fraction * norm)
    matrices, vectors = ([p.grad for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))

    actual: list[torch.Tensor] = []

    def keep(optimizer: Optimizer, *_: object) -> None:
        actual.extend(parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"])

    hook = register_optimizer_step_post_hook(keep)
    options = (
        *cut(4, 3),
        *NO_DROPOUT,
        "--n_train",
        12,
        "--max_steps",
        1,
        "--gradient_clip_val",
        float(fraction * norm),
    )
    train(tiny, tiny / "run", "--model_name_or_path", tiny / "initial", *options)
    hook.remove()
    torch.testing.assert_close(actual, matrices + vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize("beams", [0, 2])
def test_validation_scores_the_same_where_memory_is_scarce(
    tiny: Path, beams: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--max_steps", 2, "--val_check_interval", 4, "--eval_batch_size", 5, "--eval_beams", beams)
    train(tiny, tiny / "enough", *options)
    assert "out of memory" not in caplog.text
    name = "decode" if beams else "forward"
    original = getattr(BartForConditionalGeneration, name)
    sizes = []

    def scarce(self: BartForConditionalGeneration, ids: torch.Tensor, *others: Any, **named: Any) -> Any:
        if not self.training:
            sizes.append(len(ids))
            if len(ids) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, ids, *others, **named)

    monkeypatch.setattr(BartForConditionalGeneration, name, scarce)
    train(tiny, tiny / "scarce", *options)
    enough, scarce_rows = (validations(tiny / name) for name in ("enough", "scarce"))
    assert len(enough) == 2
    for row, other in zip(enough, scarce_rows, strict=True):
        assert row == pytest.approx(other, abs=1e-6)
    assert sizes.count(5) == 1  # the second validation begins with what worked
    assert caplog.text.count("out of memory with 5 examples at once; 2 fit: lower --eval_batch_size to that") == 1


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_bf16_levels_train_on_the_cpu(tiny: Path, level: str) -> None:
    output = tiny / level
    train(tiny, output, "--bf16", "--amp_level", level, "--max_epochs", 8, "--learning_rate", 5e-3)
    curve = [float(loss) for loss in losses(output)]
    assert sum(curve[-6:]) / 6 < sum(curve[:6]) / 6 - 0.2
    dtypes = {tensor.dtype for tensor in torch.load(output / "last.ckpt", weights_only=True)["state_dict"].values()}
    assert dtypes == {torch.bfloat16 if level in ("O2", "O3") else torch.float32}
    BartForConditionalGeneration.from_pretrained(output / "export")


@pytest.mark.parametrize("has_bf16", [True, False])
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_bf16_that_a_processor_only_emulates_is_warned_of(
    tiny: Path, level: str, has_bf16: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    train(tiny, tiny / "run", "--bf16", "--amp_level", level, "--max_steps", 1)
    assert ("has no bf16 instructions" in caplog.text) == (level == "O1" and not has_bf16)


def test_half_precision_sums_losses_in_full(tiny: Path) -> None:
    """O3: bf16 sums of 8 bits would be off by percents; the logged mean must be that of the batches' own losses."""
    output = tiny / "run"
    train(tiny, output, "--bf16", "--amp_level", "O3", "--max_steps", 1, "--eval_batch_size", 1)
    summary = json.loads((output / "train_summary.json").read_text())
    model = BartForConditionalGeneration.from_pretrained(output / "last.ckpt").to(torch.bfloat16)
    tokenizer = BartTokenizer.from_pretrained(output / "last.ckpt")
    data = PairDataset.from_texts(*read_pairs(tiny / "data", "val"), tokenizer, 40, 40)
    with torch.no_grad():
        batches = [Collate(tokenizer.pad_token_id)([example]) for example in data]
        sums = [smoothed_loss(teacher_forced(model, batch).logits, batch["labels"]) for batch in batches]
    expected = sum(loss.double() for loss, _ in sums) / sum(tokens for _, tokens in sums)
    assert summary["val_loss"] == pytest.approx(float(expected), rel=1e-6)


def test_o2_keeps_updates_that_halves_would_round_away(tiny: Path) -> None:
    """Norm weights start at 1, where bf16 steps by 1/128; with updates of 1e-4 only fp32 copies can move them."""
    for level in ("O2", "O3"):
        options = ("--bf16", "--amp_level", level, "--max_steps", 5, "--learning_rate", 1e-4)
        train(tiny, tiny / level, *options, "--lr_scheduler", "constant")
        checkpoint = torch.load(tiny / level / "last.ckpt", weights_only=True)
        weight = checkpoint["state_dict"]["model.model.encoder.layernorm_embedding.weight"]
        assert (weight == 1).all()
        if level == "O2":
            masters = checkpoint["optimizer_states"][0]["masters"]
            near_one = [m for m in masters if m.shape == weight.shape and ((m - 1).abs() < 0.1).all()]
            assert len(near_one) == 7  # 2 embedding norms, 2 encoder and 3 decoder norms
            assert all(((m - 1).abs() > 1e-5).any() for m in near_one)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ([], "32-true"),
        (["--fp16"], "16-mixed"),
        (["--bf16"], "bf16-mixed"),
        (["--tf32"], "32-true"),
        (["--fp16", "--amp_level", "O0"], "32-true"),
        (["--fp16", "--amp_level", "O3"], "16-true"),
        (["--bf16", "--amp_level", "O3"], "bf16-true"),
    ],
)
def test_precision_names(flags: list[str], precision: str) -> None:
    assert precision_of(parse_train_arguments(["--do_train", *flags])) == {"precision": precision}


def test_frozen_parts_do_not_move(tiny: Path) -> None:
    train(tiny, tiny / "start", "--max_steps", 1)
    start = BartForConditionalGeneration.from_pretrained(tiny / "start" / "export").state_dict()
    options = ("--model_name_or_path", tiny / "start" / "export", "--max_steps", 3, "--learning_rate", 1e-2)
    train(tiny, tiny / "embeds", *options, "--freeze_embeds")
    train(tiny, tiny / "encoder", *options, "--freeze_encoder")
    embeds = BartForConditionalGeneration.from_pretrained(tiny / "embeds" / "last.ckpt").state_dict()
    encoder = BartForConditionalGeneration.from_pretrained(tiny / "encoder" / "last.ckpt").state_dict()
    for name, tensor in start.items():
        if name == "final_logits_bias":
            continue
        assert torch.equal(embeds[name], tensor) == ("embed_" in name or "shared" in name or "lm_head" in name), name
        tied = name.endswith("embed_tokens.weight")
        assert torch.equal(encoder[name], tensor) == (name.startswith("model.encoder") and not tied), name


def test_early_stopping_and_validation_with_beams(tiny: Path) -> None:
    options = ("--max_epochs", 30, "--learning_rate", 1e-9, "--early_stopping_patience", 1, "--eval_beams", 2)
    train(tiny, tiny / "run", *options, "--eval_max_gen_length", 5)
    assert json.loads((tiny / "run" / "train_summary.json").read_text())["steps"] < 30 * 6
    assert "val_rouge2" in json.loads((tiny / "run" / "train_summary.json").read_text())


def test_a_run_that_lost_patience_does_not_go_on_when_resumed(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ("--max_epochs", 30, "--learning_rate", 1e-9, "--early_stopping_patience", 1, "--val_metric", "rouge2")
    caplog.set_level(logging.INFO)
    train(tiny, tiny / "run", *options)
    steps = json.loads((tiny / "run" / "train_summary.json").read_text())["steps"]
    assert steps < 30 * 6
    assert "early stopping: val_rouge2 did not get better in 1 validations" in caplog.text
    train(tiny, tiny / "run", *options, "--resume_from_checkpoint", "last")
    assert json.loads((tiny / "run" / "train_summary.json").read_text())["steps"] == steps


def test_validations_after_every_batch_count_each(tiny: Path) -> None:
    train(tiny, tiny / "run", "--max_steps", 3, "--val_check_interval", 0.17, "--save_top_k", 3)
    assert {path.name for path in (tiny / "run").glob("_epoch*")} == {f"_epoch0_step{i}.ckpt" for i in (1, 2, 3)}


def test_sigterm_ends_a_run_with_its_status(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = run_module.SummarizationModule.training_step

    def terminated(self: pl.LightningModule, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(run_module.SummarizationModule, "training_step", terminated)
    with pytest.raises(SystemExit) as stop:
        train(tiny, tiny / "run", "--max_steps", 50)
    assert stop.value.code == 143
    assert not (tiny / "run" / "export").exists()


def test_dataloader_position_before_a_trainer_is_attached(tiny: Path) -> None:
    args = parse_train_arguments([*_OPTIONS[tiny], "--do_train", "--train_batch_size", "4"])
    data = data_of(tiny, args)
    assert sorted(i for batch in data.train_batches() for i in batch) == list(range(22))
