"""`get_data.sh` against a stand-in for the Hub and for file servers, with small sets in place of the published ones."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server, sha256
from utils.corpora import get_data, published, sample_corpus
from utils.corpora.data_directory import DATA_FILES, PAIR_FILES, sha256_of
from utils.corpora.stories import story_name
from utils.data.line_files import SPLITS, read_pairs
from utils.errors import RunError

SIZES = {"train": 40, "val": 5, "test": 6}
HUB_SPLITS = {"train": "train", "val": "validation", "test": "test"}
CNN_DM, XSUM = "abisee/cnn_dailymail", "EdinburghNLP/xsum"
CONVERTED = "refs/convert/parquet"
Row = tuple[Any, Any]


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
    """Training is in two files. Files of other names and folders are not meant."""
    names = ("article", "highlights")
    files = {
        f"3.0.0/{HUB_SPLITS[split]}-00000-of-00001.parquet": table(rows_of(split), names) for split in ("val", "test")
    }
    train = rows_of("train")
    files["3.0.0/train-00000-of-00002.parquet"] = table(train[:30], names)
    files["3.0.0/train-00001-of-00002.parquet"] = table(train[30:], names)
    return files | {"README.md": b"no", "1.0.0/train-00000-of-00001.parquet": b"no", "3.0.0/notes.parquet": b"no"}


def xsum_converted() -> dict[str, bytes]:
    names = ("document", "summary")
    return {f"default/{name}/0000.parquet": table(rows_of(split), names) for split, name in HUB_SPLITS.items()}


URLS = {split: [f"http://example.org/{split}/{number}" for number in range(size)] for split, size in SIZES.items()}
LISTS = {f"all_{split}.txt": "".join(f"{url}\n" for url in urls).encode() for split, urls in URLS.items()}


def tgz(files: Sequence[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


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
    server.repositories = {
        CNN_DM: {"main": cnn_dm_on_hub(), published.ARCHIVE_COMMIT: stored},
        XSUM: {"main": {"xsum.py": b"raise SystemExit"}, CONVERTED: xsum_converted()},
    }
    server.files = {f"/lists/{name}": data for name, data in LISTS.items()}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A server with all there is, where the small sets are the published ones."""
    with hub_server() as server:
        serve_everything(server)
        small = {name: dataclasses.replace(of, sizes=SIZES) for name, of in get_data.SETS.items()}
        for module in (get_data, published):
            monkeypatch.setattr(module, "SETS", small)
        known = {name: (len(data), sha256(data)) for name, data in (archives() | LISTS).items()}
        monkeypatch.setattr(published, "PUBLISHED", known)
        ask_only(server, monkeypatch, tmp_path / "home")
        yield server


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    """What to say for archives and URL lists in a folder here."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name, data in (archives() | LISTS).items():
        (folder / name).write_bytes(data)
    return from_folder(folder)


def from_folder(folder: Path) -> list[str]:
    options = ["--cnn_stories", f"{folder}/cnn_stories.tgz", "--dailymail-stories", f"{folder}/dailymail_stories.tgz"]
    return ["cnn_dm", "--sources=stories", "--url-lists", str(folder), *options]


def run(folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Run the command line; returns set -> provenance."""
    get_data.main([str(folder), *words])
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/provenance.json")}


