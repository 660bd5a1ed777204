from __future__ import annotations

from pathlib import Path

import pytest

from bart.errors import InputError
from bart.tokenization.tokenization_bart import BartTokenizer
from utils.corpora.train_tokenizer import main


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data_dir", "nowhere"], "nowhere"),
        (["--vocab_size", "260"], "vocab_size=260: give a whole number from 261"),
        (["--min_frequency", "0"], "min_frequency=0: give a whole number from 1"),
        (["--output_dir", __file__], "cannot write the tokenizer here"),
    ],
)
def test_bad_options(data_dir: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main(["--data-dir", str(data_dir), "--output_dir", str(tmp_path / "out"), *options])
    assert not (tmp_path / "out").exists()
