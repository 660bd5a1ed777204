from __future__ import annotations

import csv
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bart.errors import InputError
from tests.hub_server import HubServer, ask_only, commit_of, hub_server
from utils.corpora.prepare import main
from utils.corpora.prepare import prepared as prepared_file
from utils.data.splits import SPLITS, ratios_of, split_of
from utils.data.tables import one_line, read_pairs

PAIRS = [
    ("one\u2028line, still\x85one", "NA"),
    ("two,  spaces\tand a tab", 'a "quoted" word'),
    ("NaN", "null"),
    ("3", "1e5"),
    ("é 漢字 🎉", "true"),
    *((f"document number {i}", f"summary, {i % 7}") for i in range(120)),
]
ALWAYS = ["--seed", "3", "--split_ratio", "0.6,0.2,0.2"]


def prepared(folder: Path) -> dict[str, list[tuple[str, str]]]:
    return {split: list(zip(*read_pairs(folder, split), strict=True)) for split in SPLITS}


def dropped(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text(encoding="utf-8").splitlines()]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes((gzip.compress if path.suffix == ".gz" else bytes)(text.encode("utf-8", "surrogatepass")))
    return path


def write_table(path: Path) -> None:
    """PAIRS as a file of the kind that the name says."""
    if ".jsonl" in path.name:
        write_jsonl(path, [{"id": i, "document": a, "summary": b} for i, (a, b) in enumerate(PAIRS)])
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        columns = {"document": [a for a, _ in PAIRS], "id": list(range(len(PAIRS))), "summary": [b for _, b in PAIRS]}
        parquet.write_table(pyarrow.table(columns), path, row_group_size=11)
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if "tabs" in path.name else ",")
            writer.writerows([("summary", "id", "document"), *((b, i, a) for i, (a, b) in enumerate(PAIRS))])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "A.csv", "a.csv.gz", "tabs.csv", "a.parquet"])
def test_every_kind_of_file_gives_the_same_data(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / name)
    out = tmp_path / "new" / "out"
    options = [*ALWAYS, *(["--delimiter", r"\t"] if "tabs" in name else [])]
    main(["--input", str(tmp_path / name), "--output", str(out), *options])
    written = prepared(out)
    expected = {split: [pair for pair in PAIRS if split_of(pair[0], [0.6, 0.2, 0.2], 3) == split] for split in SPLITS}
    assert written == expected
    assert dropped(out) == []
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["inputs"] == [str(tmp_path / name)]
    assert (provenance["split_ratio"], provenance["seed"]) == ({"train": 0.6, "val": 0.2, "test": 0.2}, 3)
    assert provenance["examples"] == {split: len(pairs) for split, pairs in expected.items()}
    head = ", ".join(f"{len(pairs)} {split}" for split, pairs in expected.items())
    assert capsys.readouterr().out.splitlines()[0] == f"{out}: {head} examples"


