"""Summarization, scored by ROUGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bart.errors import InputError
from utils.app.cli import option
from utils.app.start import is_first
from utils.data.line_files import Pairs
from utils.data.options import DataOptions
from utils.metrics.baselines import leads
from utils.metrics.rouge import ROUGE_MODES, rouge, rouge_per_example, wordnet_exceptions
from utils.metrics.significance import means_and_intervals
from utils.tasks.task import Prediction, Scores
from utils.tasks.text_to_text import TextToText, TextToTextEvalOptions, TextToTextOptions


@dataclass(frozen=True)
class SummarizationEvalOptions(TextToTextEvalOptions):
    """The options of run_eval.py."""

    rouge_mode: str = option(
        ROUGE_MODES[0],
        section="scoring",
        choices=ROUGE_MODES,
        help="rouge-score: Google's package; rouge-1.5.5: the figures of the Perl script that papers report",
    )
    wordnet_exceptions: str | None = option(
        None,
        help="folder of {adj,adv,noun,verb}.exc for --rouge_mode rouge-1.5.5; by default those of nltk's corpus "
        "wordnet, if it is installed",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wordnet_exceptions is not None and self.rouge_mode != "rouge-1.5.5":
            raise InputError(f"--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is {self.rouge_mode}")


class Summarization(TextToText):
    """Documents to summaries. Validation reports ROUGE of the package rouge-score."""

    EvalOptions = SummarizationEvalOptions
    figures: ClassVar[Mapping[str, str]] = {"rouge1": "max", "rouge2": "max", "rougeLsum": "max"}

    def __init__(self, options: TextToTextOptions | SummarizationEvalOptions, data: DataOptions) -> None:
        super().__init__(options, data)
        self.mode, self.exceptions = ROUGE_MODES[0], {}
        if isinstance(options, SummarizationEvalOptions):
            self.mode = options.rouge_mode
            if self.mode == "rouge-1.5.5" and is_first():  # the process that scores needs them, after hours of decoding
                self.exceptions = wordnet_exceptions(options.wordnet_exceptions)

    def default_metric(self) -> str:
        # An arg-max under teacher forcing that merely echoes the reference's previous token has a high ROUGE.
        return "loss" if self.options.eval_beams == 0 else "rouge2"

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, np.ndarray]:
        return rouge_per_example(predictions, references, self.mode, self.exceptions)

    def score(self, raw: Pairs, predictions: Sequence[Prediction]) -> Scores:
        _, each = super().score(raw, predictions)
        forms = {"wordnet_exceptions": len(self.exceptions)} if self.mode == "rouge-1.5.5" else {}
        # Without training, in the same mode, to tell what the model's scores are worth.
        baselines = {name: rouge(texts, raw[1], self.mode, self.exceptions) for name, texts in leads(raw[0]).items()}
        return {"rouge_mode": self.mode, **forms, **means_and_intervals(each), "baselines": baselines}, each
