"""Which columns of a table hold the documents and their summaries."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from bart.errors import InputError

# As published sets name them, the Hub's first.
KNOWN_FIELDS = (
    ("article", "highlights"),
    ("document", "summary"),
    ("source", "target"),
    ("dialogue", "summary"),
    ("article", "summary"),
    ("article", "abstract"),
    ("text", "summary"),
)


def fields_of(columns: Collection[str], source: str | None, target: str | None, where: str) -> tuple[str, str]:
    """The names of the source's and the target's column.

    Args:
        columns: all there are.
        source, target: --source_field and --target_field; None for those that published sets have.
        where: what has the columns, for the error.

    Raises:
        InputError: a column that is named is missing, or none is named and the usual ones are missing.
    """
    for option, field in (("--source_field", source), ("--target_field", target)):
        if field is not None and field not in columns:
            near = get_close_matches(field, columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(f"{option} is {field!r}; {where} has the fields {', '.join(sorted(columns))}{hint}")
    for known_source, known_target in KNOWN_FIELDS:
        pair = source or known_source, target or known_target
        if set(pair) <= set(columns) and pair[0] != pair[1]:
            return pair
    if source is not None and target is not None:
        if source == target:
            raise InputError(f"--source_field and --target_field are both {source!r}; a summary is no document")
        return source, target
    raise InputError(
        f"{where} has the fields {', '.join(sorted(columns))}: name those of documents and summaries by --source_field "
        "and --target_field"
    )
