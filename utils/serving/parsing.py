"""What a request to the service says, checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from bart.errors import InputError
from bart.generation import GenerationConfig
from utils.summarize import LONG_DOCUMENTS

MOST_LENGTH_PENALTY = 10.0


class Problem(Exception):
    """A request that gets no summary, with the status and the one line that answer it."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class SummaryRequest:
    """A request's content.

    Attributes:
        texts: the documents.
        single: whether it was one `text`, not a list.
        options: of generation; only those that differ from the model's own, so that equal requests have equal options.
        long_documents: as in `summarize`; None for the service's own.
    """

    texts: list[str]
    single: bool
    options: dict[str, Any]
    long_documents: str | None


def parse_request(
    body: bytes, defaults: GenerationConfig, max_texts: int, max_beams: int, max_length: int
) -> SummaryRequest:
    """Read a request's body.

    Args:
        defaults: the model's decoding options.
        max_texts, max_beams, max_length: the service's limits.

    Raises:
        Problem: 400 for what is no JSON in UTF-8, 413 for too many texts, 422 for any other fault, which it names.
    """
    content = _json_object(body)
    if len(content.keys() & {"text", "texts"}) != 1:
        given = " and ".join(sorted(content.keys() & {"text", "texts"})) or "neither"
        raise Problem(422, f"the request has {given}; allowed: either 'text' or 'texts'")
    single = "text" in content
    texts = [content.pop("text")] if single else content.pop("texts")
    if not isinstance(texts, list) or not texts:
        _refuse("texts", texts, "a list of at least one text")
    if len(texts) > max_texts:
        raise Problem(413, f"texts has {len(texts)} entries; allowed: at most {max_texts}")
    for index, text in enumerate(texts):
        name = "text" if single else f"texts[{index}]"
        if not isinstance(text, str) or not text.strip():
            _refuse(name, text, "a text that is not blank")
        if not _is_unicode(text):
            raise Problem(422, f"{name} holds an unpaired surrogate; allowed: Unicode text")
    long_documents = content.pop("long_documents", None)
    if long_documents is not None and long_documents not in LONG_DOCUMENTS:
        _refuse("long_documents", long_documents, ", ".join(LONG_DOCUMENTS))
    options = {name: value for name, value in content.items() if value is not None}
    _check_options(options, max_beams, max_length)
    try:
        config = defaults.merged(**options)
        longest = config.longest(max_length)
    except InputError as error:
        raise Problem(422, str(error)) from None
    if config.min_length > longest:
        _refuse("min_length", config.min_length, f"at most max_length ({longest})")
    changed = {name: value for name, value in options.items() if value != getattr(defaults, name)}
    return SummaryRequest(texts, single, changed, long_documents)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 (byte 0x{body[error.start]:02x} at {error.start})") from None
    if not text.strip():
        raise Problem(400, 'the body is empty; allowed: JSON such as {"text": "..."}')

    def no_number(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON")

    try:
        content = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise Problem(422, f'the body is {_shown(content)}; allowed: an object such as {{"text": "..."}}')
    return content


def _check_options(options: dict[str, Any], max_beams: int, max_length: int) -> None:
    """Refuse unknown names, and values beyond the service's limits."""
    whole = {
        "num_beams": (1, max_beams),
        "max_length": (2, max_length),
        "min_length": (0, max_length),
        "no_repeat_ngram_size": (0, max_length),
    }
    known = [*whole, "length_penalty", "early_stopping"]
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            fields = ", ".join(["text", "texts", "long_documents", *known])
            raise Problem(422, f"unknown field {name[:40]!r}{hint}; allowed: {fields}")
        if name in whole:
            least, most = whole[name]
            if type(value) is not int or not least <= value <= most:
                _refuse(name, value, f"an integer from {least} to {most}")
        elif name == "length_penalty":
            if type(value) not in (int, float) or not abs(value) <= MOST_LENGTH_PENALTY:
                _refuse(name, value, f"a number from {-MOST_LENGTH_PENALTY:g} to {MOST_LENGTH_PENALTY:g}")
            options[name] = float(value)
        elif type(value) is not bool and value != "never":
            _refuse(name, value, 'true, false or "never"')


def _refuse(name: str, value: Any, allowed: str) -> NoReturn:
    raise Problem(422, f"{name} is {_shown(value)}; allowed: {allowed}")


def _shown(value: Any) -> str:
    """A value as JSON has it, cut to what a line holds."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} with {len(value)} entries"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else text[:37] + "..."


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
