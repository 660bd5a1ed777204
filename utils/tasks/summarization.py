"""Summarization, scored by ROUGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from utils.app.machine import is_first
from utils.data.tables import Pairs
from utils.metrics.facts import unsupported_facts
from utils.metrics.rouge import leads, rouge, rouge_per_example
from utils.metrics.rouge_pairs import RougeRule
from utils.metrics.significance import means_and_intervals
from utils.models.loading import LoadedBart
from utils.tasks.options import OPTIONS
from utils.tasks.task import Prediction, Scores
from utils.tasks.text_to_text import TextToText
from utils.text.lines import reference_texts, references_of


class Summarization(TextToText):
    """Documents to summaries. Validation reports ROUGE of the package rouge-score."""

    Options, TrainingOptions, EvalOptions = OPTIONS["summarization"]
    pipeline = "summarization"
    metrics: ClassVar[Mapping[str, str]] = {"rouge1": "max", "rouge2": "max", "rougeLsum": "max"}

    def check_options(self) -> None:
        super().check_options()
        # The process that scores reads the irregular forms now, not after hours of decoding.
        self.rule = self.options.rouge.rule() if is_first() else None

    def metrics_for(self, learned: None) -> Sequence[str]:
        # An arg-max under teacher forcing that merely echoes the reference's previous token has a high ROUGE.
        return "loss" if self.training.eval_beams == 0 else "rouge2", *self.metrics, "loss"

    def look_at(self, references: Sequence[str]) -> None:
        self.options.rouge.warn_of_scripts(references)
        self.options.rouge.warn_of_marks(reference_texts(references))

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, np.ndarray]:
        options = self.options.rouge
        rule = RougeRule(tokenizer=options.rouge_tokenizer, sentence_ends=options.sentence_end.split())
        return rouge_per_example(predictions, references, rule)

    def score(self, raw: Pairs, predictions: Sequence[Prediction], loaded: LoadedBart) -> Scores:
        rule, (sources, references) = self.rule, raw
        texts = [prediction.values["texts"][0] for prediction in predictions]
        self.options.rouge.warn_of_marks(texts, reference_texts(references))
        each = rouge_per_example(texts, references, rule)
        facts = {"rouge_tokenizer": rule.tokenizer}
        if rule.exceptions is not None:
            facts = {"wordnet_exceptions": len(rule.exceptions)}
        if rule.sentence_ends:
            facts["sentence_end"] = self.options.rouge.sentence_end
        # Without training, in the same mode, to tell what the model's scores are worth.
        baselines = {name: rouge(lead, references, rule) for name, lead in leads(sources).items()}
        return {"rouge_mode": rule.mode, **facts, **means_and_intervals(each), "baselines": baselines}, each

    def checks(self, raw: Pairs, predictions: Sequence[Prediction]) -> dict[str, Any]:
        given = repeat(None) if raw[1] is None else ("\n".join(references_of(line)) for line in raw[1])
        summaries = [prediction.values["texts"][0] for prediction in predictions]
        facts = unsupported_facts(tuple(zip(raw[0], given, summaries, strict=False)))
        return facts and {"unsupported_facts": facts}
