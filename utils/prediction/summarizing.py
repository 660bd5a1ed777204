"""Summaries of documents of any length."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.progress import progress
from utils.models.loading import load_for_evaluation
from utils.prediction.options import LONG_DOCUMENTS, InferenceOptions, LongDocuments
from utils.text.sentences import without_repeats
from utils.text.windows import SHORTEST_WINDOW, split_text

logger = logging.getLogger(__name__)


def load_summarizer(options: InferenceOptions) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """Load the model that the options name, in its copy for inference, and its vocabulary."""
    model, tokenizer = load_for_evaluation(options.model, options.config_path, options.tokenizer)
    if model.config.source_encoder_layers:
        raise InputError(f"{options.model} reads another language; python -m utils.predict --task translation takes it")
    return options.prepare(model), tokenizer


def summarize(
    texts: str | Sequence[str],
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    *,
    long_documents: LongDocuments = "join",
    max_source_length: int | None = None,
    batch_size: int = 8,
    drop_repeated_sentences: bool = False,
    **options: Any,
) -> str | list[str]:
    """Summarise documents, which may be longer than the model can read; nothing is left out without a warning.

    A document that fits the model is summarised as it is. A warning says how many are longer and what is done to them.

    Args:
        texts: one document, or several. White space around a document is ignored.
        long_documents: what to do with documents of more than max_source_length tokens. "refuse": raise InputError.
            "cut": leave out the rest. "join": split them into windows (see `split_text`) and join the summaries of the
            windows with spaces, so that the summary grows with the document. "resummarize": summarise the joined
            summaries again, until they fit one window.
        max_source_length: tokens that the model reads at once, `<s>` and `</s>` included. Default: its positions.
        batch_size: windows, of all documents, that are summarised at once.
        drop_repeated_sentences: leave out a summary's repeated sentences (see `without_repeats`).
        options: passed to `model.generate_many`, but num_return_sequences is always 1.
    """
    documents = [texts] if isinstance(texts, str) else texts
    positions = model.config.max_position_embeddings
    rounds = Rounds(documents, tokenizer, positions, long_documents, max_source_length, drop_repeated_sentences)
    while rounds.windows:
        outputs: list[Sequence[int]] = [[]] * len(rounds.windows)
        # A document gets one summary, also where the model's own defaults ask for more sequences.
        articles = model.generate_many(rounds.windows, batch_size, **{**options, "num_return_sequences": 1})
        for article in progress("summarising", len(rounds.windows), "windows", articles):
            outputs[article.index] = article.sequences[0].tolist()
        rounds.proceed(outputs)
    return rounds.summaries[0] if isinstance(texts, str) else rounds.summaries


@dataclass
class Rounds:
    """The rounds in which documents are summarised; generation itself is left to the caller.

    In each round the caller generates from all `windows` and passes the results to `proceed`, until no windows are
    left. There is one round, or with "resummarize" as many as it takes. The arguments are those of `summarize`.

    Attributes:
        windows: ids of each window that the model reads in this round; empty when all summaries are done.
        summaries: one for each document; blank until it is done.
        sizes: for each document of this round, by its index: the tokens of its text, and the number of its windows.
    """

    documents: Sequence[str]
    tokenizer: BartTokenizer
    positions: int
    long_documents: str
    max_source_length: int | None
    drop_repeated_sentences: bool

    def __post_init__(self) -> None:
        self.limit = self.positions if self.max_source_length is None else self.max_source_length
        if self.long_documents not in LONG_DOCUMENTS:
            raise InputError(f"long_documents is {self.long_documents!r}; allowed: {', '.join(LONG_DOCUMENTS)}")
        if type(self.limit) is not int or not SHORTEST_WINDOW <= self.limit <= self.positions:
            allowed = f"{SHORTEST_WINDOW} to {self.positions}, the model's positions"
            raise InputError(f"max_source_length is {self.limit!r}; allowed: {allowed}")
        for index, text in enumerate(self.documents):
            if not text.strip():
                raise InputError(f"texts[{index}] is {text[:40]!r}; allowed: a text that is not blank")
        self.summaries = [""] * len(self.documents)
        self._start({index: text.strip() for index, text in enumerate(self.documents)}, "documents")

    def proceed(self, outputs: Sequence[Sequence[int]]) -> None:
        """Take the ids generated for each window, and begin the next round."""
        texts = (self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in outputs)
        to_shorten = {}
        for index, (size, window_count) in self.sizes.items():
            joined = " ".join(filter(None, islice(texts, window_count)))
            if self.drop_repeated_sentences:
                joined = without_repeats(joined)
            if window_count == 1 or self.long_documents == "join" or not joined:
                self.summaries[index] = joined
                continue
            # This ends: a text either fits, and then this is its last round, or has fewer tokens than the one before.
            new_size = len(self.tokenizer(joined)["input_ids"])
            if new_size > self.limit and new_size >= size:
                raise InputError(
                    f"long_documents is 'resummarize', but texts[{index}] does not get shorter: {size} tokens "
                    f"became {new_size}, and a window holds {self.limit}; allowed: longer windows, shorter summaries, "
                    "or 'join'"
                )
            to_shorten[index] = joined
        self._start(to_shorten, "joined summaries")

    def _start(self, texts: dict[int, str], kind: str) -> None:
        """Begin a round that reads these texts, each by the index of its document; warnings call them `kind`."""
        encoded = dict(zip(texts, self.tokenizer(list(texts.values()))["input_ids"], strict=True)) if texts else {}
        windows = {index: [ids] for index, ids in encoded.items()}
        lengths = {index: len(ids) for index, ids in encoded.items() if len(ids) > self.limit}
        if lengths:
            finding = (
                f"longer than {self.limit} tokens: {len(lengths)} of {len(texts)} {kind}, the longest with "
                f"{max(lengths.values())}"
            )
            if self.long_documents == "refuse":
                raise InputError(
                    f"{finding} (texts[{min(lengths)}] is the first); long_documents is 'refuse', allowed to go on: "
                    + ", ".join(LONG_DOCUMENTS[1:])
                )
            if self.long_documents == "cut":
                for index in lengths:
                    windows[index] = [[*encoded[index][: self.limit - 1], self.tokenizer.eos_token_id]]
                treatment = f"cut there, {sum(lengths.values()) - self.limit * len(lengths)} tokens left out"
            else:
                for index in lengths:
                    windows[index] = split_text(texts[index], self.tokenizer, self.limit)
                window_count = sum(len(windows[index]) for index in lengths)
                treatment = f"split into {window_count} windows, whose summaries are joined"
                if self.long_documents == "resummarize":
                    treatment += " and summarised again"
            logger.warning("%s; %s", finding, treatment)
        self.windows = list(chain.from_iterable(windows.values()))
        self.sizes = {index: (len(encoded[index]), len(windows[index])) for index in texts}
