"""Command lines made from dataclasses: one field is one option, with its type, range, default and help text."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import signal
import sys
import types
import typing
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from bart.errors import InputError

Arguments = TypeVar("Arguments")
# No space, a quota that is used up, and a file larger than may be.
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RunError(RuntimeError):
    """A run that cannot go on, though its input is in order and no fault of the program is known, such as divergence.

    The message is one line that says what happened, and where. Entry points print it and exit with status 1.
    """


def unwritable(place: str, error: OSError) -> InputError | RunError:
    """What to raise where a file cannot be written: the place was the user's choice, but a full disk ends any run."""
    kind = RunError if error.errno in _FULL_DISK else InputError
    # Libraries word their own texts around the system's.
    reason = os.strerror(error.errno) if error.errno else error
    return kind(f"{place}: cannot be written ({reason})")


def check_output(path: str | None) -> None:
    """Raise InputError when --output, if it is given, names no file that could be written at the end."""
    if path is not None and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise InputError(f"--output is {path!r}; allowed: a file in a directory that exists")


def brief(error: BaseException) -> str:
    """What a library says is wrong, as part of a line."""
    return " ".join(str(error).split())[:300]


def run_main(main: Callable[[Sequence[str] | None], int | None]) -> NoReturn:
    """Run an entry point: what `InputError` and `RunError` say ends it as one line on stderr, without a traceback.

    So does a disk that is full, wherever that is noticed.
    """
    try:
        sys.exit(main(None) or 0)
    except (InputError, RunError, OSError) as error:
        if isinstance(error, OSError):
            if error.errno not in _FULL_DISK:
                raise
            error = unwritable(error.filename or "a file", error)
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


class ArgumentParser(argparse.ArgumentParser):
    """argparse, with errors of one line and unknown options answered by the nearest known one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0].split("=")[0], self._option_string_actions, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; {self.prog} --help lists what there is"
            self.error(f"unknown argument {unknown[0]}{hint}")
        return parsed


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    section: str = "options",
    choices: Sequence[str] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field that is an option; without a default it is a required positional argument.

    Args:
        help: what the option does, shown by --help with the default behind it.
        section: the heading of --help under which it stands.
        choices: the strings allowed.
        least, most, above: the range allowed; `above` excludes its own value.
    """
    metadata = {"help": help, "section": section, "choices": choices, "least": least, "most": most, "above": above}
    return dataclasses.field(default=default, metadata=metadata)


def _plain_type(annotation: Any) -> type:
    """`int | None` -> int: the type that a given value must have."""
    if isinstance(annotation, types.UnionType):
        return next(part for part in typing.get_args(annotation) if part is not type(None))
    return annotation


def _converter(field: dataclasses.Field[Any], kind: type) -> Callable[[Any], Any]:
    """A function that turns a string, or a YAML value, into the field's type or says what is allowed."""
    limits = field.metadata
    allowed = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}[kind]
    words = [f"{word} {limits[key]:g}" for key, word in (("least", "at least"), ("above", "above"), ("most", "at most"))
             if limits[key] is not None]  # fmt: skip
    if limits["choices"]:
        words = ["one of " + ", ".join(limits["choices"])]
    allowed = " ".join([allowed if not limits["choices"] else "", ", ".join(words)]).strip()

    def convert(text: Any) -> Any:
        try:
            if kind is bool and not isinstance(text, bool):
                raise ValueError
            if kind is str and not isinstance(text, (str, int, float)):
                raise ValueError
            value = kind(text)
            if (kind is int and isinstance(text, float) and text != value) or (kind is float and not isfinite(value)):
                raise ValueError
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: it takes {allowed}") from None
        in_range = (
            (limits["least"] is None or value >= limits["least"])
            and (limits["most"] is None or value <= limits["most"])
            and (limits["above"] is None or value > limits["above"])
            and (not limits["choices"] or value in limits["choices"])
        )
        if not in_range:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: it takes {allowed}")
        return value

    return convert


def with_underscores(argv: Sequence[str]) -> list[str]:
    """The words of a command line, with names of options that are spelt with hyphens spelt with underscores."""
    return [
        "--" + "=".join([name.replace("-", "_"), *value]) if word.startswith("--") else word
        for word in argv
        for name, *value in [word[2:].split("=", 1)]
    ]


def parse_dataclass(
    cls: type[Arguments],
    argv: Sequence[str] | None,
    description: str,
    may_lack: Collection[str] = (),
    **kwargs: Any,
) -> Arguments:
    """Read a dataclass of `option` fields from a command line, and from a YAML file where it has a field `config`.

    The command line wins over the file, the file over the defaults. Booleans are `--name` and `--no_name`. Hyphens in
    names stand for underscores. Exits with status 2 and one line on stderr for anything that does not fit.

    Args:
        may_lack: positional arguments that may be left off; they are None then.
    """
    argv = with_underscores(sys.argv[1:] if argv is None else argv)
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    # The sections list the options; a usage that repeats them all would fill the first screen.
    usage = " ".join(["%(prog)s", *required, "[--option value ...]"])
    parser = ArgumentParser(description=description, usage=usage, **kwargs)
    converters = {field.name: _converter(field, _plain_type(hints[field.name])) for field in fields}
    sections: dict[str, Any] = {"options": parser}
    for field in fields:
        section = field.metadata["section"]
        if section not in sections:
            sections[section] = parser.add_argument_group(section)
        group = sections[section]
        text = field.metadata["help"].replace("%", "%%")
        if field.default is dataclasses.MISSING:
            count = "?" if field.name in may_lack else None
            group.add_argument(field.name, type=converters[field.name], nargs=count, help=text)
        elif _plain_type(hints[field.name]) is bool:
            if field.default is not None:
                text += f" (default: {'on' if field.default else 'off'})"
            group.add_argument(f"--{field.name}", action="store_true", default=field.default, help=text)
            # The negation only has to exist; listing it would double the help.
            group.add_argument(
                f"--no_{field.name}", dest=field.name, action="store_false", default=field.default,
                help=argparse.SUPPRESS,
            )  # fmt: skip
        else:
            if field.default is not None:
                text += f" (default: {field.default})"
            choices = field.metadata["choices"]
            metavar = "{" + ",".join(choices) + "}" if choices else _plain_type(hints[field.name]).__name__.upper()
            group.add_argument(
                f"--{field.name}", type=converters[field.name], default=field.default, help=text, metavar=metavar
            )
    if any(field.name == "config" for field in fields):
        early = ArgumentParser(add_help=False, prog=parser.prog)
        early.add_argument("--config")
        path = early.parse_known_args(argv)[0].config
        if path is not None:
            parser.set_defaults(**_read_yaml(Path(path), converters, {field.name: field.default for field in fields}))
    return cls(**vars(parser.parse_args(argv)))


def _read_yaml(path: Path, converters: dict[str, Callable[[Any], Any]], defaults: dict[str, Any]) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--config {path}: cannot be read as YAML ({brief(error)})") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path}: a mapping of option names to values is expected")
    for name, value in values.items():
        if name not in converters or name == "config":
            near = get_close_matches(str(name), converters, n=1)
            raise InputError(
                f"--config {path}: unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        if value is not None or defaults[name] is not None:
            try:
                values[name] = converters[name](value)
            except argparse.ArgumentTypeError as error:
                raise InputError(f"--config {path}: {name}: {error}") from None
    return values
