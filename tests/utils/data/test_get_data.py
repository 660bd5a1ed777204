"""`get_data.sh` against a stand-in for the Hub and for file servers, with small sets in place of the published ones."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bart.errors import InputError
from tests.flaky_server import COMMIT, FlakyServer, flaky_server, sha256
from utils.cli import RunError
from utils.data import get_data
from utils.data.line_files import SPLITS, read_pairs
from utils.data.stories import story_name

ROOT = Path(__file__).parents[3]
SIZES = {"train": 40, "val": 5, "test": 6}
HUB_SPLITS = {"train": "train", "val": "validation", "test": "test"}
Row = tuple[str | None, str | None]


def rows_of(split: str, source: str = "The {} article of {}.\nIt goes on.") -> list[Row]:
    return [(source.format(number, split), f"Summary {number}.\nOf {split}.") for number in range(SIZES[split])]


def table(rows: Sequence[Row], names: tuple[str, str], ids: bool = True) -> bytes:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    if ids:
        columns["id"] = [f"id{number}" for number in range(len(rows))]
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()


def cnn_dm_on_hub() -> dict[str, bytes]:
    """Training in two files, as the Hub has it in three."""
    names = ("article", "highlights")
    files = {f"3.0.0/{name}-00000-of-00001.parquet": table(rows_of(split), names) for split, name in HUB_SPLITS.items()}
    train = rows_of("train")
    files["3.0.0/train-00000-of-00002.parquet"] = table(train[:30], names)
    files["3.0.0/train-00001-of-00002.parquet"] = table(train[30:], names)
    del files["3.0.0/train-00000-of-00001.parquet"]
    return files | {"README.md": b"no", "1.0.0/train-00000-of-00001.parquet": b"no", "3.0.0/notes.parquet": b"no"}


def xsum_converted() -> dict[str, bytes]:
    return {
        f"default/{name}/0000.parquet": table(rows_of(split), ("document", "summary"))
        for split, name in HUB_SPLITS.items()
    }


URLS = {split: [f"http://example.org/{split}/{number}" for number in range(size)] for split, size in SIZES.items()}
LISTS = {split: "".join(f"{url}\n" for url in urls).encode() for split, urls in URLS.items()}


def story_of(split: str, number: int) -> bytes:
    return f"(CNN) -- Story {number} of {split}\n\ngoes on.\n\n@highlight\n\nIts summary\n\n@highlight\n\nEnds".encode()


def tgz(files: Sequence[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


@cache  # a gzip header has the time in it
def archives() -> dict[str, bytes]:
    """The stories, dealt to the two archives, in another order than the lists have them."""
    files = [
        (f"stories/{story_name(url)}", story_of(split, number))
        for split, urls in URLS.items()
        for number, url in enumerate(urls)
    ]
    random.Random(0).shuffle(files)
    return {"cnn_stories.tgz": tgz(files[::2]), "dailymail_stories.tgz": tgz(files[1::2])}


def serve_everything(server: FlakyServer) -> None:
    server.repositories = {
        "abisee/cnn_dailymail": {
            "main": cnn_dm_on_hub(),
            get_data.ARCHIVE_COMMIT: {f"data/{name}": data for name, data in archives().items()},
        },
        "EdinburghNLP/xsum": {"main": {"xsum.py": b"raise SystemExit"}, "refs/convert/parquet": xsum_converted()},
    }
    server.files = {f"/lists/all_{split}.txt": data for split, data in LISTS.items()}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyServer]:
    """The small sets are the published ones, and all there is, is on this server."""
    with flaky_server() as server:
        serve_everything(server)
        small = {name: dataclasses.replace(of, sizes=SIZES) for name, of in get_data.SETS.items()}
        monkeypatch.setattr("utils.data.get_data.SETS", small)
        files = archives() | {f"all_{split}.txt": data for split, data in LISTS.items()}
        known = {name: (len(data), sha256(data)) for name, data in files.items()}
        monkeypatch.setattr("utils.data.get_data.PUBLISHED", known)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr("utils.data.download._LONGEST_WAIT", 0.0)
        yield server


def run(folder: Path, *words: str) -> dict[str, dict[str, object]]:
    """Run the command line; returns set -> provenance."""
    get_data.main([str(folder), *words])
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/provenance.json")}


def stories(server: FlakyServer) -> list[str]:
    return ["cnn_dm", "--sources", "stories", "--url_lists", f"{server.url}/lists"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/*.*")) if path.is_file()}


def check_written(folder: Path, provenance: dict[str, object]) -> None:
    """Provenance and files fit each other, and nothing else is there."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "provenance.json"}
    recorded = {name: (of["bytes"], of["sha256"]) for name, of in provenance["files"].items()}
    assert recorded == {name: (len(data), sha256(data)) for name, data in files.items()}
    assert set(files) == {*get_data.PAIR_FILES, "dropped.jsonl"}
    for split in SPLITS:
        assert provenance["counts"][split]["written"] == files[f"{split}.source"].count(b"\n")


