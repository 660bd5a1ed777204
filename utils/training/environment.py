"""The record of what a run was started with and on: arguments.yaml and environment.json of its directory."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from utils.arguments import TrainArguments

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "pytorch_lightning", "transformers", "tokenizers")


def resolved_arguments(args: TrainArguments) -> dict[str, Any]:
    """All options by name, whether they come from the command line, a file or the defaults."""
    return {name: value for name, value in dataclasses.asdict(args).items() if name != "config"}


def write_records(args: TrainArguments, output_dir: Path) -> None:
    """Write arguments.yaml and environment.json; an earlier run's are kept under a number, and so are its metrics."""
    names = [output_dir / name for name in ("arguments.yaml", "environment.json", "metrics.csv")]
    kept = [re.fullmatch(r"\w+\.(\d+)\.\w+", path.name) for path in output_dir.iterdir()]
    number = 1 + max((int(match[1]) for match in kept if match), default=0)
    for path in names:
        if path.exists():
            path.rename(path.with_name(f"{path.stem}.{number}{path.suffix}"))
    (output_dir / "arguments.yaml").write_text(yaml.safe_dump(resolved_arguments(args)))
    (output_dir / "environment.json").write_text(json.dumps(environment(args), indent=2) + "\n")


def environment(args: TrainArguments) -> dict[str, Any]:
    """Versions, machine and command line; of several machines, those of this one."""
    gpus = [torch.cuda.get_device_name(i) for i in range(args.gpus or 0)]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "seed": args.seed,
        "host": platform.node(),
        "devices": gpus or [processor()],
        "processes": args.processes,
        "nodes": args.processes // args.devices,
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES}
        | {"cuda": torch.version.cuda},
        "git": git_state(ROOT),
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)", info.read_text(), re.MULTILINE) if info.exists() else []
    return (names or [platform.processor()])[0]


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit checked out and whether files differ from it; None where git or its repository is missing."""
    try:
        commit, changes = (
            subprocess.run(["git", "-C", folder, *command], check=True, capture_output=True, text=True).stdout.strip()
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}
