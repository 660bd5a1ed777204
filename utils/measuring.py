"""What the benchmarks share: runs in turns, tables, reports, a made-up model's shape."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from utils.machine import environment, processor
from utils.processes import in_new_process

if TYPE_CHECKING:
    from bart.configuration.configuration_bart import BartConfig

# Width, layers of the encoder and as many of the decoder, heads.
NETWORKS = {"tiny": (32, 2, 4), "base": (768, 6, 12), "large": (1024, 12, 16)}


def in_turns(
    modes: Sequence[str], rounds: int, work: Callable[..., Any], *arguments: object
) -> dict[str, list[dict[str, Any]]]:
    """Call `work(mode, *arguments)` in each round once for every mode; return the results of each mode.

    A machine whose speed drifts is then as fast for one mode as for another. Every call is a process of its own, so
    that its peak memory is its own.
    """
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for number in range(1, rounds + 1):
        for mode in modes:
            print(f"running {mode}, {number} of {rounds}", file=sys.stderr, flush=True)
            results[mode].append(in_new_process(work, mode, *arguments))
    return results


def process_memory_gb() -> float:
    """The most memory that this process ever held, in 1e9 bytes.

    Linux's figure by getrusage would be no less than the memory that the parent process held when it started this one.
    """
    if sys.platform == "linux":
        [kilobytes] = re.findall(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(kilobytes) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def shown(figure: Any) -> str:
    """A cell of a table."""
    if figure is None:
        return "-"
    if not isinstance(figure, float):
        return str(figure)
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.2f}" if figure >= 0.1 else f"{figure:.4f}"


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], style: str = "plain") -> str:
    """Rows as a table: words to the left, figures to the right, "-" for what a row lacks.

    Args:
        columns: keys of the rows, with their titles.
        style: a format of tabulate; "pipe" is Markdown.
    """
    cells = [[shown(row.get(key)) for key in columns] for row in rows]
    if style == "pipe":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    align = ["left" if all(isinstance(row.get(key), str) for row in rows) else "right" for key in columns]
    return tabulate(cells, list(columns.values()), style, disable_numparse=True, colalign=align, headersalign=align)


def machine(*packages: str) -> dict[str, Any]:
    """Date, command line, hardware, versions and commit.

    Args:
        packages: whose versions count besides the usual ones.
    """
    import torch  # not above: a peer's process has no torch in its memory

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = environment(0) | {"processor": processor(), "cores": os.cpu_count(), "gpus": gpus}
    found["versions"] |= {package: version(package) for package in packages}
    return found


def made_up_config(network: str, **fields: Any) -> BartConfig:
    """The config of a network of NETWORKS."""
    from bart.configuration.configuration_bart import BartConfig

    width, layers, heads = NETWORKS[network]
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    return BartConfig(d_model=width, **fields)
