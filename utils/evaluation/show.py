"""A scored run beside baselines: `python -m utils.evaluation.show RESULTS_DIR DATA_DIR` prints ROUGE and examples."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bart.errors import InputError
from utils.cli import option, parse_dataclass, run_main
from utils.data.line_files import read_pairs
from utils.metrics.baselines import lead
from utils.metrics.rouge import ROUGE_MODES, ROUGE_TYPES, rouge, rouge_table, wordnet_exceptions

WIDTH = 80
LEADS = (1, 2, 3)
EXAMPLES = 3


@dataclass(frozen=True)
class ShowArguments:
    """The options of the command."""

    results_dir: str = option(positional=True, help="folder with test_scores.json and test_generations.txt")
    data_dir: str = option(positional=True, help="folder with test.source and test.target")
    wordnet_exceptions: str | None = option(
        None,
        metavar="DIR",
        help="folder of {adj,adv,noun,verb}.exc by which a run in mode rouge-1.5.5 was scored; by default nltk's "
        "corpus wordnet",
    )


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
    """Scores and summaries that run_eval.py wrote for the test split.

    Raises:
        InputError: a file is missing or is not what run_eval.py writes.
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


def forms_of_the_run(scores: Mapping[str, Any], folder: str | None) -> dict[str, str]:
    """The irregular forms by which a run was scored, so that baselines are scored by the same.

    Args:
        scores: the run's test_scores.json, which says how many forms there were.
        folder: value of --wordnet_exceptions.

    Raises:
        InputError: the folder does not go with the run, or its forms are not as many.
    """
    if scores["rouge_mode"] != "rouge-1.5.5":
        if folder is not None:
            raise InputError(f"--wordnet_exceptions is of mode rouge-1.5.5; the run's mode is {scores['rouge_mode']}")
        return {}
    count = scores.get("wordnet_exceptions")
    if count == 0 and folder is None:
        return {}
    forms = wordnet_exceptions(folder)
    if len(forms) != count:
        place = "nltk's corpus wordnet" if folder is None else f"--wordnet_exceptions {folder}"
        raise InputError(
            f"{place} has {len(forms)} irregular forms, but the run was scored by {count}, so that baselines would not "
            "compare; --wordnet_exceptions takes the folder by which the run was scored"
        )
    return forms


def describe(args: ShowArguments) -> str:
    """The text that `main` prints.

    Raises:
        InputError: results or data are missing, or do not belong together.
    """
    scores, summaries = read_results(args.results_dir)
    articles, references = read_pairs(args.data_dir, "test", len(summaries))
    if len(articles) != len(summaries):
        raise InputError(
            f"{args.results_dir} has {len(summaries)} summaries, {args.data_dir} only {len(articles)} test articles"
        )
    mode, forms = scores["rouge_mode"], forms_of_the_run(scores, args.wordnet_exceptions)
    rows: dict[str, Mapping[str, float]] = {}
    for n in LEADS:
        name = f"first {n} sentence{'s' * (n > 1)}"
        rows[name] = rouge([lead(article, n) for article in articles], references, mode, forms)
    rows[f"this model, {scores['generation']['num_beams']} beams"] = scores
    return "\n\n".join(
        [
            f"ROUGE F in percent ({mode}) on {len(summaries)} test articles",
            rouge_table(rows, ROUGE_TYPES[mode]),
            wrapped_examples(articles[:EXAMPLES], summaries[:EXAMPLES], references[:EXAMPLES]),
            f"Results lie in {args.results_dir}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ShowArguments,
        argv,
        "Print a run's ROUGE beside lead baselines, and its first summaries.",
        prog="python -m utils.evaluation.show",
    )
    print(describe(args))


if __name__ == "__main__":
    run_main(main)
