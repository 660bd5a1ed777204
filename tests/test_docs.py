"""README and docs: the files that they name exist, and their commands, followed line by line, print what is shown."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.forked import free_port
from utils.app.cli import all_settings
from utils.recipes.evaluation_arguments import parse_eval_arguments
from utils.recipes.finetuning_arguments import parse_finetune_arguments
from utils.recipes.pretraining_arguments import parse_pretraining_arguments
from utils.tasks.options import PRETRAINING

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OUTPUT, SERVES, NEEDS = "", "bash serves", " needs: "  # these may stand behind a block's ```, besides languages


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code of a page; an output belongs to the command before it."""

    page: Path
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text}"


def blocks_of(page: Path) -> list[Block]:
    blocks = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", page.read_text(), re.MULTILINE)
    return [Block(page, kind, text) for kind, text in blocks]


def cells_of(notebook: Path) -> list[Block]:
    """The cells with code, without outputs, as blocks. The first one clones and installs, as the walk has done."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    texts = ["".join(cell["source"]) + "\n" for cell in cells]
    kinds = [NEEDS + "the Hub", *("bash" if text.startswith("%%bash\n") else "python" for text in texts[1:])]
    return [Block(notebook, kind, text.removeprefix("%%bash\n")) for kind, text in zip(kinds, texts, strict=True)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
BLOCKS += cells_of(ROOT / "docs/quickstart.ipynb")  # last: the commands of README have made the model that it shows


def test_blocks_are_run_or_say_what_they_need() -> None:
    kinds = {block.kind for block in BLOCKS}
    needs = {kind for kind in kinds if NEEDS in kind}
    assert kinds - needs == {"bash", SERVES, "python", "mermaid", OUTPUT}
    listed = re.findall(r"^\| needs (.*?) \|", (ROOT / "docs/exactness.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({kind.partition(NEEDS)[2] for kind in needs})


def test_files_that_pages_name_exist() -> None:
    for page in PAGES:
        text = page.read_text()
        names = [name.replace(".", "/") for name in re.findall(r"python -m (utils[\w.]+)", text)]
        modules = [f"{name}/__main__.py" if (ROOT / name).is_dir() else f"{name}.py" for name in names]
        modules = [m if (ROOT / m).exists() else m.replace("__main__", "__init__") for m in modules]
        named = re.findall(r"\b(?:scripts|configs|tests|utils|bart)/[\w/]+\.(?:sh|sbatch|json|py)", text)
        assert [path for path in {*modules, *named} if not (ROOT / path).is_file()] == [], page


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if not path.startswith(("http", "../../")):  # the latter leads to GitHub's own pages
            linked = page.parent / path if path else page
            assert linked.is_file(), target
            assert not anchor or anchor in anchors(linked), target


def test_options_that_pages_give_exist() -> None:
    """The options of the entry points; the other programs have tests of their own that run their `--help`."""
    words = ["--data_dir", "data", "--max_steps", "1", "--task"]
    pretraining = {name for task in PRETRAINING for name in parse_pretraining_arguments([*words, task]).settings()}
    known = {
        "finetune.py": {*parse_finetune_arguments(["--do_train"]).settings(), "config", "help"},
        "run_eval.py": {*all_settings(parse_eval_arguments(["model", "config", "data", "out"]))},
        "run_pretraining.py": {*pretraining, "config", "help"},
    }
    table = re.findall(r"^\| `--.*", (ROOT / "docs/pretraining.md").read_text(), re.MULTILINE)
    named = {name.removeprefix("no_") for row in table for name in re.findall(r"--(\w+)", row)}
    assert named and named <= {*pretraining}
    for program, names in known.items():
        for page in PAGES:
            for command in re.findall(rf"{program}((?:[^\n`]|\\\n)*)", page.read_text()):
                used = {name.replace("-", "_").removeprefix("no_") for name in re.findall(r"--([\w-]+)", command)}
                assert used - {"help"} <= names | {name.removeprefix("no_") for name in names}, (page, command)


def test_the_workflow_runs_the_suite_on_the_first_and_the_last_python() -> None:
    [job] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    bounds = re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert bounds and job["strategy"]["matrix"]["python"] == [f"3.{bounds[1]}", f"3.{int(bounds[2]) - 1}"]
    assert job["steps"][-1]["run"] == "bash .ci/run"


def test_the_issue_template_gives_a_command_that_prints_versions() -> None:
    parts = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())["body"]
    [command] = re.findall(r"python (-c .*)", parts[-1]["attributes"]["description"])
    printed = subprocess.check_output(f"{sys.executable} {command}", shell=True, cwd=ROOT, text=True)
    assert {"versions", "git", "processor"} <= {*ast.literal_eval(printed)}


# Steps and warm-up: a tenth shows that presets run whose output no page shows, and half of the quickstart prints alike.
SHORTENED = {
    "params/glue_params.sh": (" fp32 300 30 ", " fp32 30 3 "),
    "params/tagging_params.sh": (" fp32 500 50 ", " fp32 50 5 "),
    "params/squad_params.sh": (" fp32 700 70 ", " fp32 70 7 "),
    "quickstart.sh": ("--max_steps 1500", "--max_steps 700"),
}


def script(port: int) -> Iterator[str]:
    """A shell script of all commands that can be run here; it writes a line with a number before each of them."""
    yield "set -e"
    yield "trap 'kill $(jobs -p) 2>/dev/null' EXIT"  # whatever fails: a server that lives on would be waited for
    seen = set()
    for number, block in enumerate(BLOCKS):
        if (block.kind, block.text) in seen:
            continue
        seen.add((block.kind, block.text))
        text = block.text.replace("8000", str(port))
        yield f"echo '@@@ {number}'"
        if block.kind == SERVES:
            yield '[ -z "${server-}" ] || { kill $server; wait $server || true; }'
            yield f"({text}) & server=$!"
            yield f"until curl --silent --fail localhost:{port}/healthz; do kill -0 $server; sleep 0.2; done"
        elif block.kind == "bash":
            yield text
        elif block.kind == "python" and "_epoch1_step2000" not in text:  # test_evaluation.py runs that
            yield python(text)
    for number, block in enumerate(BLOCKS):
        if block.kind == f"python{NEEDS}the Hub":  # the quickstart's model is there by now
            yield f"echo '@@@ {number}'"
            yield python(block.text.replace("facebook/bart-large-cnn", "results/quickstart"))


def python(text: str) -> str:
    return f"python - <<'END_OF_SNIPPET'\n{text}END_OF_SNIPPET"


def lines_of(text: str) -> list[str]:
    """Lines without the parts that differ from run to run: numbers, and the width of columns."""
    plain = (re.sub(r"\d[\d,.:e-]*", "0", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in plain if line.strip()]


def is_line(expected: str, printed: str) -> bool:
    """Return true if a printed line is the one that a page shows, in which "..." stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("..."))), printed) is not None


