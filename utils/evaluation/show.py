"""A scored run beside baselines: `python -m utils.evaluation.show RESULTS_DIR` prints ROUGE and examples."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from bart.files import read_json
from utils.cli import option, parse_dataclass, run_main
from utils.lines import read_lines
from utils.metrics.baselines import lead
from utils.metrics.rouge import ROUGE_TYPES, rouge, rouge_table, wordnet_exceptions

WIDTH = 80
LEADS = (1, 2, 3)
EXAMPLES = 3


@dataclass(frozen=True)
class ShowArguments:
    """The options of the command."""

    results_dir: str = option(positional=True, help="folder with test_scores.json and test_articles.jsonl")
    wordnet_exceptions: str | None = option(
        None,
        metavar="DIR",
        help="folder of {adj,adv,noun,verb}.exc by which a run in mode rouge-1.5.5 was scored; by default nltk's "
        "corpus wordnet",
    )


def describe(args: ShowArguments) -> str:
    """The text that `main` prints.

    Raises:
        InputError: the folder holds no scored run, or the irregular forms are not those by which it was scored.
    """
    folder = Path(args.results_dir)
    scores, lines = read_json(folder / "test_scores.json"), read_lines(folder / "test_articles.jsonl")
    if "rouge_mode" not in scores:
        raise InputError(f"{folder}: its test_scores.json has no ROUGE, which is all that this command compares")
    try:
        articles = [json.loads(line) for line in lines]
        mode, beams = scores["rouge_mode"], scores["generation"]["num_beams"]
        texts = {name: [each[name] for each in articles] for name in ("source", "reference", "summary")}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: its test_scores.json or test_articles.jsonl is damaged ({error!r})") from None
    count, given = scores.get("wordnet_exceptions", 0), args.wordnet_exceptions
    forms = wordnet_exceptions(given) if count or given is not None else {}
    if len(forms) != count:
        raise InputError(
            f"{given or 'corpus wordnet of nltk'} has {len(forms)} irregular forms, but the run was scored by {count}: "
            "baselines would not compare; --wordnet_exceptions takes the folder by which the run was scored"
        )
    rows: dict[str, Mapping[str, float]] = {}
    for n in LEADS:
        leads = [lead(source, n) for source in texts["source"]]
        rows[f"first {n} sentence{'s' * (n > 1)}"] = rouge(leads, texts["reference"], mode, forms)
    rows[f"this model, {beams} beams"] = scores
    blocks = [
        f"ROUGE F in percent ({mode}) on {len(articles)} test articles",
        rouge_table(rows, ROUGE_TYPES[mode]),
    ]
    for number, article in enumerate(articles[:EXAMPLES], 1):
        named = (("article", "source"), ("summary", "summary"), ("reference", "reference"))
        parts = [textwrap.fill(f"{name:<11}{article[key]}", WIDTH, subsequent_indent=" " * 11) for name, key in named]
        blocks.append("\n".join([f"Example {number}", *parts]))
    return "\n\n".join([*blocks, f"Results lie in {folder}"])


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ShowArguments,
        argv,
        "Print a run's ROUGE beside lead baselines, and its first summaries.",
    )
    print(describe(args))


if __name__ == "__main__":
    run_main(main)
