"""Imports go one way: entry points -> utils -> bart -> torch; and every package imported is pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = {"finetune", "run_eval", "pretrain"}
OURS = {"bart", "utils", *ENTRY_POINTS}
BART_MAY_IMPORT = {"bart", "torch", "tokenizers", "safetensors", "huggingface_hub"}
DISTRIBUTIONS = {
    "yaml": "PyYAML",
    "rouge_score": "rouge-score",
    "pytorch_lightning": "pytorch-lightning",
    "prometheus_client": "prometheus-client",
}
# Imported by name inside Lightning's TensorBoardLogger.
PINNED_BUT_NOT_IMPORTED = {"tensorboard"}


def imported(source: str) -> set[str]:
    """Top-level names of all modules that a source imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from . import x` stays in its own package.
            names |= {node.module.split(".")[0]} if node.level == 0 and node.module else set()
    return names


def imports_of(*parts: str) -> Iterator[tuple[str, str]]:
    """(file, top-level name) of every import in these packages and modules."""
    for part in parts:
        files = sorted((ROOT / part).rglob("*.py")) if (ROOT / part).is_dir() else [ROOT / f"{part}.py"]
        for file in files:
            for name in sorted(imported(file.read_text(encoding="utf-8"))):
                yield str(file.relative_to(ROOT)), name


def third_party(*parts: str) -> set[str]:
    return {name for _, name in imports_of(*parts)} - set(sys.stdlib_module_names) - OURS


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import a.b as x, c\ndef f():\n    from d.e import g\nif 0:\n    from . import h\nfrom .i import j\n"
    assert imported(source) == {"a", "c", "d"}


def test_bart_imports_torch_and_file_formats_only() -> None:
    found = list(imports_of("bart"))
    assert ("bart/modeling/modeling_bart.py", "torch") in found
    wrong = [(file, name) for file, name in found if name not in BART_MAY_IMPORT | set(sys.stdlib_module_names)]
    assert wrong == []


def test_utils_imports_no_entry_point() -> None:
    found = list(imports_of("utils"))
    assert ("utils/training/run.py", "bart") in found
    assert [(file, name) for file, name in found if name in ENTRY_POINTS | {"tests"}] == []


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "module",
    [
        "bart.modeling.modeling_bart",
        "bart.modeling.checkpoint",
        "bart.generation",
        "bart.tokenization.tokenization_bart",
    ],
)
def test_bart_loads_neither_lightning_nor_transformers(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert "bart" in loaded
    assert loaded & {"utils", "transformers", "pytorch_lightning", "lightning", "datasets", "nltk"} == set()


def test_processes_that_compute_rouge_start_without_torch() -> None:
    loaded = loaded_by("import utils.evaluation.rouge")
    assert "rouge_score" in loaded
    assert loaded & {"torch", "transformers", "pytorch_lightning", "sacrebleu"} == set()


def test_data_is_fetched_without_torch() -> None:
    loaded = loaded_by("import utils.data.get_data")
    assert "httpx" in loaded
    assert loaded & {"torch", "transformers", "safetensors"} == set()


def test_matplotlib_is_loaded_only_to_draw_a_report() -> None:
    loaded = loaded_by("import utils.evaluation.report")
    assert "numpy" in loaded
    assert "matplotlib" not in loaded


def requirements() -> dict[str, set[str]]:
    """Package -> its lines in requirements.txt, each of which must be an exact pin."""
    packages: dict[str, set[str]] = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = re.fullmatch(r"([A-Za-z0-9_-]+)==[0-9.]+(; python_version (<|>=) \"3\.1[0-3]\")?", line)
            assert pin is not None, line
            packages.setdefault(pin[1], set()).add(line)
    return packages


def test_what_is_imported_is_pinned_and_nothing_else() -> None:
    entry_points = [name for name in sorted(ENTRY_POINTS) if (ROOT / f"{name}.py").exists()]
    imports = third_party("bart", "utils", *entry_points) - {"apex"}  # optional, and on no package index
    pinned = requirements()
    assert set(pinned) - PINNED_BUT_NOT_IMPORTED == {DISTRIBUTIONS.get(name, name) for name in imports}
    assert "apex" not in pinned
