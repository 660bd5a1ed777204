"""ROUGE (Lin, 2004): `python -m utils.evaluation.rouge PREDICTIONS REFERENCES` scores a file of summaries.

Two modes, because published figures come from two programs that differ by tenths of a percent:

- `rouge-score`: Google's package, Porter-stemmed as nltk does it.
- `rouge-1.5.5`: the Perl script that papers report. Words are looked up in WordNet's lists of irregular forms, and only
  what is not there is stemmed, as Porter's own programs do it; ROUGE-L is the union of longest common subsequences over
  sentences, the package's Lsum.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import nltk.data
import numpy as np
from nltk.stem.porter import PorterStemmer
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import Tokenizer

from bart.errors import InputError
from utils.cli import ArgumentParser, run_main, unwritable
from utils.data.line_files import read_lines
from utils.evaluation.arguments import ROUGE_MODES
from utils.evaluation.significance import bootstrap_interval, compare
from utils.progress import Progress

logger = logging.getLogger(__name__)

ROUGE_TYPES = {
    "rouge-score": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    "rouge-1.5.5": ("rouge1", "rouge2", "rougeL"),
}
# The order of ROUGE-1.5.5: what a later list says of a form replaces what an earlier one says.
_EXCEPTION_LISTS = ("adv.exc", "noun.exc", "verb.exc", "adj.exc")
_CHUNK = 200  # pairs scored between two lines of progress
_PAIRS_PER_PROCESS = 1000  # a third of a second's work or more: what starting a process takes
# Punkt learns abbreviations from a corpus; nltk's trained model is a download, so the commonest of news are given.
_ABBREVIATIONS = frozenset(
    "a.m adm apr aug ave capt cmdr co col corp dec dr e.g feb fri gen gov hon i.e inc jan jr jul jun lt ltd maj mar "
    "messrs mon mr mrs ms mt no nov oct p.m ph.d pres prof rep rev sat sen sept sgt sr st sun thu tue u.k u.n u.s vs "
    "wed".split()
)


@cache
def _sentence_splitter() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, by nltk's Punkt (Kiss & Strunk, 2006), without any download."""
    return _sentence_splitter().tokenize(text)


@cache
def _porter(algorithm: str) -> Callable[[str], str]:
    """nltk's Porter stemmer in one of its variants, with a memory, for stemming is most of the time otherwise."""
    return lru_cache(maxsize=1 << 17)(PorterStemmer(algorithm).stem)


class _Tokenizer(Tokenizer):
    """Runs of the letters a to z and digits in lower case, stemmed where longer than three: what both programs take."""

    def __init__(self, stem: Callable[[str], str]) -> None:
        self.stem = stem

    def tokenize(self, text: str) -> list[str]:
        return [self.stem(word) if len(word) > 3 else word for word in re.findall("[a-z0-9]+", text.lower())]


def rouge_words(text: str) -> list[str]:
    """The stemmed words that mode rouge-score counts."""
    return _Tokenizer(_porter(PorterStemmer.NLTK_EXTENSIONS)).tokenize(text)


