"""Decoding speed beside the peers: transformers, CTranslate2 and ours, in turns, on the same inputs.

    python scripts/benchmarks/decoding.py --shape base --output results.json

Every run is a process of its own, timed from ids to ids after a warm-up. In fp32 two beams may be closer to each other
than rounding, so that either is right. CTranslate2 can differ for other reasons too: it normalises scores after n-gram
ban and minimum length, not before, and stops an article as early_stopping=True does, whatever the option says.

With --shape text articles stop where the model ends them, and at most --batch_size are decoded at once:

- transformers: batches of articles of like length, each until its last article is done;
- CTranslate2: it gets all articles, sorts them by length and cuts them into batches, which articles leave when done;
- ours: continuous batching as in run_eval.py: the longest first, and new ones take the places of those that are done.

CTranslate2 chooses its library of matrix products by the processor's vendor. Its environment variable CT2_USE_MKL, 0 or
1, changes that; the other one may be faster.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bart and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.decoding")

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from scripts.benchmarks import measuring
from utils.app.cli import option, parse_dataclass

# torch, transformers and ctranslate2 are imported where they are used, so that each process holds its own alone.

CTRANSLATE2_PRECISIONS = {"fp32": "float32", "int8": "int8"}
TEXT = "text"
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Further decoding options of --model that are taken: those that all three have.
SHARED = ("num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "repetition_penalty")
FORCED = ("forced_bos_token_id", "forced_eos_token_id")
Inputs = Mapping[str, Any]  # `articles`, a list of ids for each; `batch_size`; `decoding`, the options
Decode = Callable[[], list[list[int]]]  # the ids of each article


@dataclass(frozen=True)
class DecodingShape:
    """Fixed work: articles of random ids, for each of which exactly `steps` ids are generated."""

    network: str  # a key of measuring.NETWORKS
    articles: int
    source_length: int
    steps: int
    beams: int
    vocab_size: int = 50265


SHAPES = {
    "base": DecodingShape("base", 8, 512, 60, 6),
    "large": DecodingShape("large", 4, 1024, 142, 4),
    "xsum": DecodingShape("large", 128, 1024, 60, 6),
    "large_batch1": DecodingShape("large", 1, 1024, 142, 4),
    "tiny": DecodingShape("tiny", 3, 16, 12, 3, vocab_size=300),
}


@dataclass(frozen=True, kw_only=True)
class DecodingArguments(measuring.InferenceOptions):
    shape: str = option(
        "base",
        choices=(*SHAPES, TEXT),
        help="what is decoded: base is bart-base, 8 articles of 512 ids, 60 steps, 6 beams; large is bart-large, 4 "
        "articles of 1024 ids, 142 steps, 4 beams; large_batch1 is the same with 1 article; xsum is bart-large, 128 "
        "articles of 1024 ids, 60 steps, 6 beams, for GPUs; tiny is for trying this out; text is the test split of "
        "line files, with the decoding options of --model that all three have",
    )
    modes: tuple[str, ...] = measuring.modes_option("ctranslate2")
    model: str | None = option(None, help="Hub-format directory, checkpoint or Hub name; for --shape text")
    data_dir: str | None = option(None, help="directory with test.{source,target}; for --shape text")
    limit: int = option(500, least=1, help="articles to decode at most; for --shape text")
    batch_size: int = option(32, least=1, help="articles decoded at once at most; for --shape text")

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = self.shape == TEXT
        if (self.model is not None, self.data_dir is not None) != (needed, needed):
            raise InputError("--shape text needs --model and --data_dir, which no other shape takes")


def prepare(args: DecodingArguments, folder: Path) -> None:
    """Write `folder/{model,ctranslate2_*}` and `folder/inputs.json`."""
    import torch

    torch.manual_seed(0)
    model, tokenizer, articles, options = text_inputs(args) if args.shape == TEXT else random_inputs(SHAPES[args.shape])
    config = model.config
    if config.pre_ln and not all(mode.startswith("ours") for mode in args.modes):
        raise InputError(f"--model {args.model} is Pre-LN, which the peers lack; allowed: --modes of ours alone")
    decoding = GenerationConfig(**options, **{name: getattr(config, name) for name in SPECIAL})
    # `generate` of transformers and of ours take the options that lie beside the weights.
    model.generation_config = decoding
    # CTranslate2's converter reads these, and transformers 5 no longer writes them.
    config.normalize_before, config.normalize_embedding = False, True
    config.add_final_layer_norm, config.add_bias_logits = False, False
    model.save_pretrained(folder / "model", tokenizer)
    batch_size = args.batch_size if args.shape == TEXT else len(articles)
    inputs = {"articles": articles, "batch_size": batch_size, "decoding": decoding.to_dict()}
    (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
    for precision, quantization in CTRANSLATE2_PRECISIONS.items():
        if (mode := f"ctranslate2_{precision}") in args.modes:
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(str(folder / "model")).convert(str(folder / mode), quantization=quantization)


def random_inputs(shape: DecodingShape) -> tuple[Any, Any, list[list[int]], dict[str, Any]]:
    """Random weights, a vocabulary, random articles, and options that make all summaries equally long.

    The vocabulary has a made-up token for every id, since CTranslate2 takes tokens.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(f"token{i}" for i in range(4, shape.vocab_size - 1)), "<mask>"]
    pipeline = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    config = measuring.made_up_config(*measuring.NETWORKS[shape.network], vocab_size=shape.vocab_size)
    # With this deviation layers keep the scale of their input, so that the ids generated depend on the article.
    config.init_std = config.d_model**-0.5
    # The first four ids and the last are special.
    articles = torch.randint(4, shape.vocab_size - 1, (shape.articles, shape.source_length)).tolist()
    length = shape.steps + 1  # the start token counts
    options = {"num_beams": shape.beams, "max_length": length, "min_length": length, "no_repeat_ngram_size": 3}
    return BartForConditionalGeneration(config), BartTokenizer(pipeline), articles, options


