from __future__ import annotations

import io
import json
import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.generation import GeneratedArticle
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG
from utils.cli import run_main
from utils.evaluation.rouge import split_sentences
from utils.summarize import LONG_DOCUMENTS, main, split_text, summarize

ROOT = Path(__file__).parents[2]
WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()


@cache
def a_tokenizer() -> BartTokenizer:
    return BartTokenizer.train([f" {word}." for word in WORDS] + WORDS, vocab_size=400)


@pytest.fixture
def tokenizer() -> BartTokenizer:
    return a_tokenizer()


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 2 to 10 words; none ends in what may be an abbreviation, as in "he sat."."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))).capitalize() + " hill." for _ in range(count)]


def tokens(text: str) -> int:
    return len(a_tokenizer()(text)["input_ids"])


def texts_of(windows: list[list[int]], tokenizer: BartTokenizer | None = None) -> list[str]:
    return [(tokenizer or a_tokenizer()).decode(ids[1:-1]) for ids in windows]


class EchoModel:
    """Gives back the first ids of each window, the last window first, and keeps what it was given."""

    def __init__(self, positions: int, keep: int | None = None) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions)
        self.keep = keep
        self.windows: list[list[int]] = []
        self.calls: list[tuple[int, dict[str, Any]]] = []

    def generate_many(self, sources: list[list[int]], batch_size: int, **options: Any) -> Iterator[GeneratedArticle]:
        self.windows += sources
        self.calls.append((batch_size, options))
        for index in reversed(range(len(sources))):
            yield GeneratedArticle(index, torch.tensor([sources[index][1:-1][: self.keep]]), 0.0)


# Windows

SPACES = [" ", " ", " ", "  ", "\n\n", "\t", "\u2028", "\u00a0", "\x1c"]
ODD = [
    "Dr.",
    "p.m.",
    "?!",
    '"Why?"',
    "left.(She",
    "'re",
    "<mask>",
    "</s>",
    "é",
    "e\u0301",
    "日本語",
    "🙂🙂",
    "\ufffd",
    ".",
]
PIECES = st.sampled_from([*WORDS, *["hill. The "] * 9, *SPACES, *SPACES, *ODD])


@settings(deadline=None, max_examples=150)
@given(
    text=st.one_of(st.lists(PIECES, min_size=15, max_size=90).map("".join), st.text(min_size=1)),
    max_length=st.integers(8, 40),
)
@example(text="\ufffd" * 50, max_length=9)
@example(text="🙂" * 50, max_length=9)
@example(text="'re" * 30, max_length=8)
@example(text="One. \x1c Two?! (Three.) Four", max_length=8)
def test_every_character_is_in_exactly_one_window(text: str, max_length: int) -> None:
    tokenizer = a_tokenizer()
    if not text.strip():
        return
    try:
        windows = split_text(text, tokenizer, max_length).windows
    except InputError:
        with pytest.raises(UnicodeEncodeError):  # the only text to refuse
            text.encode()
        return
    assert max(map(len, windows)) <= max_length
    assert {(ids[0], ids[-1]) for ids in windows} == {(tokenizer.bos_token_id, tokenizer.eos_token_id)}
    assert all(len(ids) > 2 for ids in windows)
    parts = texts_of(windows)
    assert "".join("".join(parts).split()) == "".join(text.split())
    # Between its ends a window is the text as it stands, apart from the white space that <mask> takes in.
    plain, *parts = (re.sub(r"\s+<mask>", "<mask>", part) for part in [text, *parts])
    at = 0
    for part in parts:
        at = plain.index(part.strip(), at) + len(part.strip())


def test_windows_end_at_sentence_ends_and_hold_the_ids_of_their_text(tokenizer: BartTokenizer) -> None:
    text = "The cat sat.  The dog ran over the hill.\n\nDr. Men flew by then. It was seen at 3 p.m. by old men."
    parts = ["The cat sat.  The dog ran over the hill.", "Dr. Men flew by then. It was seen at 3 p.m. by old men."]
    limit = max(map(tokens, parts))
    split = split_text(f" {text}\n", tokenizer, limit)
    assert texts_of(split.windows) == parts
    assert split.windows == tokenizer(parts)["input_ids"]
    assert (split.split_sentences, split.split_words) == (0, 0)


