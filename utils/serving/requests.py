"""What a request to the service may say, what it is answered, and how an error is told in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_type_hints

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from bart.generation import GenerationConfig
from utils.summarize import LongDocuments

MOST_LENGTH_PENALTY = 10


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not blank is expected")
    return text


class SummaryRequest(BaseModel):
    """The body of POST /summarize, without the limits of a service (see `request_model`)."""

    # Strict: a number in quotes is no number, and true is no integer.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    text: Annotated[str, AfterValidator(_not_blank)] | None = None
    texts: list[Annotated[str, AfterValidator(_not_blank)]] | None = None
    long_documents: LongDocuments | None = None
    num_beams: int | None = None
    max_length: int | None = None
    min_length: int | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    early_stopping: Literal[True, False, "never"] | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> SummaryRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("either 'text' or 'texts' is expected")
        return self

    def options(self, defaults: GenerationConfig) -> dict[str, Any]:
        """The decoding options that differ from the model's own, so that requests which mean the same are equal."""
        given = self.model_dump(exclude={"text", "texts", "long_documents"}, exclude_unset=True, exclude_none=True)
        return {name: value for name, value in given.items() if value != getattr(defaults, name)}


def request_model(
    defaults: GenerationConfig, long_documents: LongDocuments, max_articles: int, max_beams: int, max_length: int
) -> type[SummaryRequest]:
    """A SummaryRequest with the limits of a service, and with the values that null and absent fields stand for.

    Args:
        defaults: the model's own decoding options.
        long_documents: what the service does with long documents if a request does not say.
        max_articles, max_beams, max_length: the greatest number of texts, num_beams and max_length.
    """

    limits = {
        "texts": Field(None, min_length=1, max_length=max_articles),
        "long_documents": Field(long_documents),
        "num_beams": Field(defaults.num_beams, ge=1, le=max_beams),
        "max_length": Field(defaults.longest(max_length), ge=2, le=max_length),
        "min_length": Field(defaults.min_length, ge=0, le=max_length),
        "no_repeat_ngram_size": Field(defaults.no_repeat_ngram_size, ge=0, le=max_length),
        "length_penalty": Field(defaults.length_penalty, ge=-MOST_LENGTH_PENALTY, le=MOST_LENGTH_PENALTY),
        "early_stopping": Field(defaults.early_stopping),
    }
    types = get_type_hints(SummaryRequest, include_extras=True)
    return create_model(
        "SummaryRequest", __base__=SummaryRequest, **{name: (types[name], limit) for name, limit in limits.items()}
    )


class Summaries(BaseModel):
    """The answer: `summary` to a `text`, `summaries` to `texts` in their order."""

    summary: str | None = None
    summaries: list[str] | None = None
    articles: int = Field(description="Articles decoded; each window of a long document counts as one.")
    seconds: float


class Failure(BaseModel):
    error: str


def told(invalid: RequestValidationError) -> tuple[int, str]:
    """The status and the one line that answer an invalid request: the field, its value and what is allowed."""
    error = invalid.errors()[0]
    _, *place = error["loc"]
    if error["type"] == "json_invalid":
        return 400, f"the body is not JSON ({error['ctx']['error']} at character {place[0]})"
    if error["type"] == "missing":
        return 400, 'the body is empty; allowed: JSON such as {"text": "..."}'
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if not place:
        return 422, f"the body is {_shown(error['input'])}; {message}"
    name = str(place[0])[:40] + "".join(f"[{index}]" for index in place[1:])
    if error["type"] == "extra_forbidden":
        near = get_close_matches(name, SummaryRequest.model_fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(SummaryRequest.model_fields)}"
        return 422, f"unknown field {name!r}; {hint}"
    return 413 if error["type"] == "too_long" else 422, f"{name} is {_shown(error['input'])}; {message}"


def _shown(value: Any) -> str:
    """A value as JSON, cut to fit a line."""
    if isinstance(value, (list, Mapping)):
        return f"{'a list' if isinstance(value, list) else 'an object'} with {len(value)} entries"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
