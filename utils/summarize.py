"""Summaries of texts of any length: `summarize`, and `python -m utils.summarize MODEL < text`."""

from __future__ import annotations

import logging
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Literal, get_args

import torch

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.cli import option, parse_dataclass, run_main
from utils.evaluation.rouge import split_sentences
from utils.evaluation.scoring import generation_options
from utils.loading import load_for_evaluation

logger = logging.getLogger(__name__)

LongDocuments = Literal["refuse", "cut", "join", "resummarize"]
LONG_DOCUMENTS: tuple[str, ...] = get_args(LongDocuments)
# Room for <s>, </s> and any one character: at most four bytes, and the space that add_prefix_space sets before it.
SHORTEST_WINDOW = 8


def summarize(
    texts: str | Sequence[str],
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    *,
    long_documents: LongDocuments = "join",
    max_source_length: int | None = None,
    batch_size: int = 8,
    **options: Any,
) -> str | list[str]:
    """Summarise documents, also those that are longer than the model; nothing is left out without a warning.

    A document that fits is summarised as it is. What happens to the others is logged as a warning, with their number.

    Args:
        texts: a document, or several. White space around a document does not count.
        model: only its generate_many and config.max_position_embeddings are used.
        long_documents: what to do with documents of more than max_source_length tokens. "refuse": raise InputError.
            "cut": leave out what is beyond. "join": split them into windows (see `split_text`), and join the windows'
            summaries with spaces; the summary grows with the document. "resummarize": take the joined summaries for a
            document, until it fits, and summarise that.
        max_source_length: tokens that the model reads at once, `<s>` and `</s>` included. Default: its positions.
        batch_size: windows, of all documents, that are summarised at once.
        options: passed to `model.generate_many`.

    Returns:
        The summary of one document, or a list in the order of the documents.

    Raises:
        InputError: a blank document, none at all, a bad option, a document that is too long for "refuse", or one that
            "resummarize" does not make shorter.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; allowed: an integer of at least 1")
    sequences = options.get("num_return_sequences", 1)
    if sequences != 1:
        raise InputError(f"num_return_sequences is {sequences!r}; allowed: 1, for a document gets one summary")
    rounds = Rounds(
        [texts] if isinstance(texts, str) else list(texts),
        tokenizer,
        model.config.max_position_embeddings,
        long_documents,
        max_source_length,
    )
    while rounds.windows:
        outputs: list[Sequence[int]] = [[]] * len(rounds.windows)
        # A model's own defaults may ask for more than one sequence.
        for article in model.generate_many(rounds.windows, batch_size, **{**options, "num_return_sequences": 1}):
            outputs[article.index] = article.sequences[0].tolist()
        rounds.proceed(outputs)
    return rounds.summaries[0] if isinstance(texts, str) else rounds.summaries


class Rounds:
    """What a model is to read for the summaries of documents: windows, and those that follow from what it generates.

    Generation itself is the caller's: as long as there are windows, it passes what the model made of them to
    `proceed`.

    Args:
        documents, long_documents, max_source_length: as in `summarize`.
        positions: the model's.

    Attributes:
        windows: ids of each window that is to be read next; none when all is done.
        summaries: of the documents that are done, in the order of the documents.

    Raises:
        InputError: as `summarize` does, but for the options of generation.
    """

    def __init__(
        self,
        documents: Sequence[str],
        tokenizer: BartTokenizer,
        positions: int,
        long_documents: str = "join",
        max_source_length: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.long_documents = long_documents
        self.limit = positions if max_source_length is None else max_source_length
        _check(documents, positions, long_documents, self.limit)
        self.summaries = [""] * len(documents)
        self._start({index: text.strip() for index, text in enumerate(documents)}, "documents")

    def proceed(self, outputs: Sequence[Sequence[int]]) -> None:
        """Take the ids generated for each window.

        Raises:
            InputError: a document that "resummarize" does not make shorter.
        """
        texts = (self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in outputs)
        following = {}
        for index, (size, count) in self._parts.items():
            joined = " ".join(filter(None, islice(texts, count)))
            if count == 1 or self.long_documents == "join" or not joined:
                self.summaries[index] = joined
                continue
            # Ends: a text that comes back fits, and then this is its last round, or has fewer tokens than before.
            new_size = len(self.tokenizer(joined)["input_ids"])
            if new_size > self.limit and new_size >= size:
                raise InputError(
                    f"long_documents is 'resummarize', but texts[{index}] does not get shorter: {size} tokens "
                    f"became {new_size}, and a window holds {self.limit}; allowed: longer windows, shorter summaries, "
                    "or 'join'"
                )
            following[index] = joined
        self._start(following, "joined summaries")

    def _start(self, pending: dict[int, str], kind: str) -> None:
        """A round in which these texts, by the places of their documents, are read."""
        texts = list(pending.values())
        encoded = self.tokenizer(texts)["input_ids"] if texts else []
        windows = _windows(texts, encoded, self.tokenizer, self.long_documents, self.limit, kind)
        self.windows = list(chain.from_iterable(windows))
        # Of each document, the tokens of its text and the number of its windows.
        self._parts = {index: (len(ids), len(own)) for index, ids, own in zip(pending, encoded, windows, strict=True)}


def _check(documents: Sequence[str], positions: int, long_documents: str, limit: int) -> None:
    if long_documents not in LONG_DOCUMENTS:
        raise InputError(f"long_documents is {long_documents!r}; allowed: {', '.join(LONG_DOCUMENTS)}")
    if type(limit) is not int or not SHORTEST_WINDOW <= limit <= positions:
        raise InputError(
            f"max_source_length is {limit!r}; allowed: {SHORTEST_WINDOW} to {positions}, the model's positions"
        )
    if not documents:
        raise InputError("texts is empty; allowed: at least one document")
    for index, text in enumerate(documents):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts[{index}] is {repr(text)[:40]}; allowed: a text that is not blank")


def _windows(
    texts: Sequence[str],
    encoded: Sequence[list[int]],
    tokenizer: BartTokenizer,
    long_documents: str,
    limit: int,
    kind: str,
) -> list[list[list[int]]]:
    """What the model is to read of each text, as lists of ids; says what was done to those longer than it can.

    Args:
        encoded: the ids of each text.
        kind: what the texts are called in the warning.

    Raises:
        InputError: long_documents is "refuse" and a text is too long.
    """
    lengths = {index: len(ids) for index, ids in enumerate(encoded) if len(ids) > limit}
    windows = [[ids] for ids in encoded]
    if not lengths:
        return windows
    found = (
        f"longer than {limit} tokens: {len(lengths)} of {len(texts)} {kind}, the longest with {max(lengths.values())}"
    )
    if long_documents == "refuse":
        raise InputError(
            f"{found} (texts[{min(lengths)}] is the first); long_documents is 'refuse', allowed to go on: "
            + ", ".join(LONG_DOCUMENTS[1:])
        )
    if long_documents == "cut":
        for index in lengths:
            windows[index] = [[*encoded[index][: limit - 1], tokenizer.eos_token_id]]
        logger.warning("%s; cut there, %d tokens left out", found, sum(lengths.values()) - limit * len(lengths))
        return windows
    split = {index: split_text(texts[index], tokenizer, limit) for index in lengths}
    for index, part in split.items():
        windows[index] = part.windows
    done = f"split into {sum(len(part.windows) for part in split.values())} windows, whose summaries are joined"
    if long_documents == "resummarize":
        done += " and summarised again"
    if sentences := sum(part.split_sentences for part in split.values()):
        done += f"; sentences longer than a window, split between words: {sentences}"
    if words := sum(part.split_words for part in split.values()):
        done += f"; words longer than a window, split between tokens: {words}"
    logger.warning("%s; %s", found, done)
    return windows


@dataclass
class SplitText:
    windows: list[list[int]]  # ids of each window, `<s>` and `</s>` included
    split_sentences: int  # sentences that no window can hold, split between words
    split_words: int  # words that no window can hold, split between tokens


def split_text(text: str, tokenizer: BartTokenizer, max_length: int) -> SplitText:
    """Split a text into windows of whole sentences, few and of like length.

    Every character is in exactly one window, but for white space between windows and around the text. A sentence that
    is longer than a window is split between words, and such a word between tokens. Each window is read as a text of its
    own, so its first word has no space before it.

    Windows are filled one after the other, which gives their number, and then again up to the smallest size that needs
    no more of them, so that the last one is no stub.

    Args:
        max_length: tokens that a window may have, `<s>` and `</s>` included; at least SHORTEST_WINDOW.

    Raises:
        InputError: a word has to be split where the vocabulary leaves no token end that is a character's end.
    """
    room = max_length - 2
    units, long_sentences = _split_long(
        _sentences(text.strip()), lambda sentence: re.findall(r"\s*\S+", sentence), tokenizer, room
    )
    units, long_words = _split_long(units, lambda word: _split_word(word, tokenizer, room), tokenizer, room)
    # A unit's ids depend on what stands before it: nothing where it opens a window, else its white space.
    opening = _encode([unit.strip() for unit in units], tokenizer)
    following = _encode(units, tokenizer, add_prefix_space=False)
    lengths = [(len(first), len(later)) for first, later in zip(opening, following, strict=True)]
    fewest = len(_fill(lengths, room))
    size = 1 + bisect_left(range(1, room), True, key=lambda size: len(_fill(lengths, size)) <= fewest)
    windows = [
        [
            tokenizer.bos_token_id,
            *opening[start],
            *chain.from_iterable(following[start + 1 : end]),
            tokenizer.eos_token_id,
        ]
        for start, end in pairwise([*_fill(lengths, size), len(units)])
    ]
    return SplitText(windows, long_sentences, long_words)


def _encode(texts: Sequence[str], tokenizer: BartTokenizer, add_prefix_space: bool | None = None) -> list[list[int]]:
    """Ids of each text, without `<s>` and `</s>`."""
    return [ids[1:-1] for ids in tokenizer(texts, add_prefix_space=add_prefix_space)["input_ids"]]


def _sentences(text: str) -> list[str]:
    """The text's sentences, each with the white space before it, so that together they are the text."""
    ends, end = [], 0
    for sentence in split_sentences(text):
        end = text.index(sentence, end) + len(sentence)
        # Punkt also sees ends inside words, as in "he left.(She stayed.)".
        if text[end : end + 1].isspace():
            ends.append(end)
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def _split_long(
    units: Sequence[str], split: Callable[[str], list[str]], tokenizer: BartTokenizer, room: int
) -> tuple[list[str], int]:
    """The units, with those of more than `room` tokens split further, and how many these were."""
    parts = [
        [unit] if len(ids) <= room else split(unit)
        for unit, ids in zip(units, _encode([unit.strip() for unit in units], tokenizer), strict=True)
    ]
    return list(chain.from_iterable(parts)), sum(len(part) > 1 for part in parts)


