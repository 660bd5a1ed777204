"""The bodies of requests and answers, and the one line that explains an invalid request."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from bart.generation import GenerationConfig
from utils.prediction.options import LongDocuments
from utils.serving.arguments import ServeArguments

MOST_LENGTH_PENALTY = MOST_RATIO = 10


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not blank is expected")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]


class _Body(BaseModel):
    """A body, or a part of it. It is strict: a number in quotes is no number, and true is no integer.

    Attributes:
        alternatives: fields of which exactly one must be given.
        example: one that is right, for messages.
        parts: the bodies that a list in it holds.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    alternatives: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[dict[str, Any]] = {"text": "A text."}
    parts: ClassVar[type[_Body] | None] = None

    @model_validator(mode="after")
    def _check_alternatives(self) -> _Body:
        if self.alternatives and sum(getattr(self, name) is not None for name in self.alternatives) != 1:
            raise ValueError("either " + " or ".join(map(repr, self.alternatives)) + " is expected")
        return self


def summary_request(defaults: GenerationConfig, args: ServeArguments, positions: int) -> type[BaseModel]:
    """Make the body of POST /summarize; null and absent fields stand for its defaults.

    Args:
        defaults: the model's decoding options.
        positions: of the model.
    """
    longest = args.max_summary_length or positions

    class SummaryRequest(_Body):
        alternatives = ("text", "texts")

        text: Text | None = None
        texts: list[Text] | None = Field(None, min_length=1, max_length=args.max_articles_per_request)
        long_documents: LongDocuments | None = args.documents.long_documents
        num_beams: int | None = Field(defaults.num_beams, ge=1, le=args.max_beams)
        max_length: int | None = Field(defaults.longest(positions), ge=2, le=longest)
        min_length: int | None = Field(defaults.min_length, ge=0, le=longest)
        no_repeat_ngram_size: int | None = Field(defaults.no_repeat_ngram_size, ge=0, le=longest)
        length_penalty: float | None = Field(defaults.length_penalty, ge=-MOST_LENGTH_PENALTY, le=MOST_LENGTH_PENALTY)
        early_stopping: Literal[True, False, "never"] | None = defaults.early_stopping
        max_ratio: float | None = Field(defaults.max_ratio, gt=0, le=MOST_RATIO)
        min_ratio: float | None = Field(defaults.min_ratio, ge=0, le=MOST_RATIO)
        drop_repeated_sentences: Literal[False, True] | None = False

    return SummaryRequest


class Summaries(BaseModel):
    """The answer: `summary` to a `text`, `summaries` to `texts` in their order."""

    summary: str | None = None
    summaries: list[str] | None = None
    articles: int = Field(description="Articles decoded; each window of a long document counts as one.")
    windows: list[int] | None = Field(None, description="Windows of each text; absent if each has one.")
    cut_tokens: list[int] | None = Field(None, description="Tokens left out of each text; absent if there are none.")
    seconds: float


class TextInput(_Body):
    text: Text
    pair: Text | None = Field(None, description="The second text, for a model that classifies pairs.")


class WordsInput(_Body):
    """A text, which is split at spaces and marks, or its words."""

    alternatives = ("text", "words")

    text: Text | None = None
    words: list[Text] | None = Field(None, min_length=1)


class QuestionInput(_Body):
    example = {"question": "A question?", "context": "A text."}

    question: Text
    context: Text


INPUTS = {"classification": TextInput, "tagging": WordsInput, "question_answering": QuestionInput}


class _Inputs(_Body):
    """Several inputs, or one alone without the name `inputs` around it."""

    @model_validator(mode="before")
    @classmethod
    def _list_one(cls, body: Any) -> Any:
        return {"inputs": [body]} if isinstance(body, dict) and "inputs" not in body else body

    @classmethod
    def model_json_schema(cls, **options: Any) -> dict[str, Any]:
        """The schema of both forms; without references, since OpenAPI would look for what they name elsewhere."""
        one, several = cls.parts.model_json_schema(), super().model_json_schema(**options)
        several["properties"]["inputs"]["items"] = one
        return {"anyOf": [{name: several[name] for name in several if name != "$defs"}, one]}


def prediction_request(args: ServeArguments) -> type[BaseModel]:
    """Make the body of a POST to the path of a task."""
    part = INPUTS[args.task]
    inputs = list[part], Field(min_length=1, max_length=args.max_articles_per_request)
    body = create_model("PredictionRequest", __base__=_Inputs, inputs=inputs)
    body.parts, body.example = part, {"inputs": [part.example]}
    return body


class Predictions(BaseModel):
    """The answer: a prediction for each input, in their order."""

    predictions: list[dict[str, Any]]
    seconds: float


class Failure(BaseModel):
    error: str


def explanation(invalid: ValidationError, body: type[_Body]) -> tuple[int, str]:
    """The status and the one line that answer an invalid request: the field, its value, what is allowed, an example."""
    error = invalid.errors()[0]
    example = f"; for example {json.dumps(body.example)}"
    if error["type"] == "json_invalid":
        return 400, f"the body is not JSON: {error['ctx']['error']}{example}"
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])[1:41] or "the body"
    if error["type"] == "extra_forbidden":
        fields = (body if len(error["loc"]) == 1 else body.parts).model_fields
        return 422, f"unknown field {name!r}; allowed: {', '.join(fields)}{example}"
    if error["type"] == "missing":
        return 422, f"no field {name}{example}"
    value = error["input"]
    if isinstance(value, (list, dict)):
        value = f"{'a list' if isinstance(value, list) else 'an object'} with {len(value)} entries"
    elif len(value := json.dumps(value)) > 40:
        value = value[:37] + "..."
    message = error["msg"].removeprefix("Value error, ")
    status = 413 if error["type"] == "too_long" else 422
    return status, f"{name} is {value}; {message[0].lower()}{message[1:]}{example}"
