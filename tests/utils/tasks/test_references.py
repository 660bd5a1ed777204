"""Tables whose sources are lists of sentences and whose targets are lists of references, as SciTLDR's."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import finetune
from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from tests.tiny_run import write_tiny_run
from utils.corpora.prepare import PrepareOptions, prepare
from utils.data.columns import columns_of_pairs
from utils.data.options import Place
from utils.metrics.rouge import rouge
from utils.recipes.data import with_table_prepared
from utils.tasks.options import SummarizationOptions
from utils.tasks.summarization import Summarization

ROWS = [
    {"source": [f"The cat {number} ran over the hill.", "A dog sat.\n"], "target": [f"cat {number} ran", "a\ndog sat"]}
    for number in range(6)
]
SOURCE, TARGET = "The cat 0 ran over the hill. A dog sat.", '["cat 0 ran", "a dog sat"]'


def write_tables(folder: Path) -> Path:
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def test_scoring_reads_the_targets_that_training_read(tmp_path: Path) -> None:
    row = {"article": "a", "highlights": "no", "gist": "yes"}
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    place = Place(str(tmp_path))
    task = with_table_prepared(Summarization(place, SummarizationOptions(target_field="gist")))
    columns = task.learn({"train": task.read("train")})
    scored = Summarization(place).as_trained(BartConfig(columns=columns))
    assert with_table_prepared(scored).read("test", for_scoring=True) == (["a"], ["yes"])
    with pytest.raises(InputError, match="no column 'gist', which training read; name one with --target_field"):
        columns_of_pairs({"article", "summary"}, scored.pair_fields, "")


def test_training_takes_the_first_and_scores_take_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    caplog.set_level(logging.INFO)
    options = write_tiny_run(tmp_path)
    options[options.index("--data_dir") + 1] = str(write_tables(tmp_path / "tables"))
    run = tmp_path / "run"
    finetune.main([*options, "--do_train", "--do_predict", "--max_steps", "2", "--output_dir", str(run)])
    log = caplog.text
    for split in ("train", "val", "test"):
        assert f"6 of 6 targets of the {split} split are lists of references: the loss is that of the first" in log
    texts = (run / "test_generations.txt").read_text().removesuffix("\n").split("\n")
    scores = json.loads((run / "test_scores.json").read_text())
    expected = rouge(texts, [json.dumps(row["target"]) for row in ROWS])
    assert {name: scores[name] for name in expected} == expected
    assert scores["rouge1_mean"] <= scores["rouge1"] and "rouge1_mean" in scores["baselines"]["first 1 sentence"]
    page = (run / "report.html").read_text()
    assert "ROUGE-1 maximum" in page and "ROUGE-1 mean" in page and "cat 0 ran\\na dog sat" in page
    article = json.loads((run / "test_articles.jsonl").read_text().splitlines()[0])
    assert (article["source"], article["reference"]) == (SOURCE, "cat 0 ran")
    assert article["references"] == ["cat 0 ran", "a dog sat"]
    # The loss is that of the same data with the first references alone.
    single = tmp_path / "single"
    single.mkdir()
    for split in ("train", "val", "test"):
        (single / f"{split}.source").write_text("".join(" ".join(row["source"]).strip() + "\n" for row in ROWS))
        (single / f"{split}.target").write_text("".join(row["target"][0] + "\n" for row in ROWS))
    options[options.index("--data_dir") + 1] = str(single)
    other = tmp_path / "other"
    finetune.main([*options, "--do_train", "--do_predict", "--max_steps", "2", "--output_dir", str(other)])
    assert json.loads((other / "test_scores.json").read_text())["loss"] == scores["loss"]


def test_a_folder_of_tables_keeps_its_splits(tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "tables")
    prepare(PrepareOptions((str(tables),), tmp_path / "data"))
    for split in ("train", "val", "test"):
        lines = [(tmp_path / "data" / f"{split}.{side}").read_text().splitlines() for side in ("source", "target")]
        assert [each[0] for each in lines] == [SOURCE, TARGET]
        assert [*map(len, lines)] == [6, 6]


def test_a_list_of_no_references_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    options = write_tiny_run(tmp_path)
    (tmp_path / "data" / "val.target").write_text('a\n"b"\n["a", ["b"]]\nc\nd\n')
    with pytest.raises(InputError, match=r"val.target, line 3: the target .* is a list; allowed: a text, or a list"):
        finetune.main([*options, "--do_train", "--max_steps", "2", "--output_dir", str(tmp_path / "run")])
