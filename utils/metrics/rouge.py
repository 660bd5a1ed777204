"""ROUGE (Lin, 2004): `python -m utils.metrics.rouge PREDICTIONS REFERENCES` scores a file of summaries."""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.metrics.rouge")

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from joblib import Parallel, cpu_count, delayed

from utils.app.cli import parse_dataclass, part
from utils.app.progress import progress
from utils.metrics.files import TextFileOptions, print_scores
from utils.metrics.options import RougeOptions
from utils.metrics.rouge_pairs import DEFAULT_RULE, ROUGE_TOKENIZERS, ROUGE_TYPES, RougeRule, score_pairs
from utils.metrics.significance import means_of
from utils.text.lines import reference_texts, references_of
from utils.text.sentences import split_sentences

_CHUNK = 200  # pairs that a process scores at once
_PAIRS_PER_PROCESS = 1000  # scoring these takes a third of a second or more, as long as starting a process
_IDLE_SECONDS = 10  # processes that have had no work for so long end


def rouge_per_example(
    predictions: Sequence[str], references: Sequence[str], rule: RougeRule = DEFAULT_RULE
) -> dict[str, np.ndarray]:
    """F measures in percent of each example, an array (N,) for each of `ROUGE_TYPES[rule.mode]`.

    Of several references (see `references_of`) the best counts: for each type, as rouge-score's `score_multi` has it;
    in mode rouge-1.5.5 the one with the highest ROUGE-1 (SciTLDR's script, Cachola et al., 2020). The means over them,
    which that script gives too, then follow as rouge1_mean and so on.
    """
    groups = [references_of(line, line_break="\n") for line in references]
    pairs = [(text, each) for text, group in zip(predictions, groups, strict=True) for each in group]
    chunks = [pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK)]
    processes = max(1, min(cpu_count(), len(pairs) // _PAIRS_PER_PROCESS))
    # joblib's interpreters do not import the main program, as multiprocessing's do; a fork would copy torch's locks.
    pool = Parallel(
        processes, batch_size=1, pre_dispatch="all", return_as="generator", idle_worker_timeout=_IDLE_SECONDS
    )
    scored = chain.from_iterable(pool(delayed(score_pairs)(chunk, rule) for chunk in chunks))
    left = iter([*progress("ROUGE", len(pairs), "pairs", scored)])
    of_each = [list(islice(left, len(group))) for group in groups]
    if rule.mode == "rouge-score":
        best = [[*map(max, zip(*scores, strict=True))] for scores in of_each]
    else:
        best = [max(scores, key=lambda row: row[0]) for scores in of_each]
    kinds = ROUGE_TYPES[rule.mode]
    scores = dict(zip(kinds, np.reshape(best, (len(groups), len(kinds))).T, strict=True))
    if len(pairs) > len(groups):
        means = np.array([np.mean(rows, axis=0) for rows in of_each])
        scores |= {f"{kind}_mean": column for kind, column in zip(kinds, means.T, strict=True)}
    return scores


def rouge(predictions: Sequence[str], references: Sequence[str], rule: RougeRule = DEFAULT_RULE) -> dict[str, float]:
    """Mean F measures in percent over all examples, by the names of `rouge_per_example`."""
    return {name: float(values.mean()) for name, values in rouge_per_example(predictions, references, rule).items()}


def leads(articles: Sequence[str]) -> dict[str, list[str]]:
    """Each article's first sentences, 1 to 3 of them: the baselines that news summarisers are measured against."""
    sentences = [split_sentences(article) for article in articles]
    names = ("first 1 sentence", "first 2 sentences", "first 3 sentences")
    return {name: [" ".join(each[:count]) for each in sentences] for count, name in enumerate(names, 1)}


@dataclass(frozen=True)
class RougeArguments(TextFileOptions):
    rouge: RougeOptions = part(RougeOptions)


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score summaries, one a line or in a column of a table, by ROUGE; prints F measures in percent."
    args = parse_dataclass(RougeArguments, argv, f"{text} A blank one scores 0.", prog)
    (references, systems), options = args.read("\n"), args.rouge
    facts: dict[str, Any] = {"mode": options.rouge_mode}
    title, best = f"ROUGE F in percent ({options.rouge_mode}", ""
    if (count := sum(1 for _ in reference_texts(references))) > len(references):
        facts["references"], best = count, f", maximum and mean over {count:,} references"
    if options.rouge_tokenizer != ROUGE_TOKENIZERS[0]:
        facts["rouge_tokenizer"] = options.rouge_tokenizer
        title += f", {options.rouge_tokenizer}"
    options.warn_of_scripts(references)
    options.warn_of_marks(chain(reference_texts(references), *systems))
    if options.sentence_end:
        facts["sentence_end"] = options.sentence_end
    rule = options.rule()
    if rule.exceptions is not None:
        facts["wordnet_exceptions"] = len(rule.exceptions)
    scores = [rouge_per_example(texts, references, rule) for texts in systems]
    counts = [np.stack([*each.values()], axis=1) for each in scores]
    title += f") on {len(references):,} examples{best}"
    print_scores(args, title, counts, means_of(scores[0], len(references)), facts)
