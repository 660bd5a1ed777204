"""Decoding speed beside the peers: transformers, CTranslate2 and ours, in turns, on the same inputs.

    python scripts/benchmark_decoding.py --shape base --output results.json
    python scripts/benchmark_decoding.py --shape text --model MODEL --data_dir DATA --output results.json

Every run is a process of its own. Only decoding is timed, not loading, tokenising and the conversion of weights. The
table has medians, the peak memory of a process, and the share of articles that get the ids of transformers in fp32. In
fp32 two beams may be closer to each other than rounding, so that either is right. CTranslate2 can differ for other
reasons too: it normalises scores after n-gram ban and minimum length, not before, and stops an article as
early_stopping=True does, whatever the option says.

With --shape text articles stop where the model ends them, and at most --batch_size are decoded at once:

- transformers: batches of articles of like length, each until its last article is done;
- CTranslate2: it gets all articles, sorts them by length and cuts them into batches, which articles leave when done;
- ours: continuous batching as in run_eval.py: the longest first, and new ones take the places of those that are done;
- ours_static: batches in the order of the file, padded to the longest, each until its last article is done;
- ours_single: one article at a time.

CTranslate2 chooses its library of matrix products by the processor's vendor. Its environment variable CT2_USE_MKL, 0 or
1, changes that; the other one may be faster.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/, and not in the root that holds bart and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from utils.cli import option, parse_dataclass, run_main
from utils.files import check_output, write_json
from utils.measuring import in_turns, machine, made_up_config, process_memory_gb, table
from utils.processes import in_new_process

# torch, transformers and ctranslate2 are imported where they are used, so that no process holds another one's library.

MODES = "transformers_fp32 transformers_bf16 ctranslate2_fp32 ctranslate2_int8 ours_fp32 ours_bf16 ours_int8".split()
STATIC, SINGLE = TEXT_MODES = ("ours_static_fp32", "ours_single_fp32")
REFERENCE = "transformers_fp32"
COMPARED = {REFERENCE: "transformers fp32", "ctranslate2_int8": "CTranslate2 int8", STATIC: "ours static fp32"}
TEXT = "text"
# Decoding options that a peer does not have, or is not given here.
LACKS = {
    "transformers": ["num_beam_groups"],
    "ctranslate2": ["num_beam_groups", "encoder_no_repeat_ngram_size", "bad_words_ids"],
}
COLUMNS = {
    "mode": "mode",
    "median_seconds": "seconds",
    "articles_per_second": "articles/s",
    **{f"speed_to_{mode}": f"x {title}" for mode, title in COMPARED.items()},
    "peak_memory_gb": "peak GB",
    "identical_share": "same ids",
}


@dataclass(frozen=True)
class Shape:
    """Fixed work: articles of random ids, for each of which exactly `steps` ids are generated."""

    network: str  # of utils.measuring.NETWORKS
    articles: int
    source_length: int
    steps: int
    beams: int
    vocab_size: int = 50265


SHAPES = {
    "base": Shape("base", 8, 512, 60, 6),
    "large": Shape("large", 4, 1024, 142, 4),
    "large_batch1": Shape("large", 1, 1024, 142, 4),
    "tiny": Shape("tiny", 3, 16, 12, 3, vocab_size=300),
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
    repeats: int = option(3, least=1, help="timed runs of each mode, in turns; the table has their medians")
    threads: int | None = option(None, least=1, help="threads of each mode; by default all cores")
    output: str | None = option(None, help="JSON file for all figures")
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
        check_output("output", self.output)


def prepare(args: BenchmarkArguments, folder: Path) -> dict[str, Any]:
    """Write `folder/{model,ctranslate2_*}` and `folder/inputs.json`; return the decoding options.

    Raises:
        InputError: model and data cannot be used, or ask for what a peer among the modes cannot do.
    """
    import torch

    torch.manual_seed(0)
    if args.model is None:
        model, tokenizer = made_up_model(SHAPES[args.shape])
    else:
        model, tokenizer = named_model(args.model)
    config = model.config
    peers = [peer for peer in LACKS if any(mode.startswith(peer) for mode in args.chosen)]
    if config.pre_ln and peers:
        raise InputError(f"--model {args.model} is Pre-LN, which {peers[0]} lacks; allowed: modes of ours alone")
    inputs = text_inputs(args, model, tokenizer, peers) if args.shape == TEXT else random_inputs(args, config)
    # `generate` of transformers and of ours take the options that lie beside the weights.
    model.generation_config = GenerationConfig(**inputs["decoding"])
    # CTranslate2's converter reads these, and transformers 5 no longer writes them.
    config.normalize_before, config.normalize_embedding = False, True
    config.add_final_layer_norm, config.add_bias_logits = False, False
    model.save_pretrained(folder / "model", tokenizer)
    (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
    for mode, quantization in (("ctranslate2_fp32", "float32"), ("ctranslate2_int8", "int8")):
        if mode in args.chosen:
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(str(folder / "model")).convert(str(folder / mode), quantization=quantization)
    return inputs["decoding"]


def made_up_model(shape: Shape) -> tuple[Any, Any]:
    """Random weights, and a vocabulary with a made-up token for every id, since CTranslate2 takes tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(f"token{i}" for i in range(4, shape.vocab_size - 1)), "<mask>"]
    pipeline = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    config = made_up_config(shape.network, vocab_size=shape.vocab_size)
    # With this deviation layers keep the scale of their input, so that the ids generated depend on the article.
    config.init_std = config.d_model**-0.5
    return BartForConditionalGeneration(config), BartTokenizer(pipeline)


