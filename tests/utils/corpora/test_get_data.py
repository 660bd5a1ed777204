"""`get_data.sh` against a stand-in for the Hub and for file servers, with small sets in place of the published ones."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server, sha256
from tests.utils.corpora.conftest import contents
from tests.utils.corpora.test_stories import tgz
from utils.corpora import get_data
from utils.corpora.data_directory import DROPPED, PAIR_FILES, PROVENANCE
from utils.corpora.get_data import story_name
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


URLS = {split: [f"http://example.org/{split}/{number}" for number in range(size)] for split, size in SIZES.items()}
LISTS = {f"all_{split}.txt": "".join(f"{url}\n" for url in urls).encode() for split, urls in URLS.items()}


def story_files() -> list[tuple[str, bytes]]:
    """All stories, in another order than the lists have them."""
    text = "(CNN) -- Story {} of {}\n\ngoes on.\n\n@highlight\n\nIts summary\n\n@highlight\n\nEnds"
    files = [
        (f"stories/{story_name(url)}", text.format(number, split).encode())
        for split, urls in URLS.items()
        for number, url in enumerate(urls)
    ]
    random.Random(0).shuffle(files)
    return files


@cache  # the header of a gzip file holds the time
def archives() -> dict[str, bytes]:
    files = story_files()
    return {"cnn_stories.tgz": tgz(files[::2]), "dailymail_stories.tgz": tgz(files[1::2])}


def serve_everything(server: HubServer) -> None:
    stored = {f"data/{name}": data for name, data in archives().items()}
    commit = get_data.ARCHIVES.split("@")[1].split("/")[0]
    server.repositories = {
        CNN_DM: {"main": cnn_dm_on_hub(), commit: stored},
        XSUM: {"main": {"xsum.py": b"raise SystemExit"}, CONVERTED: xsum_converted()},
    }
    server.files = {f"/lists/{name}": data for name, data in LISTS.items()}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A server with all there is, where the small sets are the published ones."""
    with hub_server() as server:
        serve_everything(server)
        monkeypatch.setattr(get_data, "PUBLISHED_SIZES", dict.fromkeys(get_data.PUBLISHED_SIZES, tuple(SIZES.values())))
        digests = {name.removesuffix(".tgz"): sha256(data) for name, data in archives().items()}
        monkeypatch.setattr(get_data, "PUBLISHED", digests)
        monkeypatch.setattr(get_data, "URL_LISTS", f"{server.url}/lists")
        monkeypatch.setattr("datasets.config.DOWNLOADED_DATASETS_PATH", str(tmp_path / "home/downloads"))
        ask_only(server, monkeypatch, tmp_path / "home")
        yield server


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    """The command line that reads the archives of a local folder."""
    for name, data in archives().items():
        (tmp_path / name).write_bytes(data)
    options = [
        "--cnn_stories",
        f"{tmp_path}/cnn_stories.tgz",
        "--dailymail-stories",
        f"{tmp_path}/dailymail_stories.tgz",
    ]
    return ["cnn_dm", "--sources=stories", *options]


def run(folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Run the command line; returns set -> provenance."""
    get_data.main([str(folder), *words])
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/provenance.json")}


def dropped(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]


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


def test_stories(server: HubServer, tmp_path: Path, here: list[str]) -> None:
    """From archives of the Hub, and from archives here."""
    made = run(tmp_path / "data", "cnn_dm", "--sources", "stories")["cnn_dm"]
    check_written(tmp_path / "data/cnn_dm", made)
    expected = [
        (f"(CNN) -- Story {number} of train. goes on.", "Its summary. Ends.") for number in range(SIZES["train"])
    ]
    assert list(zip(*read_pairs(tmp_path / "data/cnn_dm", "train"), strict=True)) == expected
    asked = [path for path in server.requests if path.endswith(".tgz")]
    run(tmp_path / "local", *here)
    assert [path for path in server.requests if path.endswith(".tgz")] == asked
    first, local = contents(tmp_path / "data/cnn_dm"), contents(tmp_path / "local/cnn_dm")
    assert all(local[name] == first[name] for name in PAIR_FILES)
    (tmp_path / "cnn_stories.tgz").write_bytes(tgz([]))
    with pytest.raises(InputError, match="--cnn_stories: .*cnn_stories.tgz has SHA-256.*takes it as it is$"):
        run(tmp_path / "other", *here)
    assert not (tmp_path / "other/cnn_dm").exists()


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


def test_a_story_that_is_missing_is_an_error_unless_allowed(server: HubServer, tmp_path: Path, here: list[str]) -> None:
    lost, odd = story_name(URLS["val"][2]), story_name(URLS["test"][0])
    files = [(name, data) for name, data in story_files() if lost not in name and odd not in name]
    files += [(odd, b"Caf\xe9\n@highlight\nb"), (story_name("http://example.org/extra"), b"x"), ("README", b"x")]
    for name, data in (("cnn_stories.tgz", tgz(files)), ("dailymail_stories.tgz", tgz([]))):
        (tmp_path / name).write_bytes(data)
        get_data.PUBLISHED[name.removesuffix(".tgz")] = sha256(data)
    with pytest.raises(InputError, match="cnn_dm val: 4 stories with article and highlights, not 5 as published"):
        run(tmp_path, *here)
    run(tmp_path, *here, "--allow_other_sizes")
    assert dropped(tmp_path / "cnn_dm") == [
        {"split": "val", "example": URLS["val"][2], "reason": "no story in the archives"},
        {"split": "test", "example": URLS["test"][0], "reason": "not UTF-8"},
    ]


def test_a_set_made_with_other_options_or_in_part_stays(server: HubServer, tmp_path: Path, here: list[str]) -> None:
    run(tmp_path, *here)
    before = contents(tmp_path / "cnn_dm")
    with pytest.raises(InputError, match="made otherwise .its sources is 'stories', this run's is 'hub'"):
        run(tmp_path, "cnn_dm")
    assert contents(tmp_path / "cnn_dm") == before
    (tmp_path / "cnn_dm/val.target").unlink()
    asked = len(server.requests)
    with pytest.raises(InputError, match="cnn_dm is there already and is not overwritten"):
        run(tmp_path, *here)
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["xsumm"], "'xsumm' is no set; allowed: cnn_dm, xsum, sample, and one folder, such as ./xsumm"),
        (["one", "xsum", "two"], "'two' is no set; allowed: cnn_dm, xsum, sample, and one folder, such as ./two"),
        (
            ["--sources", "stories", "--cnn_stories", "missing", "--allow_other_sizes"],
            "--cnn_stories: missing cannot be found or reached",
        ),
        (["xsum", "--sources", "stories"], "--sources is of use with cnn_dm only, not with xsum"),
        (["--cnn_stories", "x"], "--cnn_stories: is of use with --sources stories only"),
    ],
)
def test_bad_command_lines(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        get_data.main(words)
    assert message in str(caught.value)
