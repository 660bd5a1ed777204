"""The options of run_eval.py: names as Hugging Face's and NVIDIA's scripts have them, where they have them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bart.errors import InputError
from utils.arguments import PRECISIONS
from utils.cli import option, parse_dataclass, with_underscores
from utils.data.places import PLACES, check_fields

DATA, DECODING, SCORING = "data", "decoding", "scoring"
GENERATION, HARDWARE, OUTPUT = "options of generate", "hardware and precision", "output"
TASKS = ("summarization", "translation")
ROUGE_MODES = ("rouge-score", "rouge-1.5.5")
BATCHINGS = ("continuous", "static")
# Options of generate by the names that scripts know them by.
ALSO_CALLED = {"num_beams": "eval_beams", "max_length": "eval_max_gen_length"}
JSON_OPTIONS = ("bad_words_ids", "eos_token_id", "forced_eos_token_id")


@dataclass(frozen=True, kw_only=True)
class GenerationArguments:
    """Every field of GenerationConfig that bears on which ids come out; None leaves it to the config.

    `bart.generation.config`, which says what values are allowed, is not asked here: that would load torch.
    """

    max_length: int | None = option(None, section=GENERATION, help="longest sequence; also --eval_max_gen_length")
    min_length: int | None = option(None, section=GENERATION, help="no end before the sequence is so long")
    max_new_tokens: int | None = option(
        None, section=GENERATION, help="most ids after the start token, in place of --max_length"
    )
    min_new_tokens: int | None = option(
        None, section=GENERATION, help="fewest ids after the start token, in place of --min_length"
    )
    num_beams: int | None = option(None, section=GENERATION, help="beams; 1 is greedy search; also --eval_beams")
    num_beam_groups: int | None = option(None, section=GENERATION, help="groups of diverse beam search")
    diversity_penalty: float | None = option(
        None, section=GENERATION, help="taken off a token's score for each beam of an earlier group that chose it"
    )
    length_penalty: float | None = option(
        None, section=GENERATION, help="power of the length that a sequence's score is divided by"
    )
    early_stopping: str | None = option(
        None,
        section=GENERATION,
        choices=("true", "false", "never"),
        help="stop as soon as there are num_beams finished sequences, when no better one is likely, or is possible",
    )
    num_return_sequences: int | None = option(
        None,
        section=GENERATION,
        help="sequences of each article; the best one is scored, the others are written beside it",
    )
    do_sample: bool | None = option(None, section=GENERATION, help="draw tokens at random; see --seed")
    temperature: float | None = option(None, section=GENERATION, help="scores are divided by it when sampling")
    top_k: int | None = option(None, section=GENERATION, help="sample among so many best tokens; 0 for all")
    top_p: float | None = option(
        None, section=GENERATION, help="sample among the best tokens that have this probability together"
    )
    no_repeat_ngram_size: int | None = option(
        None, section=GENERATION, help="no n-gram of this size occurs twice; 0 for off"
    )
    encoder_no_repeat_ngram_size: int | None = option(
        None, section=GENERATION, help="no n-gram of this size is taken from the source; 0 for off"
    )
    repetition_penalty: float | None = option(
        None, section=GENERATION, help="above 1, tokens that the sequence holds become less likely"
    )
    bad_words_ids: str | None = option(
        None, section=GENERATION, help="ids that are never generated, such as [[5], [6, 7]]"
    )
    forced_bos_token_id: int | None = option(None, section=GENERATION, help="the id after the start token")
    forced_eos_token_id: str | None = option(
        None, section=GENERATION, help="the id, or ids such as [2, 3], in the last place of a longest sequence"
    )
    pad_token_id: int | None = option(None, section=GENERATION, help="fills sequences after their end")
    bos_token_id: int | None = option(None, section=GENERATION, help="start token without decoder_start_token_id")
    eos_token_id: str | None = option(None, section=GENERATION, help="the id, or ids such as [2, 3], that end one")
    decoder_start_token_id: int | None = option(None, section=GENERATION, help="the first id of every sequence")


@dataclass(frozen=True)
class ScoringArguments:
    """All other options."""

    model: str = option(help="checkpoint file, Hub-format directory or Hub name")
    config_path: str = option(help="JSON with the decoding options, and the architecture if the checkpoint has none")
    data_dir: str | None = option(
        help=f"directory with {{train,val,test}}.{{source,target}}, or {PLACES}; --interactive needs none"
    )
    save_dir: str | None = option(help="where results are written; --interactive needs none")
    tokenizer: str | None = option(None, section=DATA, help="vocabulary; by default the one that lies with the weights")
    type_path: str = option("test", section=DATA, choices=("train", "val", "test"), help="split to score")
    n_obs: int = option(-1, section=DATA, least=-1, help="examples to use; -1 for all")
    source_field: str | None = option(
        None, section=DATA, help="column of the documents where data_dir is no directory; by default as published sets "
        "do it"
    )  # fmt: skip
    target_field: str | None = option(None, section=DATA, help="column of the summaries where data_dir is no directory")
    prefix: str = option("", section=DATA, help="put before each source text, as some models want it")
    max_source_length: int | None = option(
        None, section=DATA, least=3, help="tokens a source is cut to; by default the model's positions"
    )
    max_target_length: int | None = option(
        None, section=DATA, least=3, help="tokens a target is cut to for its loss; by default the model's positions"
    )
    eval_beams: int | None = option(None, section=DECODING, least=1, help="beams; by default the config's num_beams")
    eval_max_gen_length: int | None = option(
        None, section=DECODING, least=2, help="tokens to generate at most; by default the config's max_length"
    )
    bs: int = option(8, section=DECODING, least=1, help="articles per process and batch")
    batching: str = option(
        "continuous",
        section=DECODING,
        choices=BATCHINGS,
        help="continuous: new articles take the places of those that are done, and a latency is the time of an article "
        "in the batch; static: batches of --bs articles of like length, and a latency is the time of a batch",
    )
    warmup_batches: int = option(
        1,
        section=DECODING,
        least=0,
        help="batches decoded before the clock starts, at most half of all; their summaries count, their times do not",
    )
    seed: int = option(
        42,
        section=DECODING,
        least=0,
        help="of --do_sample; the draws also depend on --bs, --batching, the processes, and where a run was resumed",
    )
    interactive: bool = option(
        False,
        section=DECODING,
        help="summarise what is typed, each article ended by an empty line, or all that is piped in as one article",
    )
    task: str = option(
        "summarization",
        section=SCORING,
        choices=TASKS,
        help="summarization is scored by ROUGE, translation by BLEU of sacrebleu",
    )
    rouge_mode: str = option(
        "rouge-score",
        section=SCORING,
        choices=ROUGE_MODES,
        help="rouge-score: Google's package; rouge-1.5.5: the figures of the Perl script that papers report",
    )
    wordnet_exceptions: str | None = option(
        None,
        section=SCORING,
        help="folder of {adj,adv,noun,verb}.exc for --rouge_mode rouge-1.5.5; by default those of nltk's corpus "
        "wordnet, if it is installed",
    )
    info: str | None = option(None, section=OUTPUT, help="a text to store with the scores")
    dump_args: bool = option(
        False, section=OUTPUT, help="also print the resolved arguments, which eval_arguments.yaml always holds"
    )
    json_summary: str | None = option(
        None, section=OUTPUT, help="file for scores, speed and arguments as one JSON object"
    )
    debug: bool = option(False, section=OUTPUT, help="log more, and show where errors come from")
    gpus: int | None = option(
        None,
        section=HARDWARE,
        least=0,
        help="GPUs to share the articles; 0 runs on the CPU; by default 1 where there is one; under torchrun as many "
        "as it started processes, or 0",
    )
    device: str | None = option(
        None, section=HARDWARE, help="cpu, which is --gpus 0; cuda, which is --gpus 1 or more; or cuda:N, the N-th GPU"
    )
    precision: str | None = option(
        None,
        section=HARDWARE,
        choices=PRECISIONS,
        help="fp32 (default); bf16; fp16 or tf32 on GPUs; int8 on the CPU: weights and inputs of matrix products in "
        "8 bits",
    )
    fp16: bool = option(False, section=HARDWARE, help="another way to say --precision fp16")
    bf16: bool = option(False, section=HARDWARE, help="another way to say --precision bf16")


@dataclass(frozen=True)
class EvalArguments(GenerationArguments, ScoringArguments):
    """The options of run_eval.py, checked as far as that goes without the model; what says the same agrees."""

    def __post_init__(self) -> None:
        self._resolve_precision()
        self._resolve_device()
        short = f"--{self.precision}" if getattr(self, str(self.precision), False) else f"--precision {self.precision}"
        if self.gpus == 0 and self.precision in ("fp16", "tf32"):
            raise InputError(f"{short} needs a GPU and --gpus is 0; the CPU takes fp32, bf16 or int8")
        if self.gpus and self.precision == "int8":
            raise InputError(f"--precision int8 runs on the CPU and --gpus is {self.gpus}; GPUs take fp16 or bf16")
        if self.n_obs == 0:
            raise InputError("--n_obs is 0; allowed: -1, or at least 1")
        check_fields(self.data_dir, source_field=self.source_field, target_field=self.target_field)
        if self.rouge_mode == "rouge-1.5.5" and self.task == "translation":
            raise InputError("--rouge_mode is rouge-1.5.5 and --task is translation, which is scored by BLEU")
        if self.wordnet_exceptions is not None and self.rouge_mode != "rouge-1.5.5":
            raise InputError(f"--wordnet_exceptions is of --rouge_mode rouge-1.5.5; --rouge_mode is {self.rouge_mode}")
        self._check_generation()
        if self.interactive:
            if (self.gpus or 0) > 1 or "LOCAL_WORLD_SIZE" in os.environ:
                raise InputError(f"--interactive takes one process; --gpus is {self.gpus}: allowed 0 or 1, no torchrun")
            defaults = {field.name: field.default for field in dataclasses.fields(self)}
            for name in ("type_path", "n_obs", "max_target_length", "batching", "warmup_batches", "task", "rouge_mode",
                         "info", "dump_args", "json_summary", "num_return_sequences"):  # fmt: skip
                if getattr(self, name) != defaults[name]:
                    raise InputError(f"--{name} is {getattr(self, name)}; it has no part in --interactive")

    def _resolve_precision(self) -> None:
        """Make --precision, --fp16 and --bf16 say the same, each of them given or not."""
        chosen = {f"--{name}": name for name in ("fp16", "bf16") if getattr(self, name)}
        if self.precision is not None:
            chosen[f"--precision {self.precision}"] = self.precision
        if len(set(chosen.values())) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; give one precision")
        object.__setattr__(self, "precision", next(iter(chosen.values()), "fp32"))

    def _resolve_device(self) -> None:
        """Make --device and --gpus say the same, each of them given or not."""
        launched = int(os.environ["LOCAL_WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in os.environ else None
        if self.device is not None:
            if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
                raise InputError(f"--device is {self.device!r}; allowed: cpu, cuda, or cuda:N such as cuda:1")
            allowed = "0" if self.device == "cpu" else "1 or more" if self.device == "cuda" else "1"
            implied = {"0": 0, "1 or more": self.gpus or launched or 1, "1": 1}[allowed]
            if self.gpus is not None and self.gpus != implied:
                raise InputError(f"--device is {self.device} and --gpus is {self.gpus}; allowed with it: {allowed}")
            object.__setattr__(self, "gpus", implied)
        if self.gpus and launched is not None and self.gpus != launched:
            name, value = ("device", self.device) if self.device and ":" in self.device else ("gpus", self.gpus)
            raise InputError(
                f"--{name} is {value}; torchrun started {launched} processes on this machine, which take --gpus "
                f"{launched}, or 0"
            )

    def _check_generation(self) -> None:
        for name, other in ALSO_CALLED.items():
            value, same = getattr(self, name), getattr(self, other)
            if value is not None and same is not None and value != same:
                raise InputError(f"--{name} is {value} and --{other} is {same}; they say the same: give one of them")
        longest = self.generation.get("max_length")
        if self.max_new_tokens is not None and longest not in (None, self.max_new_tokens + 1):
            raise InputError(
                f"--max_new_tokens is {self.max_new_tokens} and --{self.spelt('max_length')} is {longest}; allowed "
                f"beside it: {self.max_new_tokens + 1}, for it counts the start token, or none"
            )
        if self.min_new_tokens is not None and self.min_length not in (None, self.min_new_tokens + 1):
            raise InputError(
                f"--min_new_tokens is {self.min_new_tokens} and --min_length is {self.min_length}; allowed beside it: "
                f"{self.min_new_tokens + 1}, for it counts the start token, or none"
            )

    def spelt(self, name: str) -> str:
        """The name by which the command line gave an option of generate."""
        return name if getattr(self, name) is not None else ALSO_CALLED.get(name, name)

    @property
    def generation(self) -> dict[str, Any]:
        """The options of generate that the command line gave.

        Raises:
            InputError: a list of ids that is none.
        """
        names = [field.name for field in dataclasses.fields(GenerationArguments)]
        given = {name: getattr(self, name) for name in names}
        for name, other in ALSO_CALLED.items():
            given[name] = given[name] if given[name] is not None else getattr(self, other)
        given = {name: value for name, value in given.items() if value is not None}
        for name in JSON_OPTIONS:
            if name in given:
                try:
                    given[name] = json.loads(given[name])
                except json.JSONDecodeError:
                    allowed = "[[5], [6, 7]]" if name == "bad_words_ids" else "2, or [2, 3]"
                    raise InputError(f"--{name} is {given[name]!r}; allowed: ids such as {allowed}") from None
        if "early_stopping" in given:
            given["early_stopping"] = {"true": True, "false": False}.get(given["early_stopping"], "never")
        return given


def parse_eval_arguments(argv: Sequence[str] | None = None) -> EvalArguments:
    """Read run_eval.py's command line."""
    return parse_dataclass(
        EvalArguments,
        argv,
        "Summarise or translate a split with beam search, and score it.\n\n"
        "Under torchrun, or with several GPUs, processes share the articles. A run that\n"
        "was broken off goes on where it was when it is started again: what it had\n"
        "decoded lies in SAVE_DIR/.SPLIT_progress until the results are written. A run\n"
        "that was finished is decoded again. Hyphens in names of options stand for\n"
        "underscores.",
        may_lack=("data_dir", "save_dir") if "--interactive" in with_underscores(argv or sys.argv[1:]) else (),
        prog="run_eval.py",
    )
