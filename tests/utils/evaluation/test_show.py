from __future__ import annotations

import json
from pathlib import Path

import nltk.data
import pytest

from bart.errors import InputError
from utils.evaluation.show import LEADS, ShowArguments, describe, main, read_results
from utils.metrics.baselines import lead
from utils.metrics.rouge import rouge

ARTICLES = [
    "Rain fell on Monday. The mayor Ann Lee spoke. Bridges were closed.",
    "A cat sat down. A dog ran off. Birds flew over the hill to the sea.",
    "One. Two words. Three words here. Four words are here.",
    "Prices rose by 3.5 per cent. Shops shut early. Nobody knew why.",
]
REFERENCES = ["Ann Lee closes bridges.", "Cat sits, dog runs.", "Words are counted.", "Shops shut as prices rise."]
FORMS = {"closes": "shut"}
SUMMARIES = ["Bridges closed by Ann Lee.", "", "Words\u2028are here.", "Shops shut."]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """A scored run and its data, as run_eval.py leaves them."""
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


def test_table_holds_the_baselines_and_the_model_in_aligned_columns(run: tuple[Path, Path]) -> None:
    lines = describe(ShowArguments(*run)).splitlines()
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
    lines = describe(ShowArguments(results, data)).splitlines()
    first = rouge([article.split(". ")[0] for article in ARTICLES[:2]], REFERENCES[:2])
    assert lines[0].endswith("on 2 test articles")
    assert f"{first['rouge1']:.2f}" in lines[3]


@pytest.fixture
def scored_by_forms(run: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """The same in mode rouge-1.5.5, and the folder of irregular forms by which it was scored."""
    forms = tmp_path / "forms"
    forms.mkdir()
    for name in ("adv", "noun", "verb", "adj"):
        (forms / f"{name}.exc").write_text("closes shut\n")
    scores = {
        **rouge(SUMMARIES, REFERENCES, "rouge-1.5.5", FORMS),
        "rouge_mode": "rouge-1.5.5",
        "wordnet_exceptions": 1,
    }
    (run[0] / "test_scores.json").write_text(json.dumps({"examples": 4, "generation": {"num_beams": 4}, **scores}))
    return *run, forms


def test_baselines_are_scored_by_the_forms_of_the_run(
    scored_by_forms: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    results, data, forms = scored_by_forms
    main([str(results), str(data), "--wordnet_exceptions", str(forms)])
    printed = [float(line.split()[-3]) for line in capsys.readouterr().out.splitlines()[3:6]]
    leads = [[lead(article, n) for article in ARTICLES] for n in LEADS]
    expected, without = (
        [round(rouge(texts, REFERENCES, "rouge-1.5.5", table)["rouge1"], 2) for texts in leads] for table in (FORMS, {})
    )
    assert printed == expected != without


def test_baselines_that_would_not_compare_are_refused(
    scored_by_forms: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, data, forms = map(str, scored_by_forms)
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(InputError, match="nltk's corpus wordnet has 0 irregular forms, but the run was scored by 1"):
        main([results, data])
    scores = json.loads((scored_by_forms[0] / "test_scores.json").read_text())
    (scored_by_forms[0] / "test_scores.json").write_text(json.dumps({**scores, "wordnet_exceptions": 0}))
    main([results, data])  # scored without any, as the baselines are then
    with pytest.raises(InputError, match="--wordnet_exceptions .*forms has 1 irregular forms, .* scored by 0"):
        main([results, data, "--wordnet_exceptions", forms])
    (scored_by_forms[0] / "test_scores.json").write_text(
        json.dumps({**scores, "rouge_mode": "rouge-score", "rougeLsum": 1})
    )
    with pytest.raises(InputError, match="--wordnet_exceptions is of mode rouge-1.5.5; the run's mode is rouge-score"):
        main([results, data, "--wordnet_exceptions", forms])


def test_results_that_do_not_belong_together_are_refused(run: tuple[Path, Path]) -> None:
    results, data = run
    (results / "test_generations.txt").write_text("A.\nB.\n")
    with pytest.raises(InputError, match="of 4 examples, test_generations.txt has 2"):
        read_results(results)
    (results / "test_generations.txt").write_text("A.\n" * 9)
    scores = json.loads((results / "test_scores.json").read_text())
    (results / "test_scores.json").write_text(json.dumps({**scores, "examples": 9}))
    with pytest.raises(InputError, match="9 summaries, .* only 4 test articles"):
        describe(ShowArguments(results, data))


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
        describe(ShowArguments(results, data))
    assert "\n" not in str(error.value)