def wordnet_exceptions(folder: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """WordNet's irregular forms and what they are forms of, such as "went" of "go", for mode rouge-1.5.5.

    Args:
        folder: where `{adj,adv,noun,verb}.exc` lie, each line a form and its base. None takes those of nltk's corpus
            `wordnet`, a folder or zip on `nltk.data.path`; without it there are no forms, which a warning says.

    Raises:
        InputError: a list of the folder is missing or is not of this form; it names file and line.
    """
    exceptions = {}
    for name in _EXCEPTION_LISTS:
        if folder is not None:
            path = str(Path(folder) / name)
            lines = read_lines(path)
        else:
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


class _Scorer:
    """Scores pairs in one mode; `exceptions` are for rouge-1.5.5 alone."""

    def __init__(self, mode: str, exceptions: Mapping[str, str]) -> None:
        if mode == "rouge-score":
            stem = _porter(PorterStemmer.NLTK_EXTENSIONS)
            kinds = ROUGE_TYPES[mode]
        else:
            porter = _porter(PorterStemmer.MARTIN_EXTENSIONS)
            kinds = ("rouge1", "rouge2", "rougeLsum")

            def stem(word: str) -> str:
                return exceptions.get(word) or porter(word)

        self.scorer = RougeScorer(kinds, tokenizer=_Tokenizer(stem))

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        """F in percent of (prediction, reference) pairs, in the order of the mode's types."""
        rows = []
        for pair in pairs:
            prediction, reference = ("\n".join(split_sentences(text)) for text in pair)
            scores = self.scorer.score(reference, prediction)
            rows.append([100 * scores[kind].fmeasure for kind in self.scorer.rouge_types])
        return rows


def _serve() -> None:
    """One of `_in_processes`: the first line on stdin says how to score, each further line is a chunk of pairs."""
    score = _Scorer(*json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(score(json.loads(line))), flush=True)


def _in_processes(
    mode: str, exceptions: Mapping[str, str], chunks: Sequence[Sequence[tuple[str, str]]], processes: int
) -> Iterator[list[list[float]]]:
    """Scores of the chunks, in their order.

    The processes are fresh interpreters. A fork would copy torch's threads and locks in whatever state they are, and
    multiprocessing's other ways import the main program again, which here may be a training run.
    """
    # The modules are found where this process finds them, wherever it runs.
    program = f"import sys; sys.path[:] = {sys.path!r}; from utils.evaluation.rouge import _serve; _serve()"
    settings = json.dumps([mode, exceptions])
    started: list[subprocess.Popen[str]] = []
    mine = threading.local()

    def start() -> None:
        # In a session of its own, so that ctrl-C reaches this process alone, which then ends the others.
        mine.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        started.append(mine.process)
        print(settings, file=mine.process.stdin, flush=True)

    def ask(chunk: Sequence[tuple[str, str]]) -> list[list[float]]:
        with suppress(BrokenPipeError):  # its end shows below
            print(json.dumps(chunk), file=mine.process.stdin, flush=True)
        answer = mine.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process that computed ROUGE ended with status {mine.process.wait()}")
        return json.loads(answer)

    try:
        with ThreadPoolExecutor(processes, initializer=start) as threads:
            yield from threads.map(ask, chunks)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def rouge_per_example(
    predictions: Sequence[str],
    references: Sequence[str],
    mode: str = "rouge-score",
    exceptions: Mapping[str, str] | None = None,
    processes: int | None = None,
) -> dict[str, np.ndarray]:
    """F measures in percent of each pair, an array (N,) for each of `ROUGE_TYPES[mode]`.

    Lsum, and L in mode rouge-1.5.5, take the union of longest common subsequences over sentences, here split by
    `split_sentences`.

    Args:
        mode: one of ROUGE_MODES.
        exceptions: what `wordnet_exceptions` returned, which is called where this is None; for mode rouge-1.5.5 alone.
        processes: at most so many; None takes the cores. Small inputs are scored in this process. The scores do not
            depend on it.

    Raises:
        InputError: the mode is not known, or predictions and references differ in number.
    """
    if mode not in ROUGE_MODES:
        raise InputError(f"ROUGE mode {mode!r} is not one of {', '.join(ROUGE_MODES)}")
    if len(predictions) != len(references):
        raise InputError(f"{len(predictions)} predictions but {len(references)} references; they must be equally many")
    if mode == "rouge-score":
        exceptions = {}
    elif exceptions is None:
        exceptions = wordnet_exceptions()
    pairs = list(zip(predictions, references, strict=True))
    chunks = [pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK)]
    processes = min(processes or _cores(), len(pairs) // _PAIRS_PER_PROCESS)
    scored: Iterator[list[list[float]]]
    if processes > 1:
        scored = _in_processes(mode, exceptions, chunks, processes)
    else:
        scored = map(_Scorer(mode, exceptions), chunks)
    progress = Progress("ROUGE", len(pairs), "pairs", shown=len(pairs) > _PAIRS_PER_PROCESS)
    rows: list[list[float]] = []
    for part in scored:
        rows += part
        progress.advance(len(part))
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(ROUGE_TYPES[mode])).T
    return dict(zip(ROUGE_TYPES[mode], columns, strict=True))


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rouge(predictions: Sequence[str], references: Sequence[str], mode: str = "rouge-score") -> dict[str, float]:
    """Mean F measures in percent over all pairs, one for each of `ROUGE_TYPES[mode]`.

    Raises:
        InputError: there are no pairs, the numbers differ, or the mode is not known.
    """
    if not predictions and not references:
        raise InputError("ROUGE of no predictions; at least one is needed")
    return {name: float(values.mean()) for name, values in rouge_per_example(predictions, references, mode).items()}


