from __future__ import annotations

import pytest
import sacrebleu

from utils.metrics.bleu import translation_scores

PREDICTIONS = ["The cat sat on the mat, quietly.", "", "He's gone to the U.S. for 3.5 years."]
REFERENCES = ["The cat sat on a mat quietly.", "Nobody knows.", "He has gone to the U.S. for 3.5 years."]


def test_bleu_and_chrf_are_sacrebleus() -> None:
    scores = translation_scores(PREDICTIONS, REFERENCES)
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert 20 < scores["bleu"] < 90
    assert scores["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert scores["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    assert scores["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert translation_scores(REFERENCES, REFERENCES)["bleu"] == pytest.approx(100)
