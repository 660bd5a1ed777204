"""`python -m utils.export MODEL --output DIR`: a model as graphs that run without this project.

ONNX Runtime or torch runs them. Beside them lie the vocabulary and config.json, with the labels. Files and tensors have
the names of Optimum's exports. A model that generates becomes three graphs: `encoder_model`; `decoder_model`, which
reads the start of a target; and `decoder_with_past_model`, which reads one token more by the keys and values of those
before it.

Shapes: B batch, S source length, T target length, P tokens read before, H heads, Dh head width, D model width.
"""

from __future__ import annotations

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.export")

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bart.errors import InputError
from bart.files import PathName
from bart.generation.cache import LayerCache
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.modeling.pretrained import PretrainedModel
from bert.configuration.configuration_bert import BertConfig
from utils.app.cli import option, parse_dataclass
from utils.app.errors import RunError
from utils.app.output_files import writable_folder
from utils.corpora.data_directory import building
from utils.data.options import Place
from utils.models.loading import SOURCE_TOKENIZER, LoadedModel
from utils.prediction.options import TrainedModelOptions
from utils.tasks import TASKS, find_task, task_of

SUFFIXES = {"onnx": ".onnx", "torch_export": ".pt2"}  # of each format's files
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # which the first format needs, and nothing else here
OPSET = 18  # which torch's exporter writes without a conversion
MOST_IN_ONE_FILE = 1 << 30  # bytes of weights; protobuf ends at 2 GiB, and above this they get a file of their own
# The largest difference from torch's results, as a share of the largest of these. fp32 rounds by 2^-24, and a result is
# the end of some 1,000 roundings. A wrong mask or position makes 1e-2 and more.
TOLERANCE = 1000 * 2**-24
PAST, PRESENT = "past_key_values", "present"
Run = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]  # inputs by name -> outputs by name


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """The options of the command; those of the model are a part of their own."""

    output: str = option(section="output", help="folder to make, or an empty one")
    format: str = option(
        "onnx",
        choices=tuple(SUFFIXES),
        help=f"onnx, which needs the packages {', '.join(PACKAGES)}; or torch_export, for torch.export.load",
    )
    task: str | None = option(None, choices=TASKS, help="by default that of the model")
    model: TrainedModelOptions


# ---- Graphs


@dataclass
class Graph:
    """A part of a model that becomes a file.

    Attributes:
        module: takes `inputs` by name and returns a tuple.
        inputs: an example of each input: a tensor, or the list of keys and values.
        axes: for each input, or each of the list, the dimensions whose length is free.
        outputs: the names of what the module returns.
    """

    module: nn.Module
    inputs: dict[str, Any]
    axes: dict[str, Any]
    outputs: Sequence[str]


class Reader(nn.Module):
    """A model that reads texts, or its encoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, S) each -> the results of the model."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return tuple(results_of(self.model(input_ids, attention_mask, **types)).values())


def results_of(output: Any) -> dict[str, Tensor]:
    """The results of a forward pass by name: an encoder's states, or what a head makes of them."""
    if isinstance(output, Tensor):
        return {"last_hidden_state": output}
    return {name: value for name, value in output.items() if not name.startswith("encoder_")}


class KeysValues(LayerCache):
    """One decoder layer's keys and values, which those of the tokens that are read are joined to."""

    def store(self, keys: Tensor, values: Tensor, columns: Any) -> tuple[Tensor, Tensor]:
        if self.self_keys is not None:
            keys, values = torch.cat([self.self_keys, keys], 2), torch.cat([self.self_values, values], 2)
        self.self_keys, self.self_values = keys, values
        return keys, values


