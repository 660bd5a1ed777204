"""Record what diverse beam search of transformers 4 gives on a tiny random BART.

transformers 5 has no group beam search, so its oracle is a recording. The files in fixtures/ were made with
transformers 4.53.3 and torch 2.13.0 by

    pip install 'transformers==4.53.*' torch safetensors
    python tests/oracles/record_diverse_beams.py

4.49, for one, would not serve: decoding a padded batch it forgets the encoder mask. The weights are stored too, for
a random generator need not give the same numbers in another torch.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).parent / "fixtures"
WEIGHTS, CASES = FIXTURES / "diverse_beams.safetensors", FIXTURES / "diverse_beams.json"

CONFIG: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
    "init_std": 0.6,
    "forced_eos_token_id": None,
}


def tiny_model() -> transformers.BartForConditionalGeneration:
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**CONFIG)).eval()
    model.final_logits_bias[0, CONFIG.get("eos_token_id", 2)] = 5.0
    return model


def sources() -> list[list[int]]:
    """Four articles of different lengths, padded with 1."""
    ids = torch.randint(3, CONFIG["vocab_size"], (4, 11), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((11, 4, 8, 6)):
        ids[row, length - 1] = 2
        ids[row, length:] = 1
    return ids.tolist()


def options() -> list[dict[str, Any]]:
    shapes = [(2, 2), (4, 2), (6, 2), (6, 3), (4, 4)]
    stopping: list[bool | str] = [True, False, "never"]
    extras: list[dict[str, Any]] = [
        {},
        {"length_penalty": 2.0, "no_repeat_ngram_size": 2, "min_length": 6},
        {"length_penalty": -0.5, "forced_bos_token_id": 7, "forced_eos_token_id": 2},
        {"repetition_penalty": 1.4, "bad_words_ids": [[5], [9, 8]], "encoder_no_repeat_ngram_size": 1},
        {"eos_token_id": [2, 11, 17], "max_length": 5},
    ]
    cases = []
    for number, ((beams, groups), early, extra) in enumerate(itertools.product(shapes, stopping, extras)):
        case = {"num_beams": beams, "num_beam_groups": groups, "early_stopping": early, "max_length": 16}
        case |= {"diversity_penalty": (0.4, 1.5, 6.0)[number % 3], "num_return_sequences": (beams, 1)[number % 2]}
        cases.append(case | extra)
    return cases


def answers(model: transformers.BartForConditionalGeneration, case: dict[str, Any]) -> dict[str, Any]:
    ids = torch.tensor(sources())
    output = model.generate(
        ids, attention_mask=(ids != 1).long(), return_dict_in_generate=True, output_scores=True, **case
    )
    return {"sequences": output.sequences.tolist(), "sequences_scores": output.sequences_scores.tolist()}


def main() -> None:
    model = tiny_model()
    tied = ("embed_tokens.weight", "lm_head.weight")
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if not k.endswith(tied)}
    FIXTURES.mkdir(exist_ok=True)
    save_file(weights, WEIGHTS)
    cases = [{"options": case, **answers(model, case)} for case in options()]
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(json.dumps(case) for case in cases)
    CASES.write_text(
        f'{{"made_with": {json.dumps(made_with)},\n"config": {json.dumps(CONFIG)},\n'
        f'"input_ids": {json.dumps(sources())},\n"cases": [\n{lines}\n]}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
