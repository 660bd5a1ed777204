"""Windows: parts of a text that a model can read, made of whole sentences."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import chain, pairwise

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.text.sentences import sentence_parts

# Room for <s>, </s> and any one character: at most four bytes, and the space that add_prefix_space puts before it.
SHORTEST_WINDOW = 8


def split_text(text: str, tokenizer: BartTokenizer, max_length: int) -> list[list[int]]:
    """Split a text into few windows of at most max_length tokens, as ids with `<s>` and `</s>`.

    Windows end at sentence ends, but a sentence that is longer than a window is split between words, and such a word
    between characters. Each window is tokenised as a text of its own, so its first word has no space before it. The
    smallest size that needs no more windows is found by bisection, so that the last one is not much shorter.
    """
    room, encode = max_length - 2, partial(tokenizer, add_special_tokens=False)
    units = sentence_parts(text.strip())
    while max(map(len, opening := encode([unit.strip() for unit in units])["input_ids"])) > room:
        units = [
            part
            for unit, ids in zip(units, opening, strict=True)
            for part in ([unit] if len(ids) <= room else _split_long(unit, math.ceil(len(ids) / room)))
        ]
    # The ids of a unit depend on what comes before it: nothing at the start of a window, otherwise its white space.
    later = tokenizer.without_prefix_space if tokenizer.add_prefix_space else tokenizer
    following = later(units, add_special_tokens=False)["input_ids"]
    lengths = [(len(first), len(later)) for first, later in zip(opening, following, strict=True)]
    fewest = len(_fill(lengths, room))
    size = 1 + bisect_left(range(1, room), True, key=lambda size: len(_fill(lengths, size)) <= fewest)
    return [
        [
            tokenizer.bos_token_id,
            *opening[start],
            *chain.from_iterable(following[start + 1 : end]),
            tokenizer.eos_token_id,
        ]
        for start, end in pairwise([*_fill(lengths, size), len(units)])
    ]


def _split_long(unit: str, count: int) -> list[str]:
    """Split a sentence into words, or a word into `count` slices; each part keeps the white space before it."""
    words = re.findall(r"\s*\S+", unit)
    if len(words) > 1:
        return words
    begin = len(unit) - len(unit.lstrip())
    size = math.ceil((len(unit) - begin) / count)
    return [unit[start:end] for start, end in pairwise([0, *range(begin + size, len(unit), size), len(unit)])]


def _fill(lengths: Sequence[tuple[int, int]], size: int) -> list[int]:
    """The first unit of each window of `size` tokens; `lengths` are those of a unit first, and after another one."""
    starts: list[int] = []
    used = 0
    for index, (opening, following) in enumerate(lengths):
        used += following
        if not starts or used > size:
            starts.append(index)
            used = opening
    return starts
