"""Command lines made from dataclasses: one field is one option, with its type, range, default and help text."""

from __future__ import annotations

import argparse
import dataclasses
import operator
import os
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import yaml

from bart.errors import InputError, brief
from utils.app.errors import FULL_DISK, LIMITS, RunError, unwritable
from utils.app.signals import Interruption, Signals, answer, status

Arguments = TypeVar("Arguments")
_KINDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
PYTHON_M = "python -m "
# Options of NVIDIA's finetune.py and run_eval.py, and what to do in a program that has not got them.
_ELSEWHERE = {
    "affinity": "leave it off: torchrun --numa-binding=node binds processes to cores",
    **dict.fromkeys(("compile", "graphs"), "leave it off: on a GPU steps are recorded where they can be"),
    "batching": "leave it off: new articles take the places of those that are done",
    "allreduce_post_accumulation_half_precision": "--allreduce_dtype bf16 sends half as much",
    **dict.fromkeys(("num_beam_groups", "diversity_penalty"), "leave it off: finetune.py --do_sample varies outputs"),
    **dict.fromkeys(("distill", "layers", "do_encoder", "do_decoder"), "finetune.py --distill sft removes layers"),
    **dict.fromkeys(("do_train", "do_predict"), "leave it off: run_pretraining.py trains, run_eval.py scores"),
    **dict.fromkeys(("freeze_embeds", "freeze_encoder"), "leave it off: finetune.py alone freezes weights"),
    **dict.fromkeys(
        "bad_words_ids bos_token_id decoder_start_token_id eos_token_id forced_bos_token_id forced_eos_token_id "
        "pad_token_id".split(),
        "leave it off: generation_config.json beside the weights says it",
    ),
    **dict.fromkeys(("max_ratio", "min_ratio"), "--max_new_tokens and --min_new_tokens bound the length"),
    "drop_repeated_sentences": "--no_repeat_ngram_size 3 keeps texts from repeating themselves",
    "buffer_size": "leave it off: it had no effect",
    "load_model_weights_only": "--model_name_or_path CHECKPOINT starts from weights alone",
    "datelines": "leave it off: articles keep their datelines, as published",
    "label_separator": "leave it off: several labels of a text are a list in JSON, also in a cell of a table",
    "local_rank": "leave it off: torchrun tells each process its rank",
    "logger_name": "metrics.csv and TensorBoard are always written; --wandb_project NAME logs to Weights & Biases, too",
    **dict.fromkeys(("max_option_sets", "max_articles_per_request"), "leave it off: --max_queue bounds what waits"),
    "max_summary_length": "leave it off: a summary has at most as many tokens as the model has positions",
    "n_tpu_cores": "TPUs are not supported; allowed: --gpus N, 0 for the CPU",
    "per_article": "leave it off: run_eval.py writes each article's scores into test_articles.jsonl",
    **dict.fromkeys(("picture", "repeats"), "leave it off: utils.corpora.inspect prints counts and lengths"),
    "positive": "leave it off: the F1 of each class is printed below the scores",
    "pre_ln": 'leave it off: "pre_ln": true in the file of the model\'s config says it',
    "profile": "leave it off: nsys profile python finetune.py ... traces a run",
    "spreadsheet": "leave it off: import the columns of the table as text, so that no cell is read as a formula",
    **dict.fromkeys(("src_lang", "tgt_lang"), "leave it off: a model translates between the languages of its data"),
    "token_states": "leave it off: taggers read the decoder's states",
    "unknown_labels": "leave it off, and remove rows with other labels from the data",
    "url_lists": "leave it off: the published lists of abisee/cnn-dailymail are downloaded",
    "sync_timeout": "leave it off: processes wait for each other",
}
_URL = re.compile(r"\s*([^/\s]+://|hub:)", re.IGNORECASE)  # as a path it would be a folder here, such as ./s3:/bucket
_BOUNDS = {"least": ("at least", operator.ge), "above": ("above", operator.gt), "most": ("at most", operator.le)}
_BOUNDS["besides"] = ("other than", operator.ne)


def run_main(main: Callable[[Sequence[str] | None], int | None]) -> NoReturn:
    """Run an entry point. An `InputError`, a `RunError`, a full disk or a signal to end ends it as one line on stderr.

    The exit status is 2 for an InputError that no full disk caused, 128 + signal for a signal, and 1 for the others.
    """
    name = program().removeprefix(PYTHON_M)
    signals = Signals()
    try:
        sys.exit(main(None) or 0)
    except (Exception, Interruption) as error:
        if signals.number:  # an error may be its consequence: libraries clean up what they have not set up
            answer(f"{name}: {error if isinstance(error, Interruption) else Interruption(signals.number)}")
            sys.exit(status(signals.number))
        if isinstance(error, BrokenPipeError):  # as head closes it
            print(f"{name}: ended, since nothing reads its output any more", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's last flush fails, too
            sys.exit(status(signal.SIGPIPE))
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            error = unwritable(error.filename or "a file", error)
        elif isinstance(error, OSError) and error.errno in LIMITS:
            error = RunError(f"{str(error.filename or 'the system')[:200]}: {error.strerror}")
        elif isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            error = RunError(f"memory ran out ({brief(error)})")
        if not isinstance(error, (InputError, RunError)):
            raise
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) and getattr(error.__cause__, "errno", 0) not in FULL_DISK else 1)
    finally:
        signals.restore()


