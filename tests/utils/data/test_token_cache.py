from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.errors import RunError
from utils.corpora.sample_corpus import write_sample_corpus
from utils.data import tokenized
from utils.data.splits import Choice
from utils.data.token_cache import TextFile, check_pairs
from utils.data.tokenized import TokenizedTexts

TEXTS = 1300


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole ones and a part."""
    monkeypatch.setattr(tokenized, "_AT_ONCE", 256)
    monkeypatch.setattr(tokenized, "_CHUNK", 512)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_sample_corpus(folder, {"train": TEXTS, "val": 20, "test": 1})
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest.fixture(scope="module")
def tokenizer(made: Path) -> BartTokenizer:
    return BartTokenizer.train((made / "train.source").read_text().split("\n"), 600)


@pytest.fixture
def only_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("texts are tokenised again")

    monkeypatch.setattr(BartTokenizer, "__call__", refuse)


def rows(texts: TokenizedTexts) -> list[list[int]]:
    return [texts[i].tolist() for i in range(len(texts))]


def sources(data: Path, limit: int = -1, cache_dir: str | None = None) -> TextFile:
    return check_pairs(data, "train", Choice(limit=limit), cache_dir)[0]


def numbers(file: TextFile) -> list[int]:
    """The numbers of the lines that are used."""
    return np.load(file.kept).tolist()


def caches(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/*.arrow"))


def test_what_is_mapped_is_what_the_tokenizer_gives(data: Path, tokenizer: BartTokenizer) -> None:
    lines = (data / "train.source").read_text().split("\n")[:-1]
    expected = tokenizer(lines, max_length=24, truncation=True)["input_ids"]
    texts = sources(data).tokenized(tokenizer, 24)
    assert rows(texts) == rows(TokenizedTexts(tokenized.tokenise(lines, TEXTS, tokenizer, 24))) == expected
    assert texts.lengths.tolist() == [len(row) for row in expected]
    assert texts[0].dtype == np.uint16 and not texts[0].flags.owndata


def test_a_large_vocabulary_takes_larger_numbers(
    data: Path, tokenizer: BartTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(sources(data, cache_dir=str(data / "one")).tokenized(tokenizer, 24))
    monkeypatch.setattr(BartTokenizer, "__len__", lambda self: 1 << 17)
    texts = sources(data, cache_dir=str(data / "other")).tokenized(tokenizer, 24)
    assert texts[0].dtype == np.int32 and rows(texts) == expected


def test_texts_are_tokenised_once(data: Path, tokenizer: BartTokenizer, request: pytest.FixtureRequest) -> None:
    first = rows(sources(data).tokenized(tokenizer, 24))
    os.utime(data / "train.source", (1, 1))  # the content counts, not the time
    request.getfixturevalue("only_maps")
    assert rows(sources(data).tokenized(tokenizer, 24)) == first


def test_a_limit_draws_lines_and_their_targets(data: Path, tokenizer: BartTokenizer) -> None:
    every = [rows(file.tokenized(tokenizer, 24)) for file in check_pairs(data, "train")]
    drawn = check_pairs(data, "train", Choice(limit=70))
    kept = numbers(drawn[0])
    assert len(kept) == len(drawn[1]) == 70 and max(kept) > 100 and kept == sorted(kept) == numbers(drawn[1])
    for file, texts in zip(drawn, every, strict=True):
        assert rows(file.tokenized(tokenizer, 24)) == [texts[number] for number in kept]
    assert {*numbers(sources(data, 30))} < {*kept}


def test_another_vocabulary_or_length_is_tokenised_anew(data: Path, tokenizer: BartTokenizer) -> None:
    first = rows(sources(data).tokenized(tokenizer, 24))
    assert rows(sources(data).tokenized(tokenizer, 12)) == [[*row[:11], row[-1]][:12] for row in first]
    another = BartTokenizer.train(["abc"], 300)
    assert rows(sources(data).tokenized(another, 24)) != first
    assert rows(sources(data, TEXTS + 5).tokenized(tokenizer, 24)) == first
    assert len(caches(data / ".cache")) == 3


def test_the_identity_is_that_of_the_lines_that_are_used(data: Path, tmp_path: Path) -> None:
    first = sources(data).identity
    moved = Path(shutil.copytree(data, tmp_path / "moved"))
    assert sources(moved).identity == sources(data, TEXTS).identity == first
    assert sources(data, 5).identity != first
    (moved / "train.source").write_text("X" + (moved / "train.source").read_text()[1:])
    assert sources(moved).identity != first


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_cache_is_named(
    damage: bytes | None, rank: str, data: Path, tokenizer: BartTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    sources(data).tokenized(tokenizer, 24)
    (name,) = caches(data / ".cache")
    path = data / ".cache" / name / "ids.arrow"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage is None else damage)
    with pytest.raises(RunError, match=f"{name}: it is damaged; remove it and start again"):
        sources(data).tokenized(tokenizer, 24)


def test_one_process_of_a_machine_digests_a_cache(
    data: Path, tokenizer: BartTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources(data).tokenized(tokenizer, 24)
    (digest,) = (data / ".cache").glob("*/ids.xxh3")
    digest.write_text("of other ids")
    monkeypatch.setenv("LOCAL_RANK", "1")
    sources(data).tokenized(tokenizer, 24)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RunError, match="it is damaged; remove it and start again"):
        sources(data).tokenized(tokenizer, 24)


def test_where_the_cache_lies(
    data: Path, tokenizer: BartTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    sources(data, cache_dir=str(tmp_path / "given")).tokenized(tokenizer, 24)
    (given,) = (tmp_path / "given").iterdir()
    assert given.name.startswith("data-") and len(caches(given)) == 1 and not (data / ".cache").exists()
    (data / ".cache").write_text("a folder that cannot be written, so to speak")
    sources(data).tokenized(tokenizer, 24)
    (of_user,) = (tmp_path / "home" / "bart-pytorch").iterdir()
    assert of_user.name == given.name and len(caches(of_user)) == 1
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--cache_dir .*file/data-.*: cannot be written \(Not a directory\)"):
        sources(data, cache_dir=str(tmp_path / "file"))


def test_malformed_files_are_refused_each_time(data: Path) -> None:
    with (data / "train.target").open("a") as file:
        file.write("one more\n")
    for _ in range(2):
        with pytest.raises(InputError, match=rf"train.source has {TEXTS} lines, .*train.target has {TEXTS + 1}"):
            check_pairs(data, "train", Choice(limit=3))


def test_a_file_that_changes_while_it_is_read(data: Path, tokenizer: BartTokenizer) -> None:
    file = sources(data)
    (data / "train.source").write_text("other\n" * TEXTS)
    with pytest.raises(RunError, match="train.source: it changed while it was read; start again"):
        file.tokenized(tokenizer, 24)
    (data / "train.source").write_text("another\n" * TEXTS)
    assert len(sources(data).tokenized(tokenizer, 24)) == TEXTS


def tokenise(data: Path, vocabulary: str, log: Path) -> None:
    loaded, encode = BartTokenizer.from_pretrained(vocabulary), BartTokenizer.__call__

    def logged(self: BartTokenizer, texts: list[str], **options: int) -> dict[str, list[list[int]]]:
        first = not log.exists()
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if first:
            signal.pause()  # until it is killed
        return encode(self, texts, **options)

    BartTokenizer.__call__ = logged  # type: ignore[method-assign]
    sources(data).tokenized(loaded, 24)


def test_of_several_processes_one_tokenises_and_another_takes_over_from_one_that_dies(
    data: Path, tokenizer: BartTokenizer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    vocabulary, log = str(tmp_path / "vocabulary"), tmp_path / "log"
    tokenizer.save_pretrained(vocabulary)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=tokenise, args=(data, vocabulary, log)) for _ in range(3)]
    for process in processes:
        process.start()
    while not log.exists() or not log.read_text().endswith("\n"):
        assert any(process.is_alive() for process in processes)
        time.sleep(0.01)
    first = int(log.read_text().split()[0])
    os.kill(first, signal.SIGKILL)
    for process in processes:
        process.join()
    assert sorted(process.exitcode for process in processes) == [-9, 0, 0]
    later = log.read_text().split()[1:]
    calls = -(-TEXTS // tokenized._AT_ONCE)
    assert len([pid for pid in later if int(pid) != first]) == calls and len(set(later) - {str(first)}) == 1
    request.getfixturevalue("only_maps")
    assert len(sources(data).tokenized(tokenizer, 24)) == TEXTS
