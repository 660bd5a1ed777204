"""The options of `generate` on a command line."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from typing import Any, get_args, get_type_hints

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from utils.cli import option

# Every option of generate that bears on which ids come out, and what --help says of it.
HELP = {
    "num_beams": "num_beams of generate; 1 is greedy search",
    "max_length": "max_length of generate: longest sequence, the start token included",
    "min_length": "no end before the sequence is so long",
    "max_new_tokens": "most ids after the start token, in place of --eval_max_gen_length",
    "min_new_tokens": "fewest ids after the start token, in place of --min_length",
    "num_beam_groups": "groups of diverse beam search",
    "diversity_penalty": "taken off a token's score for each beam of an earlier group that chose it",
    "length_penalty": "power of the length that a sequence's score is divided by",
    "early_stopping": "with num_beams finished sequences, stop at once, where no better one is likely, or is possible",
    "num_return_sequences": "sequences of each article; the best one is scored, the others are written beside it",
    "do_sample": "draw tokens at random; see --seed",
    "temperature": "scores are divided by it when sampling",
    "top_k": "sample among so many best tokens; 0 for all",
    "top_p": "sample among the best tokens that have this probability together",
    "no_repeat_ngram_size": "no n-gram of this size occurs twice; 0 for off",
    "encoder_no_repeat_ngram_size": "no n-gram of this size is taken from the source; 0 for off",
    "repetition_penalty": "above 1, tokens that the sequence holds become less likely",
    "bad_words_ids": "ids that are never generated, such as [[5], [6, 7]]",
    "forced_bos_token_id": "the id after the start token",
    "forced_eos_token_id": "the id, or ids such as [2, 3], in the last place of a longest sequence",
    "pad_token_id": "fills sequences after their end",
    "bos_token_id": "start token without decoder_start_token_id",
    "eos_token_id": "the id, or ids such as [2, 3], that end one",
    "decoder_start_token_id": "the first id of every sequence",
}
# Options that NVIDIA's scripts know by other names than generate does.
SPELLINGS = {"num_beams": "eval_beams", "max_length": "eval_max_gen_length"}
# Options with lists for values, which are written as JSON.
JSON_OPTIONS = ("bad_words_ids", "eos_token_id", "forced_eos_token_id")
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}


def _field(name: str) -> tuple[str, Any, Any]:
    """A dataclass field for one of generate's options; None leaves it to the model's config."""
    written = name in JSON_OPTIONS or name == "early_stopping"
    kind = str if written else get_args(get_type_hints(GenerationConfig)[name] | None)[0]
    choices = tuple(EARLY_STOPPING) if name == "early_stopping" else None
    made = option(None, section="options of generate", choices=choices, help=HELP[name])
    return SPELLINGS.get(name, name), kind | None, made


class GenerationOptions(make_dataclass("_Options", map(_field, HELP), frozen=True)):  # type: ignore[misc]
    """The options of HELP, as `utils.cli.parse_dataclass` takes them."""

    @property
    def generation(self) -> dict[str, Any]:
        """The options of generate that the command line gave, by generate's names.

        Raises:
            InputError: a list of ids is malformed.
        """
        given = {name: getattr(self, SPELLINGS.get(name, name)) for name in HELP}
        given = {name: value for name, value in given.items() if value is not None}
        for name in given.keys() & {*JSON_OPTIONS}:
            try:
                given[name] = json.loads(given[name])
            except json.JSONDecodeError:
                allowed = "[[5], [6, 7]]" if name == "bad_words_ids" else "2, or [2, 3]"
                raise InputError(f"--{name} is {given[name]!r}; allowed: ids such as {allowed}") from None
        if "early_stopping" in given:
            given["early_stopping"] = EARLY_STOPPING[given["early_stopping"]]
        return given


def check_generation(config: GenerationConfig, options: dict[str, Any], vocab_size: int, positions: int) -> None:
    """Raise InputError, which names the command line's option, for options that a model cannot obey.

    Args:
        config: the model's defaults.
        options: of generate, by its names.
        positions: of the model's decoder.
    """
    try:
        merged = config.merged(**options)
        merged.check_vocabulary(vocab_size)
        merged.longest(positions)
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        if name in options:
            raise InputError(f"--{SPELLINGS.get(name, name)} {rest}") from None
        raise
