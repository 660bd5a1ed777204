"""How tasks encode pairs, words and windows, against transformers' tokenizer over the same files."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.data.options import Place
from utils.data.squad import Question
from utils.models.loading import LoadedModel
from utils.tasks.options import QuestionAnsweringOptions, WindowOptions
from utils.tasks.question_answering import QuestionAnswering
from utils.tasks.tagging import Sentence, Tagging

Tokenizer = BartTokenizer | BertTokenizer
PIECES = ["word", "words", " ", "  ", "naïve", "Ünïcode", "日本語", "🙂", "👩‍👩‍👧"]
PIECES += ["e\u0301", "\u00a0", "\t", "\n", "3.14", "U.S.", "'s", "İ"]
PIECES += ["אב", "ﬁ", "\u200b", "a" * 30, "—", "(", ")", "don't"]


def text(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, most))).strip() or "a"


@pytest.fixture(scope="module", params=[BartTokenizer, BertTokenizer], ids=["bart", "bert"])
def tokenizers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("tokenizer")
    ours = request.param.train(["word words naïve don't 日本語 Ünïcode 3.14 ﬁ — ( ) ' U.S. " * 3], vocab_size=330)
    ours.save_pretrained(folder)
    return ours, AutoTokenizer.from_pretrained(folder)


def test_pairs(tokenizers: tuple[Tokenizer, Any]) -> None:
    ours, theirs = tokenizers
    rng = random.Random(0)
    for _ in range(300):
        one, other, most = text(rng, 12), text(rng, 12), rng.randint(8, 40)
        expected = theirs(one, other, truncation=True, max_length=most)
        pair = (ids[1:-1] for ids in ours([one, other])["input_ids"])
        ids, second = ours.join(*ours.cut(*pair, most))
        assert ids == expected["input_ids"]
        assert not ours.has_types or [int(n >= second) for n in range(len(ids))] == expected["token_type_ids"]


def loaded_with(tokenizer: Tokenizer, labels: list[str]) -> Any:
    """A loaded model, as far as encoding looks at it: of 40 positions."""
    return LoadedModel(SimpleNamespace(config=SimpleNamespace(labels=labels, max_position_embeddings=40)), tokenizer)


def test_words(tokenizers: tuple[Tokenizer, Any]) -> None:
    """A word's tokens are those it has in running text, where it begins with a space."""
    ours, theirs = tokenizers
    rng = random.Random(1)
    task, loaded = Tagging(Place("")), loaded_with(ours, ["O", "X"])
    for _ in range(100):
        words = ["".join(text(rng, 2).split()) or "a" for _ in range(rng.randint(1, 12))]
        words = [word if word.strip("\u200b") else "a" for word in words]  # BERT reads no control characters
        tags = rng.choices(["O", "X"], k=len(words))
        [example] = task.encode([Sentence("1", words, tags)], "test", loaded).examples
        whole = theirs(" ".join(words))["input_ids"]
        firsts = [len(theirs(" ".join(words[:place]))["input_ids"]) - 1 for place in range(len(words))]
        kept = len(example.firsts)
        assert example.firsts.tolist() == firsts[:kept]
        assert example.ids.tolist()[:-1] == whole[: len(example.ids) - 1]
        assert [example.labels[first] for first in firsts[:kept]] == [["O", "X"].index(tag) for tag in tags[:kept]]
        assert sum(label != -100 for label in example.labels) == kept
        assert len(example.ids) <= 40


def test_windows_and_answers(tokenizers: tuple[Tokenizer, Any]) -> None:
    """Windows are transformers'; an answer's tokens stand for it, and little more, whatever its characters."""
    ours, theirs = tokenizers
    rng = random.Random(2)
    options = QuestionAnsweringOptions(windows=WindowOptions(doc_stride=7, max_query_length=10))
    task, loaded = QuestionAnswering(Place(""), options), loaded_with(ours, [])
    found = 0
    for number in range(200):
        context, question = text(rng, 60), "word words"
        begin = rng.randrange(len(context))
        answer = context[begin : begin + rng.randint(1, 6)]
        asked = Question(str(number), str(number), question, context, (answer,), (begin,))
        [example] = task.encode([asked], "test", loaded).examples
        expected = theirs(
            question, context, truncation="only_second", max_length=40, stride=7, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        assert [window.ids.tolist() for window in example.windows] == expected["input_ids"]
        if ours.has_types:
            types = task.collate(example.windows, ours)["token_type_ids"].tolist()
            types = [row[: len(window.ids)] for row, window in zip(types, example.windows, strict=True)]
            assert types == expected["token_type_ids"]
        for window, offsets in zip(example.windows, expected["offset_mapping"], strict=True):
            part = slice(window.second, window.second + len(window.places))
            assert window.places.tolist() == list(map(list, offsets[part]))
            if window.labels == (0, 0):
                continue
            found += 1
            first, last = (label - window.second for label in window.labels)
            said = context[window.places[first, 0] : window.places[last, 1]]
            # Around it there may be what no token stands for: spaces and, for BERT, control characters and accents.
            normalizer = theirs.backend_tokenizer.normalizer
            wanted, got = (text if normalizer is None else normalizer.normalize_str(text) for text in (answer, said))
            assert wanted.strip() in got
            # No token of it is beyond the answer.
            assert window.places[first, 1] > begin
            assert window.places[last, 0] < begin + len(answer)
    assert found > 150
