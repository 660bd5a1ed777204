"""Errors that end a run in one line, besides `bart.errors.InputError`."""

from __future__ import annotations

import errno
import os

from bart.errors import InputError

# No space is left, a quota is used up, or the file is larger than it may be.
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LIMITS = {errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # others of the system


class RunError(RuntimeError):
    """A run that cannot go on although its input is in order, such as divergence; its message is one line."""


def unwritable(place: str, error: OSError) -> InputError | RunError:
    """The error where a file cannot be written: a full disk can end any run, a bad place is the user's choice."""
    kind = RunError if error.errno in FULL_DISK else InputError
    reason = os.strerror(error.errno) if error.errno else error  # without the words of libraries
    return kind(f"{place}: cannot be written ({reason})")
