"""The options of `generate` on a command line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from utils.app.cli import option

GENERATE = "options of generate"  # a section of --help
# Options that NVIDIA's scripts know by other names than generate does, and their names there.
SPELLINGS = {"num_beams": "eval_beams", "max_length": "eval_max_gen_length"}
NAMES = {option: name for name, option in SPELLINGS.items()}

# A run that goes on may decode in another way; the scores of its validations are then not compared with earlier ones.
decoding_option = partial(option, None, on_resume="validation")


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options of all commands that generate a text; None leaves one to the model."""

    min_length: int | None = decoding_option(section=GENERATE, help="fewest tokens, the start token included")
    length_penalty: float | None = decoding_option(help="a sequence's score is divided by its length to this power")
    early_stopping: str | None = decoding_option(
        choices=("true", "false", "never"),
        help="when all beams are finished: true stops at once, false if a better one is unlikely, never if impossible",
    )
    no_repeat_ngram_size: int | None = decoding_option(help="no n-gram of this size occurs twice; 0 is off")

    @property
    def generation(self) -> dict[str, Any]:
        """The options of generate that the command line gave, by generate's names."""
        given = {NAMES.get(name, name): value for name, value in vars(self).items() if value is not None}
        if "early_stopping" in given:
            given["early_stopping"] = {"true": True, "false": False}.get(given["early_stopping"], "never")
        return with_lengths(given)


@dataclass(frozen=True)
class GenerationOptions(DecodingOptions):
    """The fields of GenerationConfig but for the beams, and for ids of tokens, which are the model's."""

    eval_max_gen_length: int | None = decoding_option(
        section=GENERATE, least=2, help="max_length of generate: most tokens of a sequence, the start token included"
    )
    max_new_tokens: int | None = decoding_option(help="most tokens after the start token")
    min_new_tokens: int | None = decoding_option(help="fewest tokens after the start token, instead of --min_length")
    num_return_sequences: int | None = decoding_option(help="sequences for each article; the best one is scored")
    do_sample: bool | None = decoding_option(help="draw tokens at random, by --seed")
    temperature: float | None = decoding_option(help="sampling divides the scores by this number")
    top_k: int | None = decoding_option(help="sampling draws from this number of best tokens; 0 for all")
    top_p: float | None = decoding_option(help="sampling draws from the best tokens that have this probability in all")
    encoder_no_repeat_ngram_size: int | None = decoding_option(
        help="take no n-gram of this size from the source; 0 is off"
    )
    repetition_penalty: float | None = decoding_option(help="above 1, used tokens become less likely")

    def __post_init__(self) -> None:
        for new, old in (("max_new_tokens", "eval_max_gen_length"), ("min_new_tokens", "min_length")):
            if getattr(self, new) is not None and getattr(self, old) is not None:
                raise InputError(f"--{new} and --{old} exclude each other")


def with_lengths(given: dict[str, Any]) -> dict[str, Any]:
    """Options of generate, in which a length that is given takes the place of a model's number of new tokens."""
    replaced = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
    return {**{replaced[name]: None for name in replaced if given.get(name) is not None}, **given}


def check_generation(config: GenerationConfig, options: dict[str, Any], vocab_size: int, positions: int) -> None:
    """Raise InputError, which names the command line's option, for options of generate that a model cannot obey."""
    try:
        merged = config.merged(**options)
        merged.check_vocabulary(vocab_size)
        merged.longest(positions)
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        if name in options:
            raise InputError(f"--{SPELLINGS.get(name, name)} {rest}") from None
        raise
