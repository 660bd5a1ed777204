"""Decoding: ids in, ids out. Options, score rules, the beam-search state machine and the driver that joins them."""

from bart.configuration.configuration_generation import GenerationConfig
from bart.generation.generate import GeneratedArticle, GenerationOutput, generate, generate_live, generate_many

__all__ = ["GeneratedArticle", "GenerationConfig", "GenerationOutput", "generate", "generate_live", "generate_many"]
