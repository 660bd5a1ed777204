"""Names of places to read examples from that are no directory of line files, and of splits there.

Without torch, for the command line.
"""

from __future__ import annotations

import re

from bart.errors import InputError

SPLIT = "{split}"
PLACES = f"hub:NAME[:CONFIG][@REVISION], or a path or URL of Parquet files that contains {SPLIT}"
HUB = "hub:"
HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^\s:@]+))?(@(?P<revision>\S+))?")
# What files and the Hub call our splits; the first that is there counts.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}


def is_place(data_dir: str) -> bool:
    """Whether a data directory is none, but a place that examples are streamed from.

    Raises:
        InputError: `hub:` is not followed by a name.
    """
    on_hub = data_dir.startswith(HUB)
    if on_hub and not HUB_NAME.fullmatch(data_dir.removeprefix(HUB)):
        raise InputError(f"{data_dir!r} names no set on the Hub; allowed: {PLACES}")
    return on_hub or SPLIT in data_dir


def check_fields(data_dir: str | None, **fields: str | None) -> None:
    """Raise InputError for names of columns where there are none."""
    for name, value in fields.items():
        if value is not None and not is_place(data_dir or ""):
            raise InputError(
                f"--{name} is {value}, a column of a set that is streamed; the data directory is {data_dir}, and line "
                f"files have no columns (streamed are {PLACES})"
            )
