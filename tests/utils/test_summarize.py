from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bart.errors import InputError
from bart.generation import GeneratedArticle
from bart.modeling.modeling_bart import BartForConditionalGeneration
from tests.tiny_run import CONFIG, tiny_bart
from tests.utils.long_texts import sentences, texts_of, tokenizer, tokens
from utils.app.cli import run_main
from utils.prediction.options import LONG_DOCUMENTS
from utils.prediction.summarizing import summarize
from utils.summarize import main
from utils.text.windows import split_text

ROOT = Path(__file__).parents[2]


class EchoModel:
    """Gives back the first ids of each window, the last window first, and keeps what it was given."""

    def __init__(self, positions: int, keep: int | None = None) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions, extra={})
        self.keep = keep
        self.windows: list[list[int]] = []
        self.calls: list[tuple[int, dict[str, Any]]] = []

    def generate_many(self, sources: list[list[int]], batch_size: int, **options: Any) -> Iterator[GeneratedArticle]:
        self.windows += sources
        self.calls.append((batch_size, options))
        for index in reversed(range(len(sources))):
            yield GeneratedArticle(index, torch.tensor([sources[index][1:-1][: self.keep]]), 0.0)


@pytest.mark.parametrize("choice", LONG_DOCUMENTS)
def test_documents_that_fit_are_summarised_as_they_are(choice: Any, caplog: pytest.LogCaptureFixture) -> None:
    text = "The cat sat.  A dog\nran."
    model = EchoModel(tokens(text), keep=2)
    ids = tokenizer()(text)["input_ids"]
    summary = summarize(f"\n{text} ", model, tokenizer(), long_documents=choice, min_length=3)
    assert summary == tokenizer().decode(ids[1:3])
    assert model.windows == [ids]
    assert model.calls == [(8, {"min_length": 3, "num_return_sequences": 1})]
    assert caplog.records == []


def test_default_joins_the_summaries_of_windows_in_order_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    documents = ["A dog ran.", " ".join(sentences(20, 1)), "word" * 30 + " " + "the old cat " * 30]
    split = [split_text(text, tokenizer(), 40) for text in documents]
    model, again = EchoModel(64, keep=4), EchoModel(64, keep=4)
    model.config.extra["max_source_length"] = 40  # as training from random weights keeps it
    summaries = summarize(documents, model, tokenizer(), batch_size=4)
    assert summaries == [" ".join(tokenizer().decode(ids[1:-1][:4]).strip() for ids in part) for part in split]
    assert model.windows == [ids for part in split for ids in part]
    assert [batch_size for batch_size, _ in model.calls] == [4]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"longer than 40 tokens: 2 of 3 documents, the longest with {max(map(tokens, documents))}; split into "
        f"{len(split[1]) + len(split[2])} windows, whose summaries are joined"
    )
    assert summarize(documents, again, tokenizer(), max_source_length=40) == summaries


def test_cut_leaves_out_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    documents = [" ".join(sentences(9, 1)), "A dog ran.", " ".join(sentences(20, 2))]
    summaries = summarize(documents, EchoModel(30), tokenizer(), long_documents="cut")
    windows = tokenizer()(documents, max_length=30, truncation=True)["input_ids"]
    assert summaries == [text.strip() for text in texts_of(windows)]
    lengths = [tokens(documents[0]), tokens(documents[2])]
    assert caplog.records[0].getMessage() == (
        f"longer than 30 tokens: 2 of 3 documents, the longest with {max(lengths)}; cut there, {sum(lengths) - 60} "
        "tokens left out"
    )


def test_refuse() -> None:
    long = " ".join(sentences(20, 2))
    model = EchoModel(30)
    message = (
        rf"longer than 30 tokens: 2 of 3 documents, the longest with {tokens(long)} \(texts\[1\] is the first\); "
        "long_documents is 'refuse', allowed to go on: cut, join"
    )
    with pytest.raises(InputError, match=message):
        summarize(["A dog ran.", long, long], model, tokenizer(), long_documents="refuse")
    assert model.windows == []


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("", {}, r"texts\[0\] is ''; allowed: a text that is not blank"),
        (["a", " \n"], {}, r"texts\[1\] is ' \\n'"),
        (["a", "b\ud800"], {}, r"texts\[1\]: unpaired surrogate"),
        ("a", {"long_documents": "split"}, "long_documents is 'split'; allowed: refuse, cut, join"),
        ("a", {"max_source_length": 65}, "max_source_length is 65; allowed: 8 to 64, the model's positions"),
    ],
)
def test_bad_input(texts: Any, options: dict[str, Any], message: str) -> None:
    model = EchoModel(64)
    with pytest.raises(InputError, match=message) as error:
        summarize(texts, model, tokenizer(), **options)
    assert "\n" not in str(error.value)
    assert model.windows == []


