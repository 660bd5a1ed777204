from __future__ import annotations

import json
import random
import re
import zipfile
from pathlib import Path

import nltk.data
import numpy as np
import pytest
from datasets import Dataset
from rouge_score import rouge_scorer

from bart.errors import InputError
from utils.metrics import bleu
from utils.metrics import rouge as module
from utils.metrics.__main__ import main as every_name
from utils.metrics.options import RougeOptions, wordnet_exceptions
from utils.metrics.rouge import ROUGE_TYPES, leads, main, rouge, rouge_per_example
from utils.metrics.rouge_pairs import RougeRule
from utils.metrics.significance import compare_scores, means_and_intervals, means_of
from utils.text.sentences import split_sentences

ROOT = Path(__file__).parents[3]
LISTS = {
    "adv": "best well\nbetter well\n",
    "noun": "mice mouse\naxes ax axis\nbetter bettor\n",
    "verb": "ran run\nwent go\n",
    "adj": "better good well\nlonger long\n",
}


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    for name, text in LISTS.items():
        (folder / f"{name}.exc").write_text(text)
    return folder


def published(shared: Path, name: str) -> list[str]:
    text = (shared / "data" / "xsum_predictions" / name).read_bytes().decode()
    return text.removesuffix("\n").split("\n")


def texts(count: int) -> list[str]:
    """Sentences of words that need stemming and of marks that need none."""
    random.seed(0)
    words = "the running flies skies dying news innings enjoying 1990s co-op naïve happily dogs' ads ad U.S. a".split()
    return [
        ". ".join(" ".join(random.choices(words, k=random.randrange(9))) for _ in range(random.randrange(4)))
        for _ in range(count)
    ]


def test_mode_rouge_score_is_the_packages_own_to_the_last_digit() -> None:
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    predictions, references = texts(600)[:300], texts(600)[300:]
    expected = [
        scorer.score("\n".join(split_sentences(reference)), "\n".join(split_sentences(prediction)))
        for prediction, reference in zip(predictions, references, strict=True)
    ]
    scores = rouge_per_example(predictions, references)
    assert tuple(scores) == ROUGE_TYPES["rouge-score"]
    for name, values in scores.items():
        assert values.tolist() == [100 * score[name].fmeasure for score in expected]
    assert (scores["rougeL"] != scores["rougeLsum"]).any()
    assert rouge(predictions, references) == {name: values.mean() for name, values in scores.items()}


@pytest.mark.slow
@pytest.mark.parametrize("system", ["lead", "convs2s"])
def test_mode_rouge_155_gives_the_published_figures(shared: Path, system: str) -> None:
    """The paper's table, by the Perl script, whose averages are bootstrap means."""
    folder = shared / "data" / "xsum_predictions"
    printed = (folder / f"{system}.rouge").read_text().splitlines()[0].rpartition(" ")[2].split("/")
    exceptions = wordnet_exceptions(shared / "data" / "wordnet_exceptions")
    assert len(exceptions) == 5930  # the folder's README
    scores = rouge_per_example(
        published(shared, f"{system}.txt"),
        published(shared, "gold.txt"),
        RougeRule("rouge-1.5.5", exceptions=exceptions),
    )
    means = [values.mean() for values in scores.values()]
    assert means == pytest.approx([float(printed[index]) for index in (0, 1, 3)], abs=0.02)


def test_mode_rouge_155_looks_words_up_before_it_stems(lists: Path) -> None:
    def unigrams(prediction: str, reference: str, exceptions: dict[str, str]) -> float:
        return rouge([prediction], [reference], RougeRule("rouge-1.5.5", exceptions=exceptions))["rouge1"]

    exceptions = wordnet_exceptions(lists)
    assert unigrams("mice", "mouse", {}) == 0
    # Found forms are not stemmed after: "mouse" stands for itself here, and is "mous" where it is a word of the text.
    assert unigrams("mice", "mouse", exceptions) == 0
    assert unigrams("went longer", "go long", exceptions) == 100
    # Words of three letters are left alone.
    assert unigrams("ran", "run", exceptions) == 0
    # Porter's own step 1c makes "enjoi" of both, nltk's changes keep the y; "skies" is "sky" in nltk's alone.
    assert unigrams("skies", "sky", {}) == 0
    assert rouge(["skies"], ["sky"])["rouge1"] == 100


