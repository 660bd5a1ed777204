"""Summarization, scored by ROUGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bart.errors import InputError
from utils.app.cli import option, part
from utils.app.start import is_first
from utils.data.options import Place
from utils.data.parallel_text import Pairs
from utils.metrics.baselines import leads
from utils.metrics.rouge import (
    ROUGE_MODES,
    ROUGE_TOKENIZERS,
    TOKENIZER_HELP,
    check_tokenizer,
    rouge,
    rouge_per_example,
    warn_of_scripts,
    wordnet_exceptions,
)
from utils.metrics.significance import means_and_intervals
from utils.models.loading import LoadedModel
from utils.tasks.task import Prediction, Scores
from utils.tasks.text_to_text import TextToText, TextToTextEvalOptions, TextToTextOptions, TextToTextTrainingOptions

ROUGE_155 = "rouge-1.5.5"


@dataclass(frozen=True)
class RougeOptions:
    """The ROUGE that predictions are scored by."""

    rouge_mode: str = option(
        ROUGE_MODES[0],
        section="scoring",
        choices=ROUGE_MODES,
        help="rouge-score: Google's package; rouge-1.5.5: the numbers of the Perl script that papers report",
        on_resume="may_change",
    )
    rouge_tokenizer: str = option(
        ROUGE_TOKENIZERS[0], choices=ROUGE_TOKENIZERS, help=TOKENIZER_HELP, on_resume="validation"
    )
    wordnet_exceptions: str | None = option(
        None,
        help="folder of {adj,adv,noun,verb}.exc for --rouge_mode rouge-1.5.5; by default those of nltk's corpus "
        "wordnet, if it is installed",
        on_resume="may_change",
    )

    def __post_init__(self) -> None:
        if self.wordnet_exceptions is not None and self.rouge_mode != ROUGE_155:
            raise InputError(f"--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is {self.rouge_mode}")
        check_tokenizer("rouge_mode", self.rouge_mode, self.rouge_tokenizer)


@dataclass(frozen=True)
class SummarizationOptions(TextToTextOptions):
    """The options in all programs."""

    rouge: RougeOptions = part(RougeOptions)


class Summarization(TextToText):
    """Documents to summaries. Validation reports ROUGE of the package rouge-score."""

    Options = SummarizationOptions
    metrics: ClassVar[Mapping[str, str]] = {"rouge1": "max", "rouge2": "max", "rougeLsum": "max"}

    def __init__(
        self,
        place: Place,
        options: SummarizationOptions | None = None,
        training: TextToTextTrainingOptions | None = None,
        evaluation: TextToTextEvalOptions | None = None,
    ) -> None:
        super().__init__(place, options, training, evaluation)
        self.exceptions: dict[str, str] = {}
        chosen = self.options.rouge
        if chosen.rouge_mode == ROUGE_155 and is_first():  # the process that scores needs them, after hours of decoding
            self.exceptions = wordnet_exceptions(chosen.wordnet_exceptions)

    def default_metric(self, learned: None) -> str:
        # An arg-max under teacher forcing that merely echoes the reference's previous token has a high ROUGE.
        return "loss" if self.training.eval_beams == 0 else "rouge2"

    def look_at(self, references: Sequence[str]) -> None:
        warn_of_scripts(references, self.options.rouge.rouge_mode, self.options.rouge.rouge_tokenizer)

    def scores_of_each(self, predictions: Sequence[str], references: Sequence[str]) -> Mapping[str, np.ndarray]:
        return rouge_per_example(predictions, references, tokenizer=self.options.rouge.rouge_tokenizer)

    def score(self, raw: Pairs, predictions: Sequence[Prediction], loaded: LoadedModel) -> Scores:
        mode, tokenizer, (sources, references) = self.options.rouge.rouge_mode, self.options.rouge.rouge_tokenizer, raw
        texts = [prediction.values["texts"][0] for prediction in predictions]
        how = (mode, self.exceptions, tokenizer)
        each = rouge_per_example(texts, references, *how)
        facts = {"wordnet_exceptions": len(self.exceptions)} if mode == ROUGE_155 else {"rouge_tokenizer": tokenizer}
        # Without training, in the same mode, to tell what the model's scores are worth.
        baselines = {name: rouge(lead, references, *how) for name, lead in leads(sources).items()}
        return {"rouge_mode": mode, **facts, **means_and_intervals(each), "baselines": baselines}, each
