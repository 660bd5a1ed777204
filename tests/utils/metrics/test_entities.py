"""Tags in all schemes and spellings against seqeval, plain ones against scikit-learn, published figures."""

from __future__ import annotations

import json
import random
import warnings
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from seqeval.scheme import BILOU, IOBES
from sklearn import metrics as sklearn_metrics

from bart.errors import InputError
from utils.data.conll import read_conll
from utils.metrics.entities import groups_of, main, scores_by_group, tag_counts, tag_scores
from utils.text.tags import Scheme, scheme_of

KINDS = ("PER", "LOC")
SCHEMES = {"BIO": None, "BIOES": IOBES, "BILOU": BILOU}  # seqeval's, of strict mode
SPELLINGS = {
    "b-per": str.lower,
    "B_PER": lambda tag: tag.replace("-", "_"),
    "PER-B": lambda tag: "-".join(reversed(tag.split("-"))),
    "per_b": lambda tag: "_".join(reversed(tag.lower().split("-"))),
}
Rows = list[list[str]]


def random_tags(letters: str, seed: int) -> tuple[Rows, Rows]:
    """Predicted and right tags of sentences, the former often wrong and of no valid order."""
    rng = random.Random(seed)
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in KINDS)]
    right = [rng.choices(tags, k=rng.randint(1, 12)) for _ in range(rng.randint(1, 6))]
    right[0] = tags  # each one once, by which the scheme is found
    return [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in row] for row in right], right


def counted(predicted: Rows, right: Rows) -> tuple[np.ndarray, list[str], Scheme | None]:
    scheme = scheme_of(chain.from_iterable(right))
    groups = groups_of(sorted({*chain.from_iterable([*predicted, *right])}), scheme)
    return sum(tag_counts(*pair, groups, scheme) for pair in zip(predicted, right, strict=True)), groups, scheme


def scored(predicted: Rows, right: Rows) -> dict[str, float]:
    counts, _, scheme = counted(predicted, right)
    return tag_scores(counts, scheme)


def by_group(predicted: Rows, right: Rows) -> dict[str, list[float]]:
    return {name: list(row.values()) for name, row in scores_by_group(*counted(predicted, right)[:2]).items()}


def expected_of(predicted: Rows, right: Rows, scheme: type | None) -> dict[str, float]:
    options = {} if scheme is None else {"mode": "strict", "scheme": scheme}
    measures = {"f1": f1_score, "entity_precision": precision_score, "entity_recall": recall_score}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the division by no entities
        scores = {name: 100 * measure(right, predicted, **options) for name, measure in measures.items()}
        return {**scores, "accuracy": 100 * accuracy_score(right, predicted)}


@pytest.mark.parametrize("name", SCHEMES)
def test_seqeval_agrees(name: str) -> None:
    for seed in range(20):
        predicted, right = random_tags(name.replace("O", ""), seed)
        expected = expected_of(predicted, right, SCHEMES[name])
        assert scored(predicted, right) == pytest.approx(expected)
        options = {} if SCHEMES[name] is None else {"mode": "strict", "scheme": SCHEMES[name]}
        report = classification_report(right, predicted, output_dict=True, zero_division=0, **options)
        for kind, row in by_group(predicted, right).items():
            theirs = report[kind]
            of_class = [theirs["precision"], theirs["recall"], theirs["f1-score"], theirs["support"] / 100]
            assert row == pytest.approx([100 * value for value in of_class])
        for spell in SPELLINGS.values():
            assert scored(*([list(map(spell, row)) for row in rows] for rows in (predicted, right))) == pytest.approx(
                expected
            )


def test_ends_alone_count_as_in_seqeval() -> None:
    for seed in range(20):
        rows = random_tags("E", seed)
        assert scored(*rows) == pytest.approx(expected_of(*rows, None))


def test_bmes_and_its_like_count_as_bioes() -> None:
    for names in ("BMES", "BMEW"):
        table = str.maketrans("BIES", names)
        for seed in range(20):
            rows = random_tags("BIES", seed)
            spelled = ([[tag[0].translate(table) + tag[1:] for tag in row] for row in part] for part in rows)
            assert scored(*spelled) == pytest.approx(expected_of(*rows, IOBES))
    segments = [list("SBMES"), list("BEBE")]  # of words in a line of Chinese
    predicted = [list("SBMES"), list("BESS")]
    spelled = ([[f"{'I' if tag == 'M' else tag}-X" for tag in row] for row in part] for part in (predicted, segments))
    assert scored(predicted, segments) == pytest.approx(expected_of(*spelled, IOBES))


@pytest.mark.parametrize(
    ("tags", "name"),
    [
        ("O B-PER I-PER", "BIO"),
        ("B I O", "BIO"),
        ("O B-PER I-PER X", "BIO"),
        ("O I-PER E-PER", "IOE"),
        ("O E-PER E-LOC", "IOE"),
        ("E-PER E-LOC", None),
        ("O B-PER I-PER E-PER S-PER", "BIOES"),
        ("O B-PER L-PER U-PER", "BILOU"),
        ("B M E S", "BMES"),
        ("O PER LOC", None),
        ("NOUN VERB ADJ X", None),
        ("S M L", None),
        ("O B-PER I-PER L-PER E-PER", None),
        ("NN NN_S NNP_S PRP-S", None),
        ("O", None),
    ],
)
def test_schemes_are_found(tags: str, name: str | None) -> None:
    scheme = scheme_of(tags.split())
    assert (None if scheme is None else scheme.name) == name


