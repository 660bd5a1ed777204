"""Whole runs of run_pretraining.py on tiny shards: two phases, what they leave, and that they go on exactly."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import finetune
import run_pretraining
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration, shift_tokens_right, training_operations
from tests import forked
from tests.fake_cuda.device import needs_compiler
from tests.fake_cuda.training import waits_in_a_step
from tests.tiny_pretraining import PROGRAM, write_tiny_pretraining
from tests.tiny_run import ALIKE, Train, checkpoint_of, compute_in_double, rows, same, weights, write_tiny_run
from tests.tiny_shards import tiny_tokenizer
from tests.utils.training.test_interruption import Interrupt, Killed
from tests.utils.training.test_stopping import add_callback
from utils.data.batches import Batch, Pair
from utils.evaluation.report.charts import training_charts
from utils.evaluation.report.runs import ReportedRun
from utils.recipes.pretraining_arguments import PretrainingArguments, parse_pretraining_arguments
from utils.tasks import pretraining
from utils.training.module import TrainingModule

STEPS = 15  # an epoch has about 11


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    return write_tiny_pretraining(tmp_path)


@pytest.fixture
def pretrain(tiny: list[str], tmp_path: Path, no_pictures: None) -> Train:
    """Pretrains in this process, and gives the run's directory."""

    def run(name: str, *options: object) -> Path:
        run_pretraining.main([*tiny, "--output_dir", str(tmp_path / name), *map(str, options)])
        return tmp_path / name

    return run


@pytest.mark.slow
@needs_compiler
def test_a_step_waits_for_no_gpu(tiny: list[str], tmp_path: Path) -> None:
    options = [*tiny, "--max_steps", 1, "--output_dir", tmp_path / "run"]
    assert waits_in_a_step(options, program="run_pretraining") == [{}]


def parse(*options: object) -> PretrainingArguments:
    return parse_pretraining_arguments([*map(str, options)])


def test_two_phases(pretrain: Train, tiny: list[str], tmp_path: Path) -> None:
    """The second begins with the first one's weights, at twice the length; and its export is fine-tuned."""
    first = pretrain("first", "--max_steps", 40, "--lamb", "--nvlamb", "--learning_rate", 0.05, "--warmup_steps", 1)
    longer = write_tiny_pretraining(tmp_path / "longer", bins=(16, 32, 64))
    files = {path.name for path in first.iterdir()}
    assert {"last.ckpt", "export", "report.html", "train_summary.json", "metrics.csv", "arguments.yaml"} <= files
    for place in (first, first / "last.ckpt", first / "export"):
        weights_only = ("--resume_from_checkpoint", place, "--load_model_weights_only", "--max_steps", 5)
        args = parse(*longer, *weights_only)
        model = args.make_task().initial_model(args.model, None).model
        assert same(dict(model.state_dict()), dict(BartForConditionalGeneration.from_pretrained(place).state_dict()))
    second = pretrain("second", *longer, *weights_only)
    assert (second / "export" / "model.safetensors").is_file()
    # The same command does not start anew what it did; `last` goes on.
    with pytest.raises(InputError, match="holds a run"):
        pretrain("second", *longer, *weights_only)
    for place in (second, second / "last.ckpt", second / "export"):
        with pytest.raises(InputError, match=f"--overwrite_output_dir would remove {place}, whose weights"):
            pretrain("second", *longer, "--overwrite_output_dir", *weights_only[:1], place, *weights_only[2:])
    pretrain("second", *longer, "--max_steps", 6, "--resume_from_checkpoint", "last")
    assert checkpoint_of(second)["global_step"] == 6
    ids = AutoTokenizer.from_pretrained(second / "export")("the dog sat", return_tensors="pt")["input_ids"]
    theirs = AutoModelForSeq2SeqLM.from_pretrained(second / "export").double()
    ours = BartForConditionalGeneration.from_pretrained(second / "export").double()
    assert ours.config.pre_ln
    torch.testing.assert_close(ours(ids, labels=ids).logits, theirs(ids, labels=ids).logits)
    options = write_tiny_run(tmp_path / "texts")
    for name in ("--tokenizer", "--config_path", "--model_name_or_path"):
        place = options.index(name)
        del options[place : place + 2]
    output = str(tmp_path / "fine-tuned")
    options += ["--do_train", "--max_steps", "1", "--model_name_or_path", str(second), "--output_dir", output]
    finetune.main(options)
    runs = (first, second, output)  # the last one reads 40 tokens
    assert [BartConfig.from_pretrained(f"{run}/export").max_source_length for run in runs] == [32, 64, 64]


