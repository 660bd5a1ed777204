"""Decoding speed beside the peers: transformers, CTranslate2 and ours, one after the other on the same inputs.

    python scripts/benchmark_decoding.py --shape base --output results.json

Every mode runs in a process of its own, with inputs and weights from one temporary directory, so that its peak memory
is its own. Only decoding is timed: loading, tokenising and the conversion of weights are not.

Articles for which ours differs from transformers in fp32 are decoded again by both in double precision: they must agree
there, or the run ends with status 1. The table has the share of articles with the same ids. CTranslate2 in fp32 can
differ too: it normalises scores after n-gram ban and minimum length, not before, and stops an article as
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bart.errors import InputError
from utils.cli import option, parse_dataclass, run_main

# torch, transformers and ctranslate2 are imported where they are used. A process starts with the peak memory of the
# one that started it, so this one has to stay smaller than all that it measures.

MODES = "transformers_fp32 transformers_bf16 ctranslate2_fp32 ctranslate2_int8 ours_fp32 ours_bf16 ours_int8".split()
REFERENCE, FASTEST_PEER = "transformers_fp32", "ctranslate2_int8"
BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # per number, by precision
TEXT, TEXT_BATCH = "text", 32
COLUMNS = {
    "median_seconds": "seconds",
    "articles_per_second": "articles/s",
    "speed_to_transformers_fp32": "x transformers fp32",
    "speed_to_ctranslate2_int8": "x CTranslate2 int8",
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
        "out; text is a split of line files in batches of 32, with the decoding options of --model",
    )
    modes: str = option(",".join(MODES), help="what is run, in this order, separated by commas")
    repeats: int = option(3, least=1, help="timed runs of each mode; the table has their median")
    threads: int | None = option(None, least=1, help="threads of each mode; by default all cores")
    output: str | None = option(None, help="JSON file for all figures, every single timing among them")
    model: str | None = option(
        None, help="Hub-format directory, checkpoint or Hub name; by default random weights of the shape's size"
    )
    data_dir: str | None = option(None, help="directory with {train,val,test}.{source,target}; for --shape text")
    split: str = option("test", choices=("train", "val", "test"), help="split to decode; for --shape text")
    limit: int = option(500, least=1, help="articles to decode at most; for --shape text")

    def __post_init__(self) -> None:
        chosen = self.modes.split(",")
        for mode in chosen:
            if mode not in MODES or chosen.count(mode) > 1:
                raise InputError(f"--modes holds {mode!r}; allowed, each once: {', '.join(MODES)}")
            if mode.startswith("ctranslate2") and find_spec("ctranslate2") is None:
                raise InputError(f"--modes holds {mode!r}, which needs `pip install -r requirements-dev.txt`")
        if self.shape == TEXT and (self.model is None or self.data_dir is None):
            raise InputError("--shape text needs --model and --data_dir")
        if self.shape != TEXT and self.data_dir is not None:
            raise InputError(f"--data_dir is {self.data_dir!r}; allowed with --shape text alone")
        if self.output is not None and (Path(self.output).is_dir() or not Path(self.output).parent.is_dir()):
            raise InputError(f"--output is {self.output!r}; allowed: a file in a directory that exists")


def prepare(args: BenchmarkArguments, folder: Path) -> dict[str, Any]:
    """Write `folder/{model,ctranslate2_*}` and `folder/inputs.json`; return the latter's content.

    Raises:
        InputError: model and data cannot be used, or ask for what not every peer can do.
    """
    import torch

    from bart.generation import GenerationConfig
    from utils.data.dataset import TokenizedTexts, evaluation_batches
    from utils.data.line_files import read_pairs

    torch.manual_seed(0)
    model, tokenizer = _model(args)
    config, decoding = model.config, model.generation_config
    positions = config.max_position_embeddings
    if args.shape == TEXT:
        neutral = GenerationConfig()
        for name in ("do_sample", "num_beam_groups", "encoder_no_repeat_ngram_size", "bad_words_ids"):
            if getattr(decoding, name) != getattr(neutral, name):
                raise InputError(f"--model {args.model}: its {name} is on, which not every peer can do")
        if decoding.eos_token_ids != [config.eos_token_id]:
            raise InputError(f"--model {args.model}: its eos_token_id is {decoding.eos_token_id}; allowed: one id")
        decoding = decoding.merged(eos_token_id=config.eos_token_id, num_return_sequences=1)
        texts = TokenizedTexts(read_pairs(str(args.data_dir), args.split, args.limit)[0], tokenizer, positions)
        batches = [[texts[i].tolist() for i in rows] for rows in evaluation_batches(texts.lengths, TEXT_BATCH)]
        limits = {"max_length": decoding.longest(positions), "min_length": decoding.shortest}
        decoding = decoding.merged(**limits, max_new_tokens=None, min_new_tokens=None)
    else:
        shape = SHAPES[args.shape]
        if positions < max(shape.source_length, shape.steps):
            raise InputError(f"--model {args.model} has {positions} positions; --shape {args.shape} needs more")
        # Ids of the special tokens, the first four and the last, are left out.
        batches = [torch.randint(4, config.vocab_size - 1, (shape.articles, shape.source_length)).tolist()]
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
    inputs = {"batches": batches, "decoding": decoding.to_dict(), "architecture": config.to_dict()}
    (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")

    for mode, quantization in (("ctranslate2_fp32", "float32"), ("ctranslate2_int8", "int8")):
        if mode in args.modes:
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
        if model.config.pre_ln:
            raise InputError(f"--model {args.model} is Pre-LN; allowed: BART's own arrangement")
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
    """transformers or ours: `generate` of a torch model, with the decoding options that lie beside its weights."""

    def __init__(self, folder: Path, mode: str, decoding: dict[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.decoding = decoding
        self.warm_up = {"max_length": 4, "min_length": 0}
        peer, precision = mode.split("_")
        self.is_ours = peer == "ours"
        if self.is_ours:
            from bart.modeling.modeling_bart import BartForConditionalGeneration as Ours

            self.model: Any = Ours.from_pretrained(folder / "model").for_inference(precision)
        else:
            from transformers import BartForConditionalGeneration as Theirs

            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
            self.model = Theirs.from_pretrained(folder / "model", dtype=dtype).eval()

    def load(self, batch: list[list[int]]) -> Any:
        import numpy as np
        import torch

        from utils.data.dataset import pad

        ids = pad([np.asarray(row) for row in batch], self.decoding["pad_token_id"])
        lengths = torch.tensor([len(row) for row in batch])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}

    def decode(self, batch: Any, **limits: int) -> Any:
        import torch

        if self.is_ours:
            self.model.remembered = None  # each run encodes anew
        with torch.inference_mode():
            return self.model.generate(**batch, **limits)

    def ids(self, output: Any) -> list[list[int]]:
        """The generated ids of each article, without the start token, EOS and padding."""
        eos = self.decoding["eos_token_id"]
        rows = [row[1:] for row in output.tolist()]
        return [row[: row.index(eos)] if eos in row else row for row in rows]


class CTranslate2Peer:
    """CTranslate2's `translate_batch`, a whole batch at once. Its lengths do not count the start token.

    It has no forced EOS. Where the options force one, an article that would end in it ends one id earlier.
    """

    def __init__(self, folder: Path, mode: str, decoding: dict[str, Any], threads: int) -> None:
        import ctranslate2

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
            "max_batch_size": 0,
        }
        first = decoding["forced_bos_token_id"]
        self.prefix = None if first is None else [self.tokens[first]]

    def load(self, batch: list[list[int]]) -> Any:
        return [[self.tokens[i] for i in row] for row in batch]

    def decode(self, batch: Any, **limits: int) -> Any:
        return self.translator.translate_batch(batch, [self.prefix] * len(batch), **{**self.options, **limits})

    def ids(self, output: Any) -> list[list[int]]:
        return [[self.index[token] for token in result.hypotheses[0]] for result in output]


def measure(folder: Path, mode: str, repeats: int, threads: int, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of each run over all batches, the ids of each batch's articles, and this process's peak memory."""
    os.environ.update(environment)
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    kind = CTranslate2Peer if mode.startswith("ctranslate2") else TorchPeer
    peer = kind(folder, mode, inputs["decoding"], threads)
    batches = [peer.load(batch) for batch in inputs["batches"]]
    peer.decode(batches[0], **peer.warm_up)
    seconds, outputs = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = [peer.decode(batch) for batch in batches]
        seconds.append(time.perf_counter() - start)
    ids = [peer.ids(output) for output in outputs]
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return {"seconds": seconds, "ids": ids, "peak_memory_gb": peak, "environment": environment}


