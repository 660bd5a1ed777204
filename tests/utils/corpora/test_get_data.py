"""`get_data.sh` against a stand-in for the Hub, with small sets in place of the published ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server
from tests.utils.corpora.conftest import contents
from utils.corpora import get_data
from utils.corpora.data_directory import DROPPED, PAIR_FILES, PROVENANCE
from utils.data.splits import SPLITS
from utils.data.tables import read_pairs

SIZES = {"train": 40, "val": 5, "test": 6}
HUB_SPLITS = {"train": "train", "val": "validation", "test": "test"}
CNN_DM, XSUM = "abisee/cnn_dailymail", "EdinburghNLP/xsum"
CONVERTED = "refs/convert/parquet"
Row = tuple[Any, Any]


def rows_of(split: str, source: str = "The {} article of {}.\nIt goes on.") -> list[Row]:
    return [(source.format(number, split), f"Summary {number}.\nOf {split}.") for number in range(SIZES[split])]


def table(rows: Sequence[Row], names: tuple[str, str]) -> bytes:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    columns["id"] = [f"id{number}" for number in range(len(rows))]
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()


def cnn_dm_on_hub() -> dict[str, bytes]:
    """Training is in two files. Files of other names and folders are not meant."""
    names = ("article", "highlights")
    files = {
        f"3.0.0/{HUB_SPLITS[split]}-00000-of-00001.parquet": table(rows_of(split), names) for split in ("val", "test")
    }
    train = rows_of("train")
    files["3.0.0/train-00000-of-00002.parquet"] = table(train[:30], names)
    files["3.0.0/train-00001-of-00002.parquet"] = table(train[30:], names)
    paths = "".join(f"  - split: {name}\n    path: 3.0.0/{name}-*\n" for name in HUB_SPLITS.values())
    readme = f"---\nconfigs:\n- config_name: 3.0.0\n  data_files:\n{paths}---\n".encode()
    return files | {"README.md": readme, "1.0.0/train-00000-of-00001.parquet": b"no", "3.0.0/notes.parquet": b"no"}


def xsum_converted() -> dict[str, bytes]:
    names = ("document", "summary")
    return {f"default/{name}/0000.parquet": table(rows_of(split), names) for split, name in HUB_SPLITS.items()}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A server with all there is, where the small sets are the published ones."""
    with hub_server() as server:
        server.repositories = {
            CNN_DM: {"main": cnn_dm_on_hub()},
            XSUM: {"main": {"xsum.py": b"raise SystemExit"}, CONVERTED: xsum_converted()},
        }
        monkeypatch.setattr(get_data, "PUBLISHED_SIZES", dict.fromkeys(get_data.PUBLISHED_SIZES, tuple(SIZES.values())))
        ask_only(server, monkeypatch, tmp_path / "home")
        yield server


def run(folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Run the command line; returns set -> provenance."""
    get_data.main([str(folder), *words])
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/provenance.json")}


def check_written(folder: Path, provenance: dict[str, Any]) -> None:
    """All files are there and nothing else, and the provenance has the counts."""
    assert {path.name for path in folder.iterdir()} == {*PAIR_FILES, PROVENANCE, DROPPED}
    counts = {split: (folder / f"{split}.source").read_bytes().count(b"\n") for split in SPLITS}
    assert provenance["examples"] == counts
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_both_sets_from_the_hub(server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    made = run(folder)
    assert set(made) == {"cnn_dm", "xsum"}
    for name, place in (("cnn_dm", f"{CNN_DM}:3.0.0@{commit_of('main')}"), ("xsum", f"{XSUM}@{commit_of(CONVERTED)}")):
        check_written(folder / name, made[name])
        assert made[name]["from"] == place
        for split in SPLITS:
            assert list(zip(*read_pairs(folder / name, split), strict=True)) == [
                (source.replace("\n", " "), target.replace("\n", " ")) for source, target in rows_of(split)
            ]
    assert f"{folder}/xsum: 40 train, 5 val, 6 test examples" in capsys.readouterr().out
    before, asked = contents(folder), len(server.requests)
    run(folder)
    assert (contents(folder), len(server.requests)) == (before, asked)
    assert f"{folder}/xsum: is there already" in capsys.readouterr().out


def test_a_set_of_another_size_is_an_error_unless_allowed(server: HubServer, tmp_path: Path) -> None:
    server.repositories[XSUM][CONVERTED]["default/test/0000.parquet"] = table(
        rows_of("test")[1:], ("document", "summary")
    )
    with pytest.raises(InputError, match="xsum test: 5 rows on the Hub, not 6 as published; --allow_other_sizes"):
        run(tmp_path, "xsum")
    assert not (tmp_path / "xsum").exists()
    made = run(tmp_path, "xsum", "--allow-other-sizes")["xsum"]
    assert made["examples"]["test"] == 5 and made["allow_other_sizes"]
    assert run(tmp_path, "xsum")["xsum"] == made  # is there already, however it was allowed


def test_a_set_made_in_part_stays(server: HubServer, tmp_path: Path) -> None:
    run(tmp_path, "xsum")
    (tmp_path / "xsum/val.target").unlink()
    before, asked = contents(tmp_path / "xsum"), len(server.requests)
    with pytest.raises(InputError, match="xsum is there already and is not overwritten"):
        run(tmp_path, "xsum")
    assert (contents(tmp_path / "xsum"), len(server.requests)) == (before, asked)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["xsumm"], "'xsumm' is no set; allowed: cnn_dm, xsum, sample, and one folder, such as ./xsumm"),
        (["one", "xsum", "two"], "'two' is no set; allowed: cnn_dm, xsum, sample, and one folder, such as ./two"),
    ],
)
def test_bad_command_lines(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        get_data.main(words)
    assert message in str(caught.value)
