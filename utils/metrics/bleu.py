"""BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) by sacrebleu (Post, 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from utils.app.cli import parse_dataclass, part
from utils.metrics.files import TextFileOptions, print_scores, refuse_module
from utils.metrics.options import BleuOptions
from utils.text.lines import references_of


def translation_scores(
    predictions: Sequence[str], references: Sequence[str], tokenize: str = BLEU.TOKENIZER_DEFAULT
) -> dict[str, float | str]:
    """Corpus BLEU (mixed case) and chrF2 with sacrebleu's defaults, 0 to 100, against all references; signatures."""
    streams = _streams(references)
    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU(tokenize=tokenize)), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(list(predictions), streams).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


def _streams(references: Sequence[str]) -> list[list[str | None]]:
    """The first references, the second ones, and so on; None where there are fewer."""
    return [list(stream) for stream in zip_longest(*map(references_of, references))]


@dataclass(frozen=True)
class BleuArguments(TextFileOptions):
    bleu: BleuOptions = part(BleuOptions)


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score translations, one a line or in a column of a table, by BLEU and chrF."
    args = parse_dataclass(BleuArguments, argv, text, prog)
    references, systems = args.read()
    args.bleu.warn_of_scripts(references)
    metrics = {"bleu": BLEU(tokenize=args.bleu.bleu_tokenize), "chrf": CHRF()}
    streams = _streams(references)

    # sacrebleu's own tests of significance take these two steps; it has no public name for them.
    def counts_of(texts: Sequence[str]) -> np.ndarray:
        parts = [metric._extract_corpus_statistics(texts, streams) for metric in metrics.values()]
        return np.concatenate([np.array(part, dtype=np.float64) for part in parts], axis=1)

    def scores_of(sums: np.ndarray) -> dict[str, float]:
        parts = np.split(sums, [2 + 2 * metrics["bleu"].max_ngram_order])
        return {
            name: metric._compute_score_from_stats(part.tolist()).score
            for (name, metric), part in zip(metrics.items(), parts, strict=True)
        }

    counts = [*map(counts_of, systems)]
    signatures = {f"{name}_signature": str(metric.get_signature()) for name, metric in metrics.items()}
    print_scores(args, f"BLEU and chrF on {len(references):,} examples", counts, scores_of, signatures)


if __name__ == "__main__":
    refuse_module()