def program() -> str:
    """The command that a user typed: finetune.py, bart-finetune or python -m utils.summarize."""
    path, spec = Path(sys.argv[0]), sys.modules["__main__"].__spec__
    if spec is not None and path.stem in (spec.name.rpartition(".")[2], "__main__"):
        return PYTHON_M + spec.name.removesuffix(".__main__")
    return path.name


# What becomes of an option when a run goes on from a checkpoint. "must_stay": another value is refused. "validation":
# it may change, and scores before and after are then not compared. "by_content": what it stands for is compared.
OnResume = Literal["must_stay", "may_change", "validation", "by_content"]


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    section: str | None = None,
    positional: bool = False,
    alias: str | None = None,
    flags: Mapping[str, str] = types.MappingProxyType({}),
    choices: Sequence[str] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    besides: float | None = None,
    metavar: str | None = None,
    reaches: Callable[[str], bool] | None = None,
    on_resume: OnResume = "must_stay",
    in_card: bool = False,
) -> Any:
    """A dataclass field that is an option: int, float, str, bool, Path, one of these `| None`, or a tuple of one kind.

    `section` is the heading of --help, by default that of the option before it; `alias` is another name, and `flags`
    are names that stand for values; `above` is a bound that is itself not allowed, and so is `besides`; `reaches` is
    true of the URLs that the option takes; the model card names what is `in_card`.
    """
    metadata = {name: value for name, value in locals().items() if name != "default"}  # the arguments
    return dataclasses.field(default=default, metadata=metadata)


changeable = partial(option, on_resume="may_change")  # an option that may change when a training run goes on
card_option = partial(option, in_card=True)  # one that the model card names


def part(kind: type) -> Any:
    """A dataclass field that holds a group of options, a dataclass with defaults, as a part of a larger group."""
    return dataclasses.field(default_factory=kind)


def all_options(options: Any) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Each option of a dataclass and of its parts, as its field, with its value."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from all_options(value)
        else:
            yield field, value


def all_settings(options: Any) -> dict[str, Any]:
    """The values of a dataclass and of its parts by the names of the options."""
    return {field.name: value for field, value in all_options(options)}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.removeprefix(PYTHON_M)}: error: {message}\n")


class Option:
    """A field as the parser sees it."""

    def __init__(self, field: dataclasses.Field[Any], annotation: Any, section: str | None) -> None:
        if isinstance(annotation, types.UnionType):
            annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
        self.several = typing.get_origin(annotation) is tuple
        self.kind = typing.get_args(annotation)[0] if self.several else annotation  # of one value
        self.name, self.section, self.default, self.limits = field.name, section, field.default, field.metadata

    def convert(self, value: Any) -> Any:
        """Turn a string, or a value of a YAML file, into the option's type; ArgumentTypeError says what is allowed."""
        if self.several and not isinstance(value, str):  # of a YAML file
            if not isinstance(value, list):
                raise argparse.ArgumentTypeError(f"{value!r} is not allowed: it takes a list")
            return tuple(self._convert_value(part) for part in value)
        return self._convert_value(value)

    def _convert_value(self, value: Any) -> Any:
        _check_url(value, self.limits["reaches"])
        choices = self.limits["choices"]
        bounds = {key: self.limits[key] for key in _BOUNDS if self.limits[key] is not None}
        try:
            if isinstance(value, bool) != (self.kind is bool) or not isinstance(value, (bool, str, int, float)):
                raise ValueError
            converted = self.kind(_with_home(value))
            is_rounded = self.kind is int and isinstance(value, float) and value != converted
            is_finite = self.kind is not float or isfinite(converted)
            in_range = all(_BOUNDS[key][1](converted, bound) for key, bound in bounds.items())
            if is_rounded or not is_finite or not in_range or (choices and converted not in choices):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            limits = ", ".join(f"{_BOUNDS[key][0]} {bound}" for key, bound in bounds.items())
            allowed = "one of " + ", ".join(choices) if choices else f"{_KINDS[self.kind]} {limits}".strip()
            raise argparse.ArgumentTypeError(f"{value!r} is not allowed: it takes {allowed}") from None
        return converted

    def add_to(self, group: Any, default: Any) -> None:
        """Add the option to a parser or a group; without a default (MISSING) it must be given."""
        text = self.limits["help"].replace("%", "%%")
        if self.default not in (None, dataclasses.MISSING, (), ""):
            shown = {True: "on", False: "off"}[self.default] if self.kind is bool else self.default
            text += f" (default: {' '.join(map(str, shown)) if self.several else shown})"
        choices = self.limits["choices"]
        metavar = self.limits["metavar"] or ("{" + ",".join(choices) + "}" if choices else self.kind.__name__.upper())
        required = default is dataclasses.MISSING
        settings: dict[str, Any] = {"help": text, "default": default}
        if self.limits["positional"]:
            single = None if required else "?"
            group.add_argument(self.name, type=self.convert, nargs="*" if self.several else single, **settings)
        elif self.kind is bool:
            group.add_argument(f"--{self.name}", action="store_true", **settings)
            # The negation only has to exist; listing it would double the help.
            settings["help"] = argparse.SUPPRESS
            group.add_argument(f"--no_{self.name}", dest=self.name, action="store_false", **settings)
        else:
            count = "+" if self.several else None
            spellings = [f"--{name}" for name in (self.name, self.limits["alias"]) if name]
            settings |= {"type": self.convert, "nargs": count, "required": required, "metavar": metavar}
            group.add_argument(*spellings, dest=self.name, **settings)
            for flag, value in self.limits["flags"].items():
                text = f"--{self.name} {value}"
                group.add_argument(f"--{flag}", dest=self.name, action="store_const", const=value, help=text)


