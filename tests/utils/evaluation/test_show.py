from __future__ import annotations

import json
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.evaluation.rouge import rouge
from utils.evaluation.show import describe, lead, main, read_results

ARTICLES = [
    "Rain fell on Monday. The mayor Ann Lee spoke. Bridges were closed.",
    "A cat sat down. A dog ran off. Birds flew over the hill to the sea.",
    "One. Two words. Three words here. Four words are here.",
    "Prices rose by 3.5 per cent. Shops shut early. Nobody knew why.",
]
REFERENCES = ["Ann Lee closes bridges.", "Cat sits, dog runs.", "Words are counted.", "Shops shut as prices rise."]
SUMMARIES = ["Bridges closed by Ann Lee.", "", "Words\u2028are here.", "Shops shut."]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """A scored run and its data, as score_split leaves them."""
    data, results = tmp_path / "data", tmp_path / "results"
    for folder in (data, results):
        folder.mkdir()
    for name, lines in (("source", ARTICLES), ("target", REFERENCES)):
        (data / f"test.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    text = "".join(f"{line}\n" for line in SUMMARIES)
    (results / "test_generations.txt").write_text(text, encoding="utf-8")
    scores = {
        "examples": 4,
        "rouge_mode": "rouge-score",
        **rouge(SUMMARIES, REFERENCES),
        "generation": {"num_beams": 4},
    }
    (results / "test_scores.json").write_text(json.dumps(scores))
    return results, data


def test_lead_takes_whole_sentences() -> None:
    assert lead(ARTICLES[0], 2) == "Rain fell on Monday. The mayor Ann Lee spoke."
    assert lead(ARTICLES[3], 1) == "Prices rose by 3.5 per cent."
    assert lead("Just one.", 3) == "Just one."


def test_table_holds_the_baselines_and_the_model_in_aligned_columns(run: tuple[Path, Path]) -> None:
    lines = describe(*run).splitlines()
    assert lines[0] == "ROUGE F in percent (rouge-score) on 4 test articles"
    header, *rows = lines[2:7]
    assert header.split() == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]
    assert len({len(line) for line in (header, *rows)}) == 1
    expected = [
        ("first 1 sentence", [article.split(". ")[0] for article in ARTICLES]),
        ("first 2 sentences", [" ".join(article.split(". ")[:2]) for article in ARTICLES]),
        ("first 3 sentences", [" ".join(article.split(". ")[:3]) for article in ARTICLES]),
        ("this model, 4 beams", SUMMARIES),
    ]
    # Full stops are no words of ROUGE, so that the split above serves for these articles; Lsum sees sentences.
    for row, (name, predictions) in zip(rows, expected, strict=True):
        assert row.startswith(name)
        scores = rouge(predictions, REFERENCES)
        assert row.split()[-4:-2] == [f"{scores['rouge1']:.2f}", f"{scores['rouge2']:.2f}"]


def test_examples_are_the_first_three_within_80_columns(run: tuple[Path, Path], capsys) -> None:
    results, data = run
    (data / "test.source").write_text("".join(f"{line} {'word ' * 40}end\n" for line in ARTICLES), encoding="utf-8")
    main([str(results), str(data)])
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if not line.startswith("Results lie in")) <= 80
    assert [line for line in text.splitlines() if line.startswith("Example")] == ["Example 1", "Example 2", "Example 3"]
    assert "summary    Bridges closed by Ann Lee.\nreference  Ann Lee closes bridges.\n" in text
    assert "\nsummary\nreference  Cat sits, dog runs.\n" in text
    assert REFERENCES[3] not in text
    assert text.endswith(f"Results lie in {results}\n")


def test_a_run_over_the_first_articles_is_compared_on_these(run: tuple[Path, Path]) -> None:
    results, data = run
    (results / "test_generations.txt").write_text("A.\nB.\n")
    scores = json.loads((results / "test_scores.json").read_text())
    (results / "test_scores.json").write_text(json.dumps({**scores, "examples": 2}))
    lines = describe(results, data).splitlines()
    first = rouge([article.split(". ")[0] for article in ARTICLES[:2]], REFERENCES[:2])
    assert lines[0].endswith("on 2 test articles")
    assert f"{first['rouge1']:.2f}" in lines[3]


def test_results_that_do_not_belong_together_are_refused(run: tuple[Path, Path]) -> None:
    results, data = run
    (results / "test_generations.txt").write_text("A.\nB.\n")
    with pytest.raises(InputError, match="of 4 examples, test_generations.txt has 2"):
        read_results(results)
    (results / "test_generations.txt").write_text("A.\n" * 9)
    scores = json.loads((results / "test_scores.json").read_text())
    (results / "test_scores.json").write_text(json.dumps({**scores, "examples": 9}))
    with pytest.raises(InputError, match="9 summaries, .* only 4 test articles"):
        describe(results, data)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_scores.json", None, "test_scores.json: cannot be read"),
        ("test_generations.txt", None, "test_generations.txt: cannot be read"),
        ("test_scores.json", b"{", "damaged"),
        ("test_scores.json", b"[]", "not the scores"),
        ("test_scores.json", b'{"examples": 4}', "not the scores"),
        ("test_generations.txt", b"\xff\n", "damaged"),
    ],
)
def test_missing_or_damaged_results_are_one_line(
    run: tuple[Path, Path], name: str, content: bytes | None, message: str
) -> None:
    results, data = run
    (results / name).unlink()
    if content is not None:
        (results / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        describe(results, data)
    assert "\n" not in str(error.value)
