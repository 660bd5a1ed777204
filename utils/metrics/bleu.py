"""BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) by sacrebleu (Post, 2018).

`python -m utils.metrics.bleu PREDICTIONS REFERENCES` scores a file of translations.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.metrics.bleu")

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sacrebleu.metrics import BLEU, CHRF

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass, part
from utils.app.tables import plain_table
from utils.text.lines import check_counts, iter_references, read_lines, reference_texts, references_of
from utils.text.scripts import warn_of_unspaced

_SPLIT_AT_BLANKS = ("13a", "intl", "none")


@dataclass(frozen=True)
class BleuOptions:
    """The BLEU that translations are scored by."""

    bleu_tokenize: str = option(
        BLEU.TOKENIZER_DEFAULT,
        section="scoring",
        choices=tuple(BLEU.TOKENIZERS),
        help="sacrebleu's tokenizer for BLEU, which the signature names: zh for Chinese, ja-mecab, ko-mecab, char",
        on_resume="may_change",
    )

    def __post_init__(self) -> None:
        try:
            BLEU(tokenize=self.bleu_tokenize)
        except Exception as error:  # of a package that is missing, or of a download
            reason = " ".join(str(error).split())
            raise InputError(f"--bleu_tokenize {self.bleu_tokenize}: {reason}") from None

    def warn_of_scripts(self, references: Sequence[str]) -> None:
        """Warn where whole clauses count as words."""
        if self.bleu_tokenize in _SPLIT_AT_BLANKS:
            chosen = f"--bleu_tokenize {self.bleu_tokenize}"
            warn_of_unspaced(reference_texts(references), chosen, "zh, ja-mecab and char count shorter ones")


def translation_scores(
    predictions: Sequence[str], references: Sequence[str], tokenize: str = BLEU.TOKENIZER_DEFAULT
) -> dict[str, float | str]:
    """Corpus BLEU (mixed case) and chrF2 with sacrebleu's defaults, against all references (see `references_of`).

    Args:
        tokenize: one of `BLEU.TOKENIZERS`, for BLEU.

    Returns:
        `bleu` and `chrf`: 0 to 100. `bleu_signature` and `chrf_signature`: sacrebleu's records of all that the figures
        depend on.
    """
    streams = [list(stream) for stream in zip_longest(*map(references_of, references))]  # None where there are fewer
    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU(tokenize=tokenize)), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(list(predictions), streams).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


@dataclass(frozen=True)
class BleuArguments:
    """The options of the command."""

    predictions: str = option(positional=True, help="file of translations, one a line")
    references: str = option(positional=True, help="file of reference translations, line by line the predictions'")
    bleu: BleuOptions = part(BleuOptions)
    json: bool = option(False, section="options", help="print JSON with all digits in place of the table")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(BleuArguments, argv, "Score translations, one a line, by sacrebleu's BLEU and chrF.")
    predictions, references = read_lines(args.predictions, blank=True), list(iter_references(args.references))
    check_counts((args.predictions, args.references), len(predictions), len(references))
    args.bleu.warn_of_scripts(references)
    scores = translation_scores(predictions, references, args.bleu.bleu_tokenize)
    if args.json:
        print(json.dumps({"examples": len(references), **scores}, indent=2))
        return
    rows = [
        [name, f"{scores[key]:.2f}", scores[f"{key}_signature"]] for name, key in (("BLEU", "bleu"), ("chrF2", "chrf"))
    ]
    print(f"{len(references):,} examples\n\n{plain_table(rows, ['', 'score', 'signature'])}")