def different_in_double(folder: Path, articles: dict[int, list[int]]) -> list[int]:
    """The articles, of those given by number with their sources, for which ours and transformers differ in fp64.

    In fp32 two beams may be closer than rounding, and either may be dropped; in fp64 both programs must agree.
    """
    import torch
    from transformers import BartForConditionalGeneration as Theirs

    from bart.modeling.modeling_bart import BartForConditionalGeneration as Ours

    models = [kind.from_pretrained(folder / "model").double().eval() for kind in (Theirs, Ours)]
    different = []
    for number, source in articles.items():
        ids = torch.tensor([source])
        theirs, ours = (model.generate(ids, attention_mask=torch.ones_like(ids)).tolist() for model in models)
        if theirs != ours:
            different.append(number)
    return different


def best_environment(folder: Path, mode: str, threads: int) -> dict[str, str]:
    """The faster of CTranslate2's two matrix libraries, by one run each. It chooses by the processor's vendor alone."""
    choosable = sys.platform == "linux" and platform.machine() == "x86_64" and "CT2_USE_MKL" not in os.environ
    if not (mode.startswith("ctranslate2") and choosable):
        return {}
    settings = [{"CT2_USE_MKL": flag} for flag in "01"]
    return min(settings, key=lambda chosen: in_new_process(measure, folder, mode, 1, threads, chosen)["seconds"])


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