def _split_word(word: str, tokenizer: BartTokenizer, room: int) -> list[str]:
    """A word in pieces of like length, of at most `room` tokens; the first keeps the white space before it."""
    pieces: list[str] = []
    [ids] = _encode([word.lstrip()], tokenizer, add_prefix_space=False)
    while ids:
        size = math.ceil(len(ids) / math.ceil(len(ids) / room))
        for end in range(size, 0, -1):
            piece = tokenizer.decode(ids[:end])
            # A byte-level token may end inside a character, whose bytes then do not come back.
            same = _encode([piece], tokenizer, add_prefix_space=False) == [ids[:end]]
            if same and len(_encode([piece], tokenizer)[0]) <= room:
                break
        else:
            raise InputError(
                f"a word of {len(ids)} tokens cannot be split into windows of {room + 2}: in this vocabulary none of "
                "its tokens ends where a character ends; allowed: words that fit, or long_documents='cut'"
            )
        pieces.append(piece)
        ids = ids[end:]
    pieces[0] = word[: len(word) - len(word.lstrip())] + pieces[0]
    return pieces


def _fill(lengths: Sequence[tuple[int, int]], size: int) -> list[int]:
    """The first unit of each window, when windows are filled up to `size` tokens one after the other.

    Args:
        lengths: tokens of each unit where it opens a window, and where it follows another. A window may hold more than
            `size` tokens if these are of a single unit.
    """
    starts: list[int] = []
    used = 0
    for index, (opening, following) in enumerate(lengths):
        used += following
        if not starts or used > size:
            starts.append(index)
            used = opening
    return starts