def test_hostile_csv(tmp_path: Path) -> None:
    long = "word " * 50_000
    text = (
        "\ufeffsource,target\r\n"
        '"a ""quoted"" line\r\nand \u2028another, still\nthe same",NA\r\n'
        "\r\n"
        "only a source\r\n"
        ",no source\r\n"
        f"{long},12\r\n"
        '"  \n ",blank source\r\n' + "".join(f"source {i},target\r\n" for i in range(40))
    )
    (tmp_path / "a.csv").write_bytes(text.encode())
    main(["--input", str(tmp_path / "a.csv"), "--output", str(tmp_path / "out"), *ALWAYS])
    pairs = {pair for pairs in prepared(tmp_path / "out").values() for pair in pairs}
    assert len(pairs) == 42
    assert {('a "quoted" line and \u2028another, still the same', "NA"), (long.strip(), "12")} <= pairs
    file = tmp_path / "a.csv"
    assert {(entry["example"], entry["reason"]) for entry in dropped(tmp_path / "out")} == {
        (f"{file}:6", "no field target"),
        (f"{file}:7", "empty source"),
        (f"{file}:10", "empty source"),
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"\n', "a.jsonl, line 2, column 15: not JSON"),
        ("a.jsonl", b'{"a":' + b"[" * 100_000 + b"\n", "a.jsonl, line 1: not JSON"),
        ("a.jsonl", b'{"source": "a", "target": "\xff"}\n', "a.jsonl, line 1: not UTF-8"),
        ("a.jsonl", b"", "a.jsonl: the file is empty"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz: cannot be read (Not a gzipped file"),
        ("a.csv", b"source,target\n", "no examples for train and val and test"),
        ("a.source", b"a\n", "a.source: not a table; allowed: .jsonl, .json, .csv, .tsv, .parquet"),
    ],
)
def test_malformed_files_are_errors_that_name_file_and_line(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        main(["--input", str(tmp_path / name), "--output", str(tmp_path / "out")])
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split_ratio", "0.9,0.1"], "--split_ratio is 0.9,0.1; allowed: shares whose sum"),
        (["--target_field", "source", "--source_field", "source"], "are both 'source'"),
        (["--output", "{good}"], "good.jsonl is there already"),
        (["--split_ratio", "0.999998,0.000001,0.000001"], "out: no examples for val and test; allowed: more examples"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "good.jsonl", [{"source": f"s{i}", "target": "t"} for i in range(90)])
    options = [option.format(good=good) for option in options]
    with pytest.raises(InputError, match=message):
        main(["--input", str(good), "--output", str(tmp_path / "out"), *options])
    assert not list((tmp_path / "out").glob("*"))


def test_a_split_depends_on_seed_and_source_alone() -> None:
    shares = [0.8, 0.1, 0.1]
    sources = [f"source {i}" for i in range(20_000)]
    counts = Counter(split_of(source, shares, 1) for source in sources)
    # Standard deviations of 20,000 draws are 57 and 42.
    assert abs(counts["train"] - 16_000) < 250 and abs(counts["val"] - 2000) < 190 and abs(counts["test"] - 2000) < 190
    assert Counter(split_of(source, shares, 2) for source in sources) != counts
    assert ratios_of("0.7, 0.2,0.1") == [0.7, 0.2, 0.1]


TEXTS = st.text(st.sampled_from("ab \n\r\u2028\ufeff\ud800"), max_size=4)
VALUES = st.one_of(TEXTS, TEXTS, st.none(), st.integers(), st.lists(st.integers(), max_size=1))
ROWS = st.lists(st.dictionaries(st.sampled_from(["source", "target", "more"]), VALUES), max_size=30)


@given(rows=ROWS, shuffle=st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_every_row_ends_in_one_split_or_is_dropped_whatever_the_order(
    rows: list[dict[str, Any]], shuffle: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Enough others that no split is empty and the fields are known.
    rows = [{"source": f"other {i}", "target": "t"} for i in range(30)] + rows
    runs = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("run")
        # JSON as written by default has escapes for all but ASCII, lone surrogates among them.
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = folder / "out"
        main(["--input", str(folder / "a.jsonl"), "--output", str(out), *ALWAYS])
        runs.append({split: sorted(pairs) for split, pairs in prepared(out).items()})
        lines = [int(entry["example"].rsplit(":", 1)[1]) for entry in dropped(out)]
        counts = json.loads((out / "provenance.json").read_text())["dropped"]
        assert len(set(lines)) == len(lines) == sum(counts.values())
        kept = [row for number, row in enumerate(rows, 1) if number not in lines]
        assert sorted(pair for pairs in runs[-1].values() for pair in pairs) == sorted(
            (one_line(row["source"]), one_line(row["target"])) for row in kept
        )
        rows[1:] = shuffle.sample(rows[1:], len(rows) - 1)  # the first row has all columns
    assert runs[0] == runs[1]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The Hub with one dataset, org/mine."""
    row = '{"article": "%s %d", "highlights": "h"}\n'
    files = {
        f"{split}.jsonl": "".join(row % (split, i) for i in range(30)).encode()
        for split in ("train", "validation", "test")
    }
    with hub_server() as server:
        server.repositories = {"org/mine": {"main": files}}
        ask_only(server, monkeypatch, tmp_path / "home")
        yield server


def test_a_dataset_keeps_its_splits_unless_told_otherwise(hub: HubServer, tmp_path: Path) -> None:
    main(["--input", "org/mine@main", "--output", str(tmp_path / "a")])
    assert prepared(tmp_path / "a")["val"] == [(f"validation {i}", "h") for i in range(30)]
    provenance = json.loads((tmp_path / "a" / "provenance.json").read_text())
    commit = commit_of("main")
    assert provenance["inputs"] == [f"org/mine@{commit}/{split}" for split in SPLITS]
    assert (provenance["split_ratio"], provenance["source_column"]) == (None, "article")
    main(["--input", "org/mine", "--output", str(tmp_path / "b"), "--split_ratio", "0.5,0.3,0.2"])
    again = prepared(tmp_path / "b")
    assert sum(map(len, again.values())) == 90 and len(again["train"]) > 30


def test_a_dataset_with_other_splits(hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = hub.repositories["org/mine"]["main"]

    def publish(name: str, *splits: str) -> None:
        paths = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
        readme = f"---\nconfigs:\n- config_name: default\n  data_files:\n{paths}---\n".encode()
        of_splits = {f"{split}.jsonl": files.get(f"{split}.jsonl", files["test.jsonl"]) for split in splits}
        hub.repositories[name] = {"main": {"README.md": readme, **of_splits}}

    publish("org/more", "train", "test", "extra")
    main(["--input", "org/more", "--output", str(tmp_path / "a")])
    assert "org/more: not used are the splits extra" in caplog.messages
    assert not (tmp_path / "a" / "val.source").exists() and (tmp_path / "a" / "test.source").exists()
    publish("org/odd", "train", "extra")
    with pytest.raises(InputError, match="has the splits train, extra: --split_ratio"):
        main(["--input", "org/odd", "--output", str(tmp_path / "d")])
    hub.repositories["org/one"] = {"main": {"train.jsonl": files["train.jsonl"] * 5}}
    main(["--input", "org/one", "--output", str(tmp_path / "c")])
    assert sum(map(len, prepared(tmp_path / "c").values())) == 150


def test_a_dataset_that_is_missing_is_one_line(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for offline, message in ((False, "Repository Not Found"), (True, "offline mode is enabled")):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        with pytest.raises(InputError, match=f"--input org/none: no such file here, and as a .*{message}") as error:
            main(["--input", "org/none", "--output", str(tmp_path / "out")])
        assert "\n" not in str(error.value)


def test_a_file_as_data_directory_is_prepared_once_and_anew_when_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"document": f"old {i}", "summary": "x", "note": f"note {i}"} for i in range(99)]
    file = write_jsonl(tmp_path / "news.jsonl", rows)
    first = Path(prepared_file(str(file), (None, None)))
    assert "examples" in capsys.readouterr().out
    assert first.parent == tmp_path / ".cache"
    main(["--input", str(file), "--output", str(tmp_path / "mine")])
    assert prepared(first) == prepared(tmp_path / "mine")
    capsys.readouterr()
    assert prepared_file(str(file), (None, None)) == str(first)
    of_note = Path(prepared_file(str(file), ("note", None)))
    assert prepared(of_note) != prepared(first) and first.is_dir()
    write_jsonl(file, [{**row, "document": f"new {i}"} for i, row in enumerate(rows)])
    changed = Path(prepared_file(str(file), (None, None)))
    assert all(text.startswith("new") for text, _ in prepared(changed)["train"])
    elsewhere = Path(prepared_file(str(file), (None, None), str(tmp_path / "cache")))
    assert elsewhere.is_relative_to(tmp_path / "cache") and prepared(elsewhere) == prepared(changed)
    assert prepared_file(str(tmp_path / "mine"), (None, None)) == str(tmp_path / "mine")
