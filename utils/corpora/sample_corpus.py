"""A sample corpus of short synthetic newswire with summaries: `python -m utils.corpora.sample_corpus`.

An article tells one event in several sentences, in any order and among asides. The summary follows from the article
alone. Names are put together from common parts, and no whole name of one split occurs in another: a model that scores
well on the test set copies names that it has never seen. The same arguments give the same bytes on every Python
version. `{topics,tags,questions}/{train,val,test}.jsonl` are for classification, tagging and question answering.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.sample_corpus")

import json
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from utils.app.cli import option, parse_dataclass
from utils.app.output_files import writable_folder, write_whole
from utils.corpora.data_directory import is_made, write_data_directory
from utils.data.splits import SPLITS
from utils.data.tables import Row

SIZES = {"train": 8000, "val": 200, "test": 200}
# Names of a split are drawn from its own share of the name pool, between these parts of it.
_BOUNDS = (0, 0.8, 0.9, 1)
_NUMBERS = {"small": (3, 61), "big": (150, 1000, 10), "money": (5, 100, 5)}
_NAMES = {"person": "PER", "place": "LOC", "org": "ORG"}
_WORD = re.compile(r"\w+|[^\w\s]")


@cache
def _parts() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _name_pools(rng: random.Random) -> dict[str, dict[str, list[str]]]:
    """split -> kind of name -> names. No name is in two splits or of two kinds."""
    pools: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    taken: set[str] = set()
    for kind, parts in _parts()["names"].items():
        names = [head + tail for head in parts["heads"].split() for tail in parts["tails"].split()]
        names = [name for name in dict.fromkeys(names) if name not in taken]
        taken.update(names)
        rng.shuffle(names)
        bounds = pairwise(round(share * len(names)) for share in _BOUNDS)
        for split, (begin, end) in zip(SPLITS, bounds, strict=True):
            pools[split][kind] = names[begin:end]
    return pools


class _Fields(dict[str, str]):
    """The facts of one story. Each is drawn when a template first asks for it; values of a kind never repeat."""

    def __init__(self, rng: random.Random, names: dict[str, list[str]]) -> None:
        super().__init__()
        self._rng, self._names = rng, names
        self._used: set[tuple[str, str]] = set()

    def __missing__(self, field: str) -> str:
        kind = field.rstrip(string.digits)
        value = self._draw(kind)
        while (kind, value) in self._used:
            value = self._draw(kind)
        self._used.add((kind, value))
        self[field] = value
        return value

    def _draw(self, kind: str) -> str:
        rng = self._rng
        if kind == "person":
            return f"{rng.choice(self._names['first'])} {rng.choice(self._names['last'])}"
        if kind == "score":
            return f"{rng.randint(3, 9)}-{rng.randint(0, 2)}"
        if kind in _NUMBERS:
            return str(rng.randrange(*_NUMBERS[kind]))
        return rng.choice(self._names[kind] if kind in self._names else _parts()["words"][kind])


class Story(NamedTuple):
    article: str
    summary: str
    topic: str
    fields: list[tuple[str, int]]  # of each fact in the article its field, such as person1, and its first character
    values: Mapping[str, str]  # of the fields
    questions: Mapping[str, str]  # field -> a question that its value answers


def sample_stories(split: str, count: int, seed: int = 42) -> Iterator[Story]:
    """The stories of a split. They depend on the split and the seed only."""
    parts = _parts()
    names = _name_pools(random.Random(f"names {seed}"))[split]
    rng = random.Random(f"{split} {seed}")
    for _ in range(count):
        event = rng.choice(parts["events"])
        sentences = [rng.choice(phrasings) for phrasings in event["facts"]]
        summary = event["summary"]
        if rng.random() < 0.6:
            sentence, clause = rng.choice(event["extras"])
            sentences.append(sentence)
            summary = f"{summary} {clause}"
        sentences.append(rng.choice((event if rng.random() < 0.7 else parts)["asides"]))
        rng.shuffle(sentences)
        fields = _Fields(rng, names)
        article, places = "", []
        for literal, field, _, _ in string.Formatter().parse(" ".join(sentences)):
            article += literal
            if field is not None:
                places.append((field, len(article)))
                article += fields[field]
        summary = summary.format_map(fields)
        yield Story(article, f"{summary[0].upper()}{summary[1:]}.", event["name"], places, fields, event["questions"])


def tags_of(story: Story) -> dict[str, Any]:
    inside: dict[int, tuple[str, int]] = {}
    for field, begin in story.fields:
        if kind := _NAMES.get(field.rstrip(string.digits)):
            inside |= dict.fromkeys(range(begin, begin + len(story.values[field])), (kind, begin))
    words, tags = [], []
    for word in _WORD.finditer(story.article):
        kind, begin = inside.get(word.start(), ("", 0))
        words.append(word[0])
        tags.append(f"{'B' if word.start() == begin else 'I'}-{kind}" if kind else "O")
    return {"words": words, "tags": tags}


def question_of(story: Story, number: int, rng: random.Random) -> dict[str, Any]:
    field, question = rng.choice(list(story.questions.items()))
    starts = [begin for name, begin in story.fields if name == field]
    answers = {"text": [story.values[field]] * len(starts), "answer_start": starts}
    return {"id": str(number), "question": question, "context": story.article, "answers": answers}


def write_sample_corpus(folder: Path, sizes: Mapping[str, int] = SIZES, seed: int = 42) -> None:
    """Make a data directory, with folders of the articles' topics, tags and questions, unless it is there."""
    facts = {"set": "sample", "sizes": dict(sizes), "seed": seed}
    stories_of = {split: list(sample_stories(split, count, seed)) for split, count in sizes.items()}
    if not is_made(folder, facts):
        rows = (
            (split, Row(str(number), story.article, story.summary))
            for split, stories in stories_of.items()
            for number, story in enumerate(stories, 1)
        )
        write_data_directory(folder, facts, rows)
    for split, stories in stories_of.items():
        rng = random.Random(f"questions {split} {seed}")
        rows = {
            "topics": ({"text": story.article, "label": story.topic} for story in stories),
            "tags": map(tags_of, stories),
            "questions": (question_of(story, number, rng) for number, story in enumerate(stories)),
        }
        for name, of_task in rows.items():
            if not (file := folder / name / f"{split}.jsonl").exists():
                writable_folder("--output_dir", file.parent)
                write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in of_task))


@dataclass(frozen=True)
class SampleCorpusOptions:
    output_dir: Path = option(Path("data/sample"), help="folder of the corpus")
    n_train: int = option(SIZES["train"], least=1, help="training examples")
    n_val: int = option(SIZES["val"], least=1, help="validation examples")
    n_test: int = option(SIZES["test"], least=1, help="test examples")
    seed: int = option(42, help="seed of names and stories")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(SampleCorpusOptions, argv, "Write the sample corpus: synthetic newswire with summaries.")
    sizes = {"train": options.n_train, "val": options.n_val, "test": options.n_test}
    write_sample_corpus(options.output_dir, sizes, options.seed)
