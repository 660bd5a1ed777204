from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.tokenization.tokenization_bert import BertTokenizer
from utils.corpora.documents import find_files
from utils.corpora.train_tokenizer import main, sampled


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.source").write_text("the cat sat\u2028on the mat\na cat and a dog\n", encoding="utf-8")
    (folder / "train.target").write_text("a cat sat\na cat\n", encoding="utf-8")
    return folder


def test_trains_on_sources_and_targets_and_says_so(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "b"
    main(["--data_dir", str(data_dir), "--output_dir", str(out), "--vocab_size", "270"])
    tokenizer = BartTokenizer.from_pretrained(out)
    # "a cat" opens both targets, so " cat" is frequent; no text has "zebra".
    assert len(tokenizer(" cat")["input_ids"]) == 3
    assert len(tokenizer(" zebra")["input_ids"]) > 4
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{out}: a vocabulary of {len(tokenizer)} tokens from 4 lines of {data_dir}"]


@pytest.mark.parametrize("case", ["--lowercase", "--no_lowercase"])
def test_word_pieces(case: str, data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "train.source").write_text("The cat sat\non THE mat\n", encoding="utf-8")
    main([*map(str, ("--data_dir", data_dir, "--output_dir", tmp_path / "out")), "--model_type", "bert", case])
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "out")
    same = tokenizer("THE")["input_ids"] == tokenizer("the")["input_ids"]
    assert same == (case == "--lowercase")
    assert len(tokenizer("a cat")["input_ids"]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_megabytes", "5"], "--text_field and --max_megabytes are about --input"),
        (["--input", "y"], "--data_dir is .*, --input is .*: give one of them"),
        (["--no_lowercase"], "--no_lowercase is about --model_type bert; --model_type is bart"),
        (["--output_dir", __file__], "^--output_dir .*: cannot be written"),
    ],
)
def test_bad_options(data_dir: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main(["--data-dir", str(data_dir), "--output_dir", str(tmp_path / "out"), *options])


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="is there already and is not overwritten: move it away, or name another"):
        main(["--data_dir", "nowhere", "--output_dir", str(tmp_path)])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_trains_on_raw_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a cat sat\n\na cat\non the mat\n\na cat\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"body": "a cat and a dog"}\n{"body": 3}\n', encoding="utf-8")
    options = ["--input", str(tmp_path), "--text_field", "body", "--output_dir", str(tmp_path / "out")]
    main([*options, "--vocab_size", "262"])
    tokenizer = BartTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer(" cat")["input_ids"]) == 5  # by the only merge
    assert capsys.readouterr().out.endswith("262 tokens from 4 documents of 2 files\n")


def test_raw_text_is_sampled_by_the_text_alone(tmp_path: Path) -> None:
    texts = [f"document {number} of many " * 900 for number in range(200)]
    path, turned = tmp_path / "a.txt", tmp_path / "b.txt"
    for file, order in ((path, texts), (turned, texts[::-1])):
        file.write_text("\n\n".join(order))
    files, others = (find_files("input", [str(file)]) for file in (path, turned))
    documents = list(sampled(files, "text", 1))
    assert 0.5e6 < sum(map(len, documents)) < 1.5e6 < path.stat().st_size
    assert sorted(documents) == sorted(sampled(others, "text", 1))
    assert len(list(sampled(files, "text", 5))) == 200
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert list(sampled(find_files("input", [str(tmp_path / "c.txt.gz")]), "text", 1)) == documents


def test_files_without_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"a\.txt: texts is empty: there is nothing to learn a vocabulary from"):
        main(["--input", str(tmp_path / "a.txt"), "--output_dir", str(tmp_path / "out")])