@dataclass(frozen=True)
class SummarizeArguments:
    model: str = option(help="checkpoint file, Hub-format directory or Hub name")
    config_path: str | None = option(
        None,
        help="JSON with the decoding options, and the architecture if the checkpoint has none; by default the "
        "checkpoint's own",
    )
    tokenizer: str | None = option(None, help="vocabulary; by default the one that lies with the weights")
    long_documents: str = option(
        "join",
        choices=LONG_DOCUMENTS,
        help="documents longer than max_source_length: refuse them, cut them, or split them at sentence ends into "
        "windows, and join the windows' summaries or summarise these again",
    )
    max_source_length: int | None = option(
        None, least=SHORTEST_WINDOW, help="tokens that the model reads at once; by default its positions"
    )
    num_beams: int | None = option(None, least=1, help="beams; by default the model's")
    max_length: int | None = option(None, least=2, help="tokens to generate at most; by default the model's")
    batch_size: int = option(8, least=1, help="windows that are summarised at once")
    lines: bool = option(False, help="read one document a line; without it all input is one document")


def read_documents(data: bytes, lines: bool) -> list[str]:
    """One document, or with `lines` one a line (lines end at "\\n" alone), from the bytes of standard input.

    Raises:
        InputError: bytes that are not UTF-8, or a blank document; it names the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"standard input, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None
    documents = text.removesuffix("\n").split("\n") if lines else [text]
    for number, document in enumerate(documents, 1):
        if not document.strip():
            where = f"standard input, line {number}" if lines else "standard input"
            raise InputError(f"{where}: blank; a document to summarise is expected")
    return documents


def main(argv: Sequence[str] | None = None) -> None:
    """Summarise standard input, on a GPU if there is one, and print one summary a line.

    Raises:
        InputError: anything wrong with options, input or checkpoint.
    """
    args = parse_dataclass(
        SummarizeArguments,
        argv,
        "Summarise the text on standard input, however long, and print one summary a line.",
        prog="python -m utils.summarize",
    )
    documents = read_documents(sys.stdin.buffer.read(), args.lines)
    model, tokenizer = load_for_evaluation(args.model, args.config_path, args.tokenizer)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    summaries = summarize(
        documents,
        model,
        tokenizer,
        long_documents=args.long_documents,
        max_source_length=args.max_source_length,
        batch_size=args.batch_size,
        **generation_options(args.num_beams, args.max_length),
    )
    for summary in summaries:
        print(" ".join(summary.split("\n")))


if __name__ == "__main__":
    run_main(main)
