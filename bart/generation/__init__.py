"""Decoding: ids in, ids out. Options, score rules, the beam-search state machine and the driver that joins them."""

from bart.generation.config import GenerationConfig
from bart.generation.generate import GenerationOutput, generate

__all__ = ["GenerationConfig", "GenerationOutput", "generate"]
