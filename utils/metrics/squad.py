"""Exact match and F1 of answers, as the official script of SQuAD 2.0 counts them.

The script of SQuAD 1.1 gives the same scores, unless a text has nothing but articles and punctuation.
"""

from __future__ import annotations

from utils.app.commands import refuse

if __name__ == "__main__":
    refuse("utils.metrics.squad", "run_eval.py --task question_answering predicts and scores")

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalized(text: str) -> str:
    """A text in lower case, without punctuation, articles, and more than one space at once."""
    text = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(predicted: str, right: str) -> float:
    """1 where both are the same, apart from case, punctuation, articles and spaces; otherwise 0."""
    return float(normalized(predicted) == normalized(right))


def f1(predicted: str, right: str) -> float:
    """F1 of the words of both; where one has none, 1 if neither has any and otherwise 0."""
    ours, theirs = normalized(predicted).split(), normalized(right).split()
    if not (ours and theirs):
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def best(measure: Callable[[str, str], float], predicted: str, answers: Sequence[str]) -> float:
    """A measure against the right answer that is nearest, in percent. No right answer means that "" is right.

    Of several right answers, those that are nothing but punctuation and articles do not count.
    """
    right = [answer for answer in answers if normalized(answer)] or [""]
    return 100 * max(measure(predicted, answer) for answer in right)
