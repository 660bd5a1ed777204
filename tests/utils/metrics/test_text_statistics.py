"""Statistics of texts, against cases worked by hand and definitions written out plainly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.metrics.text_statistics import fragments, repetition, text_statistics, words

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


def fragment_lengths(source: list[str], summary: list[str]) -> list[int]:
    """The lengths of the fragments, which must hold the same words in both texts."""
    found = fragments(source, summary)
    assert all(source[start : start + n] == summary[begin : begin + n] for begin, start, n in found)
    return [length for *_, length in found]


def test_fragments_worked_by_hand() -> None:
    # mayor of langgate | closed the bridge | on | sunday: runs of 3, 3 and 1 words, and a word that is new.
    assert fragment_lengths(SOURCE, SUMMARY) == [3, 3, 1]


def test_statistics_worked_by_hand() -> None:
    expected = {
        "words": 8,
        "novel1": 100 * 1 / 8,  # sunday
        "novel2": 100 * 3 / 7,  # langgate closed, bridge on, on sunday
        "novel3": 100 * 4 / 6,  # all but the two runs of three
        "novel4": 100.0,
        "coverage": 100 * 7 / 8,
        "density": (9 + 9 + 1) / 8,
        "repeated3": 0.0,
        "compression": 14 / 8,
    }
    assert text_statistics(SOURCE, SUMMARY) == pytest.approx(expected)


def test_repetition_counts_what_was_said_before() -> None:
    assert repetition(words("a b c a b c a b c")) == pytest.approx(100 * 4 / 7)
    assert repetition(words("a a a a a")) == pytest.approx(100 * 2 / 3)
    assert repetition(words("a b c")) == 0


def test_what_is_too_short_to_have_a_rate_has_none() -> None:
    empty = text_statistics(SOURCE, [])
    assert empty.pop("words") == 0
    assert set(empty.values()) == {None}
    assert text_statistics(SOURCE, ["rain"])["novel2"] is None
    assert text_statistics([], ["rain"])["coverage"] == 0
    assert repetition(["a", "b"]) is None


texts = st.lists(st.sampled_from("abc"), max_size=12)


@given(texts, texts)
def test_fragments_are_the_longest_runs_that_the_source_holds(source: list[str], summary: list[str]) -> None:
    """Against the definition: every run of the summary looked for in every place of the source."""
    runs = {tuple(source[i:j]) for i in range(len(source)) for j in range(i, len(source) + 1)} | {()}
    expected, begin = [], 0
    while begin < len(summary):
        longest = max(n for n in range(len(summary) - begin + 1) if tuple(summary[begin : begin + n]) in runs)
        expected += [longest] if longest else []
        begin += max(1, longest)
    assert fragment_lengths(source, summary) == expected