@pytest.mark.slow
def test_pages_can_be_followed_line_by_line(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for name, (steps, fewer) in SHORTENED.items():
        script_file = clone / "scripts" / name
        text = script_file.read_text()
        assert text.count(steps) == 1
        script_file.write_text(text.replace(steps, fewer))
    (clone / ".venv").symlink_to(sys.prefix)
    shell = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    shell |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "NLTK_"))}
    shell["OMP_NUM_THREADS"] = "1"  # other tests run beside; two threads would wait for each other most of the time
    commands = "\n".join(script(free_port()))
    run = subprocess.run(
        ["bash", "-c", commands], cwd=clone, env=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed = dict(re.findall(r"^@@@ (\d+)\n((?:(?!@@@ ).*\n)*)", run.stdout + "\n", re.MULTILINE))
    assert run.returncode == 0, f"{BLOCKS[int(list(printed)[-1])]}\n{list(printed.values())[-1]}"
    command = 0
    for block in BLOCKS:
        if block.kind != OUTPUT:
            command = next(n for n, each in enumerate(BLOCKS) if (each.kind, each.text) == (block.kind, block.text))
            continue
        rest = iter(lines_of(printed[str(command)]))
        for expected in lines_of(block.text):
            assert any(is_line(expected, line) for line in rest), f"{BLOCKS[command]}\ndid not print: {expected}"
