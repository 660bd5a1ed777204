from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rouge_score import rouge_scorer

from bart.errors import InputError
from utils.corpora.data_directory import DROPPED, PAIR_FILES, PROVENANCE
from utils.corpora.sample_corpus import main, sample_stories, write_sample_corpus

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The corpus of the quickstart, file name -> lines."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sample_corpus(folder)
    return {file: (folder / file).read_text(encoding="utf-8").split("\n")[:-1] for file in PAIR_FILES}


def words(lines: list[str]) -> set[str]:
    return set(re.findall(r"\w+", " ".join(lines)))


def test_files_and_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    main(["--output-dir", str(folder), "--n_train", "5", "--n-val", "2", "--n_test", "3"])
    assert sorted(path.name for path in folder.iterdir()) == sorted([*PAIR_FILES, PROVENANCE, DROPPED])
    counts = {file: (folder / file).read_bytes().count(b"\n") for file in PAIR_FILES}
    assert counts == dict(zip(PAIR_FILES, [5, 5, 2, 2, 3, 3], strict=True))
    assert capsys.readouterr().out == f"{folder}: 5 train, 2 val, 3 test examples\n"


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--output_dir", str(tmp_path), "--n_train", "5", "--n_val", "2", "--n_test", "3"]
    main(command)
    (tmp_path / "vocab.json").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    main(command)
    assert "is there already" in capsys.readouterr().out
    with pytest.raises(InputError, match="is there already, made otherwise .its seed is 42, this run's is 7"):
        main([*command, "--seed", "7"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "provenance.json").unlink()
    with pytest.raises(InputError, match="is there already and is not overwritten"):
        main(command)


def test_bytes_depend_on_the_seed_alone(tmp_path: Path) -> None:
    # Another process has another hash seed.
    command = [sys.executable, "-m", "utils.corpora.sample_corpus", "--output_dir", str(tmp_path), "--seed", "1"]
    command += ["--n_train", "50", "--n_val", "5", "--n_test", "50"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = (tmp_path / "test.source").read_text().splitlines()
    assert lines == [story.article for story in sample_stories("test", 50, seed=1)]
    assert not set(lines) & {story.article for story in sample_stories("test", 50, seed=2)}
    # Nor do they depend on the size of the split.
    assert list(sample_stories("val", 3)) == list(sample_stories("val", 30))[:3]


def test_bytes_are_those_of_every_python_version(corpus: dict[str, list[str]]) -> None:
    digest = hashlib.sha256("\n".join(line for file in PAIR_FILES for line in corpus[file]).encode()).hexdigest()
    # Recorded once; the same under Python 3.10 to 3.13. A change of the corpus is meant to change it, nothing else is.
    assert digest == "217110c2448eb70d383a9cb764be1e192ddf501bf389b8895762da58a32ba990"


def test_every_test_summary_has_a_name_that_training_never_shows(corpus: dict[str, list[str]]) -> None:
    seen = words(corpus["train.source"] + corpus["train.target"])
    assert all(words([summary]) - seen for summary in corpus["test.target"])
    unseen = words(corpus["test.source"]) - seen
    assert len(unseen) > 300
    # What training does not show are names, and of the other words training shows all.
    assert all(word[0].isupper() or word.isdigit() for word in unseen)
    assert not words(corpus["val.source"]) & {word for word in unseen if not word.isdigit()}


def test_a_capital_inside_a_sentence_marks_a_name_or_a_word_of_every_split(corpus: dict[str, list[str]]) -> None:
    inner = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", " ".join(corpus["test.source"])))
    common = inner & words(corpus["train.source"])
    days_months_and_parties = len(common)
    # 7 days, 12 months, 5 parties, 5 ages and few more: no name of a person, place or company is among them.
    assert days_months_and_parties < 45
    assert len(inner - common) > 200


def test_the_summary_takes_its_names_and_figures_from_the_article(corpus: dict[str, list[str]]) -> None:
    for article, summary in zip(corpus["test.source"], corpus["test.target"], strict=True):
        facts = re.findall(r"(?<=[a-z,] )[A-Z][a-z]+|\d[\d-]*", summary)
        assert set(facts) <= set(re.findall(r"[\w-]+", article)), (article, summary)


def test_articles_are_newswire_of_several_sentences_with_facts_that_the_summary_leaves_out(
    corpus: dict[str, list[str]],
) -> None:
    articles, summaries = corpus["train.source"], corpus["train.target"]
    assert len(set(articles)) == len(articles)
    assert all(3 <= article.count(". ") + 1 <= 8 for article in articles)
    assert len({article.split()[0] for article in articles}) > 40
    # Names inside a sentence of the article but not in the summary: distractors.
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
    months = "January February March April May June July August September October November December"
    dates = {*days.split(), *months.split()}
    pairs = zip(articles, summaries, strict=True)
    left_out = [
        len(set(re.findall(r"(?<=[a-z,] )[A-Z]\w+", article)) - words([summary]) - dates) for article, summary in pairs
    ]
    assert sum(count >= 1 for count in left_out) > 0.9 * len(articles)
    assert not any("{" in line or "  " in line or re.search(r"\ba [aeio]", line) for line in articles + summaries)


def leads(summaries: list[str]) -> dict[str, Callable[[str], str]]:
    mean_words = round(sum(len(summary.split()) for summary in summaries) / len(summaries))
    cut = re.compile(r"(?<=\.) ")
    return {
        "one sentence": lambda article: cut.split(article)[0],
        "two sentences": lambda article: " ".join(cut.split(article)[:2]),
        "three sentences": lambda article: " ".join(cut.split(article)[:3]),
        "as many words as a summary": lambda article: " ".join(article.split()[:mean_words]),
        "everything": lambda article: article,
    }


def test_a_lead_baseline_scores_below_45(corpus: dict[str, list[str]]) -> None:
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
    articles, summaries = corpus["test.source"], corpus["test.target"]
    for name, lead in leads(summaries).items():
        scores = [
            scorer.score(summary, lead(article))["rouge1"].fmeasure
            for article, summary in zip(articles, summaries, strict=True)
        ]
        assert 10 < 100 * sum(scores) / len(scores) < 45, name


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/below: cannot be written \(Not a directory\)"):
        main(["--output_dir", str(tmp_path / "file/below")])
