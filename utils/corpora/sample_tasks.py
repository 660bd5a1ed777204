"""Labels of the sample corpus for other tasks: topics of its articles, names in them, and questions with answers.

``python -m utils.corpora.sample_tasks --output_dir data/sample`` writes
``{topics,tags,questions}/{train,val,test}.jsonl`` for classification, tagging and question answering. The same
arguments give the same bytes.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.corpora.sample_tasks")

import json
import random
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.app.cli import parse_dataclass
from utils.app.output_files import writable_folder, write_whole
from utils.corpora.sample_corpus import SampleCorpusOptions, Story, sample_stories

NAMES = {"person": "PER", "place": "LOC", "org": "ORG"}
_WORD = re.compile(r"\w+|[^\w\s]")


def topic_of(story: Story) -> dict[str, Any]:
    """A row for classification."""
    return {"text": story.article, "label": story.topic}


def tags_of(story: Story) -> dict[str, Any]:
    """A row for tagging, with the names of people, places and companies in BIO."""
    inside: dict[int, tuple[str, int]] = {}
    for field, begin in story.fields:
        if kind := NAMES.get(field.rstrip(string.digits)):
            inside |= dict.fromkeys(range(begin, begin + len(story.values[field])), (kind, begin))
    words, tags = [], []
    for word in _WORD.finditer(story.article):
        kind, begin = inside.get(word.start(), ("", 0))
        words.append(word[0])
        tags.append(f"{'B' if word.start() == begin else 'I'}-{kind}" if kind else "O")
    return {"words": words, "tags": tags}


def question_of(story: Story, number: int, rng: random.Random) -> dict[str, Any]:
    """A row for question answering."""
    field, question = rng.choice(list(story.questions.items()))
    starts = [begin for name, begin in story.fields if name == field]
    answers = {"text": [story.values[field]] * len(starts), "answer_start": starts}
    return {"id": str(number), "question": question, "context": story.article, "answers": answers}


def write_sample_tasks(folder: Path, sizes: dict[str, int], seed: int = 42) -> None:
    """Write the files that are not there.

    Raises:
        InputError: a file of other rows is there, or the folder cannot be written.
    """
    for split, count in sizes.items():
        stories = list(sample_stories(split, count, seed))
        rng = random.Random(f"questions {split} {seed}")
        rows = {
            "topics": map(topic_of, stories),
            "tags": map(tags_of, stories),
            "questions": (question_of(story, number, rng) for number, story in enumerate(stories)),
        }
        for name, rows_of_task in rows.items():
            file = writable_folder("--output_dir", folder / name) / f"{split}.jsonl"
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of_task)
            if not file.exists():
                write_whole(file, text)
            elif file.read_bytes() != text.encode():
                raise InputError(f"{file} is there already, made otherwise, and is not overwritten: move it away")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_dataclass(SampleCorpusOptions, argv, "Write topics, names and questions of the sample corpus.")
    write_sample_tasks(options.output_dir, options.sizes, options.seed)
    counts = ", ".join(f"{count:,} {split}" for split, count in options.sizes.items())
    print(f"{options.output_dir}/{{topics,tags,questions}}: {counts} examples")
