"""Summaries of documents of any length."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from bart.errors import InputError
from bart.files import read_json
from bart.hub import resolve
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.progress import progress
from utils.app.run_directory import EXAMPLES
from utils.models.loading import for_inference, load_for_evaluation
from utils.prediction.options import LONG_DOCUMENTS, InferenceOptions, LongDocuments
from utils.text.windows import SHORTEST_WINDOW, split_text

logger = logging.getLogger(__name__)


def load_summarizer(options: InferenceOptions) -> tuple[BartForConditionalGeneration, BartTokenizer]:
    """Load the model that the options name, in its copy for inference, and its vocabulary."""
    model, tokenizer = load_for_evaluation(options.model, options.config_path, options.tokenizer)
    if model.config.source_encoder_layers:
        raise InputError(f"{options.model} reads another language; python -m utils.predict --task translation takes it")
    return for_inference(model.to(options.device), options.precision), tokenizer


def known_of(model: str) -> dict[str, Any]:
    """The facts that scoring writes beside a model, or {}: how it was `trained`, and `examples` of its test split."""
    path = resolve(model, ["config.json"]) / EXAMPLES
    return read_json(path) if path.is_file() else {}


def summarize(
    texts: str | Sequence[str],
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    *,
    long_documents: LongDocuments = "join",
    max_source_length: int | None = None,
    batch_size: int = 8,
    **options: Any,
) -> str | list[str]:
    """Summarise documents, which may be longer than the model can read; nothing is left out without a warning.

    Args:
        texts: one document, or several. White space around a document is ignored.
        long_documents: what to do with documents of more than max_source_length tokens. "refuse": raise InputError.
            "cut": leave out the rest. "join": split them into windows (see `split_text`) and join the summaries of the
            windows with spaces, so that the summary grows with the document.
        max_source_length: tokens that the model reads at once, special ones included. By default its config's, or all.
        batch_size: windows, of all documents, that are summarised at once.
        options: passed to `model.generate_many`, but num_return_sequences is always 1.
    """
    texts_in_order = [texts] if isinstance(texts, str) else texts
    limit = model.config.extra.get("max_source_length") if max_source_length is None else max_source_length
    documents = Documents(texts_in_order, tokenizer, model.config.max_position_embeddings, long_documents, limit)
    outputs: list[Sequence[int]] = [[]] * len(documents.windows)
    # A document gets one summary, also where the model's own defaults ask for more sequences.
    articles = model.generate_many(documents.windows, batch_size, **{**options, "num_return_sequences": 1})
    for article in progress("summarising", len(documents.windows), "windows", articles):
        outputs[article.index] = article.sequences[0].tolist()
    summaries = documents.summaries(outputs)
    return summaries[0] if isinstance(texts, str) else summaries


class Documents:
    """Documents as the windows that the model reads; the caller generates from these. `summarize` has the arguments.

    Attributes:
        windows: the ids of each window, of one document after the other.
        counts: for each document the number of its windows.
        cut_tokens: for each document the tokens that are left out.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: BartTokenizer,
        positions: int,
        long_documents: str,
        max_source_length: int | None,
    ) -> None:
        limit = positions if max_source_length is None else max_source_length
        if long_documents not in LONG_DOCUMENTS:
            raise InputError(f"long_documents is {long_documents!r}; allowed: {', '.join(LONG_DOCUMENTS)}")
        if type(limit) is not int or not SHORTEST_WINDOW <= limit <= positions:
            allowed = f"{SHORTEST_WINDOW} to {positions}, the model's positions"
            raise InputError(f"max_source_length is {limit!r}; allowed: {allowed}")
        for index, text in enumerate(texts):
            if not text.strip():
                raise InputError(f"texts[{index}] is {text[:40]!r}; allowed: a text that is not blank")
        self.tokenizer, texts = tokenizer, [text.strip() for text in texts]
        encoded = tokenizer(texts)["input_ids"] if texts else []
        windows, cuts = [[ids] for ids in encoded], long_documents == "cut"
        beyond = {index: len(ids) - limit for index, ids in enumerate(encoded) if len(ids) > limit}
        if beyond:
            longest = limit + max(beyond.values())
            finding = f"longer than {limit} tokens: {len(beyond)} of {len(texts)} documents, the longest with {longest}"
            if long_documents == "refuse":
                allowed = f"long_documents is 'refuse', allowed to go on: {', '.join(LONG_DOCUMENTS[1:])}"
                raise InputError(f"{finding} (texts[{min(beyond)}] is the first); {allowed}")
            for index in beyond:
                cut = [[*encoded[index][: limit - 1], tokenizer.eos_token_id]]
                windows[index] = cut if cuts else split_text(texts[index], tokenizer, limit)
            count = sum(len(windows[index]) for index in beyond)
            split = f"split into {count} windows, whose summaries are joined"
            logger.warning("%s; %s", finding, f"cut there, {sum(beyond.values())} tokens left out" if cuts else split)
        self.windows = [*chain.from_iterable(windows)]
        self.counts = [len(part) for part in windows]
        self.cut_tokens = [beyond.get(index, 0) * cuts for index in range(len(texts))]

    def summaries(self, outputs: Sequence[Sequence[int]]) -> list[str]:
        """The summary of each document, from the ids generated for each window."""
        decoded = (self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in outputs)
        return [" ".join(filter(None, islice(decoded, count))) for count in self.counts]
