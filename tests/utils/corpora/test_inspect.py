from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from rouge_score.rouge_scorer import RougeScorer

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_shards import write_tiny_shards
from utils.corpora.inspect import describe, drawn, inspect, length_chart, length_facts, main
from utils.corpora.sample_corpus import write_sample_corpus

LIMITS = {"source": [40, 160], "target": [20, 64]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus, with its vocabulary."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sample_corpus(folder, {"train": 1100, "val": 50, "test": 60})
    texts = (folder / "train.source").read_text(encoding="utf-8").split("\n")
    BartTokenizer.train(texts, 600).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture
def tokenizer(corpus: Path) -> Iterator[BartTokenizer]:
    return BartTokenizer.from_pretrained(corpus / "tokenizer")


def write_splits(folder: Path, **splits: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for split, pairs in splits.items():
        for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return folder


def test_lengths_are_those_of_the_tokenizer(corpus: Path, tokenizer: BartTokenizer) -> None:
    facts, lengths = inspect(corpus, tokenizer, LIMITS)
    for split, count in (("train", 1100), ("val", 50), ("test", 60)):
        for side in ("source", "target"):
            lines = (corpus / f"{split}.{side}").read_text(encoding="utf-8").split("\n")[:-1]
            expected = np.array([len(tokenizer(line)["input_ids"]) for line in lines])
            of_side = facts["splits"][split][side]
            assert lengths[split][side].tolist() == expected.tolist()
            assert facts["splits"][split]["examples"] == count
            assert of_side["mean"] == expected.mean()
            for limit in LIMITS[side]:
                cut = [len(tokenizer(line, max_length=limit, truncation=True)["input_ids"]) for line in lines]
                assert of_side["over"][str(limit)] == sum(cut != expected)


def test_percentiles_of_known_lengths() -> None:
    facts = length_facts(np.arange(3, 104), [103, 102, 3])
    assert facts["mean"] == 53 and (facts["min"], facts["max"]) == (3, 103)
    assert facts["percentiles"] == {str(p): p + 3 for p in (1, 5, 25, 50, 75, 90, 95, 99)}
    assert facts["over"] == {"103": 0, "102": 1, "3": 100}


def test_repeats_and_overlap(tmp_path: Path, tokenizer: BartTokenizer) -> None:
    folder = write_splits(
        tmp_path,
        train=[("a b", "x"), ("a b", "x"), ("a b", "y"), ("c\u2028d", "z"), ("e", "p"), ("...", "q")],
        val=[("a  b", "v"), ("E", "x")],
        test=[("a b", "x"), ("a b", "w"), ("e", "p"), ("!!!", "v"), ("new", "new")],
    )
    facts, _ = inspect(folder, tokenizer, LIMITS)
    counts = {(row["examples_of"], row["in"]): tuple(row.values())[2:] for row in facts["repeats"]}
    # Sources, targets, and both.
    assert counts == {
        ("train", "train"): (2, 1, 1),
        ("val", "train"): (0, 1, 0),
        ("test", "train"): (3, 2, 2),
        ("val", "val"): (0, 0, 0),
        ("test", "val"): (0, 2, 0),
        ("test", "test"): (1, 0, 0),
    }
    row = r"^source +2 \(33.3 %\) +0 +3 \(60.0 %\) +0 +0 +1 \(20.0 %\)$"
    assert re.search(row, describe(facts, "x"), re.MULTILINE)


def test_examples_are_drawn_from_all_lines(corpus: Path) -> None:
    lines = [(corpus / f"test.{side}").read_text().split("\n") for side in ("source", "target")]
    first = drawn(corpus, "test", 60, 10)
    assert len({line for line, _, _ in first}) == 10 and first[-1][0] > 30
    assert all((lines[0][line - 1], lines[1][line - 1]) == (source, target) for line, source, target in first)
    assert [line for line, _, _ in drawn(corpus, "test", 60, 99)] == list(range(1, 61))


def test_baselines_are_those_of_the_package(corpus: Path, tokenizer: BartTokenizer) -> None:
    facts, _ = inspect(corpus, tokenizer, LIMITS, rouge_examples=20)
    assert facts["sample"] == {"split": "test", "examples": 20, "rouge_mode": "rouge-score"}
    pairs = [(source, target) for _, source, target in drawn(corpus, "test", 60, 20)]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    systems = {
        # This corpus has no abbreviations.
        "first 1 sentence": [source.split(". ")[0] for source, _ in pairs],
        "first 2 sentences": [". ".join(source.split(". ")[:2]) for source, _ in pairs],
        "first 3 sentences": [". ".join(source.split(". ")[:3]) for source, _ in pairs],
    }
    for name, summaries in systems.items():
        scores = [scorer.score(target, text) for (_, target), text in zip(pairs, summaries, strict=True)]
        for kind in ("rouge1", "rouge2", "rougeL"):
            expected = 100 * np.mean([score[kind].fmeasure for score in scores])
            assert facts["rouge"][name][kind] == pytest.approx(expected, abs=1e-9), name
    *leads, best = facts["rouge"].values()
    assert all(best["rouge1"] + best["rouge2"] > lead["rouge1"] + lead["rouge2"] for lead in leads)


def test_command(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokenizer", str(corpus / "tokenizer"), "--max-target-length", "20"]
    options += ["--max_source_length", "160", "40"]
    files = ["--json", str(tmp_path / "facts.json"), "--picture", str(tmp_path / "lengths.png")]
    main([*options, *files, "--rouge_examples", "30", str(corpus)])
    text = capsys.readouterr().out
    facts = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    lines = text.splitlines()
    assert lines[0].endswith(": 1,100 train, 50 val, 60 test examples")
    assert max(len(line) for line in lines[1:] if str(corpus) not in line) <= 100
    [head] = [line for line in lines if line.startswith("length in tokens")]
    assert head.split()[3:] == ["mean", "min", *"1 % 5 % 25 % 50 % 75 % 90 % 95 % 99 %".split(), "max"]
    assert {len(line) for line in lines if line.startswith(("source, ", "target, "))} == {len(head)}
    over = facts["splits"]["train"]["source"]["over"]["40"]
    [cut] = [line for line in lines if line.startswith("sources at 40")]
    assert f" {over:,} ({100 * over / 1100:.1f} %)" in cut
    assert "on 30 of 60 test examples" in text
    assert f"{facts['rouge']['first 3 sentences']['rouge2']:.2f}" in text
    assert [line for line in lines if line.startswith("Example ")] == [
        f"Example {number}, train, line {example['line']:,}" for number, example in enumerate(facts["examples"], 1)
    ]


def test_a_single_split_and_odd_texts(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_splits(tmp_path / "data", val=[("\x1b[31mred\u2028text " + "long " * 500, "🎉"), ("-", "-")])
    main([str(folder), "--tokenizer", str(corpus / "tokenizer")])
    text = capsys.readouterr().out
    assert ": 2 val examples\n" in text
    assert "\x1b" not in text and "\u2028" not in text
    assert "... (2,514 characters)" in text


def test_a_picture_shows_limits_that_are_near() -> None:
    rng = random.Random(0)
    lengths = {name: np.array([rng.randint(10, 99) for _ in range(n)] + [5000]) for name, n in (("a", 900), ("b", 300))}
    chart = length_chart({name: {"source": values} for name, values in lengths.items()}, "source", [60, 128, 1024])
    assert chart.marks == [("60", 60.0), ("128", 128.0)]
    assert chart.x_label == "tokens (longer texts count as 99)"
    for series in chart.series:
        values = np.minimum(lengths[series.name], 99)
        for low, high, share in zip(series.x[:-1], series.x[1:], series.y, strict=True):
            assert share == pytest.approx(100 * np.mean((values >= low) & (values < high)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "data directory nowhere: none of {train,val,test}"),
        (["{empty}"], r"none of {train,val,test}.{source,target} is there; utils.corpora.prepare makes them of tables"),
        (["{half}"], r"val\.target: no such file; a data directory holds"),
        (["{blank}"], r"train\.target, line 2: blank line"),
        (["{uneven}"], r"train\.source has 3 lines, .*train\.target has 2"),
        (["--json", "nowhere/a.json"], "--json is 'nowhere/a.json'; allowed: a file in a directory"),
        (["--json", "/proc/x"], r"^--json /proc/x: cannot be written \(No such file or directory\)$"),
        (["--json", "a" * 256], r"^--json a{256}: cannot be written \(File name too long\)$"),
        (["--picture", "{empty}"], "--picture is .*; allowed: a file in a directory that exists"),
        (["--tokenizer", "./nothing"], r"\./nothing: no such file or folder"),
    ],
)
def test_bad_input(options: list[str], message: str, corpus: Path, tmp_path: Path) -> None:
    places = {name: str(write_splits(tmp_path / name)) for name in ("empty", "half", "blank", "uneven")}
    (tmp_path / "half" / "val.source").write_text("a\n")
    for name, targets in (("blank", "a\n \nc\n"), ("uneven", "a\nb\n")):
        (tmp_path / name / "train.source").write_text("a\nb\nc\n")
        (tmp_path / name / "train.target").write_text(targets)
    options = [option.format(**places) if option.startswith("{") else option for option in options]
    folder = [] if not options[0].startswith("--") else [str(corpus)]
    vocabulary = [] if "--tokenizer" in options else ["--tokenizer", str(corpus / "tokenizer")]
    with pytest.raises(InputError, match=message):
        main([*folder, *options, *vocabulary])


def test_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_shards(tmp_path, bins=(16, 48))
    main([str(tmp_path), "--json", str(tmp_path / "facts.json")])
    text, facts = capsys.readouterr().out, json.loads((tmp_path / "facts.json").read_text())
    rows = [row for path in tmp_path.glob("train/*") for row in parquet.read_table(path).to_pylist()]
    counted = {row["bin"]: row for row in facts["bins"] if row["split"] == "train"}
    assert sum(row["examples"] for row in counted.values()) == len(rows)
    of_bin = [row for row in rows if len(row["ids"]) > 14]
    assert counted[48]["filled"] == sum(len(row["ids"]) + 2 for row in of_bin) / (48 * len(of_bin))
    assert re.search(rf"^train +48 +2 +{len(of_bin)} +{sum(len(row['ids']) for row in of_bin):,} ", text, re.MULTILINE)
    assert "52 documents of 0 files; left out: none" in text
    assert "".join(facts["example"]).count(".") >= len(facts["example"]) - 1
    assert "<mask>" in facts["corrupted"] and facts["corrupted"].strip() in text
    for option, value in (("--max_source_length", "64"), ("--picture", str(tmp_path / "lengths.png"))):
        with pytest.raises(InputError, match=f"{option}: is of use with data directories, not with shards"):
            main([str(tmp_path), option, value])
    (tmp_path / "train/48-00000.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="train/48-00000.parquet: the shard is cut off or damaged"):
        main([str(tmp_path)])
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="manifest.json: not a manifest of shards"):
        main([str(tmp_path)])
