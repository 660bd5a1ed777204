"""The cost of training, pretraining and beam search: parameters, operations of matrix products, memory, time.

    python -m utils.cost --config_path configs/config_xsum.json --shape 40x1024x60 --gpu h200

By formulas; nothing is run. Operations and memory are within 5 % of what torch counts, for one process, batches without
padding, one micro-batch a step, and fp32 weights, with bf16 and fp16 under autocast; on GPUs from Ampere on, without
--compile. Times are those at the peak of a GPU, or at --peak: the least possible. Beam search takes at least as long as
reading weights and caches in each step. Its memory is theirs alone, without that of the encoder's pass before.

Shapes: B batch, S source length, T target length, K beams, D model width, H heads, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.cost")

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.app.tables import markdown_table
from utils.runs.machine import BANDWIDTHS, PEAKS, PRECISIONS, peak_rate

GPUS = {name.lower().replace(" ", "_"): name for name in PEAKS}
WORK = ("fine-tuning", "pretraining", "beam search")
HALF, FULL = 2, 4  # bytes of a number
HALVES = "bf16", "fp16"
NORM = 8  # bytes that a norm's mean and deviation take for each token
COLUMNS = {"what": "", **{work: work for work in WORK}}
MEMORY = ("weights", "gradients", "optimizer", "activations", "cache")


@dataclass(frozen=True)
class CostArguments:
    """The options of the command."""

    config_path: str = option(help="JSON with the architecture")
    shape: str = option(
        "40x1024x60", help="examples at once on a device, and tokens of a source and of a target, BxSxT"
    )
    beams: int = option(6, least=1, help="of beam search, which generates T tokens")
    gpu: str | None = option(None, choices=tuple(GPUS), help="the device; by default a CPU")
    peak: float | None = option(None, above=0, help="TFLOP/s of the device, in place of the GPU's")
    precision: str = option("bf16", choices=tuple(p for p in PRECISIONS if p != "int8"), help="of the matrix products")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){2}", self.shape):
            raise InputError(f"--shape is {self.shape!r}; allowed: BxSxT, such as 40x1024x60")
        if self.gpu is not None and self.precision not in PEAKS[GPUS[self.gpu]]:
            allowed = ", ".join(PEAKS[GPUS[self.gpu]])
            raise InputError(f"--precision is {self.precision}, which a {GPUS[self.gpu]} lacks; allowed: {allowed}")


@dataclass(frozen=True)
class Costs:
    """The costs of a training step, or of a batch that is decoded, on one device; memory is in bytes."""

    operations: float
    weights: float
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    cache: float = 0
    read: float = 0  # by beam search, beside the operations: weights and caches in every step

    @property
    def memory(self) -> float:
        """The most memory at once: activations are gone when the last gradient has come."""
        return self.weights + self.optimizer + max(self.activations, self.gradients) + self.cache


def parameters(config: BartConfig) -> dict[str, int]:
    """The numbers of parameters: `matrices` that multiply states, `tables` of tokens and positions, and the `rest`."""
    c, d = config, config.d_model
    attention, norm = 4 * d * d, 2 * d
    encoder, decoder = attention + 2 * d * c.encoder_ffn_dim, 2 * attention + 2 * d * c.decoder_ffn_dim
    encoder_rest, decoder_rest = 5 * d + c.encoder_ffn_dim + 2 * norm, 9 * d + c.decoder_ffn_dim + 3 * norm
    return {
        "matrices": c.encoder_layers * encoder + c.decoder_layers * decoder,
        "tables": c.vocab_size * d + 2 * (c.max_position_embeddings + 2) * d,
        "rest": c.encoder_layers * encoder_rest + c.decoder_layers * decoder_rest + (4 if c.pre_ln else 2) * norm,
    }


def activations(config: BartConfig, shape: Sequence[int], precision: str, on_cpu: bool, freeze: bool) -> float:
    """Bytes that the forward pass keeps for the backward pass, with dropout, under autocast if not in fp32.

    Linear layers that read the same states keep these once, and one matrix; in half precision both are copies. A norm
    keeps its inputs in fp32, in bf16 on a GPU what it normed in bf16; attention keeps queries, keys, values and its
    result; the loss keeps its gradients by states and weights. On a GPU dropout keeps a byte for each place, unless it
    draws again: in attention, and in half precision in front of a norm. On a CPU, with the compiled kernels, all draw
    again.

    Args:
        shape: B, S, T.
        freeze: the embeddings are not trained.
    """
    from bart.cuda.backend import ROWS  # torch takes seconds to load
    from bart.rounding import round_to_few

    c, d = config, config.d_model
    batch, source, target = shape
    half = precision in HALVES
    size = HALF if half else FULL
    sources, targets = batch * source, batch * target
    if half and not on_cpu:
        sources, targets = (round_to_few(rows + 1, ROWS) for rows in (sources, targets))
    embedded = (0 if on_cpu else d) + FULL * d + NORM  # dropout, and the sum that is normalised
    added: float = embedded  # at the end of a branch
    if half and not (on_cpu or c.pre_ln):
        added = (HALF if precision == "bf16" else FULL) * d + NORM / 2
    of_head = 0 if on_cpu else FULL  # the sum of its weights

    def feed_forward(width: int) -> float:
        # Relu's inputs are not needed, and its results are kept anyway, unless dropout follows.
        kept = size * (1 if c.activation_function == "relu" and not c.activation_dropout else 2)
        return size * d + (kept + (0 if on_cpu or not c.activation_dropout else 1)) * width + added

    encoder = 5 * size * d + added + of_head * c.encoder_attention_heads + feed_forward(c.encoder_ffn_dim)
    decoder = 8 * size * d + 2 * (added + of_head * c.decoder_attention_heads) + feed_forward(c.decoder_ffn_dim)
    # Each source token has keys and values in each layer, and the encoder's states, which a CPU casts for each layer.
    states = (2 * c.decoder_layers + (c.decoder_layers if half and on_cpu else 1)) * size * d
    if c.pre_ln:
        embedded += d * FULL + NORM
    total = sources * (c.encoder_layers * encoder + states + embedded)
    total += targets * (c.decoder_layers * decoder + embedded + FULL * d)
    if half:
        total += HALF * parameters(config)["matrices"]
    else:  # matrices of projections that are one product
        total += FULL * d * d * (3 * c.encoder_layers + 5 * c.decoder_layers)
    return total + (0 if freeze else FULL * c.vocab_size * d)


def loss_temporaries(config: BartConfig, targets: int, half: bool, on_cpu: bool, freeze: bool) -> float:
    """Bytes that the loss holds at most, beside what it keeps for the backward pass; see `bart.modeling.loss`.

    In half precision it holds a copy of the weight. It holds the logits of a chunk of targets, on a GPU with two copies
    in fp32, and, if the weight is trained, the chunk's gradient of it, which is added to those of the chunks before.
    The backward pass begins with a copy of all of that gradient.
    """
    from bart.modeling.loss import LOGITS_AT_ONCE  # torch takes seconds to load

    vocabulary, weight = config.vocab_size, config.vocab_size * config.d_model
    size, trained = HALF if half else FULL, 0 if freeze else weight
    logit = size  # with its copies
    if not on_cpu:
        logit = 2 * FULL + (HALF if half else 0)

    def of_chunk(count: int, follows: bool) -> float:
        """The bytes of a chunk of so many targets; if it follows another, there is a sum of gradients."""
        gradient = size if half or follows else 0  # in fp32 the first chunk's gradient becomes the sum
        if half and on_cpu and follows:
            gradient += FULL  # it is cast before it is added
        before_gradient = count * vocabulary * logit - (0 if follows else FULL * trained)
        return max(before_gradient, count * vocabulary * size + gradient * trained)

    at_once = LOGITS_AT_ONCE // vocabulary
    most = of_chunk(min(at_once, targets), follows=False)
    if targets > at_once:
        most = max(most, of_chunk(min(at_once, targets - at_once), follows=True))
    return max(most + (HALF * weight if half else 0), FULL * trained)


def training(
    config: BartConfig, shape: Sequence[int], precision: str, on_cpu: bool = False, freeze: bool = True
) -> Costs:
    """The costs of a step with AdamW, or LAMB, and fp32 weights; the fine-tuning recipe freezes the embeddings."""
    from bart.modeling.modeling_bart import training_operations  # torch takes seconds to load

    counts = parameters(config)
    total, (batch, source, target) = sum(counts.values()), shape
    trained = total - (counts["tables"] if freeze else 0)
    return Costs(
        operations=batch * training_operations(config, source, target, freeze),
        weights=FULL * total,
        gradients=FULL * trained,
        optimizer=2 * FULL * trained,
        activations=activations(config, shape, precision, on_cpu, freeze)
        + loss_temporaries(config, batch * target, precision in HALVES, on_cpu, freeze),
    )


def beam_search(config: BartConfig, shape: Sequence[int], beams: int, half: bool) -> Costs:
    """The costs of T tokens for each of B sources; the beams of an article share the keys and values of its source."""
    c, d = config, config.d_model
    batch, source, target = shape
    size, counts = HALF if half else FULL, parameters(config)
    encoder = c.encoder_layers * source * (4 * d * d + 2 * d * c.encoder_ffn_dim + 2 * d * source)
    once = encoder + c.decoder_layers * source * 2 * d * d
    step = c.decoder_layers * (6 * d * d + 2 * d * c.decoder_ffn_dim + 2 * d * source) + d * c.vocab_size
    # All beams' columns are read, under a mask.
    self_attention = c.decoder_layers * 2 * d * beams * target * (target + 1) / 2
    cross_cache = c.decoder_layers * 2 * d * source * batch * size
    self_cache = c.decoder_layers * 2 * d * target * beams * batch * size
    decoder = c.decoder_layers * (6 * d * d + 2 * d * c.decoder_ffn_dim) + c.vocab_size * d
    return Costs(
        operations=2 * batch * (once + beams * (target * step + self_attention)),
        weights=size * sum(counts.values()),
        cache=cross_cache + self_cache,
        read=target * (size * decoder + cross_cache + self_cache / 2),
    )


def describe(args: CostArguments) -> str:
    """The text that `main` prints."""
    config = BartConfig.from_json(args.config_path)
    if config.source_encoder_layers:
        raise InputError(f"{args.config_path} has source_encoder_layers, which this does not count")
    batch, source, target = shape = [*map(int, args.shape.split("x"))]
    if max(source, target) > config.max_position_embeddings:
        raise InputError(
            f"--shape is {args.shape}; allowed: S and T up to the config's max_position_embeddings, "
            f"{config.max_position_embeddings}"
        )
    gpu = GPUS.get(args.gpu or "")
    costs = [
        training(config, shape, args.precision, gpu is None),
        training(config, shape, args.precision, gpu is None, freeze=False),
        beam_search(config, shape, args.beams, args.precision in HALVES),
    ]
    peak = args.peak * 1e12 if args.peak else peak_rate(gpu or "", args.precision)
    named = {
        "TFLOP": [each.operations / 1e12 for each in costs],
        **{f"{name} GB": [getattr(each, name) / 1e9 or None for each in costs] for name in MEMORY},
        "together GB": [each.memory / 1e9 for each in costs],
    }
    if peak:
        times = [max(each.operations / peak, each.read / BANDWIDTHS[gpu] if gpu else 0) for each in costs]
        named |= {"seconds at the peak": times, "examples/s at the peak": [batch / time for time in times]}
    rows = [{"what": what, **dict(zip(WORK, values, strict=True))} for what, values in named.items()]
    counts = parameters(config)
    return "\n\n".join(
        [
            f"{sum(counts.values()):,} parameters, {counts['tables']:,} of them in tables of tokens and positions",
            f"{batch} examples of {source} and {target} tokens at once, {args.precision}, {gpu or 'CPU'}"
            + (f" with {peak / 1e12:g} TFLOP/s" if peak else ""),
            markdown_table(rows, COLUMNS),
            "fine-tuning: frozen embeddings; pretraining: all weights are trained; both with AdamW or LAMB; "
            f"beam search: {args.beams} beams, {target} steps",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    print(describe(parse_dataclass(CostArguments, argv, str(__doc__))))
