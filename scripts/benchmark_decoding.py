"""Decoding speed beside the peers: transformers, CTranslate2 and ours, one after the other on the same inputs.

    python scripts/benchmark_decoding.py --shape base --output results.json
    python scripts/benchmark_decoding.py --shape text --model MODEL --data_dir DATA --output results.json

Every mode runs in a process of its own, with inputs and weights from one temporary directory, so that its peak memory
is its own. Only decoding is timed: loading, tokenising and the conversion of weights are not.

With --shape text articles stop where the model ends them, and at most --batch_size are decoded at once:

- transformers: batches of articles of like length, each until its last article is done;
- CTranslate2: it gets all articles, sorts them by length and cuts them into batches, which articles leave when done;
- ours: continuous batching as in run_eval.py: the longest first, the next ones take the places of those that are done;
- ours_static: batches in the order of the file, padded to the longest, each until its last article is done;
- ours_single: one article at a time.

Articles for which ours_fp32 differs from transformers_fp32 are decoded again by both in double precision: they must
agree there, or the run ends with status 1. So must ours in a batch and ours alone, for articles for which ours_fp32
differs from ours_single_fp32. The table has the share of articles with the ids of transformers in fp32. CTranslate2 in
fp32 can differ too: it normalises scores after n-gram ban and minimum length, not before, and stops an article as
early_stopping=True does, whatever the option says.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shlex
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bart.errors import InputError
from utils.cli import check_output, option, parse_dataclass, run_main
from utils.processes import in_new_process

# torch, transformers and ctranslate2 are imported where they are used. A process starts with the peak memory of the
# one that started it, so this one has to stay smaller than all that it measures.

MODES = "transformers_fp32 transformers_bf16 ctranslate2_fp32 ctranslate2_int8 ours_fp32 ours_bf16 ours_int8".split()
REFERENCE, FASTEST_PEER = "transformers_fp32", "ctranslate2_int8"
STATIC, SINGLE = TEXT_MODES = ("ours_static_fp32", "ours_single_fp32")
BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # per number, by precision
TEXT = "text"
# Decoding options that a peer lacks, or is not told of here.
LACKS = {
    "transformers": ["num_beam_groups"],
    "ctranslate2": ["num_beam_groups", "encoder_no_repeat_ngram_size", "bad_words_ids"],
}
COLUMNS = {
    "median_seconds": "seconds",
    "articles_per_second": "articles/s",
    "speed_to_transformers_fp32": "x transformers fp32",
    "speed_to_ctranslate2_int8": "x CTranslate2 int8",
    "speed_to_ours_static_fp32": "x ours static fp32",  # with --shape text alone
    "peak_memory_gb": "peak GB",
    "share_of_floor": "share of floor",
    "identical_share": "same ids",
}


@dataclass(frozen=True)
class Shape:
    """Fixed work: articles of random ids, for each of which exactly `steps` ids are generated."""

    articles: int
    source_length: int
    steps: int
    beams: int
    d_model: int
    layers: int  # of the encoder, and as many of the decoder
    heads: int
    vocab_size: int = 50265


SHAPES = {
    "base": Shape(8, 512, 60, 6, 768, 6, 12),
    "large": Shape(4, 1024, 142, 4, 1024, 12, 16),
    "large_batch1": Shape(1, 1024, 142, 4, 1024, 12, 16),
    "tiny": Shape(3, 16, 12, 3, 32, 2, 4, vocab_size=300),
}


@dataclass(frozen=True)
class BenchmarkArguments:
    shape: str = option(
        "base",
        choices=(*SHAPES, TEXT),
        help="what is decoded: base is bart-base, 8 articles of 512 ids, 60 steps, 6 beams; large is bart-large, 4 "
        "articles of 1024 ids, 142 steps, 4 beams; large_batch1 is the same with 1 article; tiny is for trying this "
        "out; text is a split of line files, with the decoding options of --model",
    )
    modes: str | None = option(
        None,
        help=f"what is run, in this order, separated by commas; by default {','.join(MODES)}, and with --shape text "
        f"{','.join(TEXT_MODES)} too",
    )
    repeats: int = option(3, least=1, help="timed runs of each mode, in turn; the table has their median")
    threads: int | None = option(None, least=1, help="threads of each mode; by default all cores")
    output: str | None = option(None, help="JSON file for all figures, every single timing among them")
    model: str | None = option(
        None, help="Hub-format directory, checkpoint or Hub name; by default random weights of the shape's size"
    )
    data_dir: str | None = option(None, help="directory with {train,val,test}.{source,target}; for --shape text")
    split: str = option("test", choices=("train", "val", "test"), help="split to decode; for --shape text")
    limit: int = option(500, least=1, help="articles to decode at most; for --shape text")
    batch_size: int = option(32, least=1, help="articles decoded at once at most; for --shape text")

    @property
    def chosen(self) -> list[str]:
        """The modes to run, in their order."""
        return self._allowed if self.modes is None else self.modes.split(",")

    @property
    def _allowed(self) -> list[str]:
        return [*MODES, *(TEXT_MODES if self.shape == TEXT else ())]

    def __post_init__(self) -> None:
        for mode in self.chosen:
            if mode not in self._allowed or self.chosen.count(mode) > 1:
                allowed = ", ".join(self._allowed)
                raise InputError(f"--modes holds {mode!r}; allowed with --shape {self.shape}, each once: {allowed}")
            if mode.startswith("ctranslate2") and find_spec("ctranslate2") is None:
                raise InputError(f"--modes holds {mode!r}, which needs `pip install -r requirements-dev.txt`")
        if self.shape == TEXT and (self.model is None or self.data_dir is None):
            raise InputError("--shape text needs --model and --data_dir")
        if self.shape != TEXT and self.data_dir is not None:
            raise InputError(f"--data_dir is {self.data_dir!r}; allowed with --shape text alone")
        check_output(self.output)


def prepare(args: BenchmarkArguments, folder: Path) -> dict[str, Any]:
    """Write `folder/{model,ctranslate2_*}` and `folder/inputs.json`; return the latter's content.

    Raises:
        InputError: model and data cannot be used, or ask for what a peer among the modes cannot do.
    """
    import torch

    from bart.generation import GenerationConfig
    from utils.data.line_files import read_pairs
    from utils.data.tokenized import TokenizedTexts

    torch.manual_seed(0)
    model, tokenizer = _model(args)
    config, decoding = model.config, model.generation_config
    positions = config.max_position_embeddings
    peers = [peer for peer in LACKS if any(mode.startswith(peer) for mode in args.chosen)]
    if config.pre_ln and peers:
        raise InputError(f"--model {args.model} is Pre-LN, which {peers[0]} lacks; allowed: modes of ours alone")
    if args.shape == TEXT:
        if decoding.do_sample:
            raise InputError(f"--model {args.model}: its do_sample is on; allowed: off, for ids that can be compared")
        neutral = GenerationConfig()
        for peer in peers:
            for name in LACKS[peer]:
                if getattr(decoding, name) != getattr(neutral, name):
                    raise InputError(f"--model {args.model}: its {name} is on; allowed with {peer}: off")
        if decoding.eos_token_ids != [config.eos_token_id]:
            raise InputError(f"--model {args.model}: its eos_token_id is {decoding.eos_token_id}; allowed: one id")
        decoding = decoding.merged(eos_token_id=config.eos_token_id, num_return_sequences=1)
        sources, _ = read_pairs(str(args.data_dir), args.split, args.limit)
        texts = TokenizedTexts.from_texts(sources, tokenizer, positions)
        articles, batch_size = [texts[i].tolist() for i in range(len(texts))], args.batch_size
        limits = {"max_length": decoding.longest(positions), "min_length": decoding.shortest}
        decoding = decoding.merged(**limits, max_new_tokens=None, min_new_tokens=None)
    else:
        shape = SHAPES[args.shape]
        if positions < max(shape.source_length, shape.steps):
            raise InputError(f"--model {args.model} has {positions} positions; --shape {args.shape} needs more")
        # Ids of the special tokens, the first four and the last, are left out.
        articles = torch.randint(4, config.vocab_size - 1, (shape.articles, shape.source_length)).tolist()
        batch_size = shape.articles
        special = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        decoding = GenerationConfig(
            num_beams=shape.beams,
            max_length=shape.steps + 1,  # the start token counts
            min_length=shape.steps + 1,
            no_repeat_ngram_size=3,
            **{name: getattr(config, name) for name in special},
        )
    # Written with the model, so `generate` of transformers and of ours take the options without being told.
    model.generation_config = decoding
    # What CTranslate2's converter reads, and transformers 5 no longer writes.
    config.normalize_before, config.normalize_embedding = False, True
    config.add_final_layer_norm, config.add_bias_logits = False, False
    model.save_pretrained(folder / "model", tokenizer)
    inputs = {"shape": args.shape, "articles": articles, "batch_size": batch_size}
    inputs |= {"decoding": decoding.to_dict(), "architecture": config.to_dict()}
    (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")

    for mode, quantization in (("ctranslate2_fp32", "float32"), ("ctranslate2_int8", "int8")):
        if mode in args.chosen:
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(str(folder / "model")).convert(str(folder / mode), quantization=quantization)
    return inputs


def _model(args: BenchmarkArguments) -> tuple[Any, Any]:
    """The model to decode with, and its tokenizer, with one token for every id of the model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from bart.configuration.configuration_bart import BartConfig
    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.loading import fit_vocabulary

    if args.model is not None:
        model = BartForConditionalGeneration.from_pretrained(args.model)
        tokenizer = BartTokenizer.from_pretrained(args.model)
        fit_vocabulary(model, tokenizer)
        model.resize_token_embeddings(len(tokenizer))  # CTranslate2 has no name for rows that pad the table
        return model, tokenizer
    shape = SHAPES[args.shape]
    # CTranslate2 takes tokens, so every id gets a made-up one.
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(f"token{i}" for i in range(4, shape.vocab_size - 1)), "<mask>"]
    pipeline = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    config: dict[str, Any] = {"vocab_size": shape.vocab_size, "d_model": shape.d_model}
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": shape.layers, f"{side}_attention_heads": shape.heads}
        config |= {f"{side}_ffn_dim": 4 * shape.d_model}
    # With this deviation layers keep the scale of their input, so that the ids generated depend on the article.
    model = BartForConditionalGeneration(BartConfig(**config, init_std=shape.d_model**-0.5))
    return model, BartTokenizer(pipeline)


