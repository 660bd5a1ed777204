"""The service that summarises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from bart.errors import InputError
from bart.generation import GenerationConfig, generate_live
from bart.modeling.modeling_bart import BartForConditionalGeneration
from utils.models.generation_options import with_lengths
from utils.prediction.options import LongDocuments
from utils.prediction.summarizing import Documents, known_of, load_summarizer
from utils.serving.arguments import ServeArguments
from utils.serving.engine import Arrivals
from utils.serving.service import Body, Service, Text

MOST_LENGTH_PENALTY = 10


def generate(
    model: BartForConditionalGeneration, arrivals: Arrivals, batch_size: int, **options: Any
) -> Iterator[tuple[int, list[int]]]:
    """The engine's work on windows, ids without padding: yields the ids of the summary of each."""
    for done in generate_live(model, arrivals, batch_size, **options, num_return_sequences=1):
        [ids] = done.sequences.tolist()
        yield done.index, ids


def summary_request(defaults: GenerationConfig, args: ServeArguments, positions: int) -> type[BaseModel]:
    """Make the body of POST /summarize; null and absent fields stand for the model's defaults."""

    class SummaryRequest(Body):
        alternatives = ("text", "texts")

        text: Text | None = None
        texts: list[Text] | None = Field(None, min_length=1, max_length=args.max_queue)
        long_documents: LongDocuments | None = args.documents.long_documents
        num_beams: int | None = Field(defaults.num_beams, ge=1, le=args.max_beams)
        max_length: int | None = Field(defaults.longest(positions), ge=2, le=positions)
        min_length: int | None = Field(defaults.min_length, ge=0, le=positions)
        no_repeat_ngram_size: int | None = Field(defaults.no_repeat_ngram_size, ge=0, le=positions)
        length_penalty: float | None = Field(defaults.length_penalty, ge=-MOST_LENGTH_PENALTY, le=MOST_LENGTH_PENALTY)
        early_stopping: Literal[True, False, "never"] | None = defaults.early_stopping

        @property
        def inputs(self) -> list[str]:
            return self.texts or [self.text]

    return SummaryRequest


class Summaries(BaseModel):
    """The answer: `summary` to a `text`, `summaries` to `texts` in their order."""

    summary: str | None = None
    summaries: list[str] | None = None
    articles: int = Field(description="Articles decoded; each window of a long document counts as one.")
    windows: list[int] | None = Field(None, description="Windows of each text; absent if each has one.")
    cut_tokens: list[int] | None = Field(None, description="Tokens left out of each text; absent if there are none.")
    seconds: float


class SummaryService(Service):
    """Answers requests with the summaries that `utils.prediction.summarizing.summarize` gives."""

    path, title, page_file, answer_model = "/summarize", "BART summaries", "page.html", Summaries
    description = """Summarise a text, or several; documents longer than the model are split into windows.

        Every field but the text is optional: null stands for the model's or the service's own.
        """

    def __init__(self, args: ServeArguments) -> None:
        model, self.tokenizer = load_summarizer(args.inference)
        self.positions = model.config.max_position_embeddings
        self.known = known_of(args.inference.model)
        self.limit = args.documents.max_source_length or model.config.extra.get("max_source_length") or self.positions
        if self.limit > self.positions:
            raise InputError(f"--max_source_length is {self.limit}; allowed: at most {self.positions}, the positions")
        self.defaults = model.generation_config.merged(num_return_sequences=1)
        super().__init__(args, summary_request(self.defaults, args, self.positions), partial(generate, model))

    async def compute(self, content: BaseModel) -> dict[str, Any]:
        options = self._decoding_options(content)
        how = content.long_documents or self.args.documents.long_documents
        documents = await asyncio.to_thread(Documents, content.inputs, self.tokenizer, self.positions, how, self.limit)
        outputs = await self.results(documents.windows, options)
        summaries = await asyncio.to_thread(documents.summaries, outputs)
        return {
            "summary": None if content.text is None else summaries[0],
            "summaries": summaries if content.text is None else None,
            "articles": len(outputs),
            "windows": documents.counts if max(documents.counts) > 1 else None,
            "cut_tokens": documents.cut_tokens if any(documents.cut_tokens) else None,
        }

    def _decoding_options(self, content: BaseModel) -> dict[str, Any]:
        """The options of a request that differ from the model's, so that requests which mean the same are equal."""
        not_of_decoding = {"text", "texts", "long_documents"}
        requested = with_lengths(content.model_dump(exclude=not_of_decoding, exclude_unset=True, exclude_none=True))
        options = {name: value for name, value in requested.items() if value != getattr(self.defaults, name)}
        config = self.defaults.merged(**options)
        longest = config.longest(self.positions)
        if config.shortest > longest:
            raise InputError(f"min_length is {config.shortest}; allowed: at most max_length ({longest})")
        return options
