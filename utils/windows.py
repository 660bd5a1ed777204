"""Windows: parts of a text that a model can read, made of whole sentences."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.sentences import split_sentences

# Room for <s>, </s> and any one character: at most four bytes, and the space that add_prefix_space puts before it.
SHORTEST_WINDOW = 8


@dataclass
class SplitText:
    windows: list[list[int]]  # ids of each window, `<s>` and `</s>` included
    split_sentences: int  # sentences too long for a window, which were split between words
    split_words: int  # words too long for a window, which were split between tokens


def split_text(text: str, tokenizer: BartTokenizer, max_length: int) -> SplitText:
    """Split a text into as few windows as possible, all of similar length.

    Every character is in exactly one window, except white space between windows and around the text. Windows end at
    sentence ends. A sentence that is longer than a window is split between words, and such a word between tokens. Each
    window is tokenised as a text of its own, so its first word has no space before it.

    Windows are filled one after the other, which gives their number. The smallest window size that needs no more of
    them is then found by bisection, so that the last window is not much shorter than the others.

    Args:
        max_length: tokens that a window may have, `<s>` and `</s>` included; at least SHORTEST_WINDOW.

    Raises:
        InputError: a word has to be split, but none of its tokens ends at the end of a character.
    """
    room = max_length - 2
    units, long_sentences = _split_long(
        _sentences(text.strip()), lambda sentence: re.findall(r"\s*\S+", sentence), tokenizer, room
    )
    units, long_words = _split_long(units, lambda word: _split_word(word, tokenizer, room), tokenizer, room)
    # The ids of a unit depend on what comes before it: nothing at the start of a window, otherwise its white space.
    opening = _encode([unit.strip() for unit in units], tokenizer)
    following = _encode(units, tokenizer, add_prefix_space=False)
    lengths = [(len(first), len(later)) for first, later in zip(opening, following, strict=True)]
    fewest = len(_fill(lengths, room))
    size = 1 + bisect_left(range(1, room), True, key=lambda size: len(_fill(lengths, size)) <= fewest)
    windows = [
        [
            tokenizer.bos_token_id,
            *opening[start],
            *chain.from_iterable(following[start + 1 : end]),
            tokenizer.eos_token_id,
        ]
        for start, end in pairwise([*_fill(lengths, size), len(units)])
    ]
    return SplitText(windows, long_sentences, long_words)


def _encode(texts: Sequence[str], tokenizer: BartTokenizer, add_prefix_space: bool | None = None) -> list[list[int]]:
    """Ids of each text, without `<s>` and `</s>`."""
    return [ids[1:-1] for ids in tokenizer(texts, add_prefix_space=add_prefix_space)["input_ids"]]


def _sentences(text: str) -> list[str]:
    """The sentences of a text, each with the white space before it, so that joined they are the text."""
    ends, end = [], 0
    for sentence in split_sentences(text):
        end = text.index(sentence, end) + len(sentence)
        # Punkt also finds sentence ends inside words, as in "he left.(She stayed.)".
        if text[end : end + 1].isspace():
            ends.append(end)
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def _split_long(
    units: Sequence[str], split: Callable[[str], list[str]], tokenizer: BartTokenizer, room: int
) -> tuple[list[str], int]:
    """Split the units that have more than `room` tokens; return all units, and how many were split."""
    parts = [
        [unit] if len(ids) <= room else split(unit)
        for unit, ids in zip(units, _encode([unit.strip() for unit in units], tokenizer), strict=True)
    ]
    return list(chain.from_iterable(parts)), sum(len(part) > 1 for part in parts)


def _split_word(word: str, tokenizer: BartTokenizer, room: int) -> list[str]:
    """Split a word into pieces of similar length and at most `room` tokens; the first keeps the white space before."""
    pieces: list[str] = []
    [ids] = _encode([word.lstrip()], tokenizer, add_prefix_space=False)
    while ids:
        size = math.ceil(len(ids) / math.ceil(len(ids) / room))
        for end in range(size, 0, -1):
            piece = tokenizer.decode(ids[:end])
            # A byte-level token may end inside a character; its text does not give the same ids back.
            same = _encode([piece], tokenizer, add_prefix_space=False) == [ids[:end]]
            if same and len(_encode([piece], tokenizer)[0]) <= room:
                break
        else:
            raise InputError(
                f"a word of {len(ids)} tokens cannot be split into windows of {room + 2}: in this vocabulary none of "
                "its tokens ends where a character ends; allowed: words that fit, or long_documents='cut'"
            )
        pieces.append(piece)
        ids = ids[end:]
    pieces[0] = word[: len(word) - len(word.lstrip())] + pieces[0]
    return pieces


def _fill(lengths: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Fill windows of `size` tokens one after the other; return the index of the first unit of each window.

    Args:
        lengths: tokens of each unit at the start of a window, and after another unit. A window has more than `size`
            tokens only if it holds a single unit.
    """
    starts: list[int] = []
    used = 0
    for index, (opening, following) in enumerate(lengths):
        used += following
        if not starts or used > size:
            starts.append(index)
            used = opening
    return starts