def test_rouge_l_of_mode_155_is_the_union_over_sentences() -> None:
    """The example of Lin (2004), section 3.2: LCS-u of w1 w2 w3 w4 w5 with two sentences is w1 w2 w3 w5, or 4/5."""
    reference, first, second = "One two three four five.", "One two six seven eight.", "One three eight nine five."
    scores = rouge_per_example([f"{second} {first}"], [reference], RougeRule("rouge-1.5.5", exceptions={}))
    recall, precision = 4 / 5, 4 / 10
    assert scores["rougeL"][0] == pytest.approx(100 * 2 * recall * precision / (recall + precision))
    # Without sentences the longest common subsequence has three words.
    assert rouge([f"{second} {first}"], [reference])["rougeL"] == pytest.approx(100 * 2 * 3 / 15)


def test_exception_lists_are_read_as_in_the_perl_script(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A later list wins. They come from a folder or from nltk's corpus; without any the scores are lower."""
    expected = {
        "best": "well", "better": "good", "mice": "mouse", "axes": "ax", "ran": "run", "went": "go", "longer": "long",
    }  # fmt: skip
    assert wordnet_exceptions(lists) == expected
    (tmp_path / "corpora").mkdir()
    with zipfile.ZipFile(tmp_path / "corpora" / "wordnet.zip", "w") as archive:
        for name in LISTS:
            archive.write(lists / f"{name}.exc", f"wordnet/{name}.exc")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    assert wordnet_exceptions() == expected and caplog.messages == []
    monkeypatch.setattr(nltk.data, "path", [])
    assert rouge(["we went"], ["we go"], RougeRule("rouge-1.5.5", exceptions=wordnet_exceptions()))["rouge1"] == 50
    [message] = caplog.messages
    assert "without WordNet's irregular forms" in message
    (lists / "verb.exc").write_text("ran run\nwent\n")
    with pytest.raises(InputError, match=r"verb\.exc, line 2: 'went'"):
        wordnet_exceptions(lists)


def test_processes_give_the_same_scores_in_the_same_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_PAIRS_PER_PROCESS", 10)
    monkeypatch.setattr(module, "_CHUNK", 7)
    monkeypatch.chdir(tmp_path)  # a directory without `utils`
    predictions, references = [*texts(60), "a\u2028b\r\x0c\x85 naïve"], [*texts(61)[::-1]]
    scores = []
    for processes in (1, 2):
        monkeypatch.setattr(module, "cpu_count", lambda count=processes: count)
        scores.append(
            rouge_per_example(predictions, references, RougeRule("rouge-1.5.5", exceptions={"running": "run"}))
        )
    alone, shared_out = scores
    for name in ROUGE_TYPES["rouge-1.5.5"]:
        assert np.array_equal(alone[name], shared_out[name])
    assert alone["rouge1"].std() > 0


@pytest.mark.parametrize("mode", ROUGE_TYPES)
def test_empty_input(mode: str) -> None:
    for prediction, reference in (("", "a summary"), ("...", "a summary"), ("a summary", "?!")):
        assert rouge([prediction], [reference], RougeRule(mode, exceptions={})) == dict.fromkeys(ROUGE_TYPES[mode], 0)
    assert [len(values) for values in rouge_per_example([], [], RougeRule(mode, exceptions={})).values()] == [0] * len(
        ROUGE_TYPES[mode]
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two systems' summaries and the references; one summary is empty, one holds a mark that is no line's end."""
    written = []
    for name, lines in (
        ("first.txt", ["Bridges closed by Ann Lee.", "", "Words\u2028are here.", "The shops shut."]),
        ("second.txt", ["Ann.", "Cats ran.", "Mice.", "Prices rise."]),
        ("gold.txt", ["Ann Lee closes bridges.", "Cat sits, dog runs.", "Words are counted.", "Shops shut."]),
    ):
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        written.append(tmp_path / name)
    return written[0], written[1], written[2]


def lines_of(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def test_the_command_prints_means_intervals_and_a_comparison(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files[0].parent)
    words = ["first.txt", "gold.txt", "--compare", "second.txt"]
    main([*words, "--json"])
    printed = json.loads(capsys.readouterr().out)
    ours, theirs = (rouge_per_example(lines_of(path), lines_of(files[2])) for path in files[:2])
    compared = printed.pop("compare")
    assert printed == {**means_and_intervals(ours), "mode": "rouge-score", "examples": 4}
    for name, values in ours.items():
        columns = values[:, None], theirs[name][:, None]
        assert compared[name] == compare_scores(*columns, means_of([name], 4))[name]
    every_name(["rouge", *words])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ROUGE F in percent (rouge-score) on 4 examples"
    assert lines[1:4] == ["predictions  first.txt", "other        second.txt", "references   gold.txt"]
    rows, (low, high) = [line.split() for line in lines], printed["intervals"]["rouge2"]
    place = rows.index(["ROUGE-2", f"{printed['rouge2']:.2f}", f"{low:.2f}", "to", f"{high:.2f}"])
    result = compared["rouge2"]
    low, high = (f"{end:+.2f}" for end in result["interval"])
    assert rows[place + 1] == ["other", f"{result['other']:.2f}"]
    difference = ["difference", f"{result['difference']:+.2f}", low, "to", high, f"{result['p_value']:.3f}"]
    assert rows[place + 2] == difference
    assert len(rows) == 18 and max(map(len, lines)) <= 80


def test_bad_files_are_one_line(
    files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("a\nb\n")
    Path("blank.txt").write_text("a\n\nc\nd\n")
    for words, message in (
        (["first.txt", "gold.txt", "--compare", "short.txt"], "short.txt has 2 lines, gold.txt has 4"),
        (["first.txt", "blank.txt"], "blank.txt, line 2: blank line"),
    ):
        with pytest.raises(InputError) as error:
            main(words)
        assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_scitldrs_references(shared: Path) -> None:
    """By rouge-score the best of each type; by the Perl script, as the set's paper has it, of the best ROUGE-1.

    The means over the references stand beside them.
    """
    lines = (shared / "data/scitldr/test.jsonl").read_text(encoding="utf-8").splitlines()[:30]
    rows = [json.loads(line) for line in lines]
    predictions, references = [row["source"][0] for row in rows], [json.dumps(row["target"]) for row in rows]
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    multi = [scorer.score_multi(row["target"], text) for row, text in zip(rows, predictions, strict=True)]
    scores = rouge(predictions, references)
    for name in ("rouge1", "rouge2", "rougeL"):
        assert scores[name] == pytest.approx(100 * np.mean([each[name].fmeasure for each in multi]))
        means = [
            np.mean([scorer.score(target, text)[name].fmeasure for target in row["target"]])
            for row, text in zip(rows, predictions, strict=True)
        ]
        assert scores[f"{name}_mean"] == pytest.approx(100 * np.mean(means))
    of_script = rouge_per_example(predictions, references, RougeRule("rouge-1.5.5", exceptions={}))
    for number, row in enumerate(rows):
        each = rouge_per_example(
            [predictions[number]] * len(row["target"]), row["target"], RougeRule("rouge-1.5.5", exceptions={})
        )
        best = each["rouge1"].argmax()
        expected = [values[best] for values in each.values()] + [values.mean() for values in each.values()]
        assert [values[number] for values in of_script.values()] == pytest.approx(expected)


class _Tokens:
    """An oracle's words: of letters and digits, or each of them."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def tokenize(self, text: str) -> list[str]:
        return re.findall(self.pattern, text.lower())


@pytest.mark.parametrize(
    ("tokenizer", "pattern", "predictions", "references"),
    [
        ("characters", r"\w", ["今天天气很好。我们去公园", "新しい本。"], ["今天天气好。他们去了公园！", "新しい車！"]),
        ("words", r"\w+", ["Кошка спала, собака нет.", "ذهب الولد إلى البيت"], ["Кошка не спала.", "الولد في البيت"]),
    ],
)
def test_other_scripts_are_counted_by_other_tokenizers(
    tokenizer: str, pattern: str, predictions: list[str], references: list[str]
) -> None:
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=_Tokens(pattern))
    scores = rouge_per_example(predictions, references, RougeRule(tokenizer=tokenizer))
    for name in ("rouge1", "rouge2", "rougeL"):
        pairs = zip(references, predictions, strict=True)
        assert scores[name].tolist() == [100 * scorer.score(*pair)[name].fmeasure for pair in pairs]
        assert all(scores["rouge1"] > 0)
    # `\w` of Python ends a word at each vowel sign of Hindi; and é is one character, however it is written.
    assert rouge(["हिन्दी में"], ["हिन्दु में"], RougeRule(tokenizer="words"))["rouge1"] == 50
    assert rouge(["caf\u00e9 z"], ["CAFE\u0301 y"], RougeRule(tokenizer="words"))["rouge1"] == 50


@pytest.mark.parametrize(
    ("reference", "mode", "tokenizer", "warning"),
    [
        ("你好", "rouge-score", "rouge-score", "100 % of the references' letters are others: --rouge_tokenizer words"),
        ("Привет", "rouge-1.5.5", "rouge-score", "others: in mode rouge-score, --rouge_tokenizer words"),
        ("你好", "rouge-score", "words", "100 % of the references' letters are of scripts without blanks"),
        ("你好", "rouge-score", "characters", None),
        ("Der Vogel fliegt über Bäume, und niemand sah ihn", "rouge-score", "rouge-score", None),
    ],
)
def test_scripts_that_do_not_count_are_named(
    reference: str, mode: str, tokenizer: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    RougeOptions(mode, tokenizer).warn_of_scripts([reference])
    assert [warning in message for message in caplog.messages] == [True] if warning else caplog.messages == []


def test_the_command_names_tokenizer_and_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictions, references = tmp_path / "p", tmp_path / "r"
    predictions.write_text("今天很好。\n去公园！\n", encoding="utf-8")
    references.write_text('["今天很好。", "明天"]\n去公园！\n', encoding="utf-8")
    words = [str(predictions), str(references), "--rouge_tokenizer", "characters"]
    main(words)
    head, *_ = capsys.readouterr().out.splitlines()
    assert head == "ROUGE F in percent (rouge-score, characters) on 2 examples, maximum and mean over 3 references"
    main([*words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["rouge1"], report["rouge_tokenizer"], report["references"]) == (100, "characters", 3)
    references.write_text("a\n[]\n")
    for options, message in (
        ([*words, "--rouge_mode", "rouge-1.5.5"], "--rouge_tokenizer characters is of --rouge_mode rouge-score"),
        (words[:2], r"the target '\[\]' is a list"),
    ):
        with pytest.raises(InputError, match=message):
            main(options)


def test_tables_score_as_the_same_texts_in_lines(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of utils.predict, run_eval.py and published sets, by both metrics of texts."""
    monkeypatch.chdir(tmp_path)
    published = [json.loads(line) for line in (shared / "data/scitldr/test.jsonl").read_text().splitlines()[:12]]
    targets = [row["target"] for row in published]
    texts = [row["source"][0] for row in published[:-1]] + [""]
    Path("p").write_text("".join(" ".join(text.split("\n")) + "\n" for text in texts))
    Path("r").write_text("".join(f"{json.dumps(target)}\n" for target in targets))
    predicted = [{**row, "prediction": text} for row, text in zip(published, texts, strict=True)]
    scored = [{"reference": target[0], "summary": text} for target, text in zip(targets, texts, strict=True)]
    for row, target in zip(scored, targets, strict=True):
        row |= {"references": target} if len(target) > 1 else {}
    for name, rows in (("predicted", predicted), ("scored", scored)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Dataset.from_list([{**row, "target": json.dumps(row["target"])} for row in predicted]).to_csv("predicted.csv")
    for command in (main, bleu.main):
        reports = set()
        for words in (["p", "r"], ["predicted.csv"] * 2, ["scored.jsonl"] * 2, ["p", "predicted.jsonl"]):
            command([*words, "--json"])
            reports.add(capsys.readouterr().out)
        assert len(reports) == 1
    Path("bad.jsonl").write_text('{"prediction": null, "target": " "}\n' * 3)
    for name, order in (("ids", "xyz"), ("sorted", "zyx")):
        rows = [{"id": key, "prediction": key, "target": key} for key in order]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words, message in (
        (["sorted.jsonl", "ids.jsonl"], "sorted.jsonl:1: the id is 'z'; allowed: 'x', as in ids.jsonl:1"),
        (["bad.jsonl", "ids.jsonl"], "bad.jsonl:1: the prediction is None; allowed: a text, which may be blank"),
        (["ids.jsonl", "bad.jsonl"], "bad.jsonl:1: the reference is ' '; allowed: a text or a list of texts"),
        (["p", "predicted.csv", "--target_field", "x"], "predicted.csv: --target_field is 'x'; allowed: "),
        (["p", "r", "--prediction_field", "x"], "--prediction_field is x, but p has no columns; allowed: "),
    ):
        with pytest.raises(InputError) as error:
            main(words)
        assert str(error.value).startswith(message)


@pytest.mark.parametrize("mode", ["rouge-score", "rouge-1.5.5"])
@pytest.mark.parametrize(
    ("begin", "between", "end", "marks"),
    [
        ("", "<q>", "", "<q>"),
        ("<t> ", " </t> <t> ", " </t>", "</t> <t>"),
        ("", r"\n", "", r"\n"),
        ("", "\n", "", ""),
    ],
)
def test_marks_of_the_ends_of_sentences(
    mode: str,
    begin: str,
    between: str,
    end: str,
    marks: str,
    lists: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They end sentences and are no words, as line breaks are for rouge-score; a warning names them and the option."""
    predicted = ["the mayor resigned on monday", "a new vote e.g. for Mr. Orr is planned"]
    right = ["a new vote is planned. for may", "the mayor resigned", "he said so"]
    for name, column, parts in (("p.jsonl", "prediction", predicted), ("r.jsonl", "target", right)):
        (tmp_path / name).write_text(json.dumps({column: between.join(parts).join((begin, end))}) + "\n")
    words = [str(tmp_path / "p.jsonl"), str(tmp_path / "r.jsonl"), "--json", "--rouge_mode", mode]
    if mode == "rouge-1.5.5":
        words += ["--wordnet_exceptions", str(lists)]
    main(words)
    assert (f"--sentence_end '{marks}'" in caplog.text) == bool(marks)
    caplog.clear()
    capsys.readouterr()
    main([*words, "--sentence_end", marks])
    assert "--sentence_end" not in caplog.text
    score = rouge_scorer.RougeScorer(["rouge1", "rougeLsum"], use_stemmer=True).score(
        "\n".join(right), "\n".join(predicted)
    )
    report = json.loads(capsys.readouterr().out)
    kind = "rougeLsum" if mode == "rouge-score" else "rougeL"
    assert report["rouge1"] == pytest.approx(100 * score["rouge1"].fmeasure)
    assert report[kind] == pytest.approx(100 * score["rougeLsum"].fmeasure)


def test_line_breaks_of_several_references_end_sentences() -> None:
    references = ["the mayor resigned\nan aide left", "so be it"]
    [best] = rouge_per_example(["an aide left and the mayor resigned"], [json.dumps(references)])["rougeLsum"]
    scorer = rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True)
    theirs = scorer.score_multi(references, "an aide left and the mayor resigned")
    assert best == pytest.approx(100 * theirs["rougeLsum"].fmeasure)


def test_leads_take_whole_sentences() -> None:
    articles = ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early. It rained.", "Just one."]
    assert leads(articles) == {
        "first 1 sentence": ["Prices rose by 3.5 per cent.", "Just one."],
        "first 2 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke.", "Just one."],
        "first 3 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early.", "Just one."],
    }