def text_inputs(args: DecodingArguments) -> tuple[Any, Any, list[list[int]], dict[str, Any]]:
    """The model of --model, its vocabulary, the articles of --data_dir, and decoding options of the model."""
    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.data.parallel_text import read_pairs
    from utils.data.splits import Choice
    from utils.models.loading import fit_vocabulary

    name = str(args.model)
    model, tokenizer = BartForConditionalGeneration.from_pretrained(name), BartTokenizer.from_pretrained(name)
    fit_vocabulary(model, tokenizer)
    model.resize_token_embeddings(len(tokenizer))  # CTranslate2 has no token for rows that pad the table
    positions, given = model.config.max_position_embeddings, model.generation_config
    sources, _ = read_pairs(str(args.data_dir), "test", Choice(limit=args.limit))
    articles = tokenizer(sources, max_length=positions, truncation=True)["input_ids"]
    lengths = {"max_length": given.longest(positions), "min_length": given.shortest}
    return model, tokenizer, articles, {name: getattr(given, name) for name in (*SHARED, *FORCED)} | lengths


def load_ours(folder: Path, inputs: Inputs, precision: str, device: str) -> Decode:
    from bart.modeling.modeling_bart import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder / "model").to(device).for_inference(precision)
    articles = inputs["articles"]

    def decode() -> list[list[int]]:
        done = model.generate_many(articles, inputs["batch_size"])
        rows = {article.index: article.sequences[0].tolist() for article in done}
        return [summary(rows[number], inputs) for number in range(len(articles))]

    return decode


def load_transformers(folder: Path, inputs: Inputs, precision: str, device: str) -> Decode:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import BartForConditionalGeneration

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = BartForConditionalGeneration.from_pretrained(folder / "model", dtype=dtype).eval().to(device)
    articles, batch_size, padding = inputs["articles"], inputs["batch_size"], inputs["decoding"]["pad_token_id"]

    def decode() -> list[list[int]]:
        rows: dict[int, list[int]] = {}
        order = sorted(range(len(articles)), key=lambda number: -len(articles[number]))
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            sources = [torch.tensor(articles[number]) for number in numbers]
            ids = pad_sequence(sources, batch_first=True, padding_value=padding).to(device)
            mask = pad_sequence([torch.ones_like(source) for source in sources], batch_first=True).to(device)
            rows |= zip(numbers, model.generate(ids, attention_mask=mask).tolist(), strict=True)
        return [summary(rows[number], inputs) for number in range(len(articles))]

    return decode


def summary(row: list[int], inputs: Inputs) -> list[int]:
    """Generated ids without the start token, EOS and padding."""
    eos = inputs["decoding"]["eos_token_id"]
    return row[1 : row.index(eos, 1)] if eos in row[1:] else row[1:]


def load_ctranslate2(folder: Path, inputs: Inputs, precision: str, device: str) -> Decode:
    """CTranslate2's `translate_batch`, given all articles. Its lengths do not count the start token.

    It makes batches of the articles itself; giving it batches one by one was measured to take as long. It has no forced
    EOS: where the options force one, an article that would end in it ends one id earlier.
    """
    import ctranslate2

    path, decoding = folder / f"ctranslate2_{precision}", inputs["decoding"]
    threads = int(os.environ["OMP_NUM_THREADS"])
    translator = ctranslate2.Translator(
        str(path), device, compute_type=CTRANSLATE2_PRECISIONS[precision], intra_threads=threads, inter_threads=1
    )
    tokens = json.loads((path / "shared_vocabulary.json").read_text(encoding="utf-8"))
    index = {token: number for number, token in enumerate(tokens)}
    first = decoding["forced_bos_token_id"]
    prefix = None if first is None else [tokens[first]]
    most = decoding["max_length"] - 1 - (decoding["forced_eos_token_id"] is not None)

    def decode() -> list[list[int]]:
        results = translator.translate_batch(
            [[tokens[number] for number in row] for row in inputs["articles"]],
            [prefix] * len(inputs["articles"]),
            max_batch_size=inputs["batch_size"],
            beam_size=decoding["num_beams"],
            max_input_length=0,
            max_decoding_length=most,
            min_decoding_length=min(max(decoding["min_length"] - 1, 0), most),
            **{name: decoding[name] for name in ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")},
        )
        return [[index[token] for token in result.hypotheses[0]] for result in results]

    return decode


PEERS = {"ours": load_ours, "transformers": load_transformers, "ctranslate2": load_ctranslate2}


def identical_share(ids: Sequence[list[int]], expected: Sequence[list[int]]) -> float:
    """The share of articles that get the ids of the first mode."""
    return sum(map(operator.eq, ids, expected)) / len(expected)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(DecodingArguments, argv, str(__doc__))
    measuring.compare_inference(args, "articles/s", prepare, PEERS, identical_share, "same ids")
