"""BERT's speed in inference beside the peers: transformers, ONNX Runtime and ours, in turns, on the same inputs.

    python scripts/benchmarks/benchmark_bert_inference.py --shape base --output results.json

A question-answering model with random weights reads random sequences of full length, as SQuAD's recipe makes them. Each
run is a process of its own, and is timed after a warm-up from ids to logits. The table has the medians of its sequences
per second, the speed over that of the first mode, the peak memory of a process, and the error: the root of the mean
squared difference between the logits and those of the first mode, as a share of their standard deviation.

ONNX Runtime gets what its own tools make of transformers' model: exported, optimised for BERT, and for int8 with all
matrix products quantised dynamically.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Run as a file, Python looks for modules in scripts/bert, and not in the root that holds bart, bert and utils.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.app.start import start_program

if __name__ == "__main__":
    start_program()

import numpy as np

from bart.errors import InputError
from bart.files import write_json
from scripts.benchmarks.measuring import (
    DEVICES,
    check_device,
    compared,
    device_memory_gb,
    forget_loading,
    in_new_process,
    in_turns,
)
from utils.app.cli import option, parse_dataclass, run_main
from utils.app.tables import table
from utils.runs.machine import environment
from utils.runs.outputs import check_output

# torch, transformers and onnxruntime are imported where they are used, so that no process holds another one's library.

MODES = "transformers_fp32 transformers_bf16 onnxruntime_fp32 onnxruntime_int8 ours_fp32 ours_bf16 ours_int8".split()
COLUMNS = {
    "mode": "mode",
    "rate": "sequences/s",
    "seconds": "seconds",
    "speed_up": "speed-up",
    "peak_memory_gb": "peak GB",
    "error": "error",
}
LEAST_PASSES, LEAST_SECONDS = 3, 1  # over all sequences, timed together
OPSET = 17  # of the exported graph
Read = Callable[[np.ndarray], np.ndarray]  # ids (B, S) -> logits (2, B, S)


@dataclass(frozen=True)
class Shape:
    sequences: int
    length: int = 384
    width: int = 768
    layers: int = 12
    heads: int = 12
    vocab_size: int = 30522


SHAPES = {
    "base": Shape(8),
    "base_batch1": Shape(1),
    "large": Shape(8, width=1024, layers=24, heads=16),
    "tiny": Shape(3, length=16, width=32, layers=2, heads=2, vocab_size=300),
}


@dataclass(frozen=True)
class BenchmarkArguments:
    shape: str = option(
        "base",
        choices=tuple(SHAPES),
        help="base is bert-base, 8 sequences of 384 tokens; base_batch1 is the same with 1 sequence; large is "
        "bert-large, 8 of 384; tiny is for trying this out",
    )
    modes: tuple[str, ...] = option(tuple(MODES), choices=MODES, help="what is run, in this order")
    repeats: int = option(3, least=1, help="timed runs of each mode, in turns; the table has their medians")
    threads: int = option(os.cpu_count() or 1, least=1, help="threads of each mode")
    device: str = option(
        "cpu", choices=DEVICES, help="of all modes; cuda takes those of transformers and ours, but int8"
    )
    output: str | None = option(None, help="JSON file for all figures")

    def __post_init__(self) -> None:
        if any(mode.startswith("onnxruntime") for mode in self.modes):
            for name in ("onnx", "onnxruntime"):
                if find_spec(name) is None:
                    raise InputError(f"--modes holds {name}, which needs `pip install -r requirements-dev.txt`")
        check_device(self.device, self.modes)
        check_output("output", self.output)


def prepare(args: BenchmarkArguments, folder: Path) -> None:
    """Write `folder/model` and `folder/onnxruntime_*.onnx`."""
    import torch

    from bert.configuration.configuration_bert import BertConfig
    from bert.modeling.modeling_bert import BertForQuestionAnswering

    shape = SHAPES[args.shape]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
    )
    BertForQuestionAnswering(config).save_pretrained(folder / "model")
    if any(mode.startswith("onnxruntime") for mode in args.modes):
        export(folder, shape)


def export(folder: Path, shape: Shape) -> None:
    """Make ONNX Runtime's models of `folder/model`."""
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertForQuestionAnswering

    graph, optimised = str(folder / "exported.onnx"), str(folder / "onnxruntime_fp32.onnx")
    model = BertForQuestionAnswering.from_pretrained(folder / "model").eval()
    model.config.return_dict = False
    names = ["input_ids", "start", "end"]
    axes = {name: {0: "batch", 1: "length"} for name in names}
    torch.onnx.export(
        model,
        (torch.from_numpy(inputs(shape)),),
        graph,
        input_names=names[:1],
        output_names=names[1:],
        dynamic_axes=axes,
        opset_version=OPSET,
        dynamo=False,
    )
    optimize_model(graph, "bert", num_heads=shape.heads, hidden_size=shape.width).save_model_to_file(optimised)
    # Its own reckoning of tensors' types does not know the operators that the optimiser has put in.
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(optimised, folder / "onnxruntime_int8.onnx", weight_type=QuantType.QInt8, extra_options=types)