def parse_dataclass(
    cls: type[Arguments],
    argv: Sequence[str] | None,
    description: str,
    prog: str | None = None,
    parts: Mapping[str, type] = types.MappingProxyType({}),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    of_tasks: Mapping[str, Sequence[type]] = types.MappingProxyType({}),
) -> Arguments:
    """Read a dataclass of `option` fields from a command line, and from a YAML file where it has an option `config`.

    The command line wins over the file. What does not fit ends the program with status 2 and one line on stderr.
    `parts` are dataclasses of fields that depend on the task, `defaults` this program's own ones, and `of_tasks` the
    dataclasses of each value of --task, for --help, which shows them all.
    """
    argv = with_underscores(argv)
    options = {each.name: each for each in options_of_class(cls, parts)}
    for name, default in defaults.items():
        options[name].default = default
    path = early_option(argv, "config") if "config" in options else None
    stored = {} if path is None else _read_yaml(Path(path), options, of_tasks)
    positional = [each for each in options.values() if each.limits["positional"]]
    places = [f"[{each.name}]" if each.default != dataclasses.MISSING else each.name for each in positional]
    needed = [
        f"--{each.name} {each.limits['metavar'] or each.name.upper()}"
        for each in options.values()
        if each.default is dataclasses.MISSING and each not in positional
    ]
    if own := " or ".join(task for task, kinds in of_tasks.items() if [*kinds] == [*parts.values()]):
        others = f"{program()} --task NAME --help shows the options of another task first."
        description += f"\n\nThe options of --task {own} come first. {others}"
    parser = _Parser(
        prog=prog or program(),
        # The sections list the options; a usage that repeats them all would fill the first screen.
        usage=" ".join(["%(prog)s", *places, *needed, "[--option value ...]"]),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str | None, Any] = {None: parser}
    for each in options.values():
        if each.section not in groups:
            groups[each.section] = parser.add_argument_group(each.section)
        each.add_to(groups[each.section], stored.get(each.name, each.default))
    if {"-h", "--help"} & {*argv}:
        parser.epilog = _help_of_tasks(of_tasks, {name: each.limits["help"] for name, each in options.items()})
    return _build(cls, parts, _parse(parser, argv, of_tasks))


def _help_of_tasks(of_tasks: Mapping[str, Sequence[type]], shown: Mapping[str, str]) -> str:
    """The part of --help about options that are not `shown` yet."""
    sections = []
    for task, kinds in of_tasks.items():
        parser = _Parser(usage=argparse.SUPPRESS, add_help=False)
        group = parser.add_argument_group(f"with --task {task}")
        for each in chain(*map(options_of_class, kinds)):
            if shown.get(each.name) != each.limits["help"]:
                each.add_to(group, each.default)
        sections.append(parser.format_help())
    return "\n".join(filter(None, sections))


def options_of_class(cls: type, parts: Mapping[str, type] = types.MappingProxyType({})) -> Iterator[Option]:
    """The options of each part and, behind its parts, of a class."""
    hints, direct, section = typing.get_type_hints(cls), [], None
    for field in dataclasses.fields(cls):
        kind = parts.get(field.name, hints[field.name])
        if dataclasses.is_dataclass(kind):
            yield from options_of_class(kind)
        else:
            section = field.metadata["section"] or section
            direct.append(Option(field, kind, section))
    yield from direct