def test_validation_takes_so_many_examples_and_says_it(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of ten that are held out."""
    monkeypatch.setattr(pretraining, "MOST_HELD_OUT", 6)
    for options, count, said in (([], 6, 1), (["--n_val", 8], 8, 0)):
        task = parse(*tiny, "--max_steps", 1, *options).make_task()
        caplog.clear()
        with caplog.at_level("INFO"):
            assert len(task.encode("val", "val", None)) == count
        assert caplog.messages == ["validation takes 6 of 10 held-out examples; --n_val 10 takes all"][:said]


@pytest.mark.usefixtures("double")
def test_figures_of_held_out_texts_are_those_of_transformers(pretrain: Train, tiny: list[str]) -> None:
    """Of all ten examples at once, with the noise that validation has in every run; they get better."""
    options = ("--max_steps", 40, "--lamb", "--learning_rate", 0.05, "--val_check_interval", 0.5, "--dropout", 0)
    output = pretrain("run", *options)
    start, end = rows(output, "val_loss")
    task = parse(*tiny, "--max_steps", 1, "--seed", 9).make_task()
    examples = task.encode(task.read("val"), "val", None)
    batch = task.collate([examples[number] for number in range(len(examples))], task.tokenizer)
    labels = batch["labels"]
    theirs = AutoModelForSeq2SeqLM.from_pretrained(output / "export", dtype=torch.float64)
    logits = theirs(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=shift_tokens_right(labels, task.tokenizer.pad_token_id, theirs.config.decoder_start_token_id),
    ).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    targets = labels != -100
    accuracy = (logits.argmax(2) == labels)[targets].double().mean().item()
    figures = {"val_loss": loss, "val_accuracy": accuracy, "val_perplexity": math.exp(loss)}
    assert {name: end[name] for name in figures} == pytest.approx(figures, abs=ALIKE * math.exp(loss))
    assert end["val_loss"] < start["val_loss"] and accuracy > 0
    assert json.loads((output / "train_summary.json").read_text())["val_loss"] == end["val_loss"]


def test_what_a_run_says_of_itself(pretrain: Train) -> None:
    output = pretrain("run", "--max_steps", 4, "--lamb", "--learning_rate", 0.05)
    last = rows(output)[-1]
    assert {"grad_norm", "samples_per_second", "tokens_per_second"} <= last.keys()
    text = (output / "export" / "README.md").read_text()
    assert "for denoising, trained from random weights" in text and "42 examples of at most 32 tokens" in text
    assert "accuracy" in text and "| mlm_probability | 0.3 |" in text and str(output.parent) not in text
    summary = json.loads((output / "train_summary.json").read_text())
    assert (summary["steps"], summary["train_examples"]) == (4, 42) and 0.3 < summary["epochs"] < 0.4
    drawn = training_charts(ReportedRun(output))
    assert {"loss", "learning_rate", "validation", "perplexity", "gradient", "throughput"} == {*drawn}
    assert (output / "report.html").is_file()


def test_operations_leave_padding_out(tiny: list[str]) -> None:
    args = parse(*tiny, "--max_steps", 1)
    task = args.make_task()
    model = task.initial_model(args.model, None).model
    pairs = [Pair(np.arange(3, 3 + source), np.arange(3, 3 + target)) for source, target in ((8, 16), (8, 16), (4, 8))]
    batch = Batch(task.collate_rows(pairs, task.tokenizer, 1), [0, 1, 2], tokens=60)
    assert task.operations(model, batch) == 2.5 * training_operations(model.config, 8, 16)


@pytest.mark.parametrize(("step", "how", "workers"), [(11, "killed", 1), (13, "asked", 0)], ids=["epoch", "asked"])
def test_an_interrupted_run_ends_as_the_uninterrupted_one(
    pretrain: Train, step: int, how: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--max_steps", STEPS, "--lamb", "--dropout", 0.1, "--save_checkpoint_steps", 1, "--num_workers", workers)
    options += ("--gradient_accumulation_steps", 2, "--train_batch_size", 2, "--dropout_off_ratio", 0.2)
    options += ("--val_check_interval", 20)
    expected = pretrain("whole", *options)
    with monkeypatch.context() as patch, pytest.raises(Killed if how == "killed" else SystemExit):
        add_callback(patch, Interrupt(how, step, in_validation=False))
        pretrain("run", *options)
    assert checkpoint_of(expected.with_name("run"))["global_step"] == step + (how != "killed")
    output = pretrain("run", *options, "--resume_from_checkpoint", "last")
    assert same(weights(output), weights(expected))
    assert rows(output, "val_loss")[-1] == rows(expected, "val_loss")[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_a_step_does_not_depend_on_how_it_is_cut(pretrain: Train, tiny: list[str], tmp_path: Path) -> None:
    """64 examples at once, one by one, and on 2 processes; the last step has fewer than there are micro-batches."""
    shutil.rmtree(tmp_path / "shards")
    tiny[:] = write_tiny_pretraining(tmp_path, train=50)
    common = ("--max_steps", 4, "--dropout", 0, "--attention_dropout", 0, "--lamb", "--val_check_interval", 1)
    expected = pretrain("whole", *common, "--train_batch_size", 64)
    cuts = {"ones": (1, 64, 1), "two": (8, 4, 2), "two ones": (1, 32, 2)}
    for name, (size, accumulation, ranks) in cuts.items():
        cut = (*common, "--train_batch_size", size, "--gradient_accumulation_steps", accumulation)
        if ranks == 1:
            pretrain(name, *cut)
        else:
            forked.run([*tiny, *cut], tmp_path / name, ranks=ranks, before=compute_in_double, program=PROGRAM)
        torch.testing.assert_close(weights(tmp_path / name), weights(expected), rtol=0, atol=ALIKE)
        for row, other in zip(rows(tmp_path / name), rows(expected), strict=True):
            assert (row["train_loss"], row["grad_norm"]) == pytest.approx(
                (other["train_loss"], other["grad_norm"]), abs=ALIKE, rel=0
            )


def test_dropout_is_off_at_the_end(pretrain: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[float]] = []
    loss = TrainingModule.training_step

    def spy(self: TrainingModule, *arguments: Any) -> Any:
        result = loss(self, *arguments)
        names = ("dropout", "activation_dropout")
        seen.append({getattr(m, name) for m in self.model.modules() for name in names if hasattr(m, name)})
        return result

    monkeypatch.setattr(TrainingModule, "training_step", spy)
    dropouts = ("--dropout", 0.1, "--attention_dropout", 0.2)
    output = pretrain("run", "--max_steps", 10, *dropouts, "--dropout_off_ratio", 0.7)
    assert seen == [{0.0, 0.1, 0.2}] * 3 + [{0.0}] * 7
    assert json.loads((output / "export" / "config.json").read_text())["dropout"] == 0.1


NVIDIAS = """--config_path --data_dir --output_dir --max_source_length --train_batch_size --gradient_accumulation_steps
--learning_rate --lr_scheduler --warmup_steps --max_steps --lamb --nvlamb --pre_ln --load_model_weights_only
--resume_from_checkpoint --save_checkpoint_steps --log_freq --mlm_probability --permute_sentence_ratio --poisson_lambda
--token_mask_ratio --token_delete_ratio --rotate_ratio --weight_decay --gradient_clip_val --dropout --attention_dropout
--dropout_off_ratio --fp16 --bf16 --tf32 --gpus --num_workers --seed --eval_batch_size --val_check_interval --n_val
--activation_checkpointing --strategy --wandb_project""".split()


def test_options(capsys: pytest.CaptureFixture[str], tiny: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    words = capsys.readouterr().out.replace(",", " ").split()
    assert [flag for flag in NVIDIAS if flag not in words] == []
    assert not {"--do_train", "--lora_rank", "--label_smoothing"} & set(words)
    args = parse(*tiny[:2], "--max_steps", 7, "--lamb", "--save_checkpoint_steps", 3, "--log_freq", 2)
    assert (args.run.save_every_n_steps, args.run.log_every_n_steps) == (3, 2)
    assert (args.optimisation.optimizer, args.optimisation.learning_rate) == ("lamb", 5e-3)
    assert args.optimisation.gradient_clip_val == 0.1 and args.make_task().config(args.model).pre_ln
    for name in ("adafactor", "sgd"):  # which have no epsilon of Adam
        assert parse(*tiny, "--max_steps", 7, "--optimizer", name).optimisation.optimizer == name
    weights = ("--load_model_weights_only", "--resume_from_checkpoint", "phase_1")
    for given, rate in (((), 1e-3), (weights, 3e-5), ((*weights, "--lamb"), 5e-3)):  # as the help says
        assert parse(*tiny[:2], "--max_steps", 7, *given).optimisation.learning_rate == rate
    args = parse(*tiny, "--max_steps", 7, "--no_pre_ln")
    assert not args.make_task().config(args.model).pre_ln
    torch.save({"model": {}}, tmp_path / "model.pt")  # weights without a config are as --config_path says
    args = parse(*tiny, "--max_steps", 7, "--model_name_or_path", tmp_path / "model.pt")
    for pre_ln in (False, True):
        smaller_config(tmp_path, pre_ln=pre_ln)
        assert args.make_task().config(args.model).pre_ln is pre_ln


def cut_off(folder: Path) -> None:
    shard = next((folder / "shards" / "train").glob("32-00001.parquet"))
    shard.write_bytes(shard.read_bytes()[:-20])


def another_vocabulary(folder: Path) -> None:
    tiny_tokenizer(280).save_pretrained(folder / "other")


def smaller_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("before", "options", "message"),
    [
        (None, "--max_steps 0", "--max_steps: '0' is not allowed: it takes an integer at least -1, other than 0"),
        (None, "", "--max_steps is not given; allowed: at least 1"),
        (cut_off, "--max_steps 5", "train/32-00001.parquet: the shard is missing, cut off or damaged"),
        (another_vocabulary, "--max_steps 5 --tokenizer FOLDER/other", "its shards are of another vocabulary"),
        (partial(smaller_config, vocab_size=90), "--max_steps 5", "shards' vocabulary has .*vocab_size of .* 90"),
        (partial(smaller_config, max_position_embeddings=16), "--max_steps 5", "length is 32; the model has 16 pos"),
        (None, "--max_steps 5 --load_model_weights_only --resume_from_checkpoint absent/phase_1", "absent/phase_1"),
        (None, "--max_steps 5 --val_metric rouge1", "allowed for --task denoising: loss, accuracy, perplexity"),
        (None, "--max_steps 5 --mlm_probability 0.8 --token_mask_ratio 0.4", "1.2 in all; allowed: 1"),
    ],
)  # fmt: skip
def test_bad_input(
    before: Callable[[Path], None] | None,
    options: str,
    message: str,
    pretrain: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if before is not None:
        before(tmp_path)
    with pytest.raises((InputError, SystemExit)) as error:
        pretrain("run", *options.replace("FOLDER", str(tmp_path)).split())
    told = str(error.value) if isinstance(error.value, InputError) else capsys.readouterr().err.strip()
    assert re.search(message, told), told
    assert "\n" not in told
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_a_second_phase_that_does_not_fit_the_first(pretrain: Train, tmp_path: Path) -> None:
    first = pretrain("first", "--max_steps", 1)
    weights_only = ("--max_steps", 2, "--load_model_weights_only", "--resume_from_checkpoint", first)
    with pytest.raises(InputError, match="its pre_ln is True, this run's is False"):
        pretrain("run", *weights_only, "--no_pre_ln")
    with pytest.raises(InputError, match="that of the shards is another vocabulary"):
        pretrain("run", *weights_only, *write_tiny_pretraining(tmp_path / "b", tokenizer=tiny_tokenizer(290)))
    smaller_config(tmp_path, d_model=32)
    with pytest.raises(InputError, match="its d_model is 16, this run's is 32"):
        pretrain("run", *weights_only)
    with pytest.raises(InputError, match="its d_model is 16, this run's is 32"):
        pretrain("first", "--max_steps", 3, "--resume_from_checkpoint", "last")