class Decoder(nn.Module):
    """The decoder with its head; keys and values, (B, H, P or S, Dh) each, go in and out."""

    def __init__(self, model: BartForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        encoder_attention_mask: Tensor,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: list[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Read the first tokens (B, T) over encoder states (B, S, D), or one more token (B, 1) after P others.

        Args:
            encoder_attention_mask: (B, S).
            past_key_values: of each layer the keys and values of tokens, then those of encoder states.

        Returns:
            Logits (B, T, V); then keys and values in that order, but after P tokens those of tokens alone: the others
            stay as they are.
        """
        cross_mask = encoder_attention_mask.bool()[:, None, None, :]
        if past_key_values is None:
            cross = [layer.encoder_attn.keys_values(encoder_hidden_states) for layer in self.model.get_decoder().layers]
            layers, count = [KeysValues(*keys_values, None, None) for keys_values in cross], 4
            positions = self_mask = None  # from 0 on, and causal
        else:
            layers = [
                KeysValues(cross_keys, cross_values, keys, values)
                for keys, values, cross_keys, cross_values in zip(*[iter(past_key_values)] * 4, strict=True)
            ]
            length, count = past_key_values[0].shape[2], 2
            positions = input_ids.new_full((1,), length)
            self_mask = input_ids.new_ones((1, length + 1), dtype=torch.bool)
        # What `DecoderCache` is to `decode`, without beams.
        cache: Any = SimpleNamespace(
            layers=layers, positions=positions, self_mask=self_mask, cross_mask=cross_mask, columns=None
        )
        logits = self.model.decode(input_ids, cache)
        present = [(layer.self_keys, layer.self_values, layer.cross_keys, layer.cross_values) for layer in layers]
        return logits, *(tensor for tensors in present for tensor in tensors[:count])


def names_of_keys_values(prefix: str, layers: int, *sides: str) -> list[str]:
    """The names of keys and values in the order of `Decoder`."""
    return [f"{prefix}.{n}.{side}.{kind}" for n in range(layers) for side in sides for kind in ("key", "value")]


def example(model: PretrainedModel, *lengths: int) -> dict[str, Tensor]:
    """Random texts of so many tokens as inputs of a model, or of its encoder."""
    config, draws = model.config, torch.Generator().manual_seed(0)
    ends = torch.tensor(lengths)[:, None] - 1
    places = torch.arange(max(lengths))
    mask = (places <= ends).long()
    vocab_size = getattr(config, "source_vocab_size", config.vocab_size)
    ids = torch.randint(vocab_size, mask.shape, generator=draws).where(mask.bool(), config.pad_token_id)
    if isinstance(config, BertConfig):
        types = torch.randint(config.type_vocab_size, mask.shape, generator=draws) * mask
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {"input_ids": ids.where(places != ends, config.eos_token_id), "attention_mask": mask}


def graphs_of(model: PretrainedModel) -> dict[str, Graph]:
    """The graphs that a model becomes, by the names of their files."""
    most = model.config.max_position_embeddings
    batch, length = Dim("batch_size"), Dim("sequence_length", max=most)
    inputs = example(model, min(5, most), 3)
    axes: dict[str, Any] = {name: {0: batch, 1: length} for name in inputs}
    if not isinstance(model, BartForConditionalGeneration):
        return {"model": Graph(Reader(model), inputs, axes, [*results_of(model(**inputs))])}
    of_source = {0: batch, 1: Dim("encoder_sequence_length", max=most)}
    of_target = {0: batch, 1: Dim("decoder_sequence_length", max=most)}
    keys, cross_keys = {0: batch, 2: Dim("past_sequence_length", max=most - 1)}, {0: batch, 2: of_source[1]}
    mask = {"encoder_attention_mask": inputs["attention_mask"]}
    decoder, layers = Decoder(model), len(model.get_decoder().layers)
    target = torch.zeros(2, 3, dtype=torch.long)
    first = {"input_ids": target, **mask, "encoder_hidden_states": model.encode(**inputs)}
    later = {"input_ids": target[:, :1].clone(), **mask, PAST: [*decoder(**first)[1:]]}
    first_axes = dict(zip(first, (of_target, of_source, of_source), strict=True))
    later_axes = dict(zip(later, ({0: batch}, of_source, [keys, keys, cross_keys, cross_keys] * layers), strict=True))
    present = ["logits", *names_of_keys_values(PRESENT, layers, "decoder", "encoder")]
    return {
        "encoder_model": Graph(Reader(model.get_encoder()), inputs, axes, ["last_hidden_state"]),
        "decoder_model": Graph(decoder, first, first_axes, present),
        "decoder_with_past_model": Graph(decoder, later, later_axes, [n for n in present if ".encoder." not in n]),
    }


# ---- Files


def write_graph(graph: Graph, file: Path) -> None:
    """Write a graph in the format of the file's suffix."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that nothing here needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about itself
        program = torch.export.export(graph.module.eval(), (), graph.inputs, dynamic_shapes=graph.axes)
        if file.suffix == SUFFIXES["torch_export"]:
            return torch.export.save(program, file)
        names = [name for name in graph.inputs if name != PAST]
        names += names_of_keys_values(PAST, len(graph.inputs.get(PAST, ())) // 4, "decoder", "encoder")
        onnx = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=graph.outputs,
            dynamic_shapes=graph.axes,  # whose names the file's dimensions get
            opset_version=OPSET,
            verbose=False,
        )
    size = sum(weight.nbytes for weight in graph.module.state_dict().values())
    onnx.save(file, external_data=size > MOST_IN_ONE_FILE)


def load_graph(file: Path, outputs: Sequence[str]) -> Run:
    """The graph of a file, as those run it that it is for."""
    if file.suffix == SUFFIXES["onnx"]:
        from onnxruntime import InferenceSession

        session = InferenceSession(file, providers=["CPUExecutionProvider"])

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            results = session.run(outputs, {name: tensor.numpy() for name, tensor in inputs.items()})
            return dict(zip(outputs, map(torch.from_numpy, results), strict=True))
    else:
        program = torch.export.load(file).module()

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            given: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if not name.startswith(PAST)}
            if len(given) < len(inputs):
                given[PAST] = [tensor for name, tensor in inputs.items() if name.startswith(PAST)]
            return dict(zip(outputs, program(**given), strict=True))

    return run


def comparisons(model: PretrainedModel, runs: Mapping[str, Run]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Graphs' names, their results, and those of the model: of texts of several lengths, and of the longest text.

    The decoder's steps are compared with one pass over the whole target.
    """
    most = model.config.max_position_embeddings
    for lengths in ((min(17, most), min(9, most), 1), (most,)):
        inputs = example(model, *lengths)
        if not isinstance(model, BartForConditionalGeneration):
            results = runs["model"](inputs)
            expected = results_of(model(**inputs))
            yield from (("model", results[name], value) for name, value in expected.items())
            continue
        states, mask = model.encode(**inputs), {"encoder_attention_mask": inputs["attention_mask"]}
        yield "encoder_model", runs["encoder_model"](inputs)["last_hidden_state"], states
        target = torch.arange(6 * len(lengths)).view(len(lengths), 6)[:, :most] % model.config.vocab_size
        logits = model(**inputs, decoder_input_ids=target).logits
        name, given = "decoder_model", {"input_ids": target[:, :2], **mask, "encoder_hidden_states": states}
        past: dict[str, Tensor] = {}
        for place in range(2, target.shape[1] + 1):
            results = runs[name](given)
            width = given["input_ids"].shape[1]
            yield name, results.pop("logits"), logits[:, place - width : place]
            past |= {name.replace(PRESENT, PAST, 1): value for name, value in results.items()}
            name, given = "decoder_with_past_model", {"input_ids": target[:, place : place + 1], **mask, **past}


@torch.no_grad()
def export(loaded: LoadedModel[Any], folder: PathName, format: str = "onnx") -> None:
    """Write a model's graphs, vocabulary and config to a folder, and print the largest differences from torch.

    Raises:
        InputError: see `checked_folder`; or the model is a copy for inference.
        RunError: a difference is larger than rounding makes it; then nothing is written.
    """
    folder, model = checked_folder(folder, format), loaded.model.eval()
    with building(folder) as temporary:
        model.save_config(temporary)
        loaded.tokenizer.save_pretrained(temporary)
        if loaded.source_tokenizer is not None:
            loaded.source_tokenizer.save_pretrained(temporary / SOURCE_TOKENIZER)
        runs: dict[str, Run] = {}
        for name, graph in graphs_of(model).items():
            file = temporary / f"{name}{SUFFIXES[format]}"
            write_graph(graph, file)
            runs[name] = load_graph(file, graph.outputs)
        worst = dict.fromkeys(runs, (0.0, 0.0))
        for name, actual, expected in comparisons(model, runs):
            difference, allowed = (float(values.abs().max()) for values in (actual - expected, TOLERANCE * expected))
            if not difference <= allowed:  # of NaN, too
                raise RunError(
                    f"{name} differs from torch by {difference:.1e}; rounding allows {allowed:.1e}; nothing is written"
                )
            worst[name] = max(worst[name], (difference, allowed))
        for name, (difference, allowed) in worst.items():
            print(f"{name}{SUFFIXES[format]}: differs from torch by {difference:.1e}; rounding allows {allowed:.1e}")


def checked_folder(path: PathName, format: str) -> Path:
    """The folder to write to, made if need be.

    Raises:
        InputError: it holds something or cannot be written, or the format is unknown or its packages are missing.
    """
    if format not in SUFFIXES:
        raise InputError(f"--format is {format!r}; allowed: {', '.join(SUFFIXES)}")
    missing = [package for package in PACKAGES if format == "onnx" and find_spec(package) is None]
    if missing:
        raise InputError(f"--format onnx needs {', '.join(missing)}; run: pip install {' '.join(missing)}")
    folder = writable_folder("--output", path)
    if any(folder.iterdir()) and not any(folder.glob(".*.building")):  # of an export that was killed
        raise InputError(f"--output {folder} is not empty; allowed: a folder that is new or empty")
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_dataclass(
        ExportArguments, argv, "Write a model as graphs for ONNX Runtime or torch, with its vocabulary and labels."
    )
    model = args.model
    task = find_task(task_of(model.model, args.task))
    checked_folder(args.output, args.format)
    evaluation = task.EvalOptions(**task.EvalOptions.only_predict)
    loaded = task(Place(""), evaluation=evaluation).trained_model(model.model, model.config_path, model.tokenizer)
    export(loaded, args.output, args.format)
    print(f"results in {args.output}")
