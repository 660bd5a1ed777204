from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bart.tokenization.tokenization_bart import BartTokenizer
from tests.utils.long_texts import WORDS, sentences, texts_of, tokenizer, tokens
from utils.text.windows import split_text

SPACES = [" ", " ", " ", "  ", "\n\n", "\t", "\u2028", "\u00a0", "\x1c"]
ODD = 'Dr. p.m. ?! "Why?" left.(She \'re <mask> </s> é e\u0301 日本語 🙂🙂 \ufffd .'.split()
PIECES = st.sampled_from([*WORDS, *["hill. The "] * 9, *SPACES, *SPACES, *ODD])


@settings(deadline=None, max_examples=150)
@given(
    text=st.one_of(st.lists(PIECES, min_size=15, max_size=90).map("".join), st.text(min_size=1)),
    max_length=st.integers(8, 40),
)
@example(text="\ufffd" * 50, max_length=9)
@example(text="🙂" * 50, max_length=9)
@example(text="'re" * 30, max_length=8)
@example(text="One. \x1c Two?! (Three.) Four", max_length=8)
def test_every_character_is_in_exactly_one_window(text: str, max_length: int) -> None:
    if not text.strip():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    windows = split_text(text, tokenizer(), max_length)
    assert max(map(len, windows)) <= max_length
    assert {(ids[0], ids[-1]) for ids in windows} == {(tokenizer().bos_token_id, tokenizer().eos_token_id)}
    assert all(len(ids) > 2 for ids in windows)
    parts = texts_of(windows)
    assert "".join("".join(parts).split()) == "".join(text.split())
    # Apart from its ends a window is a part of the text, except for the white space that <mask> takes in.
    plain, *parts = (re.sub(r"\s+<mask>", "<mask>", part) for part in [text, *parts])
    at = 0
    for part in parts:
        at = plain.index(part.strip(), at) + len(part.strip())


def test_windows_end_at_sentence_ends_and_hold_the_ids_of_their_text() -> None:
    parts = ["The cat sat.  The dog ran over the hill.", "Dr. Men flew by then. It was seen at 3 p.m. by old men."]
    split = split_text(" " + "\n\n".join(parts) + "\n", tokenizer(), max(map(tokens, parts)))
    assert texts_of(split) == parts
    assert split == tokenizer()(parts)["input_ids"]


@pytest.mark.parametrize("seed", range(6))
def test_windows_are_the_fewest_and_the_longest_is_as_short_as_can_be(seed: int) -> None:
    """Against a search through all ways to cut the text."""
    parts = sentences(11, seed)
    limit = random.Random(seed).randint(max(map(tokens, parts)), 60)
    windows = split_text(" ".join(parts), tokenizer(), limit)

    def longest(cuts: tuple[int, ...]) -> int:
        return max(length(start, end) for start, end in pairwise([0, *cuts, len(parts)]))

    @cache
    def length(start: int, end: int) -> int:
        return tokens(" ".join(parts[start:end]))

    for count in range(len(parts)):
        shortest = min(map(longest, combinations(range(1, len(parts)), count)))
        if shortest <= limit:
            break
    assert len(windows) == count + 1
    assert max(map(len, windows)) == shortest
    assert windows == tokenizer()(texts_of(windows))["input_ids"]


@pytest.mark.parametrize("word", ["thedogcatbirdsatran" * 9, "🙂日本é" * 20, "\ufffd" * 70])
def test_a_word_longer_than_a_window_is_split_between_characters(word: str) -> None:
    windows = split_text(f"a dog{' ' * 200}{word} sat", tokenizer(), 12)
    assert all(2 < len(ids) <= 12 for ids in windows)
    assert "".join(texts_of(windows)).replace(" ", "") == f"adog{word}sat"
    alone = split_text(word, tokenizer(), 12)
    assert "".join(texts_of(alone)) == word
    assert len(alone) <= 2 * -(-(tokens(word) - 2) // 10)


def test_a_prefix_space_opens_a_window_and_is_nowhere_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "Ġ", *"abÃ©ðŁĻĤ", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    vocabulary = BartTokenizer.from_pretrained(tmp_path)
    words = ["".join(rng.choices("abé", k=rng.randint(1, 30))) for _ in range(30)]
    for text in ("ab ab ab ab ab", "a" * 30, "é" * 30, " ".join(words), "".join(words)):
        for max_length in range(8, 12):
            windows = split_text(text, vocabulary, max_length)
            assert max(map(len, windows)) <= max_length
            parts = texts_of(windows, vocabulary)
            assert all(part.startswith(" ") and part[1:] in text for part in parts)
            assert "".join("".join(parts).split()) == text.replace(" ", "")
            assert windows == vocabulary([part[1:] for part in parts])["input_ids"]
    # A copy of the tokenizer takes a second, and is made once for all texts, but anew where it lacks tokens.
    later = vocabulary.without_prefix_space
    assert vocabulary.without_prefix_space is later
    vocabulary.add_tokens("<new>")
    assert (len(later), len(vocabulary.without_prefix_space)) == (len(vocabulary) - 1, len(vocabulary))
