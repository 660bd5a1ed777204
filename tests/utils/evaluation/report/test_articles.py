"""Statistics of texts, against cases worked by hand and definitions written out plainly."""

from __future__ import annotations

import pytest

from utils.evaluation.report.articles import novelty, repetition, words

SOURCE = words("The mayor of Langgate spoke on Monday. Rain closed the bridge, the mayor said.")
SUMMARY = words("Mayor of Langgate closed the bridge on Sunday.")


def test_words_are_lower_cased_runs_of_letters_and_digits() -> None:
    assert words("Don't PAY $3.5-million, Élan_2\u2028İ 你好 😀") == [
        *("don", "t", "pay", "3", "5", "million", "élan", "2", "i̇", "你好")
    ]
    assert words(" …  ") == []


@pytest.mark.parametrize("text", ["नमस्ते दुनिया", "தமிழ் மொழி", "می\u200cخواهم رفت", "cafe\u0301 noir"])
def test_words_are_whole_in_any_script(text: str) -> None:
    assert words(f"{text}। 👩\u200d💻 ❤\ufe0f") == text.split()


def test_new_bigrams_are_those_that_the_source_lacks() -> None:
    assert novelty(SOURCE, SUMMARY) == pytest.approx(100 * 3 / 7)  # langgate closed, bridge on, on sunday


def test_repetition_counts_what_was_said_before() -> None:
    assert repetition(words("a b c a b c a b c")) == pytest.approx(100 * 4 / 7)
    assert repetition(words("a a a a a")) == pytest.approx(100 * 2 / 3)
    assert repetition(words("a b c")) == 0


def test_what_is_too_short_to_have_a_rate_has_none() -> None:
    assert novelty(SOURCE, ["rain"]) is None
    assert repetition(["a", "b"]) is None