def inputs(shape: Shape) -> np.ndarray:
    """Ids (B, S)."""
    return np.random.default_rng(1).integers(shape.vocab_size, size=(shape.sequences, shape.length))


def load_ours(folder: Path, precision: str, device: str) -> Read:
    from bert.modeling.modeling_bert import BertForQuestionAnswering

    model = BertForQuestionAnswering.from_pretrained(folder / "model").to(device)
    return reader(model.for_inference(precision), device)


def load_transformers(folder: Path, precision: str, device: str) -> Read:
    import torch
    from transformers import BertForQuestionAnswering

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = BertForQuestionAnswering.from_pretrained(folder / "model", dtype=dtype)
    return reader(model.eval().to(device), device)


def reader(model: Any, device: str) -> Read:
    """A model of transformers or ours as a function of arrays."""
    import torch

    @torch.inference_mode()
    def read(ids: np.ndarray) -> np.ndarray:
        out = model(torch.from_numpy(ids).to(device))
        return torch.stack([out.start_logits, out.end_logits]).float().cpu().numpy()

    return read


def load_onnxruntime(folder: Path, precision: str, device: str) -> Read:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    path = folder / f"onnxruntime_{precision}.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids: np.stack(session.run(None, {"input_ids": ids}))


PEERS = {"ours": load_ours, "transformers": load_transformers, "onnxruntime": load_onnxruntime}


def measure(mode: str, folder: Path, shape: Shape, device: str) -> dict[str, Any]:
    """Sequences per second after a warm-up, their logits, and this process's peak memory."""
    peer, precision = mode.split("_")
    read, ids = PEERS[peer](folder, precision, device), inputs(shape)
    forget_loading(device)
    read(ids)
    start, passes = time.perf_counter(), 0
    while passes < LEAST_PASSES or time.perf_counter() - start < LEAST_SECONDS:
        logits = read(ids)
        passes += 1
    rate = passes * shape.sequences / (time.perf_counter() - start)
    return {"rate": rate, "logits": logits, "peak_memory_gb": device_memory_gb(device)}


def summarise(runs: Mapping[str, Sequence[dict[str, Any]]], shape: Shape) -> list[dict[str, Any]]:
    """One row of figures per mode."""
    first, *_ = runs
    rows, right = compared(runs, first), runs[first][0]["logits"]
    for row in rows:
        error = runs[row["mode"]][0]["logits"] - right
        row |= {"seconds": shape.sequences / row["rate"], "error": float((error**2).mean() ** 0.5 / right.std())}
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(BenchmarkArguments, argv, str(__doc__))
    # For the processes of the peers, which read the number of threads when they load torch.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    with TemporaryDirectory(prefix="benchmark_inference_") as temporary:
        folder = Path(temporary)
        in_new_process(prepare, args, folder)
        shape = SHAPES[args.shape]
        results = summarise(in_turns(args.modes, args.repeats, measure, folder, shape, args.device), shape)
    print(table(results, COLUMNS))
    if args.output is not None:
        packages = ["onnxruntime"] if any(mode.startswith("onnxruntime") for mode in args.modes) else []
        write_json(
            Path(args.output),
            {
                "machine": environment(int(args.device == "cuda"), *packages),
                "arguments": asdict(args),
                "results": results,
            },
        )


if __name__ == "__main__":
    run_main(main)
