"""Summaries of what is typed or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bart.errors import InputError
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

    def summary_of(article: str) -> str:
        summary = summarize(
            args.prefix + article,
            model,
            tokenizer,
            max_source_length=args.max_source_length,
            batch_size=args.bs,
            **args.generation,
        )
        return " ".join(summary.split("\n"))

    if not sys.stdin.isatty():
        [article] = read_documents(sys.stdin.buffer.read(), lines=False)
        print(summary_of(article))
        return
    for article in typed_articles():
        try:
            print(summary_of(article), end="\n\n", flush=True)
        except InputError as error:  # the next article may be a better one
            print(f"error: {error}", file=sys.stderr)
