"""ROUGE (Lin, 2004): `python -m utils.metrics.rouge PREDICTIONS REFERENCES` scores a file of summaries.

The two modes are described in `utils.metrics.rouge_pairs`.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.metrics.rouge")

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, cpu_count, delayed

from bart.errors import InputError
from bart.files import PathName
from utils.app.cli import changeable, option, parse_dataclass, part
from utils.app.output_files import check_output, write_whole
from utils.app.progress import progress
from utils.metrics.files import TextFileOptions, print_scores
from utils.metrics.rouge_pairs import DEFAULT_RULE, ROUGE_MODES, ROUGE_TOKENIZERS, ROUGE_TYPES, RougeRule, score_pairs
from utils.metrics.significance import means_of
from utils.text.lines import read_lines, reference_texts, references_of
from utils.text.scripts import share_of, warn_of_unspaced

logger = logging.getLogger(__name__)

# In the order of ROUGE-1.5.5, where a later list overrides an earlier one.
_EXCEPTION_LISTS = ("adv.exc", "noun.exc", "verb.exc", "adj.exc")
# Marks by which data say where a sentence ends, and which would count as words.
_MARKS = re.compile(
    r"</?(?:[nqst]|br|eos|\w*sep|\w*newline|sent\w*)\s*/?>|\[(?:\w*sep|eos)\]|##\w*sent\w*##|\\n|newline_char|\|{5}",
    re.IGNORECASE,
)
_CHUNK = 200  # pairs that a process scores at once
_PAIRS_PER_PROCESS = 1000  # scoring these takes a third of a second or more, as long as starting a process
_MOST_COUNTED = 0.9  # share of the letters; languages that write few accents come near 1
_IDLE_SECONDS = 10  # processes that have had no work for so long end


def wordnet_exceptions(folder: PathName | None = None) -> dict[str, str]:
    """WordNet's irregular forms and their bases, such as "went" and "go", for mode rouge-1.5.5.

    Args:
        folder: holds `{adj,adv,noun,verb}.exc`, with a form and its base on each line. None takes the lists of nltk's
            corpus `wordnet`, a folder or zip on `nltk.data.path`. Where that is not installed, a warning says so and
            there are no forms.

    Raises:
        InputError: a list of the folder is missing or malformed; it names file and line.
    """
    exceptions = {}
    for name in _EXCEPTION_LISTS:
        if folder is not None:
            path = str(Path(folder) / name)
            lines = read_lines(path)
        else:
            import nltk.data  # here, because it takes seconds to load

            path = f"corpora/wordnet/{name}"
            try:
                with nltk.data.find(path).open() as file:
                    lines = file.read().decode().splitlines()
            except LookupError:
                logger.warning(
                    "rouge-1.5.5 without WordNet's irregular forms: scores come out some tenths lower than the Perl "
                    "script's. Give --wordnet_exceptions, or run: python -m nltk.downloader wordnet"
                )
                return {}
        for number, line in enumerate(lines, 1):
            form, *bases = line.split() or [""]
            if not bases:
                raise InputError(f"{path}, line {number}: {line!r}, where a form and its base are expected")
            exceptions[form] = bases[0]
    return exceptions


@dataclass(frozen=True)
class RougeOptions:
    """The ROUGE that summaries are scored by."""

    rouge_mode: str = changeable(
        ROUGE_MODES[0],
        section="scoring",
        alias="mode",
        choices=ROUGE_MODES,
        help="rouge-score: Google's package; rouge-1.5.5: the numbers of the Perl script that papers report",
    )
    rouge_tokenizer: str = option(
        ROUGE_TOKENIZERS[0],
        choices=ROUGE_TOKENIZERS,
        help="what mode rouge-score counts: the package's stemmed words of a to z and digits; unstemmed words of any "
        "script; or characters, for scripts without blanks",
        on_resume="validation",
    )
    wordnet_exceptions: str | None = changeable(
        None,
        metavar="DIR",
        help="folder of {adj,adv,noun,verb}.exc for --rouge_mode rouge-1.5.5; by default those of nltk's corpus "
        "wordnet, if it is installed",
    )

    sentence_end: str = option(
        "",
        metavar="MARK",
        help="marks in predictions and references that end a sentence, such as '<q>' or, several, '<t> </t>'; they are "
        "no words; by default sentences end where nltk's Punkt finds an end",
        on_resume="validation",
    )

    def __post_init__(self) -> None:
        mode, tokenizer = self.rouge_mode, self.rouge_tokenizer
        if self.wordnet_exceptions is not None and mode != "rouge-1.5.5":
            raise InputError(f"--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is {mode}")
        if tokenizer != ROUGE_TOKENIZERS[0] and mode != "rouge-score":
            raise InputError(f"--rouge_tokenizer {tokenizer} is of --rouge_mode rouge-score; --rouge_mode is {mode}")

    def rule(self) -> RougeRule:
        """The same, with the lists of irregular forms read, if the mode needs them."""
        exceptions = wordnet_exceptions(self.wordnet_exceptions) if self.rouge_mode == "rouge-1.5.5" else None
        return RougeRule(self.rouge_mode, self.rouge_tokenizer, exceptions, self.sentence_end.split())

    def warn_of_marks(self, texts: Iterable[str], known: Iterable[str] = ()) -> None:
        """Warn of marks that look like ends of sentences and count as words, but for those that `known` texts have."""
        marks = Counter(mark for text in texts for mark in {*_MARKS.findall(text)})
        for mark in {*self.sentence_end.split(), *(mark for text in known for mark in _MARKS.findall(text))}:
            marks.pop(mark, None)
        if marks:
            logger.warning(
                "ROUGE counts %s as words, and not as ends of sentences: --sentence_end '%s' does (%s of the texts)",
                *(" and ".join(sorted(marks)), " ".join(sorted(marks)), f"{max(marks.values()):,}"),
            )

    def warn_of_scripts(self, references: Sequence[str]) -> None:
        """Warn where the references are in a script whose words are not counted."""
        texts = list(reference_texts(references))
        if self.rouge_tokenizer == "words":
            warn_of_unspaced(texts, "--rouge_tokenizer words", "characters counts their characters")
        if self.rouge_tokenizer == "rouge-score" and (counted := share_of("a-z0-9", texts)) < _MOST_COUNTED:
            logger.warning(
                "ROUGE counts words of a to z and 0 to 9 alone, and %.0f %% of the references' letters are others: %s"
                "--rouge_tokenizer words counts those of any script, characters is for scripts without blanks",
                *(100 * (1 - counted), "" if self.rouge_mode == "rouge-score" else "in mode rouge-score, "),
            )


def rouge_per_example(
    predictions: Sequence[str], references: Sequence[str], rule: RougeRule = DEFAULT_RULE
) -> dict[str, np.ndarray]:
    """F measures in percent of each example, an array (N,) for each of `ROUGE_TYPES[rule.mode]`.

    Of several references (see `references_of`) the best counts: for each type, as rouge-score's `score_multi` has it;
    in mode rouge-1.5.5 the one with the highest ROUGE-1 (SciTLDR's script, Cachola et al., 2020). The means over them,
    which that script gives too, then follow as rouge1_mean and so on.

    Lsum, and L in mode rouge-1.5.5, take the union of longest common subsequences over sentences, which
    `split_sentences` finds, or that the rule's marks or line breaks end.

    Small inputs are scored in this process, others in as many as there are cores.
    """
    if rule.mode == "rouge-1.5.5" and rule.exceptions is None:
        rule = replace(rule, exceptions=wordnet_exceptions())
    groups = [references_of(line, line_break="\n") for line in references]
    pairs = [(text, each) for text, group in zip(predictions, groups, strict=True) for each in group]
    chunks = [pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK)]
    processes = max(1, min(cpu_count(), len(pairs) // _PAIRS_PER_PROCESS))
    # joblib starts fresh interpreters. Unlike those of multiprocessing they do not import the main program, which may
    # be a training run or have no file. A fork would copy torch's threads and locks in whatever state they are.
    pool = Parallel(
        processes, batch_size=1, pre_dispatch="all", return_as="generator", idle_worker_timeout=_IDLE_SECONDS
    )
    rows: list[list[float]] = []
    with progress("ROUGE", len(pairs), "pairs") as bar:
        for part in pool(delayed(score_pairs)(chunk, rule) for chunk in chunks):
            rows += part
            bar.update(len(part))
    left = iter(rows)
    of_each = [list(islice(left, len(group))) for group in groups]
    if rule.mode == "rouge-score":
        best = [[*map(max, zip(*scores, strict=True))] for scores in of_each]
    else:
        best = [max(scores, key=lambda row: row[0]) for scores in of_each]
    names = [f"{kind}{of}" for of in ("", "_mean")[: 1 + (len(pairs) > len(groups))] for kind in ROUGE_TYPES[rule.mode]]
    means = [np.mean(scores, axis=0) for scores in of_each]
    columns = np.hstack([np.array(part).reshape(len(groups), len(ROUGE_TYPES[rule.mode])) for part in (best, means)]).T
    return dict(zip(names, columns, strict=False))


def rouge(predictions: Sequence[str], references: Sequence[str], rule: RougeRule = DEFAULT_RULE) -> dict[str, float]:
    """Mean F measures in percent over all examples, by the names of `rouge_per_example`."""
    return {name: float(values.mean()) for name, values in rouge_per_example(predictions, references, rule).items()}


@dataclass(frozen=True)
class RougeArguments:
    """The options of the command."""

    files: TextFileOptions = part(TextFileOptions)
    rouge: RougeOptions = part(RougeOptions)
    per_article: str | None = option(
        None, metavar="FILE", help="write each article's scores there, one JSON object a line"
    )

    def __post_init__(self) -> None:
        check_output("per_article", self.per_article, self.files.references, *self.files.systems)


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score summaries, one a line or in a column of a table, by ROUGE; prints F measures in percent."
    args = parse_dataclass(RougeArguments, argv, f"{text} A blank one scores 0.", prog)
    (references, systems), options = args.files.read("\n"), args.rouge
    facts: dict[str, Any] = {"mode": options.rouge_mode, "examples": len(references)}
    if (count := sum(1 for _ in reference_texts(references))) > len(references):
        facts["references"] = count
    if options.rouge_tokenizer != ROUGE_TOKENIZERS[0]:
        facts["rouge_tokenizer"] = options.rouge_tokenizer
    options.warn_of_scripts(references)
    options.warn_of_marks(chain(reference_texts(references), *systems))
    if options.sentence_end:
        facts["sentence_end"] = options.sentence_end
    rule = options.rule()
    if rule.exceptions is not None:
        facts["wordnet_exceptions"] = len(rule.exceptions)
    scores = [rouge_per_example(texts, references, rule) for texts in systems]
    counts = [np.stack([*each.values()], axis=1) for each in scores]
    if args.per_article is not None:
        rows = [
            {"index": index, **dict(zip(scores[0], row, strict=True))} for index, row in enumerate(counts[0].tolist())
        ]
        write_whole(Path(args.per_article), "".join(json.dumps(row) + "\n" for row in rows))
    named = [facts[name] for name in ("mode", "rouge_tokenizer") if name in facts]
    best = f", maximum and mean over {count:,} references" if "references" in facts else ""
    title = f"ROUGE F in percent ({', '.join(named)}) on {len(references):,} examples{best}"
    print_scores(args.files, title, counts, means_of(scores[0], len(references)), facts)