def floor_seconds(inputs: dict[str, Any], ids: list[list[list[int]]], precision: str, rates: dict[str, float]) -> float:
    """The least time for the work of a mode whose output is `ids`, with all numbers in its precision.

    With S source ids and K beams, each of these parts takes the longer of its operations at the rate of a large matrix
    product, and its bytes at the rate of memory:

    - the encoder, once a batch: its weights; 2 operations per weight and source id, 4·S²·D per article and layer;
    - keys and values of cross-attention, once a batch: 2·D² weights per layer; 2 operations per weight and source id;
    - every step: the decoder's other weights and the output table, 2 operations per weight and row; per article and
      layer 2·S·D keys and values, read once, with 4·S·D operations for each of the K rows.

    Left out, so that the floor lies below what can be reached: self-attention over earlier ids, padding, norms,
    softmax, the choice of ids, and steps after the best hypothesis has ended.
    """
    net, decoding = inputs["architecture"], inputs["decoding"]
    width, layers, beams = net["d_model"], net["decoder_layers"], decoding["num_beams"]
    encoder = net["encoder_layers"] * (4 * width**2 + 2 * width * net["encoder_ffn_dim"])
    cross = layers * 2 * width**2
    decoder = layers * (6 * width**2 + 2 * width * net["decoder_ffn_dim"]) + net["vocab_size"] * width

    def least(operations: float, numbers: float) -> float:
        return max(operations / rates[precision], numbers * BYTES[precision] / rates["bytes"])

    total = 0.0
    for sources, outputs in zip(inputs["batches"], ids, strict=True):
        lengths = [len(source) for source in sources]
        attention = 4 * width * net["encoder_layers"] * sum(length**2 for length in lengths)
        total += least(2 * encoder * sum(lengths) + attention, encoder) + least(2 * cross * sum(lengths), cross)
        # What ends before the greatest length takes one more step, for its EOS.
        steps = [min(len(output) + 1, decoding["max_length"] - 1) for output in outputs]
        for step in range(max(steps)):
            running = [length for length, last in zip(lengths, steps, strict=True) if step < last]
            memory = layers * 2 * width * sum(running)
            total += least(beams * 2 * (decoder * len(running) + memory), decoder + memory)
    return total


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh interpreter, which ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


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


