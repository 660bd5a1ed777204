from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from bart.errors import InputError
from utils.metrics.__main__ import main as every_name
from utils.metrics.bleu import main, translation_scores
from utils.metrics.options import BleuOptions

PREDICTIONS = ["The cat sat on the mat, quietly.", "", "He's gone to the U.S. for 3.5 years."]
REFERENCES = ["The cat sat on a mat quietly.", "Nobody knows.", "He has gone to the U.S. for 3.5 years."]


def test_bleu_and_chrf_are_sacrebleus() -> None:
    """Also with several references of some examples."""
    scores = translation_scores(PREDICTIONS, REFERENCES)
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert 20 < scores["bleu"] < 90
    assert scores["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert scores["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    assert scores["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    streams = [REFERENCES, [None, "Nobody knows it.", "He left for the U.S. for 3.5 years."]]
    lines = [REFERENCES[0], *(json.dumps(list(pair)) for pair in list(zip(*streams, strict=True))[1:])]
    scores = translation_scores(PREDICTIONS, lines)
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, streams).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, streams).score
    assert scores["bleu_signature"].startswith("nrefs:var|")


CHINESE = ["今天天气很好，我们去公园。", "他昨天没有来。"], ["今天天气好，我们去了公园。", "他昨天没有来过。"]


def test_scripts_without_blanks_are_named(caplog: pytest.LogCaptureFixture) -> None:
    BleuOptions().warn_of_scripts(CHINESE[1])
    assert "100 % of the references' letters are of scripts without blanks: --bleu_tokenize 13a" in caplog.messages[0]
    BleuOptions("zh").warn_of_scripts(CHINESE[1])
    BleuOptions().warn_of_scripts([*REFERENCES, "Он уехал в США на 3,5 года."])
    assert len(caplog.messages) == 1


def test_a_tokenizer_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(InputError, match=r"^--bleu_tokenize ja-mecab: .*pip install sacrebleu\[ja\]$"):
        BleuOptions("ja-mecab")


def test_the_command_scores_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictions, references = tmp_path / "p", tmp_path / "r"
    for path, lines in zip((predictions, references), CHINESE, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    main([str(predictions), str(references), "--bleu_tokenize", "zh", "--json"])
    expected = sacrebleu.corpus_bleu(CHINESE[0], [CHINESE[1]], tokenize="zh")
    printed = json.loads(capsys.readouterr().out)
    assert printed["bleu"] == pytest.approx(expected.score) and expected.score > 30
    assert printed["chrf"] == pytest.approx(sacrebleu.corpus_chrf(CHINESE[0], [CHINESE[1]]).score)
    every_name(["bleu", str(predictions), str(references), "--bleu_tokenize", "zh"])
    shown = capsys.readouterr().out
    assert f"BLEU     {expected.score:.2f}" in shown and "tok:zh" in shown


def test_two_systems_are_compared_as_sacrebleu_does(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shared / "data/debtrans_en_fr"
    gold = (folder / "test.target").read_text(encoding="utf-8").splitlines()[:60]
    random = Random(0)
    systems = [
        [" ".join(word for word in line.split() if random.random() > share) or "a" for line in gold]
        for share in (0.2, 0.24)
    ]
    for name, lines in zip(("gold", "a", "b"), (gold, *systems), strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    main(["a", "gold", "--compare", "b", "--json"])
    printed = json.loads(capsys.readouterr().out)
    metrics = {"BLEU": BLEU(), "chrF2": CHRF()}
    named = [("b", systems[1]), ("a", systems[0])]
    expected = PairedTest(named, metrics, [gold], test_type="ar", n_samples=4000)()[1]
    intervals = PairedTest(named, metrics, [gold], test_type="bs", n_samples=1000)()[1]
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF2")):
        row, (other, ours) = printed["compare"][name], expected[title]
        assert (printed[name], row["other"]) == pytest.approx((ours.score, other.score))
        assert row["p_value"] == pytest.approx(ours.p_value, abs=0.03)
        low, high = printed["intervals"][name]
        assert (high - low) / 2 == pytest.approx(intervals[title][1].ci, rel=0.1)