# With a network


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in Hub format, whose summaries differ from text to text."""
    folder = tmp_path_factory.mktemp("export")
    fields = {**CONFIG, "vocab_size": len(tokenizer()), "init_std": 0.6, "min_length": 5}
    tiny_bart(seed=1, **fields).save_pretrained(folder, tokenizer())
    return folder


DOCUMENTS = ["A dog ran.", " ".join(sentences(30, 5)), " ".join(sentences(4, 6))]


def one_by_one(folder: Path, texts: list[str], **options: Any) -> list[str]:
    """Summaries without batches; texts that are too long are split and their summaries joined."""
    model = BartForConditionalGeneration.from_pretrained(folder)
    return [
        " ".join(
            tokenizer().decode(model.generate(torch.tensor([ids]), **options)[0], skip_special_tokens=True).strip()
            for ids in split_text(text, tokenizer(), 64)
        )
        for text in texts
    ]


def test_summaries_are_those_of_generate(export: Path) -> None:
    model = BartForConditionalGeneration.from_pretrained(export)
    expected = one_by_one(export, DOCUMENTS, num_beams=3, max_length=9)
    assert len(set(expected)) == 3
    assert summarize(DOCUMENTS, model, tokenizer(), num_beams=3, max_length=9) == expected
    with pytest.raises(InputError, match="num_beam is .*, which is no .*: did you mean 'num_beams'"):
        summarize(DOCUMENTS, model, tokenizer(), num_beam=3)
    # The model's own defaults may ask for more than the one sequence of a summary.
    model.generation_config = model.generation_config.merged(num_return_sequences=2, return_dict_in_generate=True)
    assert summarize(DOCUMENTS, model, tokenizer(), num_beams=3, max_length=9) == expected


@pytest.mark.gpu
def test_on_a_gpu(export: Path) -> None:
    model = BartForConditionalGeneration.from_pretrained(export).cuda()
    assert summarize(DOCUMENTS, model, tokenizer(), num_beams=2) == one_by_one(export, DOCUMENTS, num_beams=2)


# The command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Gives what the command prints for some bytes on standard input."""

    def run(data: str | bytes, *argv: object) -> str:
        data = data if isinstance(data, bytes) else data.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        main(["--gpus", "0", *map(str, argv)])
        printed = capsys.readouterr()
        run.said = printed.err.splitlines()
        return printed.out

    return run


def test_command_reads_one_document_or_one_a_line(export: Path, run: Any) -> None:
    printed = run("\n".join(DOCUMENTS) + "\n", export, "--lines", "--batch_size", 2)
    assert printed == "".join(f"{line}\n" for line in one_by_one(export, DOCUMENTS))
    text = "\n\n".join(DOCUMENTS)
    printed = run("\ufeff" + text + "\n", export, "--num_beams", 1, "--max_length", 8)
    assert printed == one_by_one(export, [text], num_beams=1, max_length=8)[0] + "\n"


def test_one_who_types_sees_what_the_model_was_trained_on(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    shutil.copytree(export, tmp_path / "model")
    known = {"trained": "fine-tuned from base on news", "examples": [{"source": "A dog ran."}]}
    (tmp_path / "model" / "examples.json").write_text(json.dumps(known))
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"The cat sat.")))
    main(["--gpus", "0", str(tmp_path / "model")])
    said = "The model was fine-tuned from base on news, on texts such as: A dog ran.\nType or paste a document;"
    assert capsys.readouterr().err.startswith(said)


def test_command_reads_a_file_and_writes_one_with_the_options_of_the_service(
    export: Path, tmp_path: Path, run: Any
) -> None:
    (tmp_path / "a.txt").write_text("\ufeff" + "\r\n".join(DOCUMENTS), encoding="utf-8")
    options = {"num_beams": 3, "max_length": 9, "min_length": 4, "length_penalty": 0.5, "no_repeat_ngram_size": 2}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    output = ("--output", tmp_path / "out.txt")
    assert run("", export, tmp_path / "a.txt", "--lines", *output, *words, "--early_stopping", "never") == ""
    assert run.said[-1] == f"{tmp_path}/out.txt: {len(DOCUMENTS)} summaries"
    expected = one_by_one(export, DOCUMENTS, early_stopping="never", **options)
    assert (tmp_path / "out.txt").read_text() == "".join(f"{line}\n" for line in expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_command_generates_with_the_copy_for_inference(
    export: Path, run: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """In fp32 the other tests compare its summaries with those of the network itself."""
    asked: list[str] = []
    for_inference = BartForConditionalGeneration.for_inference

    def recorded(model: BartForConditionalGeneration, precision: str) -> BartForConditionalGeneration:
        asked.append(precision)
        return for_inference(model, precision)

    monkeypatch.setattr(BartForConditionalGeneration, "for_inference", recorded)
    copy = for_inference(BartForConditionalGeneration.from_pretrained(export), precision)
    printed = run(DOCUMENTS[0], export, *(() if precision == "fp32" else ("--precision", precision)))
    assert printed == summarize(DOCUMENTS[0], copy, tokenizer()) + "\n"
    assert asked == [precision]


@pytest.mark.parametrize(
    ("data", "argv", "message"),
    [
        (b" \n", [], "standard input: blank; a text is expected"),
        (b"a\n\nb\n", ["--lines"], "standard input, line 2: blank line; every line must hold an example"),
        (b"a\n\xff\n", [], "standard input, line 2: not UTF-8 (byte 0xff)"),
        (b"a", ["./absent.txt"], "./absent.txt: cannot be read (No such file or directory)"),
        (b"a", ["--output", "/"], "--output is '/'; allowed: a file in a directory that exists"),
        (b"a", ["--min_length", "-1"], "min_length is -1; allowed: an integer of at least 0"),
        (b"a", ["--max_length", "66"], "max_length is 66; allowed: at most 65"),
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
    monkeypatch.setattr(sys, "argv", ["summarize.py", str(export), "--gpus", "0", *argv])
    with pytest.raises(SystemExit) as stop:
        run_main(main)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert "error: " in line and message in line


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a text\n")
    (tmp_path / "link.txt").symlink_to("in.txt")
    for name in ("in.txt", "link.txt"):
        with pytest.raises(InputError, match=f"--output is {tmp_path}/{name}, the file that is read; allowed: another"):
            main(["model", str(tmp_path / "in.txt"), "--lines", "--output", str(tmp_path / name)])
    assert (tmp_path / "in.txt").read_text() == "a text\n"
