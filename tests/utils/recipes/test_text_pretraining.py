"""Whole runs of run_pretraining.py that go on from weights, on folders of text."""

from __future__ import annotations

import json
import logging
import math
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import finetune
import run_pretraining
from bart.errors import InputError
from bart.modeling.modeling_bart import shift_tokens_right
from tests.tiny_run import ALIKE, OF_BERT, SIZES, Train, rows, same, weights
from tests.tiny_shards import WORDS, tiny_tokenizer
from utils.corpora import make_shards
from utils.corpora.shard_options import MakeShardsOptions
from utils.data.shard_format import DENOISING, MLM, MLM_NSP
from utils.data.shards import Manifest, read_shards
from utils.recipes.pretraining_arguments import parse_pretraining_arguments

NETWORKS = {MLM: transformers.BertForMaskedLM, DENOISING: transformers.BartForConditionalGeneration}


def sentences(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"{' '.join(rng.choices(WORDS, k=rng.randint(3, 9)))}." for _ in range(6)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of BERT and BART in transformers' files, `texts` of two kinds of files, and what cannot be read."""
    folder = tmp_path_factory.mktemp("stored")
    for task, network in NETWORKS.items():
        tokenizer = tiny_tokenizer(task=task)
        sizes = {**OF_BERT, "hidden_dropout_prob": 0.0} if task == MLM else {**SIZES, "init_std": 0.1, "dropout": 0.0}
        torch.manual_seed(0)
        theirs = network(network.config_class(**sizes, vocab_size=len(tokenizer), forced_eos_token_id=None))
        theirs.save_pretrained(folder / task)
        tokenizer.save_pretrained(folder / task)
    theirs = transformers.BertForMaskedLM.from_pretrained(folder / MLM)
    theirs.bert.save_pretrained(folder / "headless")
    tiny_tokenizer(task=MLM).save_pretrained(folder / "headless")
    tiny_tokenizer(290).save_pretrained(folder / "vocabulary")
    for name in ("texts/inner", "one"):
        (folder / name).mkdir(parents=True)
    documents = [" ".join(sentences(number)) for number in range(20)]
    (folder / "texts/a.txt").write_text("\n\n".join(documents[:12]))
    lines = [json.dumps({"body": text, "text": text}) for text in documents[12:]]
    (folder / "texts/inner/b.jsonl").write_text("\n".join(lines))
    (folder / "one/a.txt").write_text(documents[0])
    return folder


@pytest.fixture
def place(stored: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stored, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def pretrain(place: Path, no_pictures: None) -> Callable[..., Path]:
    def run(name: str, task: str, *options: object) -> Path:
        run_pretraining.main([*words_of(place, task), "--output_dir", str(place / name), *map(str, options)])
        return place / name

    return run


def words_of(place: Path, task: str) -> list[str]:
    given = {"task": task, "model_name_or_path": place / task, "data_dir": place / "texts", "max_steps": 12}
    given |= {"gpus": 0, "num_workers": 0, "train_batch_size": 4, "max_source_length": 32, "learning_rate": 0.01}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def figures_of_transformers(place: Path, task: str, batch: dict[str, Any], model: Path) -> dict[str, float]:
    theirs = NETWORKS[task].from_pretrained(model, dtype=torch.float64)
    labels, inputs = batch["labels"], {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if task == MLM:
        output = theirs(**inputs, labels=labels)
        loss, logits = output.loss, output.logits
    else:
        config = theirs.config
        shifted = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
        logits = theirs(**inputs, decoder_input_ids=shifted).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    right = (logits.argmax(2) == labels)[labels != -100].double().mean().item()
    return {"val_loss": loss.item(), "val_accuracy": right, "val_perplexity": math.exp(loss.item())}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("task", "more"), [(MLM, ["--whole_word_mask"]), (DENOISING, [])])
def test_figures_before_and_after_are_those_of_transformers(
    task: str, more: list[str], pretrain: Train, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the weights at step 0, and of the export at the end; and the export is fine-tuned."""
    more = [*more, "--val_ratio", "0.2"]
    with caplog.at_level(logging.INFO):
        output = pretrain("run", task, *more, "--val_check_interval", 1)
    task_of_run = parse_pretraining_arguments([*words_of(place, task), *more]).make_task()
    examples = task_of_run.encode(task_of_run.read("val"), "val", None)
    batch = task_of_run.collate([examples[number] for number in range(len(examples))], task_of_run.tokenizer)
    start, end = rows(output, "val_loss")
    for found, model in ((start, place / task), (end, output / "export")):
        figures = figures_of_transformers(place, task, batch, model)
        assert {name: found[name] for name in figures} == pytest.approx(figures, abs=ALIKE * 1e3)
    assert end["val_loss"] < start["val_loss"]
    assert (start["step"], end["step"]) == (-1, 11)  # files count steps from 0
    assert "begin with random weights" not in caplog.text and "val 0  loss" in caplog.text
    (place / "lines").mkdir()
    for split in ("train", "val"):
        (place / "lines" / f"{split}.csv").write_text("text,label\n" + "the dog sat,yes\nold men ran,no\n" * 4)
    given = ["--task", "classification", "--data_dir", place / "lines", "--model_name_or_path", output]
    finetune.main([*map(str, given), "--do_train", "--max_steps", "1", "--gpus", "0", "--output_dir", str(place / "b")])


def test_runs_on_the_same_text(pretrain: Train, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run without a head in its weights; it goes on by the same command, and ends as one that was not broken off."""
    options = ("headless", MLM, "--model_name_or_path", place / "headless", "--dropout", 0.1)
    with caplog.at_level(logging.INFO):
        whole = pretrain("whole", *options[1:])
    assert "begin with random weights: cls.predictions" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for steps in (5, 12):
            more = ("--lr_scheduler", "constant", "--resume_from_checkpoint", "last", "--max_steps", steps)
            output = pretrain("run", *options[1:], *more)
    assert caplog.text.count("val 0  loss") == 1
    same_schedule = pretrain("at_once", *options[1:], "--lr_scheduler", "constant")
    assert same(weights(output), weights(same_schedule)) and not same(weights(output), weights(whole))


def shards_of(place: Path, task: str, *options: object) -> Manifest:
    return parse_pretraining_arguments([*words_of(place, task), *map(str, options)]).make_task().manifest


def test_shards_are_made_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew for another text, vocabulary, length, share or field; the documents held out are in no other example."""
    made: list[str] = []
    make = make_shards.make_shards

    def noted(options: MakeShardsOptions, tokenizer: object) -> None:
        made.append(options.task)
        make(options, tokenizer)

    monkeypatch.setattr(make_shards, "make_shards", noted)
    first = shards_of(place, DENOISING)
    read = [
        [row.ids.tolist() for row in read_shards(first.directory, first.shards(split))] for split in ("train", "val")
    ]
    tokenizer = tiny_tokenizer()
    texts = [" ".join(tokenizer.batch_decode(examples)) for examples in read]
    for number in range(20):
        inside = [sentences(number)[0][:-1] in text for text in texts]
        assert sorted(inside) == [False, True], number
    assert len(read[1]) < len(read[0]) / 5
    assert shards_of(place, DENOISING, "--seed", 7).directory == first.directory and len(made) == 1
    others = [
        *(shards_of(place, MLM), shards_of(place, MLM_NSP, "--model_name_or_path", place / MLM)),
        shards_of(place, DENOISING, "--val_ratio", 0.5),
        shards_of(place, DENOISING, "--max_source_length", 24),
        shards_of(place, DENOISING, "--text_field", "body"),
        shards_of(place, DENOISING, "--cache_dir", place / "cache"),
    ]
    assert len({first.directory, *(other.directory for other in others)}) == len(made) == 7
    (place / "texts/a.txt").write_text("\n\n".join(" ".join(sentences(number)) for number in range(30)))
    again = shards_of(place, DENOISING)
    assert again.directory != first.directory and len(made) == 8
    assert again.values["documents"]["kept"] == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data_dir PLACE/one", "--data_dir .*one: no text is left to train on; documents of all: 1, and an"),
        ("--model_name_or_path PLACE/mlm", "--task denoising: .*config.json: model_type 'bert'; allowed: 'bart'"),
        ("--tokenizer PLACE/vocabulary", "vocabulary is another vocabulary .290 ids. than that of"),
        ("--model_name_or_path nowhere", "nowhere"),
        ("--max_source_length 9", "--min_tokens is 8; allowed with this --max_source_length: at most 3"),
        ("--max_source_length 65", "--max_source_length is 65; the model has 64 positions"),
        ("--text_field body --data_dir PLACE/texts/inner/b.jsonl --val_ratio 0", "--val_ratio: '0' is not allowed"),
        (
            "--text_field title --data_dir PLACE/texts/inner/b.jsonl",
            "no text is left to train on, 8 no text in the field",
        ),
        ("--pre_ln", "--model_name_or_path .*: its pre_ln is False, this run's is True"),
    ],
)
def test_bad_input(
    options: str, message: str, pretrain: Train, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((InputError, SystemExit)) as error:
        pretrain("run", DENOISING, *options.replace("PLACE", str(place)).split())
    line = str(error.value) if isinstance(error.value, InputError) else capsys.readouterr().err.strip()
    assert re.search(message, line), line
    assert "\n" not in line
    assert not (place / "run" / "last.ckpt").exists()


def test_options_about_text_are_refused_with_shards(place: Path) -> None:
    folder = shards_of(place, MLM).directory
    for name, value in (("val_ratio", 0.1), ("text_field", "body"), ("cache_dir", place)):
        with pytest.raises(InputError, match=f"--{name} is .*, which is about text; --data_dir {folder} holds shards"):
            shards_of(place, MLM, "--data_dir", folder, f"--{name}", value)
    assert shards_of(place, MLM, "--data_dir", folder).directory == folder
    with pytest.raises(InputError, match="to read it as text, give --model_name_or_path"):
        words = ["--data_dir", str(place / "texts"), "--max_steps", "1"]
        parse_pretraining_arguments(words).make_task()