def stories(server: HubServer) -> list[str]:
    return ["cnn_dm", "--sources", "stories", "--url_lists", f"{server.url}/lists"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/*.*")) if path.is_file()}


def dropped(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]


def check_written(folder: Path, provenance: dict[str, Any]) -> None:
    """Provenance and files fit each other, and nothing else is there."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "provenance.json"}
    recorded = {name: (of["bytes"], of["sha256"]) for name, of in provenance["files"].items()}
    assert recorded == {name: (len(data), sha256(data)) for name, data in files.items()}
    assert set(files) == set(DATA_FILES)
    for split in SPLITS:
        assert provenance["counts"][split]["written"] == files[f"{split}.source"].count(b"\n")


def test_both_sets_from_the_hub(server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    made = run(folder)
    assert set(made) == {"cnn_dm", "xsum"}
    for name, revision, files in (("cnn_dm", "main", 4), ("xsum", CONVERTED, 3)):
        check_written(folder / name, made[name])
        assert (made[name]["source"], made[name]["revision"]) == ("hub", commit_of(revision))
        stored = {sha256(data) for data in server.repositories[get_data.SETS[name].repository][revision].values()}
        assert len(made[name]["downloads"]) == files
        assert all(
            record["sha256"] in stored and record["from"].startswith(server.url) for record in made[name]["downloads"]
        )
        for split in SPLITS:
            assert list(zip(*read_pairs(folder / name, split), strict=True)) == [
                (source.replace("\n", " "), target.replace("\n", " ")) for source, target in rows_of(split)
            ]
    assert f"{folder}/xsum: 40 + 5 + 6 examples from hub" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"cnn_dm", "xsum", ".get_data.lock"}

    before, asked = contents(folder), len(server.requests)
    run(folder)
    assert (contents(folder), len(server.requests)) == (before, asked)
    assert "40 + 5 + 6 examples" in capsys.readouterr().out


def test_stories_come_from_the_hub_unless_told_otherwise(server: HubServer, tmp_path: Path) -> None:
    made = run(tmp_path, *stories(server))["cnn_dm"]
    check_written(tmp_path / "cnn_dm", made)
    assert made["source"] == "stories"
    expected = [
        (f"(CNN) -- Story {number} of train. goes on.", "Its summary. Ends.") for number in range(SIZES["train"])
    ]
    assert list(zip(*read_pairs(tmp_path / "cnn_dm", "train"), strict=True)) == expected
    assert {record["sha256"] for record in made["downloads"]} == {digest for _, digest in published.PUBLISHED.values()}


def test_stories_from_files_here_need_no_server(server: HubServer, tmp_path: Path, here: list[str]) -> None:
    kept = run(tmp_path / "keep", *here)["cnn_dm"]
    stripped = run(tmp_path / "strip", *here, "--datelines", "strip")["cnn_dm"]
    assert server.requests == []
    assert (tmp_path / "keep/cnn_dm/val.source").read_text().startswith("(CNN) -- Story 0 of val. goes on.\n")
    assert (tmp_path / "strip/cnn_dm/val.source").read_text().startswith("Story 0 of val. goes on.\n")
    assert kept["files"]["val.target"] == stripped["files"]["val.target"]
    (tmp_path / "here/cnn_stories.tgz").write_bytes(tgz([]))
    with pytest.raises(InputError, match="--cnn_stories: .*cnn_stories.tgz has SHA-256"):
        run(tmp_path / "other", *here)


def test_datelines_of_the_hub_s_articles_go_too(server: HubServer, tmp_path: Path) -> None:
    rows = rows_of("val", "LONDON, England (CNN) -- Text {} of {}")
    files = server.repositories[CNN_DM]["main"]
    files["3.0.0/validation-00000-of-00001.parquet"] = table(rows, ("article", "highlights"))
    run(tmp_path, "cnn_dm", "--datelines", "strip")
    assert (tmp_path / "cnn_dm/val.source").read_text().startswith("Text 0 of val\n")


def test_what_is_dropped_is_listed(server: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of("test")
    rows[1], rows[3], rows[4] = ("", "A summary"), ("A text", " \n "), (None, "A summary")
    server.repositories[XSUM][CONVERTED]["default/test/0000.parquet"] = table(rows, ("document", "summary"))
    caplog.set_level("INFO")
    made = run(tmp_path, "xsum")["xsum"]
    reasons = {"empty source": 1, "empty target": 1, "document is null": 1}
    assert made["counts"]["test"] == {"written": 3, "dropped": reasons}
    assert "xsum test: dropped 1: empty source" in caplog.messages
    assert dropped(tmp_path / "xsum") == [
        {"split": "test", "example": "id1", "reason": "empty source"},
        {"split": "test", "example": "id3", "reason": "empty target"},
        {"split": "test", "example": "id4", "reason": "document is null"},
    ]


def test_a_set_of_another_size_is_an_error_unless_allowed(server: HubServer, tmp_path: Path) -> None:
    data = table(rows_of("test")[1:], ("document", "summary"), ids=False)
    server.repositories[XSUM][CONVERTED]["default/test/0000.parquet"] = data
    with pytest.raises(InputError, match="xsum test: 5 rows on the Hub, 6 are published; --allow_other_sizes"):
        run(tmp_path, "xsum")
    assert not (tmp_path / "xsum").exists()
    made = run(tmp_path, "xsum", "--allow-other-sizes")["xsum"]
    assert made["counts"]["test"]["written"] == 5
    assert made["request"]["allow_other_sizes"]


def test_a_story_that_is_missing_is_an_error_unless_allowed(server: HubServer, tmp_path: Path) -> None:
    lost, extra = story_name(URLS["val"][2]), story_name("http://example.org/extra")
    files = [(name, data) for name, data in story_files() if lost not in name]
    files += [(extra, b"x"), ("README", b"x"), files[0]]
    for name, data in (("cnn_stories.tgz", tgz(files)), ("dailymail_stories.tgz", tgz([]))):
        server.files[f"/{name}"] = data
        published.PUBLISHED[name] = len(data), sha256(data)
    words = [*stories(server), "--cnn_stories", f"{server.url}/cnn_stories.tgz"]
    words += ["--dailymail_stories", f"{server.url}/dailymail_stories.tgz"]
    with pytest.raises(InputError, match="cnn_dm val: 4 stories with article and highlights among 5 listed, 5 are"):
        run(tmp_path, *words)
    run(tmp_path, *words, "--allow_other_sizes")
    assert dropped(tmp_path / "cnn_dm") == [
        {"split": "val", "example": URLS["val"][2], "reason": "no story in the archives"},
        {"split": "none", "example": extra, "reason": "in no URL list"},
        {"split": "none", "example": "README", "reason": "not named by a SHA-1"},
        {"split": "none", "example": files[0][0].split("/")[-1], "reason": "second file of its name"},
    ]


def from_local_stories(folder: Path, urls: dict[str, list[str]], files: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "cnn_stories.tgz").write_bytes(tgz(files))
    (folder / "dailymail_stories.tgz").write_bytes(tgz([]))
    for split, of in urls.items():
        (folder / f"all_{split}.txt").write_text("\n".join(of), encoding="utf-8")
    return run(folder / "data", *from_folder(folder), "--allow_other_sizes")["cnn_dm"]


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).map(lambda text: text.encode())
pieces = st.sampled_from([b"@highlight\n", b"\nSummary", b"Text\n", b"\r\n", b"\xe9", b"(CNN) -- "])
story_bytes = st.lists(texts | pieces, max_size=6).map(b"".join)
fates = st.sampled_from(["listed", "unlisted", "lost", "twice"])


@settings(deadline=None, max_examples=25)
@given(cases=st.lists(st.tuples(st.sampled_from(SPLITS), story_bytes, fates), max_size=12))
def test_every_story_is_written_once_or_listed(
    cases: list[tuple[str, bytes, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    urls: dict[str, list[str]] = {split: [f"fine-{split}"] for split in SPLITS}
    files = [(story_name(f"fine-{split}"), b"A\n@highlight\nB") for split in SPLITS]
    for number, (split, raw, fate) in enumerate(cases):
        url = f"url{number}"
        if fate != "lost":
            # By its number a story is found, whatever its text.
            files.append((story_name(url), b"S%dS\n" % number + raw))
        if fate != "unlisted":
            urls[split] += [url] * (1 + (fate == "twice"))
    folder = tmp_path_factory.mktemp("stories")
    made = from_local_stories(folder, urls, files)
    check_written(folder / "data/cnn_dm", made)
    entries = dropped(folder / "data/cnn_dm")
    sources = {split: read_pairs(folder / "data/cnn_dm", split)[0] for split in SPLITS}
    for number, (split, _, fate) in enumerate(cases):
        written = {of: sum(f"S{number}S" in line for line in sources[of]) for of in SPLITS}
        as_url = [(entry["split"], entry["reason"]) for entry in entries if entry["example"] == f"url{number}"]
        as_file = [entry["reason"] for entry in entries if entry["example"] == story_name(f"url{number}")]
        listed_again = [(split, "listed before")] * (fate == "twice")
        assert as_file == ["in no URL list"] * (fate == "unlisted")
        if fate == "lost":
            assert as_url == [(split, "no story in the archives")]
        elif fate != "unlisted" and written[split]:
            assert as_url == listed_again
        elif fate != "unlisted":
            assert as_url == [(split, "empty target"), *listed_again]
        assert sum(written.values()) == (fate != "unlisted" and written[split]) <= 1


def test_stories_that_are_not_utf_8_are_counted(tmp_path: Path) -> None:
    contents = {"train": b"Caf\xe9\n@highlight\nOl\xe9", "val": b"v\n@highlight\nv", "test": b"t\n@highlight\nt"}
    files = [(story_name(split), story) for split, story in contents.items()]
    made = from_local_stories(tmp_path, {split: [split] for split in SPLITS}, files)
    assert read_pairs(tmp_path / "data/cnn_dm", "train") == (["Café."], ["Olé."])
    assert made["stories_read_as_windows_1252"] == 1


def test_a_source_that_fails_is_reported_and_the_next_one_is_asked(
    server: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del server.repositories[CNN_DM]["main"]
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


def test_no_source_gives_it(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repositories, server.files = {}, {}
    words = ["cnn_dm", "--url_lists", f"{server.url}/lists"]
    with pytest.raises(InputError) as caught:
        run(tmp_path, *words)
    message = str(caught.value)
    assert message.startswith("cnn_dm: no source gives it; hub: abisee/cnn_dailymail on the Hub: the Hub has no such")
    assert f"; stories: {server.url}/lists/all_train.txt: the server answers 404" in message
    server.status = 503
    with pytest.raises(RunError, match="; hub: .*the server answers 503.*; stories: .*the server answers 503"):
        run(tmp_path, *words)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match="EdinburghNLP/xsum on the Hub: cannot be reached .ConnectError: .*refused"):
        run(tmp_path, "xsum")
    assert {path.name for path in tmp_path.iterdir()} <= {".get_data.lock", "home", "downloads"}


@pytest.mark.parametrize(
    "corrupt", ["3.0.0/train-00001-of-00002.parquet", "data/cnn_stories.tgz", "/lists/all_val.txt"]
)
def test_wrong_bytes_are_an_error_and_are_downloaded_again(server: HubServer, tmp_path: Path, corrupt: str) -> None:
    words = stories(server) if "3.0.0" not in corrupt else ["cnn_dm", "--sources", "hub"]
    server.corrupt = {corrupt}
    with pytest.raises(
        RunError, match=rf"{corrupt}: the server sent \d+ bytes with SHA-256 \w+; expected are \d+ with"
    ):
        run(tmp_path, *words)
    assert not (tmp_path / "cnn_dm").exists()
    server.corrupt = set()
    asked = len(server.requests)
    check_written(tmp_path / "cnn_dm", run(tmp_path, *words)["cnn_dm"])
    assert sum(path.endswith(corrupt) for path in server.requests[asked:]) > 0
    kept = "all_train.txt" if "lists" in corrupt else None  # came before the wrong file
    assert kept is None or not any(path.endswith(kept) for path in server.requests[asked:])


@pytest.mark.parametrize("name", ["xsum", "sample"])
@pytest.mark.parametrize("file", ["train.source", "dropped.jsonl", "provenance.json"])
def test_files_from_elsewhere_are_never_overwritten(server: HubServer, tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text("{}\n")
    with pytest.raises(InputError, match=f"{name} holds {file} from elsewhere: move them away, or name another folder"):
        run(tmp_path, name)
    assert [path.name for path in (tmp_path / name).iterdir()] == [file]
    assert (tmp_path / name / file).read_text() == "{}\n"
    assert server.requests == []


def test_a_changed_file_is_named_and_a_missing_one_is_made_again(server: HubServer, tmp_path: Path) -> None:
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


def test_other_options_build_anew_and_leave_other_files(server: HubServer, tmp_path: Path, here: list[str]) -> None:
    data = tmp_path / "data"
    kept = run(data, *here)["cnn_dm"]
    vocabulary = data / "cnn_dm/tokenizer/vocab.json"
    vocabulary.parent.mkdir()
    vocabulary.write_text("mine")
    stripped = run(data, *here, "--datelines", "strip")["cnn_dm"]
    assert kept["files"]["test.source"] != stripped["files"]["test.source"]
    before = contents(data)
    archive = tmp_path / "here/cnn_stories.tgz"
    archive.write_bytes(b"rubbish")
    with pytest.raises(InputError, match="has SHA-256"):
        run(data, *here)
    assert contents(data) == before  # a build that fails leaves what was there
    archive.write_bytes(archives()[archive.name])
    assert run(data, *here)["cnn_dm"] == kept
    assert vocabulary.read_text() == "mine"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_run_that_is_killed_while_files_move_leaves_no_mixture_and_is_finished_by_the_next(
    server: HubServer, tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch, rebuilt: bool
) -> None:
    wanted = run(tmp_path / "calm", *here)["cnn_dm"]
    folder = tmp_path / "killed/cnn_dm"
    left = 0

    def killable(step: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_killed(path: Path, *args: Any, **options: Any) -> Any:
            nonlocal left
            if moving:
                left -= 1
                if left < 0:
                    raise Killed
            return step(path, *args, **options)

        return maybe_killed

    def put_in_place(building: Path, folder: Path) -> None:
        nonlocal moving
        moving = True
        move(building, folder)

    move = get_data.put_in_place
    for steps in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if rebuilt:
            run(tmp_path / "killed", *here, "--datelines", "strip")
        left, moving = steps, False
        with monkeypatch.context() as patch:
            patch.setattr(get_data, "put_in_place", put_in_place)
            for name in ("rename", "replace", "unlink"):
                patch.setattr(Path, name, killable(getattr(Path, name)))
            patch.setattr(shutil, "rmtree", lambda *args, **options: None)  # a killed process cleans nothing up
            with suppress(Killed):
                run(tmp_path / "killed", *here)
        if folder.exists():
            digests = json.loads((folder / "provenance.json").read_text())["files"]
            for name in PAIR_FILES:
                assert not (folder / name).exists() or sha256_of(folder / name) == digests[name]["sha256"]
        assert run(tmp_path / "killed", *here)["cnn_dm"] == wanted
        if (building := folder / ".cnn_dm.building").exists():  # killed when all was in place
            building.rmdir()
        check_written(folder, wanted)
        if left >= 0:
            break
    # All files are deleted and moved, and the provenance is moved.
    assert steps == (2 * len(DATA_FILES) + 1 if rebuilt else 1)


def test_downloads_are_kept_on_demand(server: HubServer, tmp_path: Path) -> None:
    run(tmp_path, "xsum", "--keep_downloads")
    assert len(list((tmp_path / "downloads/xsum").rglob("*.parquet"))) == 3
    (tmp_path / "xsum/val.source").unlink()
    asked = len(server.requests)
    run(tmp_path, "xsum")
    assert not [path for path in server.requests[asked:] if "/resolve/" in path]
    assert not (tmp_path / "downloads").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no Parquet", "xsum test cannot be opened .ArrowInvalid"),
        (table(rows_of("test"), ("article", "end")), "0000.parquet has the fields article, end, id: name those"),
        (table([(1, 2)] * 6, ("document", "summary")), "0000.parquet: the field 'document' holds .*int64"),
        (table([("", "")] * 6, ("document", "summary")), "xsum test: hub gives no example"),
    ],
)
def test_a_hub_with_other_tables(server: HubServer, tmp_path: Path, data: bytes, said: str) -> None:
    server.repositories[XSUM][CONVERTED]["default/test/0000.parquet"] = data
    with pytest.raises(InputError, match=said):
        run(tmp_path, "xsum")
    assert not (tmp_path / "xsum").exists()


def test_an_archive_that_is_unsafe_or_damaged_writes_nothing(
    server: HubServer, tmp_path: Path, here: list[str]
) -> None:
    for data, said in ((tgz([("../../evil", b"x")]), "refused: its member '../../evil'"), (b"?", "not a whole .tgz")):
        (tmp_path / "here/cnn_stories.tgz").write_bytes(data)
        with pytest.raises(InputError, match=said):
            run(tmp_path / "data", *here, "--allow_other_sizes")
        assert not list(tmp_path.rglob("evil")) and not (tmp_path / "data/cnn_dm").exists()


def test_the_sample_corpus(server: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = run(tmp_path, "sample")["sample"]
    check_written(tmp_path / "sample", made)
    sizes = [word for split, size in SIZES.items() for word in (f"--n_{split}", str(size))]
    sample_corpus.main(["--output_dir", str(tmp_path / "other/sample"), *sizes])
    for name in PAIR_FILES:
        assert (tmp_path / "sample" / name).read_bytes() == (tmp_path / "other/sample" / name).read_bytes()
    caplog.set_level("INFO")
    run(tmp_path / "other", "sample")  # the folder that the other command wrote is whole
    assert "nothing to do" in caplog.text
    sample_corpus.main(["--output_dir", str(tmp_path / "other/sample"), *sizes, "--seed", "1"])
    assert run(tmp_path / "other", "sample")["sample"]["files"] == made["files"]
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
    ("words", "folder", "sets"),
    [
        ([], "data", ["cnn_dm", "xsum"]),
        (["elsewhere"], "elsewhere", ["cnn_dm", "xsum"]),
        (["xsum"], "data", ["xsum"]),
        (["xsum", "./xsum", "cnn_dm", "xsum"], "xsum", ["xsum", "cnn_dm"]),
        (["--datelines", "keep", "a/b/", "--keep-downloads", "sample"], "a/b", ["sample"]),
        (["sample", "--sources=hub", "a", "xsum"], "a", ["sample", "xsum"]),
    ],
)
def test_folder_and_sets_stand_anywhere(
    words: list[str], folder: str, sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr(get_data, "get_set", lambda name, options: found.append((str(options.folder), name)))
    get_data.main(words)
    assert found == [(folder, name) for name in sets]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".get_data.lock"), pytest.raises(RunError, match="another get_data is at work"):
        get_data.main([str(tmp_path), "sample"])