def means_and_intervals(scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The mean of each type, and under `intervals` its 95 % bootstrap interval [low, high]."""
    means = {name: float(values.mean()) for name, values in scores.items()}
    return {**means, "intervals": {name: list(bootstrap_interval(values)) for name, values in scores.items()}}


def _compared(scores: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """How much higher `scores` are than `others`, of the same articles, and how sure that is."""
    report = {}
    for name, values in scores.items():
        found = compare(values, others[name])
        report[name] = {
            "other": float(others[name].mean()),
            "difference": found.difference,
            "interval": [found.low, found.high],
            "p_value": found.p_value,
        }
    return report


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        prog="python -m utils.evaluation.rouge",
        description="Score summaries, one a line, by ROUGE; prints F measures in percent as JSON.",
    )
    parser.add_argument("predictions", help="file of summaries, one a line; a blank line scores 0")
    parser.add_argument("references", help="file of reference summaries, line by line the predictions'")
    parser.add_argument(
        "--mode",
        choices=ROUGE_MODES,
        default=ROUGE_MODES[0],
        help="whose figures: Google's package, or the Perl script that papers report (default: %(default)s)",
    )
    parser.add_argument(
        "--wordnet_exceptions",
        metavar="DIR",
        help="folder of {adj,adv,noun,verb}.exc for mode rouge-1.5.5 (default: nltk's corpus wordnet, if installed)",
    )
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        help="another system's summaries of the same articles: adds the difference (PREDICTIONS less OTHER), its 95 %% "
        "bootstrap interval and the two-sided p value of approximate randomisation",
    )
    parser.add_argument(
        "--per_article", metavar="FILE", help="write each article's scores there, one JSON object a line"
    )
    args = parser.parse_args(argv)
    if args.wordnet_exceptions is not None and args.mode != "rouge-1.5.5":
        raise InputError(f"--wordnet_exceptions is of --mode rouge-1.5.5; the mode is {args.mode}")
    references = read_lines(args.references)
    systems = [read_lines(path, blank=True) for path in (args.predictions, args.compare) if path is not None]
    for path, predictions in zip((args.predictions, args.compare), systems, strict=False):
        if len(predictions) != len(references):
            raise InputError(
                f"{path} has {len(predictions)} lines, {args.references} has {len(references)}; "
                "they must be equally many"
            )
    report: dict[str, Any] = {"mode": args.mode, "examples": len(references)}
    exceptions: dict[str, str] = {}
    if args.mode == "rouge-1.5.5":
        exceptions = wordnet_exceptions(args.wordnet_exceptions)
        report["wordnet_exceptions"] = len(exceptions)
    scores, *others = (rouge_per_example(predictions, references, args.mode, exceptions) for predictions in systems)
    report = {**means_and_intervals(scores), **report}
    if others:
        report["compare"] = _compared(scores, others[0])
    if args.per_article is not None:
        rows = zip(*(values.tolist() for values in scores.values()), strict=True)
        lines = [json.dumps({"index": index, **dict(zip(scores, row, strict=True))}) for index, row in enumerate(rows)]
        try:
            Path(args.per_article).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise unwritable(f"--per_article {args.per_article}", error) from None
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    run_main(main)