def test_plain_tags() -> None:
    rng = random.Random(0)
    for _ in range(20):
        right = [rng.choices(["NOUN", "VERB", "ADJ"], k=rng.randint(1, 9)) for _ in range(5)]
        predicted = [[rng.choice([tag, "NOUN", "DET"]) for tag in row] for row in right]
        flat = [list(chain.from_iterable(rows)) for rows in (right, predicted)]
        expected = {
            "accuracy": 100 * sklearn_metrics.accuracy_score(*flat),
            "macro_f1": 100 * sklearn_metrics.f1_score(*flat, average="macro"),
        }
        assert scored(predicted, right) == pytest.approx(expected)
    assert scored([["PER", "O"]], [["PER", "O"]]) == {"accuracy": 100, "macro_f1": 100}


PUBLISHED = {
    **{"arcada": 39.98, "drexel_cci": 26.30, "flytxt": 38.35, "mic-cis": 37.06, "sjtu_adapt": 40.42},
    **{"spinningbytes": 40.78, "uh_ritual": 41.86},
}


@pytest.mark.slow
@pytest.mark.parametrize("system", PUBLISHED)
def test_published_scores_of_wnut17(system: str, shared: Path) -> None:
    folder = shared / "data" / "wnut17"
    if not folder.is_dir():
        pytest.skip("the submissions of WNUT-17 are not there")
    files = (folder / "submissions" / f"{system}.txt", folder / "test.conll")
    predicted, right = ([sentence.tags for sentence in read_conll(file)] for file in files)
    assert len(right) == 1287
    assert round(scored(predicted, right)["f1"], 2) == PUBLISHED[system]


def test_the_command_reads_conll_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    predicted, right = random_tags("BI", 3)
    for name, rows in (("p", predicted), ("r", right)):
        words = [[f"w{number}" for number in range(len(tags))] for tags in rows]
        pairs = list(zip(words, rows, strict=True))
        blocks = ("".join(f"{word}\t{tag}\n" for word, tag in zip(*pair, strict=True)) for pair in pairs)
        Path(f"{name}.conll").write_text("\n".join(blocks))
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"words": w, "tags": t}) + "\n" for w, t in pairs))
    expected = expected_of(predicted, right, None)
    for ours, theirs in (("p.conll", "r.jsonl"), ("p.jsonl", "r.conll")):
        main([ours, theirs, "--compare", "r.conll", "--json"])
        report = json.loads(capsys.readouterr().out)
        assert {name: report[name] for name in expected} == pytest.approx(expected)
        assert report["compare"]["f1"]["other"] == pytest.approx(expected_of(right, right, None)["f1"])
        assert sorted(report["groups"]["kind"]) == sorted(KINDS)
    Path("short.conll").write_text("w0\tO\n\n" * len(right))
    Path("less.conll").write_text("w0\tO\n")
    Path("other.conll").write_text(Path("r.conll").read_text().replace("w1\t", "x\t"))
    rows = "".join(f'"[""w1""]",{tags[0]}\n' for tags in right)
    Path("one.jsonl").write_text("".join(json.dumps({"words": ["w0"], "tags": tags[:1]}) + "\n" for tags in right))
    Path("other.csv").write_text(f"words,tags\n{rows}")
    for words, message in (
        (["other.csv", "one.jsonl"], "other.csv:2: other words than those of one.jsonl:1"),
        (["less.conll", "r.conll"], f"less.conll has 1 sentences; allowed: {len(right)}, as the references have"),
        (["short.conll", "r.conll"], "short.conll:1: 1 tags; allowed: 5, as r.conll:1 has"),
        (["other.conll", "r.conll"], "other.conll:1: other words than those of r.conll:1"),
        (["p.conll", "r.jsonl", "--tags_field", "x"], "r.jsonl: --tags_field is 'x'; allowed: tags, words"),
        (["r.conll"] * 2, "r.conll: its tags would be its predictions; name these with --prediction_field"),
        (["r.jsonl"] * 2, "r.jsonl: no prediction column; name one with --prediction_field"),
    ):
        with pytest.raises(InputError) as error:
            main(words)
        assert str(error.value).startswith(message)


def test_a_tag_that_the_references_lack_may_stand_in_the_first_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tags may stand between blanks in a table, beside the right ones."""
    (tmp_path / "r.conll").write_text("w\tDT\nw\tNN\n\nw\tVB\n")
    (tmp_path / "p.csv").write_text("tags,prediction\nDT NN,DT JJ\nVB,VB\n")
    main([str(tmp_path / "p.csv"), str(tmp_path / "r.conll"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["accuracy"], report["macro_f1"]) == pytest.approx((200 / 3, 50))
