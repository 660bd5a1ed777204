"""This machine: its devices and their speed, and the record of it that a run keeps."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bart.errors import InputError

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "pytorch_lightning", "transformers", "tokenizers")
# TFLOP/s of dense matrix products by NVIDIA's data sheets, by a part of the GPU's name. The first that fits counts.
PEAKS = {
    "V100": {"fp16": 125, "fp32": 15.7},
    "A100": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    "H100 PCIe": {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51},
    "H100": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "H200": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")


def is_first() -> bool:
    """Return true in the first of the processes that torchrun, Lightning or SLURM started together."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def is_first_here() -> bool:
    """Return true in the first of the processes of this machine, which checks files for all of them."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def check_gpus(gpus: int) -> None:
    """Raise InputError when the machine has fewer GPUs than asked for."""
    import torch  # here and below: option files import this module, and torch takes seconds to load

    if gpus > torch.cuda.device_count():
        raise InputError(
            f"--gpus is {gpus}; this machine has {torch.cuda.device_count()} CUDA devices (--gpus 0 runs on the CPU)"
        )


def peak_rate(gpu: str, precision: str) -> float | None:
    """Operations per second of a GPU at its best in one of PRECISIONS; None where they are not known."""
    peaks = next((peaks for name, peaks in PEAKS.items() if name in gpu), {})
    return peaks[precision] * 1e12 if precision in peaks else None


def environment(gpus: int, *packages: str) -> dict[str, Any]:
    """Date, command line, host, devices, versions (of PACKAGES and further ones) and commit of a run."""
    import torch

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "host": platform.node(),
        "devices": [torch.cuda.get_device_name(i) for i in range(gpus)] or [processor()],
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": versions([*PACKAGES, *packages]) | {"cuda": torch.version.cuda},
        "git": git_state(ROOT),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of some installed packages."""
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def processor() -> str:
    """The name of the machine's processor."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)", info.read_text(), re.MULTILINE) if info.exists() else []
    return (names or [platform.processor()])[0]


def git_state(folder: Path) -> str | None:
    """The commit checked out, and "-dirty" where files differ from it; None where git or its repository is missing."""
    command = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def process_memory_gb() -> float:
    """The most memory that this process ever held, in 1e9 bytes."""
    if sys.platform == "linux":  # where getrusage counts memory of the parent process, too
        [kilobytes] = re.findall(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(kilobytes) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
