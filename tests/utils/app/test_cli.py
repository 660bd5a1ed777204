"""Command lines made from dataclasses, and how commands end."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bart.errors import InputError
from utils.app.cli import early_option, option, parse_dataclass, part, run_main
from utils.app.errors import RunError


@dataclass(frozen=True)
class Part:
    """Options of a group."""

    seed: int = option(42, least=0, help="a number")
    rate: float = option(1e-3, section="training", above=0, most=2, help="a number that is 100% no whole one")
    kind: str = option("linear", choices=("linear", "cosine"), help="a choice")


@dataclass(frozen=True)
class Command:
    """Options of all kinds."""

    source: Path = option(positional=True, help="what to read")
    name: str = option(help="must be given")
    part: Part
    others: tuple[str, ...] = option((), positional=True, help="what else to read")
    config: str | None = option(None, help="YAML file")
    shuffle: bool = option(False, help="a flag")
    keep_order: bool | None = option(None, help="a flag that may be neither")
    sizes: tuple[int, ...] = option((1, 2), least=0, help="numbers")
    output: Path | None = option(None, help="where to write", metavar="FILE")


def parse(*words: str) -> Command:
    return parse_dataclass(Command, list(words), "Does something.", prog="command", parts={"part": Part})


REQUIRED = ("text", "--name", "a")


def test_defaults_and_types() -> None:
    assert parse(*REQUIRED) == Command(Path("text"), "a", Part())
    given = parse(
        *("--name=a", "text", "one", "--seed", "0", "two", "--rate=2", "--kind", "cosine", "--shuffle"),
        *("--sizes", "3", "4", "--output", "there", "--no-keep-order"),
    )
    part = Part(seed=0, rate=2.0, kind="cosine")
    values = {"shuffle": True, "keep_order": False, "sizes": (3, 4), "output": Path("there")}
    assert given == Command(Path("text"), "a", part, ("one", "two"), **values)
    assert type(given.part.rate) is float


@dataclass(frozen=True)
class Spelled:
    """Options of a group that have other spellings."""

    kind: str = option(
        "linear", alias="sort", flags={"cosine": "cosine"}, choices=("linear", "cosine"), help="a choice"
    )


def test_other_names_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def kind_of(*words: str) -> str:
        return parse_dataclass(Command, [*REQUIRED, *words], "", prog="command", parts={"part": Spelled}).part.kind

    assert kind_of() == "linear"
    assert kind_of("--sort", "cosine") == kind_of("--cosine") == kind_of("--kind=cosine") == "cosine"
    (tmp_path / "options.yaml").write_text("sort: cosine")
    assert kind_of("--config", str(tmp_path / "options.yaml")) == "cosine"
    (tmp_path / "options.yaml").write_text("sort: cosine\nkind: linear")
    with pytest.raises(InputError, match="options.yaml: line 2 gives kind again; allowed: once"):
        kind_of("--config", str(tmp_path / "options.yaml"))
    for words, message in ((["--seed", "1"], "unknown argument --seed"), (["--sort", "x"], "--sort: 'x' is not")):
        with pytest.raises(SystemExit):
            kind_of(*words)
        assert message in capsys.readouterr().err


@dataclass(frozen=True)
class Whole:
    """A group with a part, as an option of a command."""

    inner: Part = part(Part)
    size: int = option(3, help="a number", on_resume="may_change", in_card=True)


@dataclass(frozen=True)
class Nested:
    """Options in parts of parts."""

    whole: Whole
    name: str = option("a", help="a name")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*REQUIRED, "--no-shufle"], "unknown argument --no_shufle; did you mean --no_shuffle?"),
        ([*REQUIRED, "-x"], "unrecognized arguments: -x"),
        ([*REQUIRED, "--nam", "b"], "unknown argument --nam; did you mean --name?"),  # no abbreviations
        ([*REQUIRED, "--rate", "0"], "--rate: '0' is not allowed: it takes a number above 0, at most 2"),
        ([*REQUIRED, "--rate", "nan"], "--rate: 'nan' is not allowed"),
        ([*REQUIRED, "--sizes", "1", "-2"], "--sizes: '-2' is not allowed: it takes an integer at least 0"),
    ],
)
def test_bad_command_lines_end_with_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*words)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: command source [others] --name NAME [--option value ...]\n")
    for line in (
        "a number that is 100% no whole one (default: 0.001)",
        "a flag (default: off)",
        "numbers (default: 1 2)",
        "--output FILE  ",
        "--kind {linear,cosine}",
        "training:",
    ):
        assert line in shown
    assert "--no_shuffle" not in shown


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells write it out in `--output ~/a` alone. Text that merely holds a tilde stays."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("output: ~/a b\n")
    parsed = parse("~/c", "--config=~/run.yaml", "--name=~")
    assert (parsed.output, parsed.source, parsed.name) == (tmp_path / "a b", tmp_path / "c", "~")
    assert early_option(["--config=~/run.yaml"], "output") == str(tmp_path / "a b")


def test_a_yaml_file_gives_values_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("seed: 5\nrate: 1\nshuffle: true\nkeep_order: null\nsizes: [7, 8]\nname: b\noutput: place\n")
    parsed = parse("text", "--config", str(path), "--seed", "6", "--no-shuffle")
    assert (parsed.part, parsed.shuffle, parsed.sizes) == (Part(seed=6, rate=1.0), False, (7, 8))
    assert (parsed.name, parsed.output, parsed.keep_order) == ("b", Path("place"), None)
    assert early_option(["--config", str(path)], "name") == "b"
    assert early_option(["--config", str(path), "--name", "c", "--other", "d"], "name") == "c"
    assert early_option([], "name", "default") == "default"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sede: 1", "unknown option 'sede'; did you mean seed?"),
        ("config: other.yaml", "unknown option 'config'"),
        ("seed: true", "seed: True is not allowed: it takes an integer at least 0"),
        ("seed: 2.5", "seed: 2.5 is not allowed"),
        ("shuffle: 1", "shuffle: 1 is not allowed: it takes true or false"),
        ("name: [a]", r"name: \['a'\] is not allowed: it takes a string"),
        ("sizes: 3", "sizes: 3 is not allowed: it takes a list"),
        ("sizes: [3, true]", "sizes: True is not allowed: it takes an integer"),
        ("[1, 2]", "a mapping of option names to values is expected"),
        ("a: [", "cannot be read as YAML"),
        ("name: a\n# b\nname: a", "line 3 gives name again; allowed: once"),
    ],
)
def test_bad_yaml(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(content)
    with pytest.raises(InputError, match=f"^--config {tmp_path}/run.yaml: {message}"):
        parse(*REQUIRED, "--config", str(tmp_path / "run.yaml"))


def caused(error: InputError, cause: OSError) -> InputError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (InputError("--x is 1; allowed: 2"), 2, "command.py: error: --x is 1; allowed: 2\n"),
        (caused(InputError("out: no"), OSError(errno.EDQUOT, "full")), 1, "command.py: error: out: no\n"),
        (RunError("the run diverged"), 1, "command.py: error: the run diverged\n"),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000),
            1,
            f"command.py: error: {'x' * 200}: File name too long",
        ),
        (OSError(errno.EMFILE, "Too many open files"), 1, "command.py: error: the system: Too many open files\n"),
        (MemoryError("no"), 1, "command.py: error: memory ran out (no)\n"),
        (
            RuntimeError("DefaultCPUAllocator: can't"),
            1,
            "command.py: error: memory ran out (DefaultCPUAllocator: can't)\n",
        ),
        (OSError(errno.ENOSPC, "full", "out.txt"), 1, "command.py: error: out.txt: cannot be written (No space left"),
        (None, 0, ""),
    ],
)
def test_how_commands_end(
    raised: BaseException | None,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main(argv: object) -> int:
        if raised is not None:
            raise raised
        return 0

    monkeypatch.setattr(sys, "argv", ["folder/command.py"])
    with pytest.raises(SystemExit) as stop:
        run_main(main)
    assert stop.value.code == status
    assert capsys.readouterr().err.startswith(line)


def test_an_output_that_is_closed_early_ends_a_command_with_one_line() -> None:
    code = "from utils.app.cli import run_main\nrun_main(lambda argv: print('a line\\n' * 100_000))"
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with command:
        assert command.stdout.readline() == "a line\n"
        command.stdout.close()
        assert command.stderr.read() == "-c: ended, since nothing reads its output any more\n"
    assert command.returncode == 128 + signal.SIGPIPE
