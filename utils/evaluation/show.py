"""A scored run for people: `python -m utils.evaluation.show RESULTS_DIR DATA_DIR` prints ROUGE beside baselines."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.cli import ArgumentParser, run_main
from utils.data.line_files import read_pairs
from utils.evaluation.rouge import ROUGE_MODES, ROUGE_TYPES, rouge, split_sentences

WIDTH = 80
LEADS = (1, 2, 3)
EXAMPLES = 3


def lead(article: str, sentences: int) -> str:
    """The article's first sentences: the baseline that news summarisers are measured against."""
    return " ".join(split_sentences(article)[:sentences])


def rouge_table(rows: Mapping[str, Mapping[str, float]], kinds: Sequence[str]) -> str:
    """An aligned table, one row a system, of ROUGE F measures in percent of these kinds."""
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{'ROUGE-' + name.removeprefix('rouge'):>12}" for name in kinds)]
    lines += [f"{name:<{width}}" + "".join(f"{scores[kind]:12.2f}" for kind in kinds) for name, scores in rows.items()]
    return "\n".join(lines)


def wrapped_examples(articles: Sequence[str], summaries: Sequence[str], references: Sequence[str]) -> str:
    """Article, summary and reference of each example, wrapped to 80 columns."""
    blocks = []
    for number, texts in enumerate(zip(articles, summaries, references, strict=True), 1):
        parts = [
            textwrap.fill(f"{name:<11}{text}", WIDTH, subsequent_indent=" " * 11)
            for name, text in zip(("article", "summary", "reference"), texts, strict=True)
        ]
        blocks.append("\n".join([f"Example {number}", *parts]))
    return "\n\n".join(blocks)


def read_results(results_dir: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    """Scores and summaries that `score_split` wrote for the test split.

    Raises:
        InputError: a file is missing or is not what `score_split` writes.
    """
    folder = Path(results_dir)
    try:
        scores = json.loads((folder / "test_scores.json").read_bytes())
        text = (folder / "test_generations.txt").read_bytes().decode()
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); is {folder} a scored run?") from None
    except ValueError as error:
        raise InputError(f"{folder}: test_scores.json or test_generations.txt is damaged ({error})") from None
    # A summary may be empty, or hold marks that str.splitlines cuts at.
    summaries = text.removesuffix("\n").split("\n")
    mode = scores.get("rouge_mode") if isinstance(scores, dict) else None
    if mode not in ROUGE_MODES or not {"examples", "generation", *ROUGE_TYPES[mode]} <= scores.keys():
        raise InputError(f"{folder / 'test_scores.json'}: not the scores of run_eval.py; it lacks ROUGE or settings")
    if scores["examples"] != len(summaries):
        raise InputError(
            f"{folder}: test_scores.json is of {scores['examples']} examples, test_generations.txt has {len(summaries)}"
        )
    return scores, summaries


def describe(results_dir: str | os.PathLike[str], data_dir: str | os.PathLike[str]) -> str:
    """The text that `main` prints.

    Raises:
        InputError: results or data are missing, or do not belong together.
    """
    scores, summaries = read_results(results_dir)
    articles, references = read_pairs(data_dir, "test", len(summaries))
    if len(articles) != len(summaries):
        raise InputError(f"{results_dir} has {len(summaries)} summaries, {data_dir} only {len(articles)} test articles")
    mode = scores["rouge_mode"]
    rows: dict[str, Mapping[str, float]] = {
        f"first {n} sentence{'s' * (n > 1)}": rouge([lead(article, n) for article in articles], references, mode)
        for n in LEADS
    }
    rows[f"this model, {scores['generation']['num_beams']} beams"] = scores
    return "\n\n".join(
        [
            f"ROUGE F in percent ({mode}) on {len(summaries)} test articles",
            rouge_table(rows, ROUGE_TYPES[mode]),
            wrapped_examples(articles[:EXAMPLES], summaries[:EXAMPLES], references[:EXAMPLES]),
            f"Results lie in {results_dir}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        prog="python -m utils.evaluation.show",
        description="Print a run's ROUGE beside lead baselines, and its first summaries.",
    )
    parser.add_argument("results_dir", help="folder with test_scores.json and test_generations.txt")
    parser.add_argument("data_dir", help="folder with test.source and test.target")
    args = parser.parse_args(argv)
    print(describe(args.results_dir, args.data_dir))


if __name__ == "__main__":
    run_main(main)