def test_both_sets_from_the_hub(server: FlakyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run(tmp_path)
    assert set(made) == {"cnn_dm", "xsum"}
    for name, revision in (("cnn_dm", COMMIT), ("xsum", None)):
        check_written(tmp_path / name, made[name])
        assert made[name]["source"] == "hub"
        assert revision in (None, made[name]["revision"])
        for split in SPLITS:
            assert list(zip(*read_pairs(tmp_path / name, split), strict=True)) == [
                (source.replace("\n", " "), target.replace("\n", " ")) for source, target in rows_of(split)
            ]
    assert f"{tmp_path}/xsum: 40 + 5 + 6 examples from hub" in capsys.readouterr().out
    assert not (tmp_path / "downloads").exists()
    tokens = {(path.split("/")[1], token) for (path, _), token in zip(server.requests, server.tokens, strict=True)}
    assert ("datasets", "Bearer hf_secret") in tokens
    assert {token for place, token in tokens if place == "storage"} == {""}  # another host's

    before, asked = contents(tmp_path), len(server.requests)
    run(tmp_path)
    assert (contents(tmp_path), len(server.requests)) == (before, asked)
    assert "40 + 5 + 6 examples" in capsys.readouterr().out


def test_stories_by_default_from_the_hub(server: FlakyServer, tmp_path: Path) -> None:
    made = run(tmp_path, *stories(server))["cnn_dm"]
    check_written(tmp_path / "cnn_dm", made)
    assert made["source"] == "stories"
    expected = [
        (f"(CNN) -- Story {number} of train. goes on.", "Its summary. Ends.") for number in range(SIZES["train"])
    ]
    assert list(zip(*read_pairs(tmp_path / "cnn_dm", "train"), strict=True)) == expected
    assert {record["sha256"] for record in made["downloads"]} == {digest for _, digest in get_data.PUBLISHED.values()}


def test_stories_from_files_here_need_no_server(server: FlakyServer, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name, data in archives().items():
        (here / name).write_bytes(data)
    for split, data in LISTS.items():
        (here / f"all_{split}.txt").write_bytes(data)
    places = ["--cnn_stories", f"{here}/cnn_stories.tgz", "--dailymail_stories", f"{here}/dailymail_stories.tgz"]
    words = ["cnn_dm", "--sources=stories", "--url-lists", str(here), *places]
    kept = run(tmp_path / "keep", *words)["cnn_dm"]
    stripped = run(tmp_path / "strip", *words, "--datelines", "strip")["cnn_dm"]
    assert server.requests == []
    assert (tmp_path / "keep/cnn_dm/val.source").read_text().startswith("(CNN) -- Story 0 of val. goes on.\n")
    assert (tmp_path / "strip/cnn_dm/val.source").read_text().startswith("Story 0 of val. goes on.\n")
    assert kept["files"]["val.target"] == stripped["files"]["val.target"]
    (here / "cnn_stories.tgz").write_bytes(tgz([]))
    with pytest.raises(InputError, match="--cnn_stories: .*cnn_stories.tgz has SHA-256"):
        run(tmp_path / "other", *words)


def test_datelines_of_the_hub_s_articles_go_too(server: FlakyServer, tmp_path: Path) -> None:
    files = server.repositories["abisee/cnn_dailymail"]["main"]
    rows = rows_of("val", "LONDON, England (CNN) -- Text {} of {}")
    files["3.0.0/validation-00000-of-00001.parquet"] = table(rows, ("article", "highlights"))
    run(tmp_path, "cnn_dm", "--datelines", "strip")
    assert (tmp_path / "cnn_dm/val.source").read_text().startswith("Text 0 of val\n")


def test_what_is_dropped_is_listed(server: FlakyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of("test")
    rows[1], rows[3], rows[4] = ("", "A summary"), ("A text", " \n "), (None, "A summary")
    converted = server.repositories["EdinburghNLP/xsum"]["refs/convert/parquet"]
    converted["default/test/0000.parquet"] = table(rows, ("document", "summary"))
    caplog.set_level("INFO")
    made = run(tmp_path, "xsum")["xsum"]
    assert made["counts"]["test"] == {"written": 3, "dropped": {"empty source": 2, "empty target": 1}}
    assert "xsum test: dropped 2: empty source" in caplog.messages
    assert [json.loads(line) for line in (tmp_path / "xsum/dropped.jsonl").read_text().splitlines()] == [
        {"split": "test", "example": "id1", "reason": "empty source"},
        {"split": "test", "example": "id3", "reason": "empty target"},
        {"split": "test", "example": "id4", "reason": "empty source"},
    ]


def test_a_set_of_another_size_is_an_error_unless_allowed(server: FlakyServer, tmp_path: Path) -> None:
    converted = server.repositories["EdinburghNLP/xsum"]["refs/convert/parquet"]
    converted["default/test/0000.parquet"] = table(rows_of("test")[1:], ("document", "summary"), ids=False)
    with pytest.raises(InputError, match="xsum test: 5 rows on the Hub, 6 are published; --allow_other_sizes"):
        run(tmp_path, "xsum")
    assert not list(tmp_path.glob("xsum/*"))
    made = run(tmp_path, "xsum", "--allow_other_sizes")["xsum"]
    assert made["counts"]["test"]["written"] == 5
    assert made["request"]["allow_other_sizes"]


def test_a_story_that_is_missing_is_an_error_unless_allowed(server: FlakyServer, tmp_path: Path) -> None:
    lost = story_name(URLS["val"][2])
    with tarfile.open(fileobj=io.BytesIO(archives()["cnn_stories.tgz"])) as archive:
        files = [(member.name, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(fileobj=io.BytesIO(archives()["dailymail_stories.tgz"])) as archive:
        files += [(member.name, archive.extractfile(member).read()) for member in archive]
    files = [(name, data) for name, data in files if lost not in name]
    extra = story_name("http://example.org/extra")
    files += [(extra, b"x"), ("README", b"x"), files[0]]
    for name, data in (("cnn_stories.tgz", tgz(files)), ("dailymail_stories.tgz", tgz([]))):
        server.files[f"/{name}"] = data
        get_data.PUBLISHED[name] = len(data), sha256(data)
    words = [*stories(server), "--cnn_stories", f"{server.url}/cnn_stories.tgz"]
    words += ["--dailymail_stories", f"{server.url}/dailymail_stories.tgz"]
    with pytest.raises(InputError, match="cnn_dm val: 4 stories with article and highlights among 5 listed, 5 are"):
        run(tmp_path, *words)
    run(tmp_path, *words, "--allow_other_sizes")
    assert [json.loads(line) for line in (tmp_path / "cnn_dm/dropped.jsonl").read_text().splitlines()] == [
        {"split": "val", "example": URLS["val"][2], "reason": "no story in the archives"},
        {"split": "none", "example": extra, "reason": "in no URL list"},
        {"split": "none", "example": "README", "reason": "not named by a SHA-1"},
        {"split": "none", "example": files[0][0].split("/")[-1], "reason": "second file of its name"},
    ]


HOSTILE = {
    "no highlight": b"Only a text",
    "no article": b"@highlight\n\nOnly a summary",
    "nothing": b"",
    "crlf": b"One\r\n\r\ntwo\r\n\r\n@highlight\r\n\r\nSum\r\n",
    "latin-1": b"Caf\xe9\n@highlight\nOl\xe9",
    "u+2028": "One\u2028two\n@highlight\nS\u2028um".encode(),
    "bom": b"\xef\xbb\xbfOne\n@highlight\nSum",
    "5 MB": b"word " * 1_000_000 + b"end\n@highlight\nSum",
}


def from_local_stories(folder: Path, contents: dict[str, dict[str, bytes]], *words: str) -> dict[str, object]:
    """Build CNN-DM of split -> URL -> story."""
    folder.mkdir(exist_ok=True)
    files = [(story_name(url), story) for of in contents.values() for url, story in of.items()]
    (folder / "all.tgz").write_bytes(tgz(files))
    (folder / "none.tgz").write_bytes(tgz([]))
    for split, of in contents.items():
        (folder / f"all_{split}.txt").write_text("".join(f"{url}\n" for url in of), encoding="utf-8")
    places = ["--cnn_stories", f"{folder}/all.tgz", "--dailymail_stories", f"{folder}/none.tgz"]
    options = ["--sources", "stories", "--url_lists", str(folder), "--allow_other_sizes", *places, *words]
    return run(folder / "data", "cnn_dm", *options)["cnn_dm"]


def test_hostile_stories_come_out_as_lines(tmp_path: Path) -> None:
    fine = {"val": {"v": b"v\n@highlight\nv"}, "test": {"t": b"t\n@highlight\nt"}}
    made = from_local_stories(tmp_path, {"train": HOSTILE, **fine})
    sources, targets = read_pairs(tmp_path / "data/cnn_dm", "train")
    assert sources == ["One. two.", "Café.", "One\u2028two.", "One.", "word " * 1_000_000 + "end."]
    assert targets == ["Sum.", "Olé.", "S\u2028um.", "Sum.", "Sum."]
    assert [json.loads(line) for line in (tmp_path / "data/cnn_dm/dropped.jsonl").read_text().splitlines()] == [
        {"split": "train", "example": "no highlight", "reason": "empty target"},
        {"split": "train", "example": "no article", "reason": "empty source"},
        {"split": "train", "example": "nothing", "reason": "empty source"},
    ]
    assert made["stories_read_as_windows_1252"] == 1


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).map(lambda text: text.encode())
pieces = st.sampled_from([b"@highlight\n", b"\nSummary", b"Text\n", b"\r\n", b"\xe9", b"(CNN) -- "])
story_bytes = st.lists(texts | pieces, max_size=6).map(b"".join)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(SPLITS), story_bytes, st.sampled_from(["listed", "unlisted", "lost", "twice"])),
        max_size=12,
    ),
    st.sampled_from(["keep", "strip"]),
)
def test_every_story_is_written_once_or_listed(cases: list[tuple[str, bytes, str]], datelines: str) -> None:
    urls: dict[str, list[str]] = {split: [f"fine-{split}"] for split in SPLITS}
    files = [(story_name(f"fine-{split}"), b"A\n@highlight\nB") for split in SPLITS]
    for number, (split, raw, fate) in enumerate(cases):
        url = f"url{number}"
        # The number makes each story one of a kind, wherever its text ends up.
        story = b"S%dS\n" % number + raw
        if fate != "lost":
            files.append((story_name(url), story))
        if fate != "unlisted":
            urls[split] += [url] * (1 + (fate == "twice"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "all.tgz").write_bytes(tgz(files))
        (folder / "none.tgz").write_bytes(tgz([]))
        for split, of in urls.items():
            (folder / f"all_{split}.txt").write_text("\n".join(of))
        places = ["--cnn_stories", f"{folder}/all.tgz", "--dailymail_stories", f"{folder}/none.tgz"]
        options = ["--sources=stories", f"--url_lists={folder}", "--allow_other_sizes", f"--datelines={datelines}"]
        made = run(folder / "data", "cnn_dm", *options, *places)["cnn_dm"]
        check_written(folder / "data/cnn_dm", made)
        dropped = [json.loads(line) for line in (folder / "data/cnn_dm/dropped.jsonl").read_text().splitlines()]
        sources = {split: read_pairs(folder / "data/cnn_dm", split)[0] for split in SPLITS}
    for number, (split, _, fate) in enumerate(cases):
        written = {of: sum(f"S{number}S" in line for line in sources[of]) for of in SPLITS}
        as_url = [(entry["split"], entry["reason"]) for entry in dropped if entry["example"] == f"url{number}"]
        as_file = [entry["reason"] for entry in dropped if entry["example"] == story_name(f"url{number}")]
        listed_again = [(split, "listed before")] * (fate == "twice")
        assert as_file == ["in no URL list"] * (fate == "unlisted")
        if fate == "lost":
            assert as_url == [(split, "no story in the archives")]
        elif fate != "unlisted" and written[split]:
            assert as_url == listed_again
        elif fate != "unlisted":
            assert as_url == [(split, "empty target"), *listed_again]
        assert sum(written.values()) == (fate != "unlisted" and written[split]) <= 1


def test_a_source_that_fails_is_reported_and_the_next_one_is_asked(
    server: FlakyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del server.repositories["abisee/cnn_dailymail"]["main"]
    lists = ["--url_lists", f"{server.url}/lists"]
    made = run(tmp_path, "cnn_dm", *lists)["cnn_dm"]
    assert made["source"] == "stories"
    assert "cnn_dm: hub fails: abisee/cnn_dailymail on the Hub: no Parquet files" in caplog.text
    asked = len(server.requests)
    run(tmp_path, "cnn_dm", *lists)  # what the second source gave is as good
    assert len(server.requests) == asked

    serve_everything(server)
    assert run(tmp_path, "cnn_dm", *lists, "--sources", "stories,hub")["cnn_dm"]["source"] == "stories"
    assert run(tmp_path, "cnn_dm", "--sources", "hub")["cnn_dm"]["source"] == "hub"


def test_no_source_gives_it(server: FlakyServer, tmp_path: Path) -> None:
    server.repositories, server.files = {}, {}
    with pytest.raises(InputError) as caught:
        run(tmp_path, "cnn_dm", "--url_lists", f"{server.url}/lists")
    message = str(caught.value)
    assert message.startswith("cnn_dm: no source gives it; hub: abisee/cnn_dailymail: the Hub has no such data set")
    assert f"; stories: {server.url}/lists/all_train.txt: the server answers 404" in message
    server.faults = ["503"] * 99
    with pytest.raises(RunError, match="; hub: .*gave up after 2.*; stories: .*gave up after 2"):
        run(tmp_path, "cnn_dm", "--url_lists", f"{server.url}/lists", "--tries", "2")
    assert not list(tmp_path.glob("cnn_dm/*"))


def test_the_hub_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(RunError, match="EdinburghNLP/xsum on the Hub: the Hub cannot be reached .*; gave up after 1"):
        run(tmp_path, "xsum", "--tries", "1")


@pytest.mark.parametrize("words", [["cnn_dm", "xsum"], None])
@pytest.mark.parametrize("seed", range(2))
def test_a_flaky_server_gives_exact_files_or_an_error(
    server: FlakyServer, tmp_path: Path, words: list[str] | None, seed: int
) -> None:
    words = words or stories(server)
    expected = {name: of["files"] for name, of in run(tmp_path / "calm", *words).items()}
    rng = random.Random(seed)
    faults = ["drop", "short", "stall", "503", "wrong", "cut", "429+", "unranged", "silent", "chunked short", "", ""]
    for _ in range(30):
        server.faults = rng.choices(faults, k=12)
        try:
            made = run(tmp_path / "flaky", *words, "--tries", str(rng.choice([1, 3])), "--timeout", "0.1")
        except RunError as error:
            assert "gave up" in str(error)
        else:
            assert {name: of["files"] for name, of in made.items()} == expected
            break
        for path in (tmp_path / "flaky").glob("*/*.*"):
            assert path.read_bytes() == (tmp_path / "calm" / path.relative_to(tmp_path / "flaky")).read_bytes()
    else:
        pytest.fail("never finished")


def test_files_from_elsewhere_are_never_overwritten(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "xsum").mkdir()
    (tmp_path / "xsum/train.source").write_text("mine\n")
    with pytest.raises(InputError, match="xsum holds train.source from elsewhere"):
        run(tmp_path, "xsum")
    assert (tmp_path / "xsum/train.source").read_text() == "mine\n"
    assert server.requests == []


def test_a_changed_file_is_named_and_a_missing_one_is_made_again(server: FlakyServer, tmp_path: Path) -> None:
    run(tmp_path, "xsum")
    before = contents(tmp_path)
    path = tmp_path / "xsum/val.target"
    stat = path.stat()
    path.write_bytes(before["xsum/val.target"].replace(b"Summary 0", b"Summary 1", 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for words in (["xsum"], ["xsum", "--allow_other_sizes"]):
        with pytest.raises(InputError, match="val.target was changed since it was written"):
            run(tmp_path, *words)
    path.unlink()
    run(tmp_path, "xsum")
    assert contents(tmp_path) == before
    (tmp_path / "xsum/provenance.json").write_text("{}")
    with pytest.raises(InputError, match="provenance.json: cannot be read"):
        run(tmp_path, "xsum")


def test_other_options_build_anew(server: FlakyServer, tmp_path: Path) -> None:
    words = stories(server)
    kept = run(tmp_path, *words)["cnn_dm"]
    stripped = run(tmp_path, *words, "--datelines", "strip")["cnn_dm"]
    assert kept["files"]["test.source"] != stripped["files"]["test.source"]
    check_written(tmp_path / "cnn_dm", stripped)
    server.faults = ["404"]
    with pytest.raises(InputError, match="404"):
        run(tmp_path, *words)
    check_written(tmp_path / "cnn_dm", stripped)  # a build that fails leaves what was there
    server.faults = []
    assert run(tmp_path, *words)["cnn_dm"] == kept


@pytest.mark.parametrize("moves", [0, 3, len(get_data.PAIR_FILES) + 1])
def test_a_run_killed_while_files_move_is_taken_up(
    server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """Over an older build, and also where the next run fails first."""
    run(tmp_path / "calm", *stories(server))
    run(tmp_path / "killed", *stories(server), "--datelines", "strip")

    def killed(*paths: Path) -> None:
        nonlocal moves
        moves -= 1
        if moves < 0:
            raise KeyboardInterrupt
        move(*paths)

    move = os.replace
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("utils.data.get_data.os", type("Os", (), {"replace": staticmethod(killed)}))
        run(tmp_path / "killed", *stories(server))
    assert not (tmp_path / "killed/cnn_dm/provenance.json").exists()
    server.files = {}
    shutil.rmtree(tmp_path / "killed/downloads")
    with pytest.raises(InputError, match="404"):
        run(tmp_path / "killed", *stories(server))
    serve_everything(server)
    run(tmp_path / "killed", *stories(server))
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert not (tmp_path / "killed/cnn_dm/.building").exists()


def test_downloads_are_kept_on_demand(server: FlakyServer, tmp_path: Path) -> None:
    run(tmp_path, "xsum", "--keep_downloads")
    kept = {path.name.split("-", 1)[1]: path.read_bytes() for path in (tmp_path / "downloads/xsum").iterdir()}
    assert kept == {"0000.parquet": kept["0000.parquet"]}
    assert len(list((tmp_path / "downloads/xsum").iterdir())) == 3
    (tmp_path / "xsum/val.source").unlink()
    asked = len(server.requests)
    run(tmp_path, "xsum")
    assert [path for path, _ in server.requests[asked:] if "/resolve/" in path or "/storage/" in path] == []
    assert not (tmp_path / "downloads").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: b"no Parquet", "not a Parquet file"),
        (
            lambda: table(rows_of("test"), ("article", "conclusion")),
            "no known columns .* among article, conclusion, id",
        ),
        (lambda: table([(1, 2)] * 6, ("document", "summary")), "column document holds int64; strings are expected"),
        (lambda: table([("", "")] * 6, ("document", "summary")), "xsum test: hub gives no example"),
    ],
)
def test_a_hub_with_other_tables(server: FlakyServer, tmp_path: Path, make: Callable[[], bytes], said: str) -> None:
    server.repositories["EdinburghNLP/xsum"]["refs/convert/parquet"]["default/test/0000.parquet"] = make()
    with pytest.raises(InputError, match=said):
        run(tmp_path, "xsum")
    assert not list(tmp_path.glob("xsum/*"))


def test_all_files_of_a_split_hold_texts(server: FlakyServer, tmp_path: Path) -> None:
    files = server.repositories["abisee/cnn_dailymail"]["main"]
    files["3.0.0/train-00001-of-00002.parquet"] = table([(1, "s")] * 10, ("article", "highlights"))
    with pytest.raises(InputError, match="train-00001-of-00002.parquet: column article holds int64"):
        run(tmp_path, "cnn_dm", "--sources", "hub")
    files["3.0.0/train-00001-of-00002.parquet"] = table([("a", "s")] * 10, ("article", "summary"))
    with pytest.raises(InputError, match="no known columns of documents and summaries among article, id"):
        run(tmp_path, "cnn_dm", "--sources", "hub")


def test_an_archive_that_is_unsafe_or_damaged_writes_nothing(server: FlakyServer, tmp_path: Path) -> None:
    for data, said in ((tgz([("../../evil", b"x")]), "refused: its member '../../evil'"), (b"?", "not a whole .tgz")):
        server.files["/x.tgz"] = data
        words = ["--cnn_stories", f"{server.url}/x.tgz", "--allow_other_sizes"]
        with pytest.raises(InputError, match=said):
            run(tmp_path / "data", *stories(server), *words)
        assert not list(tmp_path.rglob("evil"))
        assert not list(tmp_path.glob("data/cnn_dm/*"))
        run_again = tmp_path / "data/downloads"
        for path in run_again.rglob("*x.tgz"):
            path.unlink()


def test_the_sample_corpus(server: FlakyServer, tmp_path: Path) -> None:
    made = run(tmp_path, "sample")["sample"]
    check_written(tmp_path / "sample", made)
    get_data.write_sample_corpus(tmp_path / "direct", *SIZES.values())
    for name in get_data.PAIR_FILES:
        assert (tmp_path / "sample" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()
    (tmp_path / "sample/provenance.json").unlink()  # as the quickstart makes it
    assert run(tmp_path, "sample")["sample"] == made
    assert server.requests == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xsumm"], "'xsumm' is no set (did you mean xsum?); write ./xsumm for a folder of that name"),
        (["cnn-dm"], "'cnn-dm' is no set (did you mean cnn_dm?)"),
        (["XSum"], "'XSum' is no set (did you mean xsum?)"),
        (["one", "xsum", "two"], "two folders, 'one' and 'two': one is allowed; sets are cnn_dm, xsum, sample"),
        (["file"], "file: is no folder"),
        (["file/below"], "cannot be written"),
        (["--sources", "hub,web"], "--sources is 'hub,web'; it takes hub and stories, one or both"),
        (["--sources", "hub,hub"], "--sources is 'hub,hub'"),
        (["--sources", ""], "--sources is ''"),
        (["--sources", "stories"], "--sources stories: xsum comes from hub only"),
        (["--tries", "0"], "--tries is 0; it takes an integer of at least 1"),
        (["--timeout", "-1"], "--timeout is -1; it takes seconds above 0"),
        (["--timeout", "nan"], "--timeout is nan"),
        (["xsum", "--datelines", "strip"], "--datelines strip: only cnn_dm has datelines, not xsum"),
        (["--cnn_stories", "missing.tgz"], "--cnn_stories: missing.tgz: no such file"),
        (["--dailymail_stories", "."], "--dailymail_stories: .: no such file"),
        (["--url_lists", "missing"], "--url_lists: missing/all_train.txt: no such file"),
        (["--sources", "hub", "--cnn_stories", "x"], "--cnn_stories x: is of use for cnn_dm with --sources stories"),
        (["xsum", "--cnn_stories", "x"], "--cnn_stories x: is of use for cnn_dm"),
    ],
)
def test_bad_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        get_data.main(words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--source", "hub"], "unknown argument --source; did you mean --sources?"),
        (["xsum", "--force"], "unknown argument --force"),
        (["--datelines", "drop"], "argument --datelines: invalid choice: 'drop'"),
        (["--tries", "many"], "argument --tries: invalid int value: 'many'"),
        (["--sources"], "argument --sources: expected one argument"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        get_data.main(words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("get_data.sh: error: ") and said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "folder", "sets"),
    [
        ([], "data", ["cnn_dm", "xsum"]),
        (["elsewhere"], "elsewhere", ["cnn_dm", "xsum"]),
        (["xsum"], "data", ["xsum"]),
        (["xsum", "./xsum", "cnn_dm", "xsum"], "xsum", ["xsum", "cnn_dm"]),
        (["--tries", "3", "a/b/", "--keep-downloads", "sample"], "a/b", ["sample"]),
    ],
)
def test_folder_and_sets_stand_anywhere(words: list[str], folder: str, sets: list[str]) -> None:
    args = get_data.parse_arguments(words)
    assert (str(args.folder), args.sets) == (folder, sets)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with get_data.FileLock(tmp_path / ".get_data.lock"), pytest.raises(RunError, match="another get_data is at work"):
        get_data.main([str(tmp_path), "sample"])


def test_the_script_is_killed_at_random_and_finishes(tmp_path: Path) -> None:
    """The real script, with nothing of it replaced; its sets are allowed to be small."""
    rng = random.Random(0)
    with flaky_server() as server:
        serve_everything(server)
        noise = rng.randbytes(300_000)  # makes the downloads long enough for kills to hit them
        rows = [(f"{number} {noise[number::50].hex()}", "Sum") for number in range(50)]
        files = server.repositories["abisee/cnn_dailymail"]["main"]
        files["3.0.0/test-00000-of-00001.parquet"] = table(rows, ("article", "highlights"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment |= {"HF_ENDPOINT": server.url, "NO_PROXY": "*", "PATH": path, "HF_HOME": str(tmp_path / "hf")}

        def start(folder: Path) -> subprocess.Popen[str]:
            words = ["bash", "scripts/get_data.sh", str(folder), "cnn_dm", "--allow_other_sizes", "--sources", "hub"]
            return subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

        calm = start(tmp_path / "calm")
        said = calm.communicate()[0]
        assert calm.returncode == 0, said
        expected = contents(tmp_path / "calm")
        assert set(expected) == {
            f"cnn_dm/{name}" for name in (*get_data.PAIR_FILES, "dropped.jsonl", "provenance.json")
        }

        # Killed twice while it downloads, then at any time after it began to ask.
        server.seconds_per_block = 0.05
        unfinished = 0
        for attempt in range(6):
            blocks, requests = server.blocks + rng.randint(2, 5), len(server.requests)
            script = start(tmp_path / "killed")
            while script.poll() is None and (
                server.blocks < blocks if attempt < 2 else len(server.requests) == requests
            ):
                time.sleep(0.005)
            if attempt >= 2:
                time.sleep(rng.uniform(0, 0.6))
            if attempt < 5:
                script.send_signal(signal.SIGKILL)
            said = script.communicate()[0]
            unfinished += bool(list((tmp_path / "killed").glob("downloads/*/*.part")))
            assert contents(tmp_path / "killed").items() <= expected.items()  # a final name means final bytes
            if script.returncode == 0:
                break
            assert script.returncode == -signal.SIGKILL, said
        assert script.returncode == 0, said
        assert unfinished >= 2
        assert contents(tmp_path / "killed") == expected
        left = {path.name for path in (tmp_path / "killed").rglob("*") if path.is_file()}
        assert left == {".get_data.lock", *(Path(name).name for name in expected)}
