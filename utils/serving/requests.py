"""What a request to the service may say, what it is answered, and how an error is told in one line."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bart.generation import GenerationConfig
from utils.serving.arguments import ServeArguments
from utils.summarize import LongDocuments

MOST_LENGTH_PENALTY = MOST_RATIO = 10


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not blank is expected")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


def request_model(own: GenerationConfig, args: ServeArguments, longest: int) -> type[BaseModel]:
    """The body of POST /summarize; its defaults are what null and absent fields stand for.

    Args:
        own: the model's decoding options.
        longest: the greatest max_length that a request may ask for.
    """

    class SummaryRequest(BaseModel):
        # Strict: a number in quotes is no number, and true is no integer.
        model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

        text: Text | None = None
        texts: list[Text] | None = Field(None, min_length=1, max_length=args.max_articles_per_request)
        long_documents: LongDocuments | None = args.long_documents
        num_beams: int | None = Field(own.num_beams, ge=1, le=args.max_beams)
        max_length: int | None = Field(own.longest(longest), ge=2, le=longest)
        min_length: int | None = Field(own.min_length, ge=0, le=longest)
        no_repeat_ngram_size: int | None = Field(own.no_repeat_ngram_size, ge=0, le=longest)
        length_penalty: float | None = Field(own.length_penalty, ge=-MOST_LENGTH_PENALTY, le=MOST_LENGTH_PENALTY)
        early_stopping: Literal[True, False, "never"] | None = own.early_stopping
        max_ratio: float | None = Field(own.max_ratio, gt=0, le=MOST_RATIO)
        min_ratio: float | None = Field(own.min_ratio, ge=0, le=MOST_RATIO)
        drop_repeated_sentences: Literal[False, True] | None = False

        @model_validator(mode="after")
        def _check_texts(self) -> SummaryRequest:
            if (self.text is None) == (self.texts is None):
                raise ValueError("either 'text' or 'texts' is expected")
            return self

    return SummaryRequest


class Summaries(BaseModel):
    """The answer: `summary` to a `text`, `summaries` to `texts` in their order."""

    summary: str | None = None
    summaries: list[str] | None = None
    articles: int = Field(description="Articles decoded; each window of a long document counts as one.")
    windows: list[int] | None = Field(None, description="Windows of each text; absent if each has one.")
    cut_tokens: list[int] | None = Field(None, description="Tokens left out of each text; absent if there are none.")
    seconds: float


class Failure(BaseModel):
    error: str


def told(invalid: ValidationError, fields: list[str]) -> tuple[int, str]:
    """The status and the one line that answer an invalid request: the field, its value and what is allowed."""
    error = invalid.errors()[0]
    if error["type"] == "json_invalid":
        return 400, f"the body is not JSON: {error['ctx']['error']}"
    name = "".join(f"[{part}]" if isinstance(part, int) else part for part in error["loc"])[:40] or "the body"
    if error["type"] == "extra_forbidden":
        return 422, f"unknown field {name!r}; allowed: {', '.join(fields)}"
    value = error["input"]
    if isinstance(value, (list, dict)):
        value = f"{'a list' if isinstance(value, list) else 'an object'} with {len(value)} entries"
    elif len(value := json.dumps(value)) > 40:
        value = value[:37] + "..."
    message = error["msg"].removeprefix("Value error, ")
    return 413 if error["type"] == "too_long" else 422, f"{name} is {value}; {message[0].lower()}{message[1:]}"
