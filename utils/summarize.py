"""`python -m utils.summarize MODEL FILE`: a summary of a text, or of each line, however long it is."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.summarize")

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.output_files import check_output, write_whole
from utils.data.places import TABLES, is_table, suffix_of
from utils.models.generation_options import GENERATE, DecodingOptions, with_lengths
from utils.prediction.options import InferenceOptions, LongDocumentOptions
from utils.text.lines import NO_TEXT


@dataclass(frozen=True, kw_only=True)
class SummarizeArguments:
    file: str | None = option(
        None,
        section="texts",
        positional=True,
        help="UTF-8 text to summarise; by default standard input; utils.predict reads tables",
    )
    output: str | None = option(None, help="file for the summaries, one a line; by default standard output")
    lines: bool = option(False, help="each line is a document; otherwise the whole input is one")
    batch_size: int = option(8, least=1, help="windows that are summarised at once")
    num_beams: int | None = option(None, section=GENERATE, least=1, help="beams; 1 is greedy search")
    max_length: int | None = option(None, least=2, help="most tokens to generate, the start token included")
    inference: InferenceOptions
    documents: LongDocumentOptions
    decoding: DecodingOptions

    def __post_init__(self) -> None:
        if suffix_of(Path(self.output or "")) in (*TABLES, *NO_TEXT):
            raise InputError(f"--output is {self.output}; allowed: lines, such as a .txt; utils.predict writes tables")
        if self.file is not None and is_table(self.file):
            raise InputError(f"{self.file} is a table, which utils.predict reads; allowed: a text, or --lines of texts")


def main(argv: Sequence[str] | None = None) -> None:
    description = "Summarise a file or standard input of any length, and print one summary a line."
    args = parse_dataclass(SummarizeArguments, argv, description)
    check_output("output", args.output, args.file)
    from utils.prediction.files import check_no_header, read_documents  # here, because --help needs no torch
    from utils.prediction.summarizing import known_of, load_summarizer, summarize

    known = known_of(args.inference.model)
    example = f"The model was {known['trained']}, on texts such as: {known['examples'][0]['source']}\n" if known else ""
    texts = read_documents(args.lines, args.file, hint=example)
    model, tokenizer = load_summarizer(args.inference)
    if args.lines:
        check_no_header(texts, args.file or "standard input", model.config.extra.get("columns", ()))
    given = {"num_beams": args.num_beams, "max_length": args.max_length}
    given = args.decoding.generation | {name: value for name, value in given.items() if value is not None}
    options = {"batch_size": args.batch_size, **vars(args.documents), **with_lengths(given)}
    summaries = summarize(texts, model, tokenizer, **options)
    lines = "".join(" ".join(text.split("\n")) + "\n" for text in summaries)
    if args.output is None:
        print(lines, end="")
    else:
        write_whole(Path(args.output), lines)
        print(f"{args.output}: {len(summaries):,} summaries", file=sys.stderr)
