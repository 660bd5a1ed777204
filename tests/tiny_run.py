"""A data directory, vocabulary and config so small that a training run takes a second."""

from __future__ import annotations

import json
import random
from pathlib import Path

from bart.tokenization.tokenization_bart import BartTokenizer

CONFIG = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "init_std": 0.1,
    "num_beams": 2,
    "max_length": 12,
}


def write_tiny_run(folder: Path, n_train: int = 22, n_val: int = 5, n_test: int = 7) -> list[str]:
    """Write `folder/{data,tokenizer,config.json}`; return the options of finetune.py that use them."""
    rng = random.Random(0)
    words = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()
    data = folder / "data"
    data.mkdir(parents=True)
    for split, count in (("train", n_train), ("val", n_val), ("test", n_test)):
        sources = [" ".join(rng.choices(words, k=rng.randint(3, 30))) for _ in range(count)]
        targets = [" ".join(source.split()[: rng.randint(1, 6)]) for source in sources]
        (data / f"{split}.source").write_text("".join(f"{line}\n" for line in sources))
        (data / f"{split}.target").write_text("".join(f"{line}\n" for line in targets))
    tokenizer = BartTokenizer.train(words * 3, vocab_size=300)
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": len(tokenizer)}))
    lengths = [f"--{name}_length" for name in ("max_source", "max_target", "val_max_target", "test_max_target")]
    options = {
        "--data_dir": data,
        "--config_path": folder / "config.json",
        "--tokenizer": folder / "tokenizer",
        "--model_name_or_path": "scratch",
        "--gpus": 0,
        "--num_workers": 0,
        "--eval_beams": 0,
        "--log_every_n_steps": 1,
        **dict.fromkeys(lengths, 40),
    }
    return [str(word) for pair in options.items() for word in pair]
