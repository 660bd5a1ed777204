"""Whole runs of run_pretraining.py --task mlm_nsp on tiny shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForPreTraining

import run_pretraining
from bart.errors import InputError
from tests import forked
from tests.fake_cuda.device import needs_compiler
from tests.fake_cuda.training import waits_in_a_step
from tests.tiny_pretraining import PROGRAM, write_tiny_pretraining
from tests.tiny_run import ALIKE, Train, compute_in_double, rows, weights
from utils.data.shard_format import MLM_NSP
from utils.data.shards import Manifest, read_shards
from utils.recipes.pretraining_arguments import parse_pretraining_arguments


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    return write_tiny_pretraining(tmp_path, MLM_NSP)


@pytest.fixture
def pretrain(tiny: list[str], tmp_path: Path, no_pictures: None) -> Train:
    def run(name: str, *options: object) -> Path:
        run_pretraining.main([*tiny, "--output_dir", str(tmp_path / name), *map(str, options)])
        return tmp_path / name

    return run


@pytest.mark.usefixtures("double")
def test_figures_of_held_out_pairs_are_those_of_transformers(pretrain: Train, tiny: list[str], tmp_path: Path) -> None:
    """The loss of all ten, and how often the masked tokens and the next sentences are right."""
    output = pretrain("run", "--max_steps", 20, "--lamb", "--learning_rate", 0.05, "--val_check_interval", 0.5)
    task = parse_pretraining_arguments([*tiny, "--max_steps", "1", "--seed", "9"]).make_task()
    examples = task.encode(task.read("val"), "val", None)
    batch = task.collate([examples[number] for number in range(len(examples))], task.tokenizer)
    theirs = BertForPreTraining.from_pretrained(output / "export", dtype=torch.float64)
    positions = batch.pop("masked_positions")
    assert positions.shape[1] == task.most
    expected = theirs(**batch)
    masked = batch["labels"] != -100
    right = (expected.prediction_logits.argmax(2) == batch["labels"])[masked].double().mean()
    related = (expected.seq_relationship_logits.argmax(1) == batch["next_sentence_label"]).double().mean()
    found = rows(output, "val_loss")[-1]
    assert found["val_loss"] == pytest.approx(expected.loss.item(), abs=ALIKE)
    assert (found["val_accuracy"], found["val_next_sentence_accuracy"]) == pytest.approx((right.item(), related.item()))
    assert found["val_loss"] < rows(output, "val_loss")[0]["val_loss"]
    manifest = Manifest.read(tmp_path / "shards")
    stored = list(read_shards(manifest.directory, manifest.shards("val")))
    assert batch["token_type_ids"].sum(1).tolist() == [int(row.sentences[1]) + 1 for row in stored]
    assert batch["next_sentence_label"].tolist() == [row.label for row in stored]


@pytest.mark.parametrize(
    ("options", "width"),
    [
        (("--max_predictions_per_seq", 1, "--whole_word_mask"), None),  # a long word has more
        (("--max_predictions_per_seq", 500), None),
        (("--max_predictions_per_seq", 7, "--mlm_probability", 0.01), 7),
    ],
    ids=str,
)
def test_all_masked_tokens_are_among_the_positions(
    tiny: list[str], options: tuple[Any, ...], width: int | None
) -> None:
    task = parse_pretraining_arguments([*tiny, "--max_steps", "1", *map(str, options)]).make_task()
    examples = task.encode(task.read("val"), "val", None)
    batch = task.collate([examples[number] for number in range(len(examples))], task.tokenizer)
    is_masked = batch["labels"] != -100
    positions = batch["masked_positions"]
    assert is_masked.gather(1, positions).sum() == is_masked.sum()
    if width is None:
        width = is_masked.shape[1] if 500 in options else int(is_masked.sum(1).max())
        assert width > 1
    assert positions.shape == (len(examples), width)


@pytest.mark.slow
@needs_compiler
def test_a_step_waits_for_no_gpu(tiny: list[str], tmp_path: Path) -> None:
    options = [*tiny, "--max_steps", 1, "--output_dir", tmp_path / "run"]
    assert waits_in_a_step(options, program="run_pretraining") == [{}]


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_a_step_does_not_depend_on_how_it_is_cut(pretrain: Train, tiny: list[str], tmp_path: Path) -> None:
    """At once, one by one, and on 2 processes: both means are those of the whole step."""
    common = ("--max_steps", 4, "--dropout", 0, "--attention_dropout", 0, "--val_check_interval", 1)
    expected = pretrain("whole", *common, "--train_batch_size", 16)
    for name, size, accumulation, ranks in (("ones", 1, 16, 1), ("two", 4, 2, 2)):
        cut = (*common, "--train_batch_size", size, "--gradient_accumulation_steps", accumulation)
        if ranks == 1:
            pretrain(name, *cut)
        else:
            forked.run([*tiny, *cut], tmp_path / name, ranks=ranks, before=compute_in_double, program=PROGRAM)
        torch.testing.assert_close(weights(tmp_path / name), weights(expected), rtol=0, atol=ALIKE)
        assert [row["train_loss"] for row in rows(tmp_path / name)] == pytest.approx(
            [row["train_loss"] for row in rows(expected)], abs=ALIKE, rel=0
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--task", "denoising"], "are for mlm_nsp"), (["--poisson_lambda", "3"], "poisson_lambda")],
)
def test_what_is_refused(options: list[str], message: str, pretrain: Train, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((InputError, SystemExit)) as error:
        pretrain("run", "--max_steps", 1, *options)
    assert message in f"{error.value} {capsys.readouterr().err}"
