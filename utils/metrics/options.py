"""The options of ROUGE and BLEU; this file loads no library that computes them."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from bart.files import PathName
from utils.app.cli import changeable, option
from utils.metrics.rouge_pairs import ROUGE_MODES, ROUGE_TOKENIZERS, RougeRule
from utils.text.lines import iter_lines, reference_texts
from utils.text.sentences import share_of, warn_of_unspaced

logger = logging.getLogger(__name__)
# In the order of ROUGE-1.5.5, where a later list overrides an earlier one.
_EXCEPTION_LISTS = ("adv.exc", "noun.exc", "verb.exc", "adj.exc")
# Marks by which data say where a sentence ends, and which would count as words.
_MARKS = re.compile(
    r"</?(?:[nqst]|br|eos|\w*sep|\w*newline|sent\w*)\s*/?>|\[(?:\w*sep|eos)\]|##\w*sent\w*##|\\n|newline_char|\|{5}",
    re.IGNORECASE,
)
_MOST_COUNTED = 0.9  # share of the letters; languages that write few accents come near 1
_SPLIT_AT_BLANKS = ("13a", "intl", "none")
# sacrebleu's, with its default first.
BLEU_TOKENIZERS = ("13a", "none", "zh", "intl", "char", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200")
BLEU_TOKENIZERS += ("spBLEU-1K",)


@dataclass(frozen=True)
class RougeOptions:
    """The ROUGE that summaries are scored by."""

    rouge_mode: str = changeable(
        ROUGE_MODES[0],
        section="scoring",
        alias="mode",
        choices=ROUGE_MODES,
        help="rouge-score is Google's package; rouge-1.5.5 gives the scores of the Perl script that papers report",
    )
    rouge_tokenizer: str = option(
        ROUGE_TOKENIZERS[0],
        choices=ROUGE_TOKENIZERS,
        help="what mode rouge-score counts: rouge-score stemmed words of a to z and digits, words those of any script",
        on_resume="validation",
    )
    wordnet_exceptions: str | None = changeable(
        None,
        metavar="DIR",
        help="folder of {adj,adv,noun,verb}.exc for --rouge_mode rouge-1.5.5; by default nltk's corpus wordnet",
    )
    sentence_end: str = option(
        "",
        metavar="MARK",
        help="marks of sentence ends, such as '<q>' or '<t> </t>' (two marks); by default nltk's Punkt finds the ends",
        on_resume="validation",
    )

    def __post_init__(self) -> None:
        mode, tokenizer = self.rouge_mode, self.rouge_tokenizer
        if self.wordnet_exceptions is not None and mode != "rouge-1.5.5":
            raise InputError(f"--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is {mode}")
        if tokenizer != ROUGE_TOKENIZERS[0] and mode != "rouge-score":
            raise InputError(f"--rouge_tokenizer {tokenizer} is of --rouge_mode rouge-score; --rouge_mode is {mode}")

    def rule(self) -> RougeRule:
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


def wordnet_exceptions(folder: PathName | None = None) -> dict[str, str]:
    """WordNet's irregular forms and their bases, such as "went" and "go", for mode rouge-1.5.5.

    They come from the lists of a folder or, where None is given, of nltk's corpus `wordnet`; without it there are none.
    """
    exceptions = {}
    for name in _EXCEPTION_LISTS:
        if folder is not None:
            path = str(Path(folder) / name)
            lines = list(iter_lines(path))
        else:
            import nltk.data  # here, because it takes seconds to load

            path = f"corpora/wordnet/{name}"
            try:
                lines = nltk.data.load(path, "text", cache=False).splitlines()
            except LookupError:
                logger.warning(
                    "rouge-1.5.5 without WordNet's irregular forms scores some tenths lower than the Perl script: give "
                    "--wordnet_exceptions, or run python -m nltk.downloader wordnet"
                )
                return {}
        for number, line in enumerate(lines, 1):
            form, *bases = line.split() or [""]
            if not bases:
                raise InputError(f"{path}, line {number}: {line!r}, where a form and its base are expected")
            exceptions[form] = bases[0]
    return exceptions


@dataclass(frozen=True)
class BleuOptions:
    """The BLEU that translations are scored by."""

    bleu_tokenize: str = changeable(
        BLEU_TOKENIZERS[0],
        section="scoring",
        choices=BLEU_TOKENIZERS,
        metavar="NAME",
        help="sacrebleu's tokenizer for BLEU, such as zh for Chinese; the signature names it; allowed: "
        f"{', '.join(BLEU_TOKENIZERS)}",
    )

    def __post_init__(self) -> None:
        from sacrebleu.metrics import BLEU  # here, because --help needs none of it

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
