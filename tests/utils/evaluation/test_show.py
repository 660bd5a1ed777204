from __future__ import annotations

import json
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.show import ShowArguments, describe, main
from utils.metrics.rouge import rouge

ARTICLES = [
    "Rain fell on Monday. The mayor Ann Lee spoke. Bridges were closed.",
    "A cat sat down. A dog ran off. Birds flew over the hill to the sea.",
    "One. Two words. Three words here. Four words are here.",
    "Prices rose by 3.5 per cent. Shops shut early. Nobody knew why.",
]
REFERENCES = ["Ann Lee closes bridges.", "Cat sits, dog runs.", "Words are counted.", "Shops shut as prices rise."]
BASELINE = {"rouge1": 12.5, "rouge2": 6.25, "rougeL": 10.0, "rougeLsum": 11.0}
SUMMARIES = ["Bridges closed by Ann Lee.", "", "Words\u2028are here.", "Shops shut."]


def write_run(folder: Path, articles: list[str], **scores: object) -> Path:
    """A scored run, as run_eval.py leaves it."""
    folder.mkdir(exist_ok=True)
    rows = [
        {"source": article, "reference": reference, "summary": summary}
        for article, reference, summary in zip(articles, REFERENCES, SUMMARIES, strict=True)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "test_articles.jsonl").write_text(lines, encoding="utf-8")
    (folder / "test_scores.json").write_text(json.dumps({"generation": {"num_beams": 4}, **scores}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    scores = rouge(SUMMARIES, REFERENCES)
    baselines = {"first 1 sentence": BASELINE}
    return write_run(tmp_path / "results", ARTICLES, rouge_mode="rouge-score", **scores, baselines=baselines)


def test_table_holds_the_baselines_and_the_model_in_aligned_columns(run: Path) -> None:
    lines = describe(ShowArguments(str(run))).splitlines()
    assert lines[0] == "ROUGE F in percent (rouge-score) on 4 test articles"
    header, *rows = lines[2:5]
    assert header.split() == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]
    assert len({len(line) for line in (header, *rows)}) == 1
    named = {"first 1 sentence": BASELINE, "this model, 4 beams": rouge(SUMMARIES, REFERENCES)}
    for row, (name, scores) in zip(rows, named.items(), strict=True):
        assert row.startswith(name)
        assert row.split()[-4:] == [f"{score:.2f}" for score in scores.values()]


def test_examples_are_the_first_three_within_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    articles = [f"{line} {'word ' * 40}end" for line in ARTICLES]
    run = write_run(tmp_path / "results", articles, rouge_mode="rouge-score", **rouge(SUMMARIES, REFERENCES))
    main([str(run)])
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if not line.startswith("Results lie in")) <= 80
    assert [line for line in text.splitlines() if line.startswith("Example")] == [f"Example {n}" for n in (1, 2, 3)]
    assert "summary    Bridges closed by Ann Lee.\nreference  Ann Lee closes bridges.\n" in text
    assert "\nsummary\nreference  Cat sits, dog runs.\n" in text
    assert REFERENCES[3] not in text
    assert text.endswith(f"Results lie in {run}\n")


def test_a_run_of_a_former_version_has_no_baselines(tmp_path: Path) -> None:
    run = write_run(tmp_path / "results", ARTICLES, rouge_mode="rouge-score", **rouge(SUMMARIES, REFERENCES))
    text = describe(ShowArguments(str(run)))
    assert "this model, 4 beams" in text and "first 1 sentence" not in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_scores.json", None, "test_scores.json: cannot be read"),
        ("test_articles.jsonl", None, "test_articles.jsonl: no such file"),
        ("test_scores.json", b"{", "test_scores.json: not valid JSON"),
        ("test_scores.json", b"[]", "test_scores.json: holds a JSON list"),
        ("test_scores.json", b"{}", "has no ROUGE"),
        ("test_articles.jsonl", b"{}\n", "damaged .*source"),
        ("test_articles.jsonl", b"\xff\n", "line 1: not UTF-8"),
    ],
)
def test_missing_or_damaged_results_are_one_line(run: Path, name: str, content: bytes | None, message: str) -> None:
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        describe(ShowArguments(str(run)))
    assert "\n" not in str(error.value)


def test_data_cannot_send_commands_to_the_terminal(tmp_path: Path) -> None:
    articles = ["\x1b[2J\x1b]0;title\x07 Rain\tfell.\x9b31m", *ARTICLES[1:]]
    run = write_run(tmp_path / "results", articles, rouge_mode="rouge-score", **rouge(SUMMARIES, REFERENCES))
    text = describe(ShowArguments(str(run)))
    assert "article    \ufffd[2J\ufffd]0;title\ufffd Rain fell.\ufffd31m" in text
    assert all(line.isprintable() for line in text.split("\n"))