def test_no_window_ends_inside_a_word_where_punkt_sees_a_sentence_end(tokenizer: BartTokenizer) -> None:
    sentence = "The dog ran.(It flew.)"
    assert split_sentences(sentence) == ["The dog ran.", "(It flew.)"]
    limit = tokens(f"{sentence} The dog ran.")
    windows = split_text(" ".join([sentence] * 3), tokenizer, limit).windows
    assert texts_of(windows) == [sentence] * 3


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_the_fewest_and_the_longest_is_as_short_as_can_be(tokenizer: BartTokenizer, seed: int) -> None:
    """Against a search through all ways to cut the text."""
    parts = sentences(11, seed)
    limit = random.Random(seed).randint(max(map(tokens, parts)), 60)
    windows = split_text(" ".join(parts), tokenizer, limit).windows

    def longest(cuts: tuple[int, ...]) -> int:
        return max(length(start, end) for start, end in pairwise([0, *cuts, len(parts)]))

    @cache
    def length(start: int, end: int) -> int:
        return tokens(" ".join(parts[start:end]))

    for count in range(len(parts)):
        shortest = min(map(longest, combinations(range(1, len(parts)), count)))
        if shortest <= limit:
            break
    assert len(windows) == count + 1
    assert max(map(len, windows)) == shortest
    assert windows == tokenizer(texts_of(windows))["input_ids"]


def test_the_last_window_is_no_stub(tokenizer: BartTokenizer) -> None:
    sentence = "The dog ran over the hill."
    limit = tokens(" ".join([sentence] * 10))
    windows = split_text(" ".join([sentence] * 21), tokenizer, limit).windows
    assert texts_of(windows) == [" ".join([sentence] * 7)] * 3


def test_a_sentence_longer_than_a_window_is_split_between_words(tokenizer: BartTokenizer) -> None:
    long = "Then " + "it was seen by the dog and " * 8 + "the cat."
    text = f"The cat sat. {long} A dog ran."
    split = split_text(text, tokenizer, 20)
    assert (split.split_sentences, split.split_words) == (1, 0)
    assert " ".join(texts_of(split.windows)) == text
    assert max(map(len, split.windows)) <= 20


@pytest.mark.parametrize("word", ["thedogcatbirdsatran" * 9, "🙂日本é" * 20, "\ufffd" * 70])
def test_a_word_longer_than_a_window_is_split_between_tokens(tokenizer: BartTokenizer, word: str) -> None:
    split = split_text(f"a dog {word} sat", tokenizer, 12)
    assert (split.split_sentences, split.split_words) == (1, 1)
    assert "".join(texts_of(split.windows)).replace(" ", "") == f"adog{word}sat"
    alone = split_text(word, tokenizer, 12)
    assert (alone.split_sentences, alone.split_words) == (0, 1)
    lengths = [len(ids) for ids in alone.windows]
    assert max(lengths) - min(lengths) <= 4
    # No token is cut: the windows' tokens are those of the word.
    assert [i for ids in alone.windows for i in ids[1:-1]] == tokenizer(word)["input_ids"][1:-1]


def byte_tokenizer(folder: Path, pieces: list[str], merges: list[str], **settings: Any) -> BartTokenizer:
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("".join(f"{merge}\n" for merge in ["#version: 0.2", *merges]))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return BartTokenizer.from_pretrained(folder)


def test_a_vocabulary_without_ends_of_characters_is_refused(tmp_path: Path) -> None:
    # é is C3 A9, written Ã ©: of the word éééé… the tokens are C3, A9 C3, A9 C3, …, A9.
    tokenizer = byte_tokenizer(tmp_path, ["Ã", "©", "©Ã"], ["© Ã"])
    assert split_text("é" * 6, tokenizer, 9).windows == [tokenizer("é" * 6)["input_ids"]]
    with pytest.raises(InputError, match="a word of 21 tokens cannot be split into windows of 9"):
        split_text("é" * 20, tokenizer, 9)


def test_a_prefix_space_opens_a_window_and_stands_nowhere_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    tokenizer = byte_tokenizer(tmp_path, ["Ġ", *"abÃ©ðŁĻĤ"], [], add_prefix_space=True)
    words = ["".join(rng.choices("abé", k=rng.randint(1, 30))) for _ in range(30)]
    # The word's pieces are aa, 🙂 and aaaa; what follows a piece in its window has no space to pay for.
    assert texts_of(split_text("aa🙂aaaa", tokenizer, 9).windows, tokenizer) == [" aa🙂", " aaaa"]
    for text in ("ab ab ab ab ab", "a" * 30, "é" * 30, " ".join(words), "".join(words)):
        for max_length in range(8, 12):
            windows = split_text(text, tokenizer, max_length).windows
            assert max(map(len, windows)) <= max_length
            parts = texts_of(windows, tokenizer)
            assert all(part.startswith(" ") and part[1:] in text for part in parts)
            assert "".join("".join(parts).split()) == text.replace(" ", "")
            assert windows == tokenizer([part[1:] for part in parts])["input_ids"]


