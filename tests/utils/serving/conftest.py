from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from tests.tiny_run import CONFIG

WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()
POSITIONS = 400


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in Hub format, whose summaries differ from text to text."""
    folder = tmp_path_factory.mktemp("export")
    tokenizer = BartTokenizer.train([f" {word}." for word in WORDS] + WORDS, vocab_size=400)
    torch.manual_seed(1)
    config = {**CONFIG, "max_position_embeddings": POSITIONS, "vocab_size": len(tokenizer), "init_std": 0.6}
    model = BartForConditionalGeneration(BartConfig(**{**config, "max_length": 16, "min_length": 4}))
    model.final_logits_bias[0, tokenizer.eos_token_id] = 8.0
    model.save_pretrained(folder, tokenizer)
    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of 3 to 60 words, and two that are longer than the model."""
    rng = random.Random(2)
    lengths = [rng.randint(3, 60) for _ in range(38)] + [250, 400]
    return [" ".join(rng.choices([*WORDS, "hill. The"], k=length)) + "." for length in lengths]
