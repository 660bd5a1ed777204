"""BERT's speed in inference beside the peers: transformers, ONNX Runtime and ours, in turns, on the same inputs.

    python scripts/benchmarks/bert_inference.py --shape base --output results.json

A question-answering model with random weights reads random sequences of full length. Each run is a process of its own,
and is timed after a warm-up from ids to logits. The error is the root of the mean squared difference between the logits
and those of the first mode, as a share of their standard deviation.

ONNX Runtime gets what its own tools make of transformers' model: exported, optimised for BERT, and for int8 with all
matrix products quantised dynamically.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # bert and utils, which Python does not find by itself

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("scripts.benchmarks.bert_inference")

import numpy as np

from scripts.benchmarks import measuring
from utils.app.cli import parse_dataclass
from utils.app.machine import ROOT

# torch, transformers and onnxruntime are imported where they are used, so that each process holds its own alone.

OPSET = 17  # of the exported graph
Read = Callable[[], np.ndarray]  # logits (B, S, 2)


@dataclass(frozen=True)
class BertShape:
    config: str  # a file in configs/
    sequences: int
    length: int = 384


SHAPES = {
    "base": BertShape("bert_base.json", 8),
    "base_batch1": BertShape("bert_base.json", 1),
    "large": BertShape("bert_large.json", 8),
    "tiny": BertShape("bert_tiny.json", 3, length=16),
}


@dataclass(frozen=True, kw_only=True)
class BertArguments(measuring.InferenceOptions):
    shape: str = measuring.shape_option("base", SHAPES)
    modes: tuple[str, ...] = measuring.modes_option("onnxruntime")


def prepare(args: BertArguments, folder: Path) -> None:
    """Write `folder/model`, ids as `folder/inputs.json` and `folder/onnxruntime_*.onnx`."""
    import torch

    from bert.configuration.configuration_bert import BertConfig
    from bert.modeling.modeling_bert import BertForQuestionAnswering

    shape = SHAPES[args.shape]
    config = BertConfig.from_pretrained(ROOT / "configs" / shape.config)
    ids = np.random.default_rng(1).integers(config.vocab_size, size=(shape.sequences, shape.length))
    (folder / "inputs.json").write_text(json.dumps(ids.tolist()), encoding="utf-8")
    torch.manual_seed(0)
    BertForQuestionAnswering(config).save_pretrained(folder / "model")
    if any(mode.startswith("onnxruntime") for mode in args.modes):
        export(folder, ids)


def export(folder: Path, ids: np.ndarray) -> None:
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertForQuestionAnswering

    graph, optimised = str(folder / "exported.onnx"), str(folder / "onnxruntime_fp32.onnx")
    model = BertForQuestionAnswering.from_pretrained(folder / "model").eval()
    model.config.return_dict = False
    torch.onnx.export(
        model,
        (torch.from_numpy(ids),),
        graph,
        input_names=["input_ids"],
        output_names=["start", "end"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in ("input_ids", "start", "end")},
        opset_version=OPSET,
        dynamo=False,
    )
    config = model.config
    optimiser = optimize_model(graph, "bert", config.num_attention_heads, config.hidden_size)
    optimiser.save_model_to_file(optimised)
    # Its own reckoning of tensors' types does not know the operators that the optimiser has put in.
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(optimised, folder / "onnxruntime_int8.onnx", weight_type=QuantType.QInt8, extra_options=types)


def load_ours(folder: Path, ids: list[list[int]], precision: str, device: str) -> Read:
    from bert.modeling.modeling_bert import BertForQuestionAnswering

    model = BertForQuestionAnswering.from_pretrained(folder / "model").to(device)
    return reader(model.for_inference(precision), ids, device)


def load_transformers(folder: Path, ids: list[list[int]], precision: str, device: str) -> Read:
    import torch
    from transformers import BertForQuestionAnswering

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = BertForQuestionAnswering.from_pretrained(folder / "model", dtype=dtype)
    return reader(model.eval().to(device), ids, device)


def reader(model: Any, ids: list[list[int]], device: str) -> Read:
    """A model of transformers or ours at work."""
    import torch

    @torch.inference_mode()
    def read() -> np.ndarray:
        out = model(torch.tensor(ids, device=device))
        return torch.stack([out.start_logits, out.end_logits], dim=-1).float().cpu().numpy()

    return read


def load_onnxruntime(folder: Path, ids: list[list[int]], precision: str, device: str) -> Read:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    path = folder / f"onnxruntime_{precision}.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: np.stack(session.run(None, {"input_ids": np.array(ids)}), axis=-1)


PEERS = {"ours": load_ours, "transformers": load_transformers, "onnxruntime": load_onnxruntime}


def error(logits: np.ndarray, expected: np.ndarray) -> float:
    """The root of the mean squared difference, as a share of the deviation."""
    return float(((logits - expected) ** 2).mean() ** 0.5 / expected.std())


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(BertArguments, argv, str(__doc__))
    measuring.compare_inference(args, "sequences/s", prepare, PEERS, error, "error")
