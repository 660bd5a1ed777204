from __future__ import annotations

import re
from typing import Any

import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from utils.text import sentences
from utils.text.sentences import TERMINALS, sentence_parts, split_sentences


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
        ("今天很好。我们去公园！你去吗？去！！走吧。", "今天很好。|我们去公园！|你去吗？|去！！|走吧。"),
        ("彼は言った。「はい。」と答えた。本当？！うん｡はい", "彼は言った。|「はい。」|と答えた。|本当？！|うん｡|はい"),
        ("他说：“好。”她走了……也来了。", "他说：“好。”|她走了……也来了。"),
        ("你好!今天好吗?好.明天见 v2.0版。", "你好!|今天好吗?|好.|明天见 v2.0版。"),
        ("वह घर गया। क्या वह आया? नहीं॥ 3.5 किमी।", "वह घर गया।|क्या वह आया?|नहीं॥|3.5 किमी।"),
        ("ذهب الولد. هل عاد؟ نعم۔ کیا؟", "ذهب الولد.|هل عاد؟|نعم۔|کیا؟"),
        ("ከተማ ነው። ሰው ነው፧ ခွေး။ ကြောင်။ Սա է։ Այո։ ខ្ញុំ។ អ្នក។", "ከተማ ነው።|ሰው ነው፧|ခွေး။|ကြောင်။|Սա է։|Այո։|ខ្ញុំ។|អ្នក។"),
        ("A。, b。B", "A。, b。|B"),
        ("สวัสดีครับ ผมชื่อสมชาย", "สวัสดีครับ ผมชื่อสมชาย"),
    ],
)
def test_sentences_of_other_scripts_end_where_unicode_says(text: str, expected: str) -> None:
    """The expected ends are those of uniseg 0.10.1, an implementation of UAX 29, which puts "「" before the end."""
    parts = sentence_parts(text)
    assert split_sentences(text) == [part.strip() for part in parts] == expected.split("|")
    assert "".join(parts) == text


def test_terminals_are_unicodes() -> None:
    """Unicode may add some."""
    everything = "".join(chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000)
    terminals = Split(Regex(r"\p{Sentence_Terminal}"), "removed", invert=True).pre_tokenize_str(everything)
    of_latin = {chr(code) for code in (*b"!.?", *range(0x2000, 0x2070), *range(0x2E00, 0x2E80))}
    assert {mark for mark, _ in terminals} - of_latin <= set(re.findall(f"[{TERMINALS}]", everything))
    assert not of_latin & set(re.findall(f"[{TERMINALS}]", everything))