# What is made of them


def test_documents_that_fit_are_summarised_as_they_are(
    tokenizer: BartTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    text = "The cat sat.  A dog\nran."
    for choice in LONG_DOCUMENTS:
        model = EchoModel(tokens(text), keep=2)
        ids = tokenizer(text)["input_ids"]
        found = summarize(f"\n{text} ", model, tokenizer, long_documents=choice, min_length=3)
        assert found == tokenizer.decode(ids[1:3])
        assert model.windows == [ids]
        assert model.calls == [(8, {"min_length": 3, "num_return_sequences": 1})]
    assert caplog.records == []


def test_results_keep_the_order(tokenizer: BartTokenizer) -> None:
    documents = [" ".join(sentences(count, count)) for count in (3, 1, 40, 2, 9, 25, 1)]
    model = EchoModel(50)
    found = summarize(documents, model, tokenizer, batch_size=4)
    assert ["".join(summary.split()) for summary in found] == ["".join(text.split()) for text in documents]
    assert model.windows == [ids for text in documents for ids in split_text(text, tokenizer, 50).windows]
    assert [batch_size for batch_size, _ in model.calls] == [4]


def test_default_joins_the_summaries_of_windows_and_says_so(
    tokenizer: BartTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    documents = ["A dog ran.", " ".join(sentences(20, 1)), "word" * 30 + " " + "the old cat " * 30]
    split = [split_text(text, tokenizer, 40) for text in documents]
    model = EchoModel(64, keep=4)
    found = summarize(documents, model, tokenizer, max_source_length=40)
    expected = [" ".join(tokenizer.decode(ids[1:-1][:4]).strip() for ids in part.windows) for part in split]
    assert found == expected
    longest = max(map(tokens, documents))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"longer than 40 tokens: 2 of 3 documents, the longest with {longest}; split into "
        f"{len(split[1].windows) + len(split[2].windows)} windows, whose summaries are joined; sentences longer than a "
        "window, split between words: 1; words longer than a window, split between tokens: 1"
    )


def test_cut_leaves_out_what_it_says(tokenizer: BartTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    documents = [" ".join(sentences(9, 1)), "A dog ran.", " ".join(sentences(20, 2))]
    model = EchoModel(30)
    found = summarize(documents, model, tokenizer, long_documents="cut")
    windows = tokenizer(documents, max_length=30, truncation=True)["input_ids"]
    assert found == [text.strip() for text in texts_of(windows)]
    assert sorted(model.windows) == sorted(windows)
    lengths = [tokens(documents[0]), tokens(documents[2])]
    [record] = caplog.records
    assert record.getMessage() == (
        f"longer than 30 tokens: 2 of 3 documents, the longest with {max(lengths)}; cut there, {sum(lengths) - 60} "
        "tokens left out"
    )


def test_refuse(tokenizer: BartTokenizer) -> None:
    long = " ".join(sentences(20, 2))
    model = EchoModel(30)
    message = (
        rf"longer than 30 tokens: 2 of 3 documents, the longest with {tokens(long)} \(texts\[1\] is the first\); "
        "long_documents is 'refuse', allowed to go on: cut, join, resummarize"
    )
    with pytest.raises(InputError, match=message):
        summarize(["A dog ran.", long, long], model, tokenizer, long_documents="refuse")
    assert model.windows == []


def test_resummarize_goes_on_until_it_fits(tokenizer: BartTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    documents = [" ".join(sentences(count, count)) for count in (60, 1, 12)]
    model = EchoModel(30, keep=8)

    def expected(text: str) -> list[str]:
        """The text in every round, and its summary."""
        windows = split_text(text, tokenizer, 30).windows
        echoed = " ".join(tokenizer.decode(ids[1:-1][:8]).strip() for ids in windows)
        return [text, *([echoed] if len(windows) == 1 else expected(echoed))]

    rounds = [expected(text) for text in documents]
    assert [len(texts) for texts in rounds] == [6, 2, 4]
    found = summarize(documents, model, tokenizer, long_documents="resummarize")
    assert found == [texts[-1] for texts in rounds]
    windows = [split_text(text, tokenizer, 30).windows for texts in rounds for text in texts[:-1]]
    assert sorted(model.windows) == sorted(ids for part in windows for ids in part)
    messages = [record.getMessage() for record in caplog.records]
    assert [re.match(r"longer than 30 tokens: (\d of \d [a-z ]+)", message)[1] for message in messages] == [
        "2 of 3 documents",
        "2 of 2 joined summaries",
        "1 of 2 joined summaries",
        "1 of 1 joined summaries",
    ]
    assert all("whose summaries are joined and summarised again" in message for message in messages)


def test_resummarize_stops_where_a_round_does_not_shorten(tokenizer: BartTokenizer) -> None:
    text = " ".join(sentences(20, 2))
    model = EchoModel(30)
    with pytest.raises(InputError) as error:
        summarize(["A dog ran.", text], model, tokenizer, long_documents="resummarize")
    assert f"texts[1] does not get shorter: {tokens(text)} tokens became {tokens(text)}, and a window holds 30" in str(
        error.value
    )
    assert len(model.windows) == 1 + len(split_text(text, tokenizer, 30).windows)


@pytest.mark.parametrize("choice", ["join", "resummarize"])
def test_windows_without_a_summary(tokenizer: BartTokenizer, choice: str) -> None:
    text = " ".join(sentences(20, 2))
    model = EchoModel(30, keep=0)
    assert summarize([text, "A dog."], model, tokenizer, long_documents=choice) == ["", ""]
    assert len(model.windows) == 1 + len(split_text(text, tokenizer, 30).windows)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("", {}, r"texts\[0\] is ''; allowed: a text that is not blank"),
        (["a", " \n"], {}, r"texts\[1\] is ' \\n'"),
        (["a", 3], {}, r"texts\[1\] is 3"),
        (["a", "b\ud800"], {}, r"texts\[1\]: unpaired surrogate"),
        ([], {}, "texts is empty"),
        ("a", {"long_documents": "split"}, "long_documents is 'split'; allowed: refuse, cut, join, resummarize"),
        ("a", {"max_source_length": 65}, "max_source_length is 65; allowed: 8 to 64, the model's positions"),
        ("a", {"max_source_length": 7}, "max_source_length is 7; allowed: 8 to 64"),
        ("a", {"batch_size": 0}, "batch_size is 0; allowed: an integer of at least 1"),
        ("a", {"num_return_sequences": 2}, "num_return_sequences is 2; allowed: 1"),
    ],
)
def test_bad_input(tokenizer: BartTokenizer, texts: Any, options: dict[str, Any], message: str) -> None:
    model = EchoModel(64)
    with pytest.raises(InputError, match=message) as error:
        summarize(texts, model, tokenizer, **options)
    assert "\n" not in str(error.value)
    assert model.windows == []


# With a network


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in Hub format, whose summaries differ from text to text."""
    folder = tmp_path_factory.mktemp("export")
    torch.manual_seed(1)
    config = BartConfig(**{**CONFIG, "vocab_size": len(a_tokenizer()), "init_std": 0.6, "min_length": 5})
    BartForConditionalGeneration(config).save_pretrained(folder, a_tokenizer())
    return folder


DOCUMENTS = ["A dog ran.", " ".join(sentences(30, 5)), " ".join(sentences(4, 6))]


def one_by_one(folder: Path, texts: list[str], **options: Any) -> list[str]:
    """Summaries without batches; texts that are too long are split and joined."""
    model, tokenizer = BartForConditionalGeneration.from_pretrained(folder), a_tokenizer()
    return [
        " ".join(
            tokenizer.decode(model.generate(torch.tensor([ids]), **options)[0], skip_special_tokens=True).strip()
            for ids in split_text(text, tokenizer, 64).windows
        )
        for text in texts
    ]


def test_summaries_are_those_of_generate(export: Path, tokenizer: BartTokenizer) -> None:
    model = BartForConditionalGeneration.from_pretrained(export)
    expected = one_by_one(export, DOCUMENTS, num_beams=3, max_length=9)
    assert len(set(expected)) == 3
    assert summarize(DOCUMENTS, model, tokenizer, num_beams=3, max_length=9) == expected
    with pytest.raises(InputError, match="unknown generation option 'num_beam'"):
        summarize(DOCUMENTS, model, tokenizer, num_beam=3)
    # Its own defaults may ask for more than the one sequence of a summary.
    model.generation_config = model.generation_config.merged(num_return_sequences=2, return_dict_in_generate=True)
    assert summarize(DOCUMENTS, model, tokenizer, num_beams=3, max_length=9) == expected


@pytest.mark.gpu
def test_on_a_gpu(export: Path, tokenizer: BartTokenizer) -> None:
    model = BartForConditionalGeneration.from_pretrained(export).cuda()
    assert summarize(DOCUMENTS, model, tokenizer, num_beams=2) == one_by_one(export, DOCUMENTS, num_beams=2)


# The command


def run(monkeypatch: pytest.MonkeyPatch, text: str | bytes, *argv: object) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    main([str(word) for word in argv])


def test_command_reads_one_document_or_one_a_line(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "\n".join(DOCUMENTS) + "\n", export, "--lines", "--batch_size", 2)
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in one_by_one(export, DOCUMENTS))
    text = "\n\n".join(DOCUMENTS)
    run(monkeypatch, "\ufeff" + text + "\n", export, "--num_beams", 1, "--max_length", 8)
    assert capsys.readouterr().out == one_by_one(export, [text], num_beams=1, max_length=8)[0] + "\n"


def test_command_hands_on_what_is_done_with_long_documents(
    export: Path, tokenizer: BartTokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = BartForConditionalGeneration.from_pretrained(export)
    found = set()
    for choice in ("cut", "join", "resummarize"):
        run(monkeypatch, DOCUMENTS[1], export, "--long_documents", choice, "--max_source_length", 30)
        out = capsys.readouterr().out
        expected = summarize(DOCUMENTS[1], model, tokenizer, long_documents=choice, max_source_length=30)
        assert out == expected + "\n"
        found.add(out)
    assert len(found) == 3
    with pytest.raises(InputError, match="'refuse'"):
        run(monkeypatch, DOCUMENTS[1], export, "--long_documents", "refuse")


def test_command_takes_decoding_options_and_tokenizer_from_elsewhere(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIG, "vocab_size": len(a_tokenizer()), "num_beams": 1, "max_length": 7, "min_length": 0})
    )
    weights, names = export / "model.safetensors", export / "tokenizer.json"
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(weights.read_bytes())
    config = ("--config_path", tmp_path / "config.json")
    run(monkeypatch, DOCUMENTS[0], tmp_path / "weights", *config, "--tokenizer", names.parent)
    expected = one_by_one(export, DOCUMENTS[:1], num_beams=1, max_length=7, min_length=0)[0]
    assert expected != one_by_one(export, DOCUMENTS[:1])[0]
    assert capsys.readouterr().out == expected + "\n"
    BartTokenizer.train(DOCUMENTS, vocab_size=500, min_frequency=1).save_pretrained(tmp_path / "larger")
    with pytest.raises(InputError, match="the vocabulary does not fit the model"):
        run(monkeypatch, DOCUMENTS[0], export, "--tokenizer", tmp_path / "larger")
    with pytest.raises(InputError, match=r"no config in it and no config\.json beside it"):
        run(monkeypatch, DOCUMENTS[0], tmp_path / "weights", "--tokenizer", names.parent)


def test_a_summary_is_one_line(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("utils.summarize.summarize", lambda documents, *_, **__: ["one\ntwo"] * len(documents))
    run(monkeypatch, "A dog ran.\nA cat sat.\n", export, "--lines")
    assert capsys.readouterr().out == "one two\none two\n"


@pytest.mark.parametrize(
    ("data", "argv", "message"),
    [
        (b"", [], "standard input: blank"),
        (b" \n", [], "standard input: blank"),
        (b"", ["--lines"], "standard input, line 1: blank"),
        (b"a\n\nb\n", ["--lines"], "standard input, line 2: blank"),
        (b"a\n\xff\n", [], r"standard input, line 2: not UTF-8 (byte 0xff)"),
        (b"a", ["--max_source_length", "65"], "max_source_length is 65; allowed: 8 to 64"),
        (b"a", ["--max_length", "66"], "max_length is 66; allowed: at most 65"),
        (b"a", ["--long_documents", "split"], "'split' is not allowed: it takes one of refuse, cut, join, resummarize"),
        (b"a", ["--line"], "unknown argument --line; did you mean --lines?"),
        (b"a", ["--tokenizer", "./absent"], "./absent: no such file or folder"),
    ],
)
def test_bad_input_ends_the_command_with_one_line_and_status_2(
    data: bytes,
    argv: list[str],
    message: str,
    export: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    monkeypatch.setattr(sys, "argv", ["summarize.py", str(export), *argv])
    with pytest.raises(SystemExit) as stop:
        run_main(main)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert "error: " in line and message in line


def test_from_a_shell_the_warning_goes_to_standard_error(export: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "utils.summarize", str(export)],
        input=DOCUMENTS[1],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == one_by_one(export, DOCUMENTS[1:2])[0] + "\n"
    [line] = done.stderr.splitlines()
    assert line.startswith(f"longer than 64 tokens: 1 of 1 documents, the longest with {tokens(DOCUMENTS[1])}; split")
