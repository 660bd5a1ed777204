"""Summaries of what is typed or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.evaluation.arguments import EvalArguments
from utils.summarize import read_documents, summarize


def typed_articles() -> Iterator[str]:
    """Articles from the terminal, each ended by an empty line, until Ctrl-D."""
    print("Type or paste an article, then an empty line; Ctrl-D ends.", file=sys.stderr)
    lines: list[str] = []
    for line in sys.stdin:
        if line.strip():
            lines.append(line)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def answer(args: EvalArguments, model: BartForConditionalGeneration, tokenizer: BartTokenizer) -> None:
    """Print the summary of each article as soon as it is there, however long the article.

    Raises:
        InputError: what was piped in is blank or not UTF-8, or an option cannot be obeyed.
    """
    by_hand = sys.stdin.isatty()
    for article in typed_articles() if by_hand else read_documents(sys.stdin.buffer.read(), lines=False):
        summary = summarize(
            args.prefix + article,
            model,
            tokenizer,
            max_source_length=args.max_source_length,
            batch_size=args.bs,
            **args.generation,
        )
        print(" ".join(summary.split("\n")), end="\n\n" if by_hand else "\n", flush=True)
