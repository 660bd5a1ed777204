"""run_eval.py in this process, and what it leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import run_eval

ROOT = Path(__file__).parents[1]
DETERMINISTIC = ("generations.txt", "articles.jsonl", "scores.json")
SECONDS = 120  # more than any of these takes


def words(folder: Path, model: Path, out: str, *options: object, data: str = "data") -> list[str]:
    argv = [model, folder / "config.json", folder / data, folder / out, "--bs", 4, "--device", "cpu", *options]
    return [str(word) for word in argv]


def evaluate(folder: Path, model: Path, out: str, *options: object, data: str = "data") -> dict[str, Any]:
    run_eval.main(words(folder, model, out, *options, data=data))
    return json.loads((folder / out / "test_scores.json").read_text())


def speed(folder: Path, out: str) -> dict[str, Any]:
    return json.loads((folder / out / "test_speed.json").read_text())


def articles(folder: Path, out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / out / "test_articles.jsonl").read_text().split("\n")[:-1]]


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1]


def files(folder: Path, out: str) -> list[bytes]:
    """The bytes of the files that do not depend on how a run was done."""
    return [(folder / out / f"test_{name}").read_bytes() for name in DETERMINISTIC]


def torchrun(*argv: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "run_eval.py"]
    return [*command, *argv]
