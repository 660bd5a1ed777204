"""A scored run beside baselines: `python -m utils.evaluation.show RESULTS_DIR` prints ROUGE and examples."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.evaluation.show")

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from bart.files import read_json
from utils.app.cli import option, parse_dataclass
from utils.app.formatting import printable
from utils.metrics.rouge import rouge_names, rouge_table
from utils.text.lines import read_lines

WIDTH = 80
EXAMPLES = 3
TEXTS = {"source": "article", "summary": "summary", "reference": "reference"}  # in articles.jsonl, and as shown


@dataclass(frozen=True)
class ShowArguments:
    """The options of the command."""

    results_dir: str = option(positional=True, help="folder with test_scores.json and test_articles.jsonl")


def describe(args: ShowArguments) -> str:
    """The text that `main` prints.

    Raises:
        InputError: the folder holds no scored run.
    """
    folder = Path(args.results_dir)
    scores, lines = read_json(folder / "test_scores.json"), read_lines(folder / "test_articles.jsonl")
    if "rouge_mode" not in scores:
        raise InputError(f"{folder}: its test_scores.json has no ROUGE, which is all that this command compares")
    try:
        articles = [json.loads(line) for line in lines]
        mode, beams = scores["rouge_mode"], scores["generation"]["num_beams"]
        kinds = rouge_names(mode, "rouge1_mean" in scores)
        table = rouge_table({**scores.get("baselines", {}), f"this model, {beams} beams": scores}, kinds)
        examples = [{name: article[name] for name in TEXTS} for article in articles[:EXAMPLES]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: its test_scores.json or test_articles.jsonl is damaged ({error!r})") from None
    blocks = [f"ROUGE F in percent ({mode}) on {len(articles)} test articles", table]
    for number, example in enumerate(examples, 1):
        named = zip(TEXTS.values(), example.values(), strict=True)
        parts = [
            textwrap.fill(f"{name:<11}{printable(' '.join(text.split()))}", WIDTH, subsequent_indent=" " * 11)
            for name, text in named
        ]
        blocks.append("\n".join([f"Example {number}", *parts]))
    return "\n\n".join([*blocks, f"Results lie in {folder}"])


def main(argv: Sequence[str] | None = None) -> None:
    description = "Print a run's ROUGE beside lead baselines, and its first summaries."
    print(describe(parse_dataclass(ShowArguments, argv, description)))