def named_model(name: str) -> tuple[Any, Any]:
    """The model of --model, and its tokenizer, with one token for every id of the model."""
    from bart.modeling.modeling_bart import BartForConditionalGeneration
    from bart.tokenization.tokenization_bart import BartTokenizer
    from utils.loading import fit_vocabulary

    model, tokenizer = BartForConditionalGeneration.from_pretrained(name), BartTokenizer.from_pretrained(name)
    fit_vocabulary(model, tokenizer)
    model.resize_token_embeddings(len(tokenizer))  # CTranslate2 has no token for rows that pad the table
    return model, tokenizer


def random_inputs(args: BenchmarkArguments, config: Any) -> dict[str, Any]:
    """Articles of a shape, and the options that make all of them equally long."""
    import torch

    shape, positions = SHAPES[args.shape], config.max_position_embeddings
    if positions < max(shape.source_length, shape.steps):
        raise InputError(f"--model {args.model} has {positions} positions; --shape {args.shape} needs more")
    # The first four ids and the last are special.
    articles = torch.randint(4, config.vocab_size - 1, (shape.articles, shape.source_length)).tolist()
    special = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    decoding = GenerationConfig(
        num_beams=shape.beams,
        max_length=shape.steps + 1,  # the start token counts
        min_length=shape.steps + 1,
        no_repeat_ngram_size=3,
        **{name: getattr(config, name) for name in special},
    )
    return {"articles": articles, "batch_size": shape.articles, "decoding": decoding.to_dict()}


def text_inputs(args: BenchmarkArguments, model: Any, tokenizer: Any, peers: Sequence[str]) -> dict[str, Any]:
    """Articles of a split, and the decoding options of the model.

    Raises:
        InputError: the options ask for what one of the peers cannot do.
    """
    from utils.data.line_files import read_pairs
    from utils.data.tokenized import TokenizedTexts

    config, decoding, neutral = model.config, model.generation_config, GenerationConfig()
    if decoding.do_sample:
        raise InputError(f"--model {args.model}: its do_sample is on; allowed: off, for ids that can be compared")
    for peer in peers:
        for name in LACKS[peer]:
            if getattr(decoding, name) != getattr(neutral, name):
                raise InputError(f"--model {args.model}: its {name} is on; allowed with {peer}: off")
    if decoding.eos_token_ids != [config.eos_token_id]:
        raise InputError(f"--model {args.model}: its eos_token_id is {decoding.eos_token_id}; allowed: one id")
    decoding = decoding.merged(
        eos_token_id=config.eos_token_id,
        num_return_sequences=1,
        max_length=decoding.longest(config.max_position_embeddings),
        min_length=decoding.shortest,
        max_new_tokens=None,
        min_new_tokens=None,
    )
    sources, _ = read_pairs(str(args.data_dir), args.split, args.limit)
    texts = TokenizedTexts.from_texts(sources, tokenizer, config.max_position_embeddings)
    articles = [texts[number].tolist() for number in range(len(texts))]
    return {"articles": articles, "batch_size": args.batch_size, "decoding": decoding.to_dict()}


