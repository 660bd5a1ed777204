"""The one exception that means "the user's input is wrong", as opposed to a fault of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten


class InputError(ValueError):
    """Bad input: an option, a file or a checkpoint that cannot be used.

    The message is one line that names the option or file, the value received and what is allowed.
    Entry points print it and exit with status 2, without a traceback.
    """


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Put the name of a file or an option before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def in_short(value: object) -> str:
    """A value of the wrong kind, in short."""
    return f"{type(value).__name__} {shorten(repr(value), 40)}"


def brief(error: BaseException) -> str:
    """The message of a library's error, short enough to be part of a line."""
    return " ".join(str(error).split())[:300]
