"""The options of a model that predicts, which commands and the service share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bart.errors import InputError
from utils.app.cli import option
from utils.app.machine import PRECISIONS, check_gpus
from utils.text.windows import SHORTEST_WINDOW

LongDocuments = Literal["refuse", "cut", "join"]
LONG_DOCUMENTS: tuple[str, ...] = get_args(LongDocuments)
MODEL = "model"  # a section of --help
PRECISIONS_ON = {"cpu": ("fp32", "bf16", "int8"), "cuda": ("fp32", "tf32", "bf16", "fp16")}


@dataclass(frozen=True)
class InferenceOptions:
    """The model, and where it computes."""

    model: str = option(
        positional=True, section=MODEL, help="checkpoint file, Hub-format or run directory, or Hub name"
    )
    config_path: str | None = option(
        None, help="JSON with architecture and decoding options; only for a checkpoint without a config of its own"
    )
    tokenizer: str | None = option(None, help="vocabulary; by default the one in the folder of the weights")
    precision: str = option("fp32", choices=PRECISIONS, help="precision; tf32 and fp16 need a GPU, int8 needs the CPU")
    gpus: int | None = option(None, least=0, most=1, help="0 is the CPU, 1 a GPU; by default 1 if there is one")

    def __post_init__(self) -> None:
        check_gpus(self.gpus or 0)
        allowed = PRECISIONS_ON[self.device]
        if self.precision not in allowed:
            where = f"this would run on {self.device}; allowed there: {', '.join(allowed)}"
            raise InputError(f"--precision is {self.precision} and {where}")

    @property
    def device(self) -> str:
        import torch  # here, because --help needs no torch

        uses_gpu = torch.cuda.is_available() if self.gpus is None else self.gpus == 1
        return "cuda" if uses_gpu else "cpu"


@dataclass(frozen=True)
class LongDocumentOptions:
    """The treatment of documents that are longer than the model can read."""

    long_documents: str = option(
        "join",
        section=MODEL,
        choices=LONG_DOCUMENTS,
        help="documents longer than max_source_length: refuse is an error, cut leaves out the rest, join splits them "
        "at sentence ends into windows and joins their summaries",
    )
    max_source_length: int | None = option(
        None, least=SHORTEST_WINDOW, help="tokens read at once; by default those of training from scratch, or positions"
    )
