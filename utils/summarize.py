"""Summaries of texts of any length: `summarize`, and `python -m utils.summarize MODEL FILE`."""

from __future__ import annotations

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import io
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.progress import progress
from utils.models.generation_options import GENERATE, DecodingOptions
from utils.models.loading import for_inference, load_for_evaluation
from utils.runs.machine import PRECISIONS, check_gpus
from utils.runs.outputs import check_output, write_whole
from utils.text.lines import decoded_lines
from utils.text.sentences import without_repeats
from utils.text.windows import SHORTEST_WINDOW, split_text

logger = logging.getLogger(__name__)

LongDocuments = Literal["refuse", "cut", "join", "resummarize"]
LONG_DOCUMENTS: tuple[str, ...] = get_args(LongDocuments)
MODEL = "model"  # a section of --help
RUNS_ON = {"cpu": ("fp32", "bf16", "int8"), "cuda": ("fp32", "tf32", "bf16", "fp16")}
TERMINAL_LINE = 4095  # bytes of a line that a terminal on Linux passes on; it drops the rest


def summarize(
    texts: str | Sequence[str],
    model: BartForConditionalGeneration,
    tokenizer: BartTokenizer,
    *,
    long_documents: LongDocuments = "join",
    max_source_length: int | None = None,
    batch_size: int = 8,
    drop_repeated_sentences: bool = False,
    **options: Any,
) -> str | list[str]:
    """Summarise documents, which may be longer than the model can read; nothing is left out without a warning.

    A document that fits the model is summarised as it is. A warning says how many are longer and what is done to them.

    Args:
        texts: one document, or several. White space around a document is ignored.
        model: only its generate_many and config.max_position_embeddings are used.
        long_documents: what to do with documents of more than max_source_length tokens. "refuse": raise InputError.
            "cut": leave out the rest. "join": split them into windows (see `split_text`) and join the summaries of the
            windows with spaces, so that the summary grows with the document. "resummarize": summarise the joined
            summaries again, until they fit one window.
        max_source_length: tokens that the model reads at once, `<s>` and `</s>` included. Default: its positions.
        batch_size: windows, of all documents, that are summarised at once.
        drop_repeated_sentences: leave out sentences that a summary has said before (see `without_repeats`).
        options: passed to `model.generate_many`, but num_return_sequences is always 1.

    Returns:
        The summary of the one document, or a list in the order of the documents.

    Raises:
        InputError: a document is blank, an option is bad, a document is too long for "refuse", or "resummarize" does
            not make a document shorter.
    """
    documents = [texts] if isinstance(texts, str) else texts
    positions = model.config.max_position_embeddings
    rounds = Rounds(documents, tokenizer, positions, long_documents, max_source_length, drop_repeated_sentences)
    while rounds.windows:
        outputs: list[Sequence[int]] = [[]] * len(rounds.windows)
        # A document gets one summary, also where the model's own defaults ask for more sequences.
        articles = model.generate_many(rounds.windows, batch_size, **{**options, "num_return_sequences": 1})
        for article in progress("summarising", len(rounds.windows), "windows", articles):
            outputs[article.index] = article.sequences[0].tolist()
        rounds.proceed(outputs)
    return rounds.summaries[0] if isinstance(texts, str) else rounds.summaries


