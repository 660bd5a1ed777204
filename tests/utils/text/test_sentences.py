from __future__ import annotations

from typing import Any

import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer

from utils.text import sentences
from utils.text.sentences import sentence_parts, split_sentences, without_repeats


def test_long_texts_are_split_in_parts_with_the_result_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """nltk raises TimeoutError after a search of five seconds, which some megabytes take."""
    text = 'Mr. Li sat.  "A dog ran!" (It was 3.5 m.) Did U.S. men see it?\nYes... e.g. Dr. Lee. ' * 30
    whole = split_sentences(text)
    assert len(whole) > 100
    sizes: list[int] = []
    span_tokenize = PunktSentenceTokenizer.span_tokenize

    def measured(splitter: PunktSentenceTokenizer, part: str) -> Any:
        sizes.append(len(part))
        return span_tokenize(splitter, part)

    monkeypatch.setattr(PunktSentenceTokenizer, "span_tokenize", measured)
    for size in (60, 100, 1000):
        monkeypatch.setattr(sentences, "_AT_ONCE", size)
        assert split_sentences(text) == whole
        assert "".join(sentence_parts(text)) == text
        assert max(sizes) == size
        sizes.clear()
    assert "".join(split_sentences("word" * 100)) == "word" * 100  # longer than a part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat ran. A dog ran. the  CAT ran. It slept.", "The cat ran. A dog ran. It slept."),
        ("The cat ran.\nThe cat\nran.  A dog ran. The cat ran.", "The cat ran.  A dog ran."),
        ("The cat ran. The cat ran again", "The cat ran. The cat ran again"),
        ("he left.(She stayed.) he left.(She stayed.)", "he left.(She stayed.)"),
        ("", ""),
    ],
)
def test_repeated_sentences_are_left_out(text: str, expected: str) -> None:
    assert without_repeats(text) == expected
