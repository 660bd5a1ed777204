from __future__ import annotations

import json
from typing import Any

import pytest

from bart.generation import GenerationConfig
from utils.serving.parsing import Problem, SummaryRequest, parse_request

DEFAULTS = GenerationConfig(
    max_length=20, num_beams=4, length_penalty=2.0, eos_token_id=2, decoder_start_token_id=2, early_stopping=True
)


def parse(body: bytes) -> SummaryRequest:
    return parse_request(body, DEFAULTS, max_texts=3, max_beams=6, max_length=50)


def test_a_text_or_several() -> None:
    assert parse(b'{"text": "One."}') == SummaryRequest(["One."], True, {}, None)
    assert parse('\ufeff {"texts": ["Un.", "Zwölf 🙂"]}'.encode()) == SummaryRequest(
        ["Un.", "Zwölf 🙂"], False, {}, None
    )


def test_options_are_those_that_differ_from_the_models_own() -> None:
    given = {"num_beams": 4, "length_penalty": 2, "max_length": 50, "early_stopping": "never", "min_length": None}
    request = parse(json.dumps({"text": "One.", "long_documents": "cut", **given}).encode())
    assert request.options == {"max_length": 50, "early_stopping": "never"}
    assert request.long_documents == "cut"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is empty"),
        (b" \n", 400, "the body is empty"),
        (b"One.", 400, "the body is not JSON (Expecting value: line 1 column 1 (char 0))"),
        (b'{"text": "One."', 400, "the body is not JSON"),
        (b'{"text": "One.", "length_penalty": NaN}', 400, "NaN is no number of JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'{"text": ' + b"1" * 5000 + b"}", 400, "the body is not JSON"),
        ('{"text": "Zwölf"}'.encode("latin-1"), 400, "the body is not UTF-8 (byte 0xf6 at 12)"),
        ('{"text": "One."}'.encode("utf-16"), 400, "the body is not UTF-8 (byte 0xff at 0)"),
        (b'"One."', 422, 'the body is "One."; allowed: an object'),
        (b"[1]", 422, "the body is a list with 1 entries; allowed: an object"),
        (b"{}", 422, "the request has neither; allowed: either 'text' or 'texts'"),
        (b'{"text": "a", "texts": ["b"]}', 422, "the request has text and texts"),
        (b'{"text": 3}', 422, "text is 3; allowed: a text that is not blank"),
        (b'{"text": null}', 422, "text is null"),
        (b'{"text": ["a"]}', 422, "text is a list with 1 entries"),
        (b'{"text": ""}', 422, 'text is ""; allowed: a text that is not blank'),
        (b'{"text": " \\n"}', 422, 'text is " \\n"'),
        (b'{"text": "a \\ud800"}', 422, "text holds an unpaired surrogate"),
        (b'{"texts": "a"}', 422, 'texts is "a"; allowed: a list of at least one text'),
        (b'{"texts": []}', 422, "texts is a list with 0 entries"),
        (b'{"texts": ["a", " "]}', 422, 'texts[1] is " "'),
        (b'{"texts": ["a", "b", "c", "d"]}', 413, "texts has 4 entries; allowed: at most 3"),
    ],
)
def test_what_is_no_request_is_named(body: bytes, status: int, message: str) -> None:
    with pytest.raises(Problem) as caught:
        parse(body)
    assert (caught.value.status, message in caught.value.message) == (status, True), caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_beam", 3, "unknown field 'num_beam'; did you mean 'num_beams'?"),
        ("do_sample", True, "unknown field 'do_sample'"),
        ("num_beams", 7, "num_beams is 7; allowed: an integer from 1 to 6"),
        ("num_beams", 0, "num_beams is 0;"),
        ("num_beams", "4", 'num_beams is "4";'),
        ("num_beams", True, "num_beams is true;"),
        ("num_beams", 2.0, "num_beams is 2.0;"),
        ("max_length", 51, "max_length is 51; allowed: an integer from 2 to 50"),
        ("max_length", 10**30, "max_length is 1000000000000000000000000000000;"),
        ("min_length", 21, "min_length is 21; allowed: at most max_length (20)"),
        ("no_repeat_ngram_size", -1, "no_repeat_ngram_size is -1; allowed: an integer from 0 to 50"),
        ("length_penalty", 11, "length_penalty is 11; allowed: a number from -10 to 10"),
        ("length_penalty", 1e999, "the body is not JSON"),
        ("length_penalty", 10**400, "length_penalty is 1000000000000000000000000000000000000...;"),
        ("length_penalty", "x", 'length_penalty is "x";'),
        ("early_stopping", 1, 'early_stopping is 1; allowed: true, false or "never"'),
        ("long_documents", "drop", 'long_documents is "drop"; allowed: refuse, cut, join, resummarize'),
        ("long_documents", ["cut"], "long_documents is a list with 1 entries;"),
    ],
)
def test_options_beyond_the_limits_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(Problem) as caught:
        parse(json.dumps({"text": "One.", name: value}).encode())
    assert message in caught.value.message


def test_numbers_that_become_infinite_are_refused() -> None:
    with pytest.raises(Problem, match="length_penalty is Infinity"):
        parse(b'{"text": "One.", "length_penalty": 1e999}')


def test_what_the_models_own_options_exclude_is_refused() -> None:
    defaults = DEFAULTS.merged(num_beam_groups=2, diversity_penalty=1.0)
    with pytest.raises(Problem, match=r"num_beam_groups is 2; allowed: divisors of num_beams \(3\)") as caught:
        parse_request(b'{"text": "One.", "num_beams": 3}', defaults, 3, 6, 50)
    assert caught.value.status == 422