class Rounds:
    """The rounds in which documents are summarised; generation itself is left to the caller.

    In each round the caller generates from all `windows` and passes the results to `proceed`, until no windows are
    left. There is one round, or with "resummarize" as many as it takes.

    Args:
        documents, long_documents, max_source_length, drop_repeated_sentences: as in `summarize`.
        positions: of the model.

    Attributes:
        windows: ids of each window that the model reads in this round; empty when all summaries are done.
        summaries: one for each document; blank until it is done.
        parts: for each document of this round, by its index: the tokens of its text, and the number of its windows.
    """

    def __init__(
        self,
        documents: Sequence[str],
        tokenizer: BartTokenizer,
        positions: int,
        long_documents: str = "join",
        max_source_length: int | None = None,
        drop_repeated_sentences: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.long_documents = long_documents
        self.drop_repeated_sentences = drop_repeated_sentences
        self.limit = positions if max_source_length is None else max_source_length
        if long_documents not in LONG_DOCUMENTS:
            raise InputError(f"long_documents is {long_documents!r}; allowed: {', '.join(LONG_DOCUMENTS)}")
        if type(self.limit) is not int or not SHORTEST_WINDOW <= self.limit <= positions:
            raise InputError(
                f"max_source_length is {self.limit!r}; allowed: {SHORTEST_WINDOW} to {positions}, the model's positions"
            )
        for index, text in enumerate(documents):
            if not text.strip():
                raise InputError(f"texts[{index}] is {text[:40]!r}; allowed: a text that is not blank")
        self.summaries = [""] * len(documents)
        self._start({index: text.strip() for index, text in enumerate(documents)}, "documents")

    def proceed(self, outputs: Sequence[Sequence[int]]) -> None:
        """Take the ids generated for each window, and begin the next round.

        Raises:
            InputError: "resummarize" does not make a document shorter.
        """
        texts = (self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in outputs)
        following = {}
        for index, (size, count) in self.parts.items():
            joined = " ".join(filter(None, islice(texts, count)))
            if self.drop_repeated_sentences:
                joined = without_repeats(joined)
            if count == 1 or self.long_documents == "join" or not joined:
                self.summaries[index] = joined
                continue
            # This ends: a text either fits, and then this is its last round, or has fewer tokens than the one before.
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
        """Begin a round that reads these texts, of some kind, given by the index of their document."""
        texts = list(pending.values())
        encoded = self.tokenizer(texts)["input_ids"] if texts else []
        windows = [[ids] for ids in encoded]
        lengths = {index: len(ids) for index, ids in enumerate(encoded) if len(ids) > self.limit}
        if lengths:
            found = (
                f"longer than {self.limit} tokens: {len(lengths)} of {len(texts)} {kind}, the longest with "
                f"{max(lengths.values())}"
            )
            if self.long_documents == "refuse":
                raise InputError(
                    f"{found} (texts[{min(lengths)}] is the first); long_documents is 'refuse', allowed to go on: "
                    + ", ".join(LONG_DOCUMENTS[1:])
                )
            if self.long_documents == "cut":
                for index in lengths:
                    windows[index] = [[*encoded[index][: self.limit - 1], self.tokenizer.eos_token_id]]
                done = f"cut there, {sum(lengths.values()) - self.limit * len(lengths)} tokens left out"
            else:
                for index in lengths:
                    windows[index] = split_text(texts[index], self.tokenizer, self.limit)
                done = f"split into {sum(len(windows[index]) for index in lengths)} windows, whose summaries are joined"
                if self.long_documents == "resummarize":
                    done += " and summarised again"
            logger.warning("%s; %s", found, done)
        self.windows = list(chain.from_iterable(windows))
        self.parts = {index: (len(ids), len(own)) for index, ids, own in zip(pending, encoded, windows, strict=True)}


@dataclass(frozen=True)
class InferenceArguments:
    """The model, and where it computes."""

    model: str = option(
        positional=True, section=MODEL, help="checkpoint file, Hub-format or run directory, or Hub name"
    )
    config_path: str | None = option(
        None,
        section=MODEL,
        help="JSON with the architecture and decoding options, for a checkpoint that has none of its own",
    )
    tokenizer: str | None = option(
        None, section=MODEL, help="vocabulary; by default the one in the folder of the weights"
    )
    precision: str = option(
        "fp32", section=MODEL, choices=PRECISIONS, help="tf32 and fp16 need a GPU, int8 runs on the CPU"
    )
    gpus: int | None = option(
        None, section=MODEL, least=0, most=1, help="0 runs on the CPU; by default 1 if there is one"
    )

    def __post_init__(self) -> None:
        check_gpus(self.gpus or 0)
        if self.precision not in RUNS_ON[self.device]:
            raise InputError(
                f"--precision is {self.precision} and this would run on {self.device}; allowed there: "
                + ", ".join(RUNS_ON[self.device])
            )

    @property
    def device(self) -> str:
        return "cuda" if (torch.cuda.is_available() if self.gpus is None else self.gpus) else "cpu"


@dataclass(frozen=True)
class SummarizerArguments(InferenceArguments):
    """The options that this command and the service share: the model, and what it does with long documents."""

    long_documents: str = option(
        "join",
        section=MODEL,
        choices=LONG_DOCUMENTS,
        help="documents longer than max_source_length: refuse them, cut them, or split them at sentence ends into "
        "windows, and join the windows' summaries or summarise these again",
    )
    max_source_length: int | None = option(
        None, section=MODEL, least=SHORTEST_WINDOW, help="tokens that the model reads at once; by default its positions"
    )

    def load(self) -> tuple[BartForConditionalGeneration, BartTokenizer]:
        """Load the model, in its copy for inference, and its vocabulary."""
        model, tokenizer = load_for_evaluation(self.model, self.config_path, self.tokenizer)
        if model.config.source_encoder_layers:
            raise InputError(
                f"{self.model} reads another language; python -m utils.predict --task translation takes it"
            )
        return for_inference(model.to(self.device), self.precision), tokenizer


@dataclass(frozen=True)
class SummarizeArguments(DecodingOptions, SummarizerArguments):
    file: str | None = option(
        None, section="texts", positional=True, help="UTF-8 text to summarise; by default standard input"
    )
    output: str | None = option(None, help="file for the summaries, one a line; by default standard output")
    lines: bool = option(False, help="read one document a line; without it the whole input is one document")
    batch_size: int = option(8, least=1, help="windows that are summarised at once")
    num_beams: int | None = option(None, section=GENERATE, least=1, help="beams; 1 is greedy search")
    max_length: int | None = option(None, least=2, help="tokens to generate at most, the start token included")


def read_documents(lines: bool, file: str | None = None) -> list[str]:
    """Read a file, or standard input, as one document or as one a line; lines end at "\\n" alone.

    Raises:
        InputError: no such file, bytes that are not UTF-8, a blank document, or a line so long that a terminal has cut
            it.
    """
    name, typed = file or "standard input", file is None and sys.stdin.isatty()
    if typed:
        what = "documents, one a line" if lines else "a document"
        print(f"Type or paste {what}; Enter and then Ctrl-D end it.", file=sys.stderr)
    try:
        data = sys.stdin.buffer.read() if file is None else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None
    if typed and (longest := max(map(len, data.split(b"\n")))) >= TERMINAL_LINE:
        raise InputError(
            f"{name}: a line of {longest} bytes, and a terminal drops what is beyond {TERMINAL_LINE}; allowed: "
            "shorter lines, or a file (< FILE)"
        )
    if not data.strip():
        raise InputError(f"{name}: blank; a text is expected")
    documents = list(decoded_lines(io.BytesIO(data), name, blank=not lines))
    return documents if lines else ["\n".join(documents)]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        SummarizeArguments,
        argv,
        "Summarise a file or standard input, however long, and print one summary a line.",
    )
    check_output("output", args.output)
    documents = read_documents(args.lines, args.file)
    model, tokenizer = args.load()
    names = ("long_documents", "max_source_length", "batch_size", "drop_repeated_sentences")
    options = {name: getattr(args, name) for name in names}
    summaries = summarize(documents, model, tokenizer, **options, **args.generation)
    text = "".join(" ".join(summary.split("\n")) + "\n" for summary in summaries)
    if args.output is None:
        print(text, end="")
    else:
        write_whole(Path(args.output), text)


if __name__ == "__main__":
    run_main(main)
