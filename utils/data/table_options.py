"""The options of tables of text, what their endings do not tell, and of blank texts."""

from __future__ import annotations

from dataclasses import dataclass

from bart.errors import InputError
from utils.app.cli import option


@dataclass(frozen=True)
class TableOptions:
    """The form of .csv and .tsv files, where it is not that of their endings."""

    delimiter: str | None = option(
        None,
        section="tables",
        metavar="CHAR",
        help=r"separator of the values of .csv and .tsv files, such as ';' or '\t'; by default a comma or a tab",
        on_resume="by_content",
    )
    encoding: str = option(
        "utf-8", help="of .csv, .tsv, .json and .jsonl files: latin-1, utf-16 and others", on_resume="by_content"
    )
    columns: str | None = option(
        None,
        metavar="NAME,NAME",
        help="names of all columns of .csv and .tsv files without a header, or with one that lacks names",
        on_resume="by_content",
    )

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.separator) != 1 or self.separator in '\r\n"'):
            raise InputError(rf"--delimiter is {self.delimiter!r}; allowed: one character, such as ';', '|' or '\t'")
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError):
            raise InputError(f"--encoding is {self.encoding!r}; allowed: utf-8, utf-16, latin-1, cp1252") from None

    @property
    def separator(self) -> str | None:
        """The delimiter, also where it was written as backslash and t."""
        return "\t" if self.delimiter == r"\t" else self.delimiter


@dataclass(frozen=True)
class InputOptions(TableOptions):
    """The same, and what becomes of texts that are blank."""

    skip_blank: bool = option(
        False,
        help="leave out examples with a blank text; the log counts them, and their predictions are empty",
        on_resume="by_content",
    )


BY_ENDING = InputOptions()
