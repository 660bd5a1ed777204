"""Commands: those of pip, those of `python -m`, and what they say before and without their requirements."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pty
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from utils.app import cli
from utils.metrics.__main__ import NAMES
from utils.tasks import TASKS

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # Python 3.10 has no reader of TOML
COMMANDS = re.findall(r'^(bart-[\w-]+) = "([\w.]+):(\w+)"$', PROJECT, re.MULTILINE)


def test_what_pip_would_install() -> None:
    names = "finetune pretrain eval summarize predict serve rouge report prepare make-shards train-tokenizer".split()
    assert [name for name, *_ in COMMANDS] == [f"bart-{name}" for name in names]
    patterns = re.findall(r'"\*(\.\w+)"', PROJECT[PROJECT.index("package-data") :].split("[tool.ruff]")[0])
    parts = "bart", "bert", "configs", "utils"
    listed = subprocess.run(["git", "ls-files", *parts], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {Path(name).suffix for name in listed.stdout.splitlines()} - {".py"} == set(patterns)
    folders = {path.parent for part in ("bart", "bert", "utils") for path in ROOT.glob(f"{part}/**/*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(("name", "module", "attribute"), COMMANDS)
def test_a_command_of_pip_names_itself(
    name: str, module: str, attribute: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = getattr(importlib.import_module(module), attribute)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # so that both are restored
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for words, status in ((["--help"], 0), (["--nonsense"], 2)):
        monkeypatch.setattr(sys, "argv", [f"/folder/bin/{name}", *words])
        with pytest.raises(SystemExit) as stop:
            command()
        assert stop.value.code == status
    output, error = capsys.readouterr()
    assert output.startswith(f"usage: {name} ")
    depends_on_task = attribute in ("finetune", "pretrain", "evaluate", "predict")
    default = "denoising" if attribute == "pretrain" else "summarization"
    first = f"The options of --task {default} come first. {name} --task NAME --help shows"
    assert (first in output) == depends_on_task
    assert error.startswith(f"{name}: error: unknown argument --nonsense; ") and error.count("\n") == 1


@pytest.mark.slow
def test_the_wheel_has_all_that_the_commands_need(tmp_path: Path) -> None:
    """In an environment of its own, which has the packages of others, and in a folder without the repository."""
    copied = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, copied.decode().split("\0")):
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "./clone"]
    subprocess.run([*pip, *build], cwd=tmp_path, check=True)
    [wheel] = tmp_path.glob("wheels/*.whl")
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = tmp_path.glob("venv/lib/python*/site-packages")
    others = {sysconfig.get_path("purelib"), *filter(lambda path: path.endswith("site-packages"), sys.path)}
    (site / "others.pth").write_text("\n".join(others))
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel], check=True
    )
    (tmp_path / "empty").mkdir()

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path / "empty", env={"HOME": str(tmp_path)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for name, *_ in COMMANDS:
        assert run(tmp_path / "venv/bin" / name, "--help").startswith(f"usage: {name} ")
    for name in ("bart/cpu/kernels.c", "bart/py.typed", "utils/serving/page.html", "utils/corpora/sample_corpus.yaml"):
        assert (site / name).exists()
    read = "from bart import BartConfig; from utils.models.loading import read_config; import utils"
    read += "; print(utils.__file__, read_config('configs/config_tiny.json', [BartConfig]).d_model)"
    tiny = json.loads((ROOT / "configs/config_tiny.json").read_text())["d_model"]
    assert run(python, "-c", read).split() == [str(site / "utils/__init__.py"), str(tiny)]
    lacking = [python, "-S", "-m", "utils.summarize", "x"]
    without = subprocess.run(lacking, cwd="/", env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert without.stderr.endswith("; run: python -m pip install 'bart-pytorch[serve,shards]'\n")
    metadata = next(site.glob("bart_pytorch-*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert "\nProvides-Extra: serve\n" in metadata and "# BART for PyTorch" in metadata


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--x"], "unknown argument --x; --help lists what there is"),
        ([], "the following arguments are required: run_dir"),
    ],
)
def test_errors_name_the_module_that_was_run(words: list[str], error: str) -> None:
    command = [sys.executable, "-m", "utils.evaluation.report", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"utils.evaluation.report: error: {error}\n")


def test_the_command_of_all_metrics() -> None:
    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert run("utils.metrics.bleu", "a") == (2, "error: use python -m utils.metrics bleu PREDICTIONS REFERENCES\n")
    status, usage = run("utils.metrics", "--help")
    assert status == 0 and "utils.metrics NAME PREDICTIONS REFERENCES" in usage and "one of rouge, bleu" in usage


@pytest.mark.parametrize(
    "command", [["finetune.py", "--do_train"], ["run_eval.py"], ["run_pretraining.py"], ["-m", "utils.summarize", "x"]]
)
def test_a_missing_package_is_one_line_that_says_what_to_run(command: list[str], tmp_path: Path) -> None:
    for name in ("yaml", "torch"):  # those that there are need one that is missing
        (tmp_path / f"{name}.py").write_text("import numpy.part\n")
    done = subprocess.run(
        [sys.executable, "-S", *command], cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    install = f"run: cd {ROOT} && source scripts/setup_env.sh requirements.txt"
    assert done.stderr == f"error: the package numpy is missing for {sys.executable}; {install}\n"


# Options with a meaning for some URL: places that are reached, and texts that name no place.
WITH_URLS = {"cnn_stories", "dailymail_stories", "scheduler", "info", "prefix", "positive", "api_key"}
# Places that lie in object stores, too.
IN_STORES = {(program, name) for program in ("finetune", "run_pretraining") for name in ("data_dir", "output_dir")}
IN_STORES |= {
    ("run_eval", "data_dir"),
    ("run_eval", "save_dir"),
    ("utils.predict", "file"),
    ("utils.predict", "output"),
    ("utils.corpora.train_tokenizer", "input"),
}
IN_STORES |= {("utils.corpora.make_shards", name) for name in ("input", "val_input", "output")}


def programs() -> Iterator[tuple[str, list[str]]]:
    """Each program with the words that choose its options."""
    paths = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = {"finetune": [["--task", task] for task in TASKS], "run_eval": [["--task", task] for task in TASKS]}
    words["run_pretraining"] = [["--task", task] for task in ("denoising", "mlm_nsp")]
    words["scripts.benchmarks.throughput"] = [["training"], ["pretraining"], ["inference"]]
    words["utils.metrics.__main__"] = [[name] for name in NAMES]
    for path in paths.splitlines():
        name = re.search(r'^    run_program\("([\w.]+)"\)$', (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        if name is not None and not path.startswith("tests/"):
            yield from ((name[1], chosen) for chosen in words.get(name[1], [[]]))


def test_no_option_takes_a_url_that_it_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """All options of all programs: as a path, s3://bucket/run would be the folder ./s3:/bucket/run."""
    parsers: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, words: object) -> None:
        parsers.append(parser)
        raise SystemExit

    monkeypatch.setattr(cli._Parser, "parse_intermixed_args", stop)
    tried, reached = set(), set()
    for name, words in programs():
        with pytest.raises(SystemExit):
            importlib.import_module(name).main(words)
        for action in parsers.pop()._actions:
            if action.type is None or action.dest in WITH_URLS:
                continue
            for url in ("s3://bucket/run", "https://host/x", "file:///tmp/x", "S3A://b", "memory://x", "hub:name"):
                if url.startswith("s3://") and (name, action.dest) in IN_STORES:
                    assert action.type(url) == url
                    reached.add((name, action.dest))
                elif not (action.dest == "data_dir" and url.startswith("hub:")):
                    with pytest.raises(argparse.ArgumentTypeError, match=f"'{url}' is not allowed: "):
                        action.type(url)
            tried.add((name, action.dest))
            if action.dest == "output_dir":
                assert action.type("./s3:/bucket") and action.type("run:1")  # a folder here may have any name
    assert reached == IN_STORES
    assert {("finetune", "output_dir"), ("utils.corpora.make_shards", "output"), ("run_eval", "config_path")} < tried


@pytest.mark.parametrize(
    ("words", "variables", "begins"),
    [
        (["finetune.py", "--do_train"], {}, True),
        (["-m", "utils.metrics.rouge"], {}, True),
        (["-c", "from utils.app.commands import summarize; summarize()"], {}, True),
        (["finetune.py", "--do_train", "--help"], {}, False),
        (["finetune.py", "--do_train"], {"LOCAL_RANK": "1"}, False),
        # Who imports a module keeps Python's own tracebacks and environment.
        (["-c", "import utils.app.commands, sys; sys.exit(sys.excepthook is sys.__excepthook__)"], {}, False),
        (["-c", "import utils.app.commands, os, sys; sys.exit('GOMP_SPINCOUNT' not in os.environ)"], {}, False),
    ],
)
def test_a_terminal_sees_something_at_once(words: list[str], variables: dict[str, str], begins: bool) -> None:
    """Before any package of others is loaded; all are missing here."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-S", *words], variables)
    output = b""
    try:
        while part := os.read(terminal, 1000):
            output += part
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    assert output.startswith(b"loading ...\r\n") == begins