class TorchPeer:
    """transformers or ours: a torch model, with the decoding options that lie beside its weights."""

    def __init__(self, folder: Path, mode: str, is_text: bool, inputs: Mapping[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.mode, self.decoding = mode, inputs["decoding"]
        self.batch_size = at_once(inputs, mode)
        self.short = {"max_length": 4, "min_length": 0}
        self.is_continuous = mode.startswith("ours") and is_text and mode not in TEXT_MODES
        precision = mode.split("_")[-1]
        if mode.startswith("ours"):
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

    It makes batches of the articles itself; giving it batches one by one was measured to take as long. It has no forced
    EOS: where the options force one, an article that would end in it ends one id earlier.
    """

    def __init__(self, folder: Path, mode: str, is_text: bool, inputs: Mapping[str, Any], threads: int) -> None:
        import ctranslate2

        decoding = inputs["decoding"]
        kind = {"ctranslate2_fp32": "float32", "ctranslate2_int8": "int8"}[mode]
        self.translator = ctranslate2.Translator(
            str(folder / mode), device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
        )
        self.tokens = json.loads((folder / mode / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self.index = {token: index for index, token in enumerate(self.tokens)}
        self.short = {"max_decoding_length": 3, "min_decoding_length": 0}
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


def at_once(inputs: Mapping[str, Any], mode: str) -> int:
    """How many articles a mode decodes at once at most."""
    return 1 if mode == SINGLE else inputs["batch_size"]


def measure(mode: str, folder: Path, is_text: bool, threads: int) -> dict[str, Any]:
    """Seconds of a run over all articles after a warm-up, the ids of each article, and this process's peak memory."""
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    kind = CTranslate2Peer if mode.startswith("ctranslate2") else TorchPeer
    peer = kind(folder, mode, is_text, inputs, threads)
    articles = inputs["articles"]
    loaded = peer.load(articles)
    # Other articles of the same lengths, since ours encodes an input that repeats only once.
    others = [article[::-1] for article in articles]
    if is_text:  # batches of many shapes, for each of which libraries make kernels on first use
        peer.decode(peer.load(others))
    else:
        peer.decode(peer.load(others[: at_once(inputs, mode)]), **peer.short)
    start = time.perf_counter()
    output = peer.decode(loaded)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "ids": peer.ids(output), "peak_memory_gb": process_memory_gb()}


def summarise(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row of figures per mode; those that need a mode which was not run are left out."""
    medians = {mode: statistics.median(run["seconds"] for run in done) for mode, done in runs.items()}
    results = []
    for mode, (first, *others) in runs.items():
        result = {
            "mode": mode,
            "median_seconds": medians[mode],
            "articles_per_second": len(first["ids"]) / medians[mode],
            "peak_memory_gb": max(run["peak_memory_gb"] for run in (first, *others)),
            "seconds": [run["seconds"] for run in (first, *others)],
            # How many times as fast as that mode.
            **{f"speed_to_{other}": medians[other] / medians[mode] for other in COMPARED if other in medians},
        }
        if REFERENCE in runs:
            pairs = zip(first["ids"], runs[REFERENCE][0]["ids"], strict=True)
            result["different_articles"] = [number for number, (one, other) in enumerate(pairs) if one != other]
            result["identical_share"] = 1 - len(result["different_articles"]) / len(first["ids"])
        results.append(result)
    return results


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(BenchmarkArguments, argv, str(__doc__), prog="benchmark_decoding.py")
    threads = args.threads or os.cpu_count() or 1
    # For the processes that load transformers.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with TemporaryDirectory(prefix="benchmark_decoding_") as temporary:
        folder = Path(temporary)
        decoding = in_new_process(prepare, args, folder)
        results = summarise(in_turns(args.chosen, args.repeats, measure, folder, args.shape == TEXT, threads))
    print(table(results, {name: title for name, title in COLUMNS.items() if name in results[0]}))
    if args.output is not None:
        packages = ["ctranslate2"] if find_spec("ctranslate2") else []
        report = {"machine": machine(*packages), "arguments": asdict(args), "threads": threads, "decoding": decoding}
        write_json(Path(args.output), {**report, "results": results})


if __name__ == "__main__":
    run_main(main)