class TorchPeer:
    """transformers or ours: a torch model, with the decoding options that lie beside its weights."""

    def __init__(self, folder: Path, mode: str, inputs: dict[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.mode, self.decoding = mode, inputs["decoding"]
        self.batch_size = at_once(inputs, mode)
        self.warm_up = {"max_length": 4, "min_length": 0}
        self.is_ours = mode.startswith("ours")
        self.is_continuous = self.is_ours and inputs["shape"] == TEXT and mode not in TEXT_MODES
        precision = mode.split("_")[-1]
        if self.is_ours:
            from bart.modeling.modeling_bart import BartForConditionalGeneration as Ours

            self.model: Any = Ours.from_pretrained(folder / "model").for_inference(precision)
        else:
            from transformers import BartForConditionalGeneration as Theirs

            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
            self.model = Theirs.from_pretrained(folder / "model", dtype=dtype).eval()

    def load(self, articles: list[list[int]]) -> Any:
        """The articles themselves for continuous batching, else batches: places among the articles, ids, mask."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        if self.is_continuous:
            return articles
        order = list(range(len(articles)))
        if self.mode not in TEXT_MODES:
            order.sort(key=lambda place: -len(articles[place]))
        batches = []
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            rows = [torch.tensor(articles[place]) for place in places]
            ids = pad_sequence(rows, batch_first=True, padding_value=self.decoding["pad_token_id"])
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            batches.append((places, ids, mask))
        return batches

    def decode(self, loaded: Any, **limits: int) -> Any:
        """Places among the articles, and their ids (B, T), part by part."""
        import torch

        if self.is_ours:
            self.model.remembered = None  # each run encodes anew
        with torch.inference_mode():
            if self.is_continuous:
                done = self.model.generate_many(loaded, self.batch_size, **limits)
                return [([article.index], article.sequences) for article in done]
            generate = self._static if self.mode == STATIC else self.model.generate
            return [(places, generate(ids, attention_mask=mask, **limits)) for places, ids, mask in loaded]

    def _static(self, ids: Any, attention_mask: Any, **limits: int) -> Any:
        """As ours `generate`, but no article leaves the batch before all are done."""
        from bart.generation.schedule import Sources, decode

        config = self.model.generation_config.merged(**limits)
        longest = config.longest(self.model.config.max_position_embeddings)
        mask = None if bool(attention_mask.all()) else attention_mask
        waiting = [Sources(list(range(len(ids))), mask, self.model.encode(ids, mask), ids)]

        def next_sources(_: int) -> Sources | None:
            return waiting.pop() if waiting else None

        [(_, found)] = decode(self.model, config, longest, len(ids), next_sources, may_leave=False)
        return found.tokens[:, 0]

    def ids(self, output: Any) -> list[list[int]]:
        """The generated ids of each article, without the start token, EOS and padding."""
        eos = self.decoding["eos_token_id"]
        rows = {place: row[1:] for places, ids in output for place, row in zip(places, ids.tolist(), strict=True)}
        return [row[: row.index(eos)] if eos in row else row for _, row in sorted(rows.items())]


class CTranslate2Peer:
    """CTranslate2's `translate_batch`, given all articles. Its lengths do not count the start token.

    Articles that are more than a batch it sorts by length and cuts into batches itself, which was measured to take as
    long as being given such batches one by one.

    It has no forced EOS. Where the options force one, an article that would end in it ends one id earlier.
    """

    def __init__(self, folder: Path, mode: str, inputs: dict[str, Any], threads: int) -> None:
        import ctranslate2

        decoding = inputs["decoding"]
        kind = {"ctranslate2_fp32": "float32", "ctranslate2_int8": "int8"}[mode]
        self.translator = ctranslate2.Translator(
            str(folder / mode), device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
        )
        self.tokens = json.loads((folder / mode / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self.index = {token: index for index, token in enumerate(self.tokens)}
        self.warm_up = {"max_decoding_length": 3, "min_decoding_length": 0}
        longest = decoding["max_length"] - 1 - (decoding["forced_eos_token_id"] is not None)
        same = ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")
        self.options = {name: decoding[name] for name in same} | {
            "beam_size": decoding["num_beams"],
            "max_decoding_length": longest,
            "min_decoding_length": min(max(decoding["min_length"] - 1, 0), longest),
            "max_input_length": 0,
            "max_batch_size": at_once(inputs, mode),
        }
        first = decoding["forced_bos_token_id"]
        self.prefix = None if first is None else [self.tokens[first]]

    def load(self, articles: list[list[int]]) -> Any:
        return [[self.tokens[i] for i in row] for row in articles]

    def decode(self, loaded: Any, **limits: int) -> Any:
        return self.translator.translate_batch(loaded, [self.prefix] * len(loaded), **{**self.options, **limits})

    def ids(self, output: Any) -> list[list[int]]:
        return [[self.index[token] for token in result.hypotheses[0]] for result in output]


def at_once(inputs: dict[str, Any], mode: str) -> int:
    """How many articles a mode decodes at once at most."""
    return 1 if mode == SINGLE else inputs["batch_size"]


def measure(folder: Path, mode: str, threads: int, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of a run over all articles after a warm-up, the ids of each article, and this process's peak memory."""
    os.environ.update(environment)
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    kind = CTranslate2Peer if mode.startswith("ctranslate2") else TorchPeer
    peer = kind(folder, mode, inputs, threads)
    articles = inputs["articles"]
    loaded = peer.load(articles)
    if inputs["shape"] == TEXT:  # batches of many shapes, for each of which libraries make kernels on first use
        peer.decode(loaded)
    else:
        peer.decode(peer.load(articles[: at_once(inputs, mode)]), **peer.warm_up)
    start = time.perf_counter()
    output = peer.decode(loaded)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return {"seconds": seconds, "ids": peer.ids(output), "peak_memory_gb": peak}


def different_in_double(folder: Path, inputs: dict[str, Any], reference: str, numbers: list[int]) -> list[int]:
    """The articles, of those numbered, for which ours differs from the reference in fp64.

    In fp32 two beams may be closer than rounding, and either may be dropped; in fp64 all ways must agree. Ours decodes
    each article alone; the reference is transformers, which does so too, or ours with others in the batch.
    """
    import torch
    from transformers import BartForConditionalGeneration as Theirs

    from bart.modeling.modeling_bart import BartForConditionalGeneration as Ours

    articles, size = inputs["articles"], inputs["batch_size"]

    def alone(model: Any, number: int) -> list[int]:
        ids = torch.tensor([articles[number]])
        return model.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()

    ours = Ours.from_pretrained(folder / "model").double().eval()
    if reference == SINGLE:
        others = [number for number in range(len(articles)) if number not in numbers]
        together = [*numbers, *others[: max(size - len(numbers), 0)]]
        done = ours.generate_many([articles[number] for number in together], size)
        expected = {together[article.index]: article.sequences[0].tolist() for article in done}
    else:
        theirs = Theirs.from_pretrained(folder / "model").double().eval()
        expected = {number: alone(theirs, number) for number in numbers}
    return [number for number in numbers if alone(ours, number) != expected[number]]


def best_environment(folder: Path, mode: str, threads: int) -> dict[str, str]:
    """The faster of CTranslate2's two matrix libraries, by one run each. It chooses by the processor's vendor alone."""
    choosable = sys.platform == "linux" and platform.machine() == "x86_64" and "CT2_USE_MKL" not in os.environ
    if not (mode.startswith("ctranslate2") and choosable):
        return {}
    settings = [{"CT2_USE_MKL": flag} for flag in "01"]
    return min(settings, key=lambda chosen: in_new_process(measure, folder, mode, threads, chosen)["seconds"])


def machine_rates(threads: int) -> dict[str, float]:
    """Operations per second of a matrix product of 1024 x 1024 by 1024 x 1024 in each precision, and bytes read from
    memory per second; the best of five."""
    import torch

    torch.set_num_threads(threads)

    def best(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1, repeat=6)[1:])  # the first one warms up

    size = 1024
    matrix, block = torch.randn(size, size), torch.ones(2**27)  # 512 MiB, beyond any cache
    half, small = matrix.bfloat16(), torch.randint(-127, 128, (size, size), dtype=torch.int8)
    return {
        "fp32": 2 * size**3 / best(lambda: matrix @ matrix),
        "bf16": 2 * size**3 / best(lambda: half @ half),
        "int8": 2 * size**3 / best(lambda: torch._int_mm(small, small)),
        "bytes": block.numel() * block.element_size() / best(block.sum),
    }


def floor_seconds(inputs: dict[str, Any], ids: list[list[int]], mode: str, rates: dict[str, float]) -> float:
    """The least time for the work of a mode whose output is `ids`, with all numbers in its precision.

    It holds for every way to batch: with at most N articles at once, the weights of the encoder are read at least
    articles / N times, those of the decoder as often as the longest article has steps, and as all articles together
    have steps / N. With S source ids and K beams, each of these parts takes the longer of its operations at the rate of
    a large matrix product, and its bytes at the rate of memory:

    - the encoder: its weights; 2 operations per weight and source id, 4·S²·D per article and layer;
    - keys and values of cross-attention: 2·D² weights per layer; 2 operations per weight and source id;
    - decoding: the decoder's other weights and the output table, 2 operations per weight and row; per step, article
      and layer 2·S·D keys and values, read once, with 4·S·D operations for each of the K rows.

    Left out, so that the floor lies below what can be reached: self-attention over earlier ids, padding, norms,
    softmax, the choice of ids, and steps after the best hypothesis has ended.
    """
    net, decoding = inputs["architecture"], inputs["decoding"]
    most, precision = at_once(inputs, mode), mode.split("_")[-1]
    width, layers, beams = net["d_model"], net["decoder_layers"], decoding["num_beams"]
    encoder = net["encoder_layers"] * (4 * width**2 + 2 * width * net["encoder_ffn_dim"])
    cross = layers * 2 * width**2
    decoder = layers * (6 * width**2 + 2 * width * net["decoder_ffn_dim"]) + net["vocab_size"] * width

    def least(operations: float, numbers: float) -> float:
        return max(operations / rates[precision], numbers * BYTES[precision] / rates["bytes"])

    lengths = [len(source) for source in inputs["articles"]]
    # What ends before the greatest length takes one more step, for its EOS.
    steps = [min(len(output) + 1, decoding["max_length"] - 1) for output in ids]
    encodings = max(1, len(lengths) / most)
    decodings = max(*steps, sum(steps) / most)
    attention = 4 * width * net["encoder_layers"] * sum(length**2 for length in lengths)
    memory = layers * 2 * width * sum(length * count for length, count in zip(lengths, steps, strict=True))
    return (
        least(2 * encoder * sum(lengths) + attention, encodings * encoder)
        + least(2 * cross * sum(lengths), encodings * cross)
        + least(beams * 2 * (decoder * sum(steps) + memory), decodings * decoder + memory)
    )


def machine() -> dict[str, Any]:
    """Hardware and versions."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)", info.read_text(), re.MULTILINE) if info.exists() else []
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = [name for name in ("torch", "transformers", "ctranslate2") if find_spec(name)]
    return {
        "hardware": {"processor": (names or [platform.processor()])[0], "cores": os.cpu_count(), "memory_gb": memory},
        "versions": {"python": platform.python_version()} | {package: version(package) for package in packages},
    }


def differing(ids: list[list[int]], others: list[list[int]]) -> list[int]:
    """The numbers of the articles whose ids differ, from 0."""
    return [number for number, (one, other) in enumerate(zip(ids, others, strict=True)) if one != other]


def summarise(inputs: dict[str, Any], runs: dict[str, dict[str, Any]], rates: dict[str, float]) -> list[dict[str, Any]]:
    """One row of figures per mode; None for those that need a mode which was not run."""
    medians = {mode: statistics.median(run["seconds"]) for mode, run in runs.items()}
    compared = (REFERENCE, FASTEST_PEER, *((STATIC,) if inputs["shape"] == TEXT else ()))
    articles = len(inputs["articles"])
    results = []
    for mode, run in runs.items():
        floor = floor_seconds(inputs, run["ids"], mode, rates)
        differ = differing(run["ids"], runs[REFERENCE]["ids"]) if REFERENCE in runs else None
        results.append(
            {
                "mode": mode,
                "median_seconds": medians[mode],
                "articles_per_second": articles / medians[mode],
                # How many times as fast as that mode.
                **{
                    f"speed_to_{other}": medians[other] / medians[mode] if other in runs else None for other in compared
                },
                "peak_memory_gb": run["peak_memory_gb"],
                "floor_seconds": floor,
                "share_of_floor": floor / medians[mode],
                "identical_share": None if differ is None else 1 - len(differ) / articles,
                "different_articles": differ,
                "seconds": run["seconds"],
                "environment": run["environment"],
            }
        )
    return results


def table(results: Sequence[dict[str, Any]]) -> str:
    columns = {key: title for key, title in COLUMNS.items() if key in results[0]}
    lines = [["mode", *columns.values()]]
    for result in results:
        figures = [result[key] for key in columns]
        lines.append([result["mode"], *("-" if figure is None else f"{figure:.2f}" for figure in figures)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if ours differs from transformers, or from itself alone, beyond the rounding of fp32."""
    args = parse_dataclass(BenchmarkArguments, argv, str(__doc__), prog="benchmark_decoding.py")
    threads = args.threads or os.cpu_count() or 1
    # For the processes that load transformers.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    started, runs = time.strftime("%Y-%m-%dT%H:%M:%S%z"), {}
    with TemporaryDirectory(prefix="benchmark_decoding_") as name:
        folder = Path(name)
        inputs = in_new_process(prepare, args, folder)
        rates = in_new_process(machine_rates, threads)
        environments = {mode: best_environment(folder, mode, threads) for mode in args.chosen}
        # In rounds, so that a machine whose speed drifts is as fast for one mode as for another.
        for number in range(args.repeats):
            for mode, environment in environments.items():
                print(f"running {mode}, {number + 1} of {args.repeats}", file=sys.stderr)
                found = in_new_process(measure, folder, mode, threads, environment)
                run = runs.setdefault(mode, {**found, "seconds": [], "peak_memory_gb": 0.0, "environment": environment})
                run["seconds"].append(found["seconds"])
                run["peak_memory_gb"] = max(run["peak_memory_gb"], found["peak_memory_gb"])
        results = summarise(inputs, runs, rates)
        print(table(results))
        checks: dict[str, dict[str, list[int]]] = {}
        for reference in (REFERENCE, SINGLE):
            if not {reference, "ours_fp32"} <= runs.keys():
                continue
            numbers = differing(runs["ours_fp32"]["ids"], runs[reference]["ids"])
            print(f"ours_fp32 and {reference} differ in {len(numbers)} of {len(inputs['articles'])} articles", end="")
            unequal: list[int] = []
            if numbers:
                unequal = in_new_process(different_in_double, folder, inputs, reference, numbers)
                print(f": {numbers}, counted from 0; in double precision in {unequal}", end="")
            print()
            checks[reference] = {"different": numbers, "different_in_double": unequal}
    if args.output is not None:
        report = {
            "date": started,
            "command": shlex.join(["python", *sys.argv]),
            **machine(),
            "threads": threads,
            "shape": args.shape,
            "decoding": inputs["decoding"],
            "rates": rates,
            "results": results,
            "ours_fp32_against": checks,
        }
        Path(args.output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(check["different_in_double"] for check in checks.values()))


if __name__ == "__main__":
    run_main(main)