def summarise(inputs: dict[str, Any], runs: dict[str, dict[str, Any]], rates: dict[str, float]) -> list[dict[str, Any]]:
    """One row of figures per mode; None for those that need a mode which was not run."""
    medians = {mode: statistics.median(run["seconds"]) for mode, run in runs.items()}
    rows = {mode: [row for batch in run["ids"] for row in batch] for mode, run in runs.items()}
    results = []
    for mode, run in runs.items():
        floor = floor_seconds(inputs, run["ids"], mode.split("_")[1], rates)
        speed = {peer: medians[peer] / medians[mode] if peer in runs else None for peer in (REFERENCE, FASTEST_PEER)}
        differ = None
        if REFERENCE in runs:
            pairs = zip(rows[mode], rows[REFERENCE], strict=True)
            differ = [article for article, (ours, theirs) in enumerate(pairs) if ours != theirs]
        results.append(
            {
                "mode": mode,
                "median_seconds": medians[mode],
                "articles_per_second": len(rows[mode]) / medians[mode],
                "speed_to_transformers_fp32": speed[REFERENCE],  # how many times as fast as that peer
                "speed_to_ctranslate2_int8": speed[FASTEST_PEER],
                "peak_memory_gb": run["peak_memory_gb"],
                "floor_seconds": floor,
                "share_of_floor": floor / medians[mode],
                "identical_share": None if differ is None else 1 - len(differ) / len(rows[mode]),
                "different_articles": differ,  # from 0, in the order of decoding
                "seconds": run["seconds"],
                "environment": run["environment"],
            }
        )
    return results


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [["mode", *COLUMNS.values()]]
    for result in results:
        figures = [result[key] for key in COLUMNS]
        lines.append([result["mode"], *("-" if figure is None else f"{figure:.2f}" for figure in figures)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if ours differs from transformers beyond the rounding of fp32."""
    args = parse_dataclass(BenchmarkArguments, argv, str(__doc__), prog="benchmark_decoding.py")
    threads = args.threads or os.cpu_count() or 1
    # For the processes that load transformers.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    started, runs = time.strftime("%Y-%m-%dT%H:%M:%S%z"), {}
    with TemporaryDirectory(prefix="benchmark_decoding_") as name:
        folder = Path(name)
        inputs = in_new_process(prepare, args, folder)
        rates = in_new_process(machine_rates, threads)
        for mode in args.modes.split(","):
            print(f"running {mode}", file=sys.stderr)
            environment = best_environment(folder, mode, threads)
            runs[mode] = in_new_process(measure, folder, mode, args.repeats, threads, environment)
        results = summarise(inputs, runs, rates)
        print(table(results))
        unequal: list[int] = []
        if {REFERENCE, "ours_fp32"} <= runs.keys():
            sources = [row for batch in inputs["batches"] for row in batch]
            [ours] = (result for result in results if result["mode"] == "ours_fp32")
            articles = {number: sources[number] for number in ours["different_articles"]}
            if articles:
                unequal = in_new_process(different_in_double, folder, articles)
                print(f"ours_fp32 and {REFERENCE} differ in articles {[*articles]}, counted from 0; ", end="")
                print(f"in double precision in {unequal}")
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
            "different_in_double": unequal,
        }
        Path(args.output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(bool(unequal))


if __name__ == "__main__":
    run_main(main)
