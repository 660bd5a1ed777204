"""Exact match and F1 of answers against torchmetrics, and the cases in which SQuAD 2.0's script goes beyond it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torchmetrics.functional.text import squad

from bart.errors import InputError
from utils.metrics.squad import best, exact_match, f1, main

PIECES = "the The a an An cat CAT cat's 3.5 — ’s naïve İstanbul ﬁsh 他们 (the) U.S. US don't dont".split()
PIECES += ["\u00a0", " ", "\t", "\n", *"- well-known theater thethe a. !? ǅ".split()]


def hostile(rng: random.Random) -> str:
    return rng.choice(["", " ", "  "]).join(rng.choices(PIECES, k=rng.randint(1, 6)))


def test_torchmetrics_agrees() -> None:
    rng = random.Random(0)
    for _ in range(500):
        answers = [hostile(rng) for _ in range(rng.randint(1, 4))]
        # torchmetrics compares with answers that are empty once normalised; SQuAD 2.0 leaves them out.
        answers = [*answers, "cat"]
        predicted = rng.choice([hostile(rng), rng.choice(answers), rng.choice(answers).upper()]) + " cat"
        expected = squad(
            {"prediction_text": predicted, "id": "1"},
            {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "1"},
        )
        scores = best(exact_match, predicted, answers), best(f1, predicted, answers)
        assert scores == pytest.approx((float(expected["exact_match"]), float(expected["f1"])), abs=1e-4), answers


@pytest.mark.parametrize(
    ("predicted", "answers", "expected"),
    [
        pytest.param("", (), (100, 100), id="no answer, none given"),
        pytest.param("the", (), (100, 100), id="nothing but an article is no answer"),
        pytest.param("cat", (), (0, 0), id="no answer, one given"),
        pytest.param("", ("cat",), (0, 0), id="an answer, none given"),
        pytest.param("", ("the", "cat"), (0, 0), id="right answers that are empty once normalised do not count"),
        pytest.param("", ("the", "!"), (100, 100), id="unless all are"),
        pytest.param("The  Cat.", ("cat",), (100, 100), id="case, article, punctuation, spaces"),
        pytest.param("black cat", ("the cat", "black dog sat"), (0, 200 / 3), id="the nearest of the answers"),
        pytest.param("cat cat", ("cat",), (0, 200 / 3), id="a word counts as often as both have it"),
    ],
)
def test_edge_cases(predicted: str, answers: tuple[str, ...], expected: tuple[float, float]) -> None:
    assert (best(exact_match, predicted, answers), best(f1, predicted, answers)) == pytest.approx(expected)


def test_the_command_scores_answers_as_the_official_script(
    tmp_path: Path,
    shared: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a published set some questions of which are made unanswerable, against torchmetrics."""
    monkeypatch.chdir(tmp_path)
    content = json.loads((shared / "data/xquad/xquad.en.json").read_text(encoding="utf-8"))
    rng, answered, predicted, targets = random.Random(0), [], {}, []
    for question in (q for article in content["data"] for part in article["paragraphs"] for q in part["qas"]):
        if rng.random() < 0.2:
            question |= {"answers": [], "is_impossible": True}
        texts = [answer["text"] for answer in question["answers"]] or [""]
        guess = rng.choice([texts[0], texts[0].upper(), f"{texts[0]} and more", "", "nothing"])
        predicted[question["id"]] = guess
        answered.append(bool(question["answers"]))
        targets.append({"answers": {"answer_start": [0] * len(texts), "text": texts}, "id": question["id"]})
    Path("set.json").write_text(json.dumps(content), encoding="utf-8")
    Path("p.json").write_text(json.dumps(predicted), encoding="utf-8")
    main(["p.json", "set.json", "--json"])
    report = json.loads(capsys.readouterr().out)

    def expected(chosen: list[bool]) -> dict[str, float]:
        kept = [target for target, is_in in zip(targets, chosen, strict=True) if is_in]
        answers = [{"prediction_text": predicted[target["id"]], "id": target["id"]} for target in kept]
        return {name: float(value) for name, value in squad(answers, kept).items()}

    for prefix, chosen in (("", [True] * len(answered)), ("HasAns_", answered)):
        scores = expected(chosen)
        assert {name: report[f"{prefix}{name}"] for name in scores} == pytest.approx(scores, abs=1e-3)
    missing, first = {**predicted, "x": ""}, next(iter(predicted))
    Path("p.json").write_text(json.dumps(missing))  # the script ignores other questions, too
    main(["p.json", "set.json", "--json"])
    assert json.loads(capsys.readouterr().out)["f1"] == report["f1"]
    assert "p.json: answers to 1 other questions are ignored" in caplog.messages
    del missing[first]
    for name, rows, message in (
        ("p.json", [missing], f"p.json: no answer to 1 questions, such as '{first}'; allowed: one each"),
        ("p.jsonl", [{"id": "1"}, {"id": "2"}], "p.jsonl: no prediction column; name one with --prediction_field"),
        ("p.jsonl", [{"id": "1", "prediction": ""}] * 2, "p.jsonl: 1 rows repeat an id; allowed: each id once"),
        ("p.jsonl", [{"prediction": ""}], "p.jsonl has 1 lines, set.json has 1190; they must be equally many"),
    ):
        Path(name).write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(InputError) as error:
            main([name, "set.json"])
        assert str(error.value).startswith(message)


def test_tables_are_scored_as_the_files_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of utils.predict and run_eval.py score alike; without ids the order tells the questions."""
    monkeypatch.chdir(tmp_path)
    answers = [{"text": ["a cat's"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = [
        {"id": str(n), "question": "who?", "context": 'a cat\'s "eye"', "answers": answers[n % 2]} for n in range(6)
    ]
    texts = ["cats", "", "x", "", "cats", "y"]
    predicted = [{"id": row["id"], "prediction": text, "score": 0.5} for row, text in zip(rows, texts, strict=True)]
    for name, table in (("r", rows), ("p", predicted), ("q", [{"prediction": row["prediction"]} for row in predicted])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
        pq.write_table(pa.Table.from_pylist(table), f"{name}.parquet")
    Path("script.json").write_text(json.dumps({row["id"]: row["prediction"] for row in predicted}))
    reports = set()
    for names in (
        ("script.json", "r.jsonl"),
        ("p.jsonl", "r.parquet"),
        ("p.parquet", "r.jsonl"),
        ("q.jsonl", "r.jsonl"),
    ):
        main([*names, "--json"])
        reports.add(capsys.readouterr().out)
    assert len(reports) == 1 and json.loads(reports.pop())["exact_match"] == pytest.approx(100 * 4 / 6)
