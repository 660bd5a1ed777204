from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
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
from utils.metrics.options import RougeOptions, wordnet_exceptions
from utils.metrics.rouge import ROUGE_TYPES, main, rouge, rouge_per_example
from utils.metrics.rouge_pairs import RougeRule
from utils.metrics.significance import compare, means_and_intervals
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


@pytest.fixture
def no_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nltk without any data, as it is installed."""
    monkeypatch.setattr(nltk.data, "path", [])


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


def test_exception_lists_override_one_another_as_in_the_perl_script(lists: Path) -> None:
    assert wordnet_exceptions(lists) == {
        "best": "well", "better": "good", "mice": "mouse", "axes": "ax", "ran": "run", "went": "go", "longer": "long",
    }  # fmt: skip


def test_exception_lists_of_nltks_corpus_are_found(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpora").mkdir()
    with zipfile.ZipFile(tmp_path / "corpora" / "wordnet.zip", "w") as archive:
        for name in LISTS:
            archive.write(lists / f"{name}.exc", f"wordnet/{name}.exc")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    assert wordnet_exceptions() == wordnet_exceptions(lists)
    assert rouge(["we went"], ["we go"], RougeRule("rouge-1.5.5"))["rouge1"] == 100


def test_without_lists_scores_come_with_a_warning(no_corpora: None, caplog: pytest.LogCaptureFixture) -> None:
    assert rouge(["we went"], ["we go"], RougeRule("rouge-1.5.5"))["rouge1"] == 50
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "without WordNet's irregular forms" in record.message


def test_damaged_or_missing_lists_are_named(lists: Path) -> None:
    (lists / "verb.exc").write_text("ran run\nwent\n")
    with pytest.raises(InputError, match=r"verb\.exc, line 2: 'went'"):
        wordnet_exceptions(lists)
    (lists / "verb.exc").unlink()
    with pytest.raises(InputError, match=r"verb\.exc: no such file"):
        wordnet_exceptions(lists)


@pytest.mark.parametrize("mode", ROUGE_TYPES)
def test_processes_give_the_same_scores_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, mode: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_PAIRS_PER_PROCESS", 10)
    monkeypatch.setattr(module, "_CHUNK", 7)
    monkeypatch.chdir(tmp_path)  # a directory without `utils`
    predictions, references = [*texts(60), "a\u2028b\r\x0c\x85 naïve"], [*texts(61)[::-1]]
    scores = []
    for processes in (1, 2):
        monkeypatch.setattr(module, "cpu_count", lambda count=processes: count)
        scores.append(rouge_per_example(predictions, references, RougeRule(mode, exceptions={"running": "run"})))
    alone, shared_out = scores
    for name in ROUGE_TYPES[mode]:
        assert np.array_equal(alone[name], shared_out[name])
    assert alone["rouge1"].std() > 0


SCRIPT = """
print("the program runs")
from utils.metrics import rouge
rouge._PAIRS_PER_PROCESS = rouge._CHUNK = 1
print(rouge.rouge(["a cat", "a dog"], ["a cat", "cats"])["rouge1"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_processes_do_not_run_the_main_program_again(tmp_path: Path, way: str) -> None:
    """A program without `if __name__ == "__main__"` may score, however it is started."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = {"file": [str(script)], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *words],
        input=SCRIPT if way == "stdin" else None,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "the program runs\n50.0\n", done.stderr


def test_an_interrupt_ends_all_processes() -> None:
    """Ctrl-C reaches every process of the group."""
    code = (
        "from utils.metrics import rouge\n"
        "rouge._PAIRS_PER_PROCESS = rouge._CHUNK = 1\n"
        "rouge.progress('', 1, '').__class__.update = lambda self, count: print('scored', flush=True)\n"
        "rouge.rouge(['a cat. ' * 400] * 10_000, ['a dog. ' * 400] * 10_000)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "scored\n"
    os.killpg(started.pid, signal.SIGINT)
    # The pipes end when the last process that holds them has ended.
    _, errors = started.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert started.returncode == -signal.SIGINT


def test_sentences_split_without_downloads() -> None:
    text = 'Dr. Smith met Mr. Jones at 3 p.m. on Monday. They left. "Why?" she asked.'
    sentences = ["Dr. Smith met Mr. Jones at 3 p.m. on Monday.", "They left.", '"Why?"', "she asked."]
    assert split_sentences(text) == sentences
    assert split_sentences("") == []


@pytest.mark.parametrize("mode", ROUGE_TYPES)
def test_empty_input(mode: str, no_corpora: None) -> None:
    for prediction, reference in (("", "a summary"), ("...", "a summary"), ("a summary", "?!")):
        assert rouge([prediction], [reference], RougeRule(mode)) == dict.fromkeys(ROUGE_TYPES[mode], 0)
    assert [len(values) for values in rouge_per_example([], [], RougeRule(mode)).values()] == [0] * len(
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


def interval_of(values: np.ndarray) -> list[float]:
    return means_and_intervals({"mean": values})["intervals"]["mean"]


def test_command_prints_means_intervals_and_the_mode(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, gold = files
    main([str(first), str(gold), "--json", "--per_article", str(tmp_path / "articles.jsonl")])
    printed = json.loads(capsys.readouterr().out)
    scores = rouge_per_example(lines_of(first), lines_of(gold))
    assert printed == {**means_and_intervals(scores), "mode": "rouge-score", "examples": 4}
    assert printed["rouge1"] == rouge(lines_of(first), lines_of(gold))["rouge1"]
    assert printed["intervals"]["rouge2"] == pytest.approx(interval_of(scores["rouge2"]))
    articles = [json.loads(line) for line in (tmp_path / "articles.jsonl").read_text().splitlines()]
    assert [article["index"] for article in articles] == [0, 1, 2, 3]
    for name, values in scores.items():
        assert [article[name] for article in articles] == values.tolist()


def test_command_says_whether_there_were_exception_lists(
    files: tuple[Path, Path, Path], lists: Path, no_corpora: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, gold = files
    main([str(first), str(gold), "--rouge_mode", "rouge-1.5.5", "--wordnet_exceptions", str(lists), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["mode"], printed["wordnet_exceptions"]) == ("rouge-1.5.5", 7)
    main([str(first), str(gold), "--mode", "rouge-1.5.5", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["wordnet_exceptions"] == 0
    assert printed["rouge1"] > 0


def test_command_compares_two_systems(files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, gold = files
    main([str(first), str(gold), "--compare", str(second), "--json"])
    printed = json.loads(capsys.readouterr().out)
    ours, theirs = (rouge_per_example(lines_of(path), lines_of(gold)) for path in (first, second))
    assert set(printed["compare"]) == set(ROUGE_TYPES["rouge-score"])
    for name, row in printed["compare"].items():
        assert row["other"] == theirs[name].mean()
        assert row["difference"] == pytest.approx(printed[name] - row["other"])
        expected = compare(ours[name], theirs[name])
        assert row["interval"] == pytest.approx(expected["interval"])
        assert row["interval"] == pytest.approx(interval_of(ours[name] - theirs[name]))
        assert row["p_value"] == expected["p_value"]


def test_command_prints_a_table(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files[0].parent)
    main(["first.txt", "gold.txt", "--compare", "second.txt", "--json"])
    facts = json.loads(capsys.readouterr().out)
    main(["first.txt", "gold.txt"])
    alone = capsys.readouterr().out.splitlines()
    main(["first.txt", "gold.txt", "--compare", "second.txt"])
    lines = capsys.readouterr().out.splitlines()
    assert alone[0] == "ROUGE F in percent (rouge-score) on 4 examples"
    assert alone[1:3] == ["predictions  first.txt", "references   gold.txt"]
    low, high = facts["intervals"]["rouge2"]
    scored = ["ROUGE-2", f"{facts['rouge2']:.2f}", f"{low:.2f}", "to", f"{high:.2f}"]
    rows = [line.split() for line in lines]
    assert scored in [line.split() for line in alone] and scored in rows
    result = facts["compare"]["rouge2"]
    low, high = (f"{end:+.2f}" for end in result["interval"])
    place = rows.index(scored)
    assert rows[place + 1] == ["other", f"{result['other']:.2f}"]
    difference = ["difference", f"{result['difference']:+.2f}", low, "to", high, f"{result['p_value']:.3f}"]
    assert rows[place + 2] == difference
    assert len(rows) == 18 and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (("first.txt", b"a\nb\n"), [], r"first\.txt has 2 lines, .*gold\.txt has 4"),
        (("second.txt", b"a\nb\n"), ["--compare", "second.txt"], r"second\.txt has 2 lines, .*gold\.txt has 4"),
        (("first.txt", b"a\nb\xff\nc\nd\n"), [], r"first\.txt, line 2: not UTF-8 \(byte 0xff\)"),
        (("gold.txt", b"a\n\nc\nd\n"), [], r"gold\.txt, line 2: blank line"),
        (("first.txt", b""), [], r"first\.txt: the file is empty"),
        (
            None,
            ["--wordnet_exceptions", "."],
            "--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is rouge-score",
        ),
        # It is looked at first, before the predictions.
        (("first.txt", b""), ["--per_article", "no/such/file"], "--per_article is 'no/such/file'; allowed: a file in"),
    ],
)
def test_bad_files_are_one_line(
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: tuple[str, bytes] | None,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if damage is not None:
        (tmp_path / damage[0]).write_bytes(damage[1])
    with pytest.raises(InputError, match=message) as error:
        main(["first.txt", "gold.txt", *options])
    assert "\n" not in str(error.value)


def test_of_several_references_the_best_counts() -> None:
    """The package's `score_multi` takes the best of each type; lists stand beside single texts."""
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    predictions, written = texts(240)[:60], iter(texts(240)[60:])
    groups = [[text for text in (next(written), next(written), next(written)) if text] or ["ads"] for _ in predictions]
    references = [json.dumps(group) if len(group) > 1 else group[0] for group in groups]
    scores = rouge_per_example(predictions, references)
    for name in ("rouge1", "rouge2", "rougeL"):
        expected = [
            100 * scorer.score_multi(group, prediction)[name].fmeasure
            for group, prediction in zip(groups, predictions, strict=True)
        ]
        assert scores[name].tolist() == expected


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
        ("words", r"\w+", ["Der Vogel fliegt über 3 Bäume"], ["Die Vögel fliegen über Bäume"]),
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
    assert rouge(references, references, RougeRule(tokenizer=tokenizer))["rougeLsum"] == 100


def test_marks_belong_to_their_letters() -> None:
    """`\\w` of Python ends a word at each vowel sign of Hindi; and é is one character, however it is written."""
    assert rouge(["हिन्दी में"], ["हिन्दु में"], RougeRule(tokenizer="words"))["rouge1"] == 50
    assert rouge(["caf\u00e9 z"], ["CAFE\u0301 y"], RougeRule(tokenizer="words"))["rouge1"] == 50


@pytest.mark.parametrize(
    ("references", "mode", "tokenizer", "warning"),
    [
        (
            ["你好"],
            "rouge-score",
            "rouge-score",
            "100 % of the references' letters are others: --rouge_tokenizer words",
        ),
        (['["\\u4f60\\u597d", "a"]'], "rouge-score", "rouge-score", "67 % of the references' letters are others"),
        (["Привет"], "rouge-1.5.5", "rouge-score", "others: in mode rouge-score, --rouge_tokenizer words"),
        (["你好"], "rouge-score", "words", "100 % of the references' letters are of scripts without blanks"),
        (["你好"], "rouge-score", "characters", None),
        (["Привет"], "rouge-score", "words", None),
        (["L'été à Paris, un café"], "rouge-score", "words", None),
        (["Der Vogel fliegt über Bäume, und niemand sah ihn"], "rouge-score", "rouge-score", None),
    ],
)
def test_scripts_that_do_not_count_are_named(
    references: list[str], mode: str, tokenizer: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    RougeOptions(mode, tokenizer).warn_of_scripts(references)
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
    with pytest.raises(
        InputError, match="--rouge_tokenizer characters is of --rouge_mode rouge-score; --rouge_mode is rouge-1.5.5"
    ):
        main([*words, "--rouge_mode", "rouge-1.5.5"])
    references.write_text("a\n[]\n")
    with pytest.raises(InputError, match=r"the target '\[\]' is a list"):
        main(words[:2])


def test_the_commands_score_tables(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of utils.predict, run_eval.py and published sets, in any form, as the same texts in lines."""
    monkeypatch.chdir(tmp_path)
    published = [json.loads(line) for line in (shared / "data/scitldr/test.jsonl").read_text().splitlines()[:12]]
    targets = [row["target"] for row in published]
    texts = [row["source"][0] for row in published[:-1]] + [""]
    Path("p").write_text("".join(" ".join(text.split("\n")) + "\n" for text in texts))
    Path("r").write_text("".join(f"{json.dumps(target)}\n" for target in targets))
    predicted = [{**row, "prediction": text} for row, text in zip(published, texts, strict=True)]
    scored = [
        {"reference": target[0], "references": target, "summary": text}
        for target, text in zip(targets, texts, strict=True)
    ]
    for row in scored[:5]:
        if len(row["references"]) == 1:
            del row["references"]
    for name, rows in (("predicted", predicted), ("scored", scored)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Dataset.from_list([{**row, "target": json.dumps(row["target"])} for row in predicted]).to_csv("predicted.csv")
    Dataset.from_list(predicted).to_parquet("predicted.parquet")
    names = [f"predicted{suffix}" for suffix in (".jsonl", ".csv", ".parquet")] + ["scored.jsonl"]
    for command in (main, bleu.main):
        reports = set()
        for ours, theirs in [("p", "r"), *((name, name) for name in names), ("p", names[0]), (names[0], "r")]:
            command([ours, theirs, "--json"])
            reports.add(capsys.readouterr().out)
        assert len(reports) == 1
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=True)
    expected = [scorer.score_multi(*pair)["rouge1"].fmeasure for pair in zip(targets, texts, strict=True)]
    main(["predicted.csv", "scored.jsonl", "--json"])
    assert json.loads(capsys.readouterr().out)["rouge1"] == pytest.approx(100 * np.mean(expected))
    Path("bad.jsonl").write_text('{"prediction": null, "target": " "}\n')
    for name, order in (("ids", "xyz"), ("sorted", "zyx")):
        rows = [{"id": key, "prediction": key, "target": key} for key in order]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words, message in (
        (["sorted.jsonl", "ids.jsonl"], "^sorted.jsonl:1: the id is 'z'; allowed: 'x', as in ids.jsonl:1$"),
        (["bad.jsonl", "r"], "^bad.jsonl:1: the prediction is None; allowed: a text, which may be blank$"),
        (["p", "bad.jsonl"], "^bad.jsonl:1: the reference is ' '; allowed: a text or a list of texts$"),
        (["p", "predicted.csv", "--target_field", "x"], "^predicted.csv: --target_field is 'x'; allowed: "),
        (
            ["p", "r", "--prediction_field", "x"],
            "^--prediction_field is x, a column of a table, and p is none; allowed: ",
        ),
    ):
        with pytest.raises(InputError, match=message):
            main(words)


@pytest.mark.parametrize("mode", ["rouge-score", "rouge-1.5.5"])
@pytest.mark.parametrize(
    ("begin", "between", "end", "marks"),
    [
        ("", "<q>", "", "<q>"),
        ("", " <n> ", "", "<n>"),
        ("<t> ", " </t> <t> ", " </t>", "</t> <t>"),
        ("<s>", "</s><s>", "</s>", "</s> <s>"),
        ("", " <S_SEP> ", "", "<S_SEP>"),
        ("", "[SEP]", " [SEP]", "[SEP]"),
        ("", " ##SENT## ", "", "##SENT##"),
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
    predicted, right = (
        ["the mayor resigned on monday", "a new vote e.g. for Mr. Orr is planned"],
        ["a new vote is planned. for may", "the mayor resigned", "he said so"],
    )
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