def _build(cls: type[Arguments], parts: Mapping[str, type], values: Mapping[str, Any]) -> Arguments:
    """The dataclass, and its parts, with values by the names of the options."""
    hints, arguments = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        kind = parts.get(field.name, hints[field.name])
        arguments[field.name] = _build(kind, {}, values) if dataclasses.is_dataclass(kind) else values[field.name]
    return cls(**arguments)


def _advice(name: str, known: Collection[str], of_tasks: Mapping[str, Sequence[type]]) -> str:
    """Advice about an option that is not `known`, where names are spelled as this one."""
    plain = name.removeprefix("--")
    spellings = {plain, plain.removeprefix("no_")}
    for_task = {task: chain(*map(options_of_class, kinds)) for task, kinds in of_tasks.items()}
    tasks = [task for task in for_task if any({each.name, each.limits["alias"]} & spellings for each in for_task[task])]
    if tasks:
        return f"it is an option of --task {' or '.join(tasks)}"
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return _ELSEWHERE.get(plain, f"did you mean {near[0]}?" if near else "--help lists what there is")


def _parse(parser: _Parser, argv: Sequence[str], of_tasks: Mapping[str, Sequence[type]]) -> dict[str, Any]:
    """The values of a command line, by the names of the options."""
    known = [*parser._option_string_actions]
    for word in argv:
        name = word.partition("=")[0]
        # argparse would take an unknown option's value for a positional one, and name that.
        if word.startswith("--") and name not in known and word != "--":
            parser.error(f"unknown argument {name}; {_advice(name, known, of_tasks)}")
    parsed = vars(parser.parse_intermixed_args(argv))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parsed.items()}


def early_option(argv: Sequence[str] | None, name: str, default: str | None = None) -> str | None:
    """One option's value, from the command line (None: sys.argv) or the YAML file, before all options are known."""
    parser = _Parser(prog=program(), add_help=False, allow_abbrev=False)
    for known in {name, "config"}:
        parser.add_argument(f"--{known}", type=_check_url)
    early = vars(parser.parse_known_args(with_underscores(argv))[0])
    if early[name] is None and early.get("config") is not None:
        early[name] = _load_yaml(Path(_with_home(early["config"]))).get(name)
    return default if early[name] is None else _with_home(str(early[name]))


def _check_url(value: Any, reaches: Callable[[str], bool] | None = None) -> Any:
    """The value of an option; ArgumentTypeError for a URL that is not reached."""
    if isinstance(value, str) and _URL.match(value) and not (reaches and reaches(value)):
        allowed = "a path on this machine, or a name" + (" or URL as --help shows it" if reaches else "")
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed: a URL that is not reached; it takes {allowed}")
    return value


def _with_home(value: Any) -> Any:
    """A value with `~/` at its beginning made the home directory, which shells do not do in --option=~/a, nor YAML."""
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def with_underscores(argv: Sequence[str] | None) -> list[str]:
    """The words of a command line, None: sys.argv, with hyphens in the names of options replaced by underscores."""
    words = []
    for word in sys.argv[1:] if argv is None else argv:
        name, equals, value = word.partition("=")
        is_option = name.startswith("--") and word != "--"
        words.append(f"--{name[2:].replace('-', '_')}{equals}{value}" if is_option else word)
    return words


def _load_yaml(path: Path, aliases: Mapping[str, str] = types.MappingProxyType({})) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values, root = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"--config {path}: cannot be read as YAML ({brief(error)})") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path}: a mapping of option names to values is expected")
    names = [aliases.get(key.value, key.value) for key, _ in root.value]
    for number, (name, (key, _)) in enumerate(zip(names, root.value, strict=True)):
        if name in names[:number]:
            raise InputError(f"--config {path}: line {key.start_mark.line + 1} gives {name} again; allowed: once")
    return {aliases.get(name, name): value for name, value in values.items()}


def _read_yaml(path: Path, options: Mapping[str, Option], of_tasks: Mapping[str, Sequence[type]]) -> dict[str, Any]:
    aliases = {each.limits["alias"]: name for name, each in options.items() if each.limits["alias"]}
    values = _load_yaml(path, aliases)
    for name, value in values.items():
        if name not in options or name == "config":
            raise InputError(f"--config {path}: unknown option {name!r}; {_advice(str(name), options, of_tasks)}")
        if value is not None or options[name].default is not None:
            try:
                values[name] = options[name].convert(value)
            except argparse.ArgumentTypeError as error:
                raise InputError(f"--config {path}: {name}: {error}") from None
    return values
