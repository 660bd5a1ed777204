"""The base of networks, whatever their architecture and head: initial weights, files, the copy for inference."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bart.backend import Backend, BackendModule
from bart.configuration.configuration import CONFIG_FILE, GENERATION_FILE, ModelConfig, stored_config
from bart.configuration.configuration_generation import GenerationConfig
from bart.elsewhere import RECORDED, check_others, missing, take_others
from bart.errors import InputError, in_short
from bart.files import PathName, replacing, write_json
from bart.modeling.checkpoint import (
    WEIGHT_FILES,
    fill,
    find_weights,
    fit_labels,
    published_class,
    read,
    shorten,
    state_dict,
    tied_copies,
    type_of,
)
from bart.modeling.packed import Packer
from bart.tensor_files import CHECKSUM, checksum_of, sort_metadata
from bart.tokenization.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger(__name__)


class PretrainedModel(BackendModule):
    """A network under a head, whose weights start from N(0, init_std) with zero biases.

    Attributes:
        shared: the name of the token embeddings.
        head: the first parts of the names of the head's weights.
        optional: modules that begin with random weights where a file has none of theirs.
        lookalikes: other classes whose heads' weights have the same names.
        output_weight: of a head that classifies, its last weight, with a row for each of the config's labels.
        vocabulary_multiple: files may have more rows of embeddings than the config says, up to a multiple of this.
        generation_config: of a model that generates.
        reads_padding: true if results depend on, or are, the states of padding; copies for inference compute them then.
        is_packed: true of a copy for inference.
    """

    config_class: ClassVar[type[ModelConfig]]
    tokenizer_class: ClassVar[type[PretrainedTokenizer]]
    shared: ClassVar[str]
    head: ClassVar[tuple[str, ...]]
    optional: tuple[str, ...] = ()
    lookalikes: ClassVar[tuple[str, ...]] = ()
    output_weight: ClassVar[str | None] = None
    vocabulary_multiple: ClassVar[int] = 1
    generation_config: GenerationConfig | None = None
    reads_padding: ClassVar[bool] = False
    is_packed = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._check_config(config)
        config.validate()
        if not self.head:  # whose result are the states
            check_others("config", (), {name: config.extra.get(name) for name in RECORDED})
        self.config = config

    def add_head(self) -> None:
        """Make the modules of the head, when the network is made and before weights are drawn."""

    def __call__(self, *inputs: Any, return_dict: bool | None = None, **named: Any) -> Any:
        """`forward`, with return_dict=False as a tuple; other arguments than its own are refused by `check_others`."""
        _, *known = inspect.signature(type(self).forward).parameters.values()
        names = [parameter.name for parameter in known]
        for ids in {"input_ids", "decoder_input_ids"}.intersection(names[len(inputs) :]):
            if (embeddings := named.pop(ids.replace("input_ids", "inputs_embeds"), None)) is not None:
                if named.get(ids) is not None:
                    raise InputError(f"{ids} and embeddings in their place exclude each other; give one of them")
                named[ids] = embeddings
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):  # of a subclass
            check_others(type(self).__name__, names, {name: named.pop(name) for name in [*named] if name not in names})
        output = super().__call__(*inputs, **named)
        return output.to_tuple() if return_dict is False else output

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise missing(self, name) from None

    @classmethod
    def _check_config(cls, config: Any) -> None:
        if not isinstance(config, cls.config_class):
            name = cls.config_class.__name__
            raise InputError(f"config is {in_short(config)}; allowed: a {name}, such as {name}(**config.to_dict())")

    # ---- Weights

    def init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a module and of those in it, unless they are on the meta device."""
        for part in module.modules():
            weight = next(part.parameters(recurse=False), None)
            if weight is None or weight.is_meta:
                continue
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=self.config.init_std)
                if isinstance(part, nn.Linear) and part.bias is not None:
                    nn.init.zeros_(part.bias)
                if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                    nn.init.zeros_(part.weight[part.padding_idx])
            else:  # norms, and parameters of a module's own
                part.reset_parameters()  # type: ignore[operator]

    def get_input_embeddings(self) -> nn.Embedding:
        return cast(nn.Embedding, self.get_submodule(self.shared.removesuffix(".weight")))

    def tie_weights(self) -> None:
        """Let all parts that read or predict tokens use the table of the token embeddings."""

    def resize_token_embeddings(self, vocab_size: int, *, keep: bool = True) -> nn.Embedding:
        """Cut or grow the vocabulary; new rows, or all without `keep`, are drawn from N(0, init_std) without bias.

        Returns:
            The new table of the token embeddings.
        """
        self._check_whole()
        self.config.updated({"vocab_size": vocab_size})  # raises what it refuses before anything is changed
        old = self.get_input_embeddings()
        kept = min(vocab_size, old.num_embeddings) if keep else 0
        new = nn.Embedding(vocab_size, old.embedding_dim, old.padding_idx, device=self.device, dtype=self.dtype)
        self.init_weights(new)
        with torch.no_grad():
            new.weight[:kept] = old.weight[:kept]
        new.weight.requires_grad_(old.weight.requires_grad)
        owner, _, name = self.shared.removesuffix(".weight").rpartition(".")
        setattr(self.get_submodule(owner), name, new)
        self.config.vocab_size = vocab_size
        self.tie_weights()
        return new

    @property
    def device(self) -> torch.device:
        return self.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.get_input_embeddings().weight.dtype

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The count of numbers in the parameters, tied ones counted once."""
        self._check_whole()
        tables = {part.weight for part in self.modules() if exclude_embeddings and isinstance(part, nn.Embedding)}
        counted = {*self.parameters()} - tables
        return sum(weight.numel() for weight in counted if weight.requires_grad or not only_trainable)

    @property
    def network(self) -> nn.Module:
        """All but the head; its stacks have the names that the config's `depths` give them."""
        return self.get_submodule(self.shared.partition(".")[0])

    @property
    def stacks(self) -> list[Any]:
        """The parts that have `layers`, and can recompute their activations."""
        return [getattr(self.network, name) for name in self.config.depths]

    @property
    def layers(self) -> list[nn.Module]:
        """All layers: the blocks that a network is sharded by."""
        return [layer for stack in self.stacks for layer in stack.layers]

    def gradient_checkpointing_enable(self, *_: object, enabled: bool = True, **without_effect: object) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them (Chen et al., 2016)."""
        for stack in self.stacks:
            stack.activation_checkpointing = enabled

    def gradient_checkpointing_disable(self) -> None:
        self.gradient_checkpointing_enable(enabled=False)

    def compute_with(self, backend: Backend) -> None:
        """Let all layers, and the loss, compute with a backend; models begin with plain torch."""
        for module in self.modules():
            if isinstance(module, BackendModule):
                module.backend = backend

    # ---- Files

    @classmethod
    def read_names(cls, state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
        """The weights of a file under this class's names, each once, and the stored names of other heads' weights.

        Raises:
            InputError: they are of another architecture.
        """
        raise NotImplementedError

    def stored_name(self, name: str) -> str:
        """The name of a weight in files that `transformers` loads, where a network without a head has no prefix."""
        return name if self.head else name.partition(".")[2]

    def published_as(self) -> tuple[str, str]:
        """The model type and the class under which `transformers` knows this network."""
        return self.config.model_types[0], type(self).__name__

    @classmethod
    def from_pretrained(
        cls, path_or_name: PathName, config: ModelConfig | None = None, new_head: bool | None = None, **fields: Any
    ) -> Self:
        """Build a model from stored weights, in eval mode and on the CPU.

        Args:
            path_or_name: a Hub-format directory (`model.safetensors` or `pytorch_model.bin`, whole or in shards), one
                such file, a Lightning `.ckpt`, a fairseq `model.pt`, the directory of a training run, or a Hub name.
            config: the architecture, whose decoding fields become the generation defaults. None: that of our `.ckpt` or
                of `config.json` beside the weights, with the generation defaults of the same place.
            new_head: true if a head that classifies shall begin with random weights; None: if the weights have none.
            fields: values in place of the config's, such as num_labels, id2label or num_beams; and `dtype`
                (`torch_dtype`) of the parameters, such as torch.bfloat16, or "auto" for that of config.json or the
                file. Default: fp32.

        Raises:
            InputError: nothing at that path, a damaged or foreign file, no config, or weights that do not fit, such as
                embeddings that are not tied, or a head of other labels.
        """
        take_others("from_pretrained()", fields)
        dtype = fields.pop("torch_dtype", None), fields.pop("dtype", None)
        path = find_weights(path_or_name)
        checkpoint = read(path)
        state, left_out = cls.read_names(state_dict(checkpoint, path), path)
        if cls.lookalikes and "config" not in checkpoint and published_class(path) in cls.lookalikes:
            left_out += [name for name in state if name.startswith(cls.head)]
            state = {name: tensor for name, tensor in state.items() if not name.startswith(cls.head)}
        is_given, generation = config is not None, None
        if config is None:
            config, generation = stored_config(checkpoint, path, [cls.config_class])
            if config is None:
                raise InputError(f"{path}: no config in it and no {CONFIG_FILE} beside it; pass a config")
        cls._check_config(config)
        config = config.updated(fields)
        rows = next(iter(state[cls.shared].shape), 0) if cls.shared in state else 0
        if 0 < rows - config.vocab_size == -config.vocab_size % cls.vocabulary_multiple:
            logger.info("%s: its vocabulary is padded from %d to %d", path, config.vocab_size, rows)
            config.vocab_size = rows
        output = cls.output_weight
        begin: list[str] = []  # with random weights
        if output is not None and (new_head or output not in state):
            state = {name: tensor for name, tensor in state.items() if not name.startswith(cls.head)}
            begin += cls.head
        elif output is not None:
            is_asked = bool({"num_labels", "id2label", "label2id"} & fields.keys())
            fit_labels(config, len(state[output]), path, is_given, is_asked)
        for name in config.depths.values():
            if getattr(config, name) > len(state):  # so many layers need not be built to see this
                raise InputError(f"{path}: its config has {name} {getattr(config, name)}, for {len(state)} weights")
        if left_out:
            logger.warning("%s: weights of another head left out: %s", path, shorten(left_out))
        with torch.device("meta"):
            model = cls(config).to(type_of(dtype[1] or dtype[0], config, state))
        begin += [part for part in model.optional if not any(name.startswith(f"{part}.") for name in state)]
        if new_head is False and (begin or (output is None and cls.head and left_out)):
            lacking, stored = ", ".join(begin or cls.head), f"; its head is {shorten(left_out)}" if left_out else ""
            raise InputError(f"{path}: no weights of a {cls.__name__}: it has no {lacking}{stored}")
        if begin:
            for name in begin:
                model.init_weights(model.get_submodule(name).to_empty(device="cpu"))
            state |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith(tuple(begin))}
            logger.warning("%s: these parts begin with random weights: %s", path, ", ".join(begin))
        fill(model, state, path)
        if generation is not None and model.generation_config is not None:
            given = fields.keys() & cls.config_class.decoding_fields
            model.generation_config = generation.merged(**{name: fields[name] for name in given})
        return model.eval()

    def save_pretrained(self, directory: PathName, tokenizer: PretrainedTokenizer | None = None, **others: Any) -> None:
        """Write the Hub format that `transformers` loads, in the parameters' own precision.

        Raises:
            InputError: the directory cannot be made.
            OSError: a file cannot be written.
        """
        check_others("save_pretrained()", ("directory", "tokenizer"), others)
        self._check_whole()
        directory = Path(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{directory}: cannot be made a directory: {error.strerror}") from error
        config, generation = self.config, self.generation_config
        options = {} if generation is None else generation.to_dict()
        moved = config.extra.keys() & {*options, "torch_dtype"}
        fields = {name: value for name, value in config.to_dict().items() if name not in moved}
        # transformers loads in the precision that the config names, so a stale one would cast the weights.
        fields["dtype"] = str(self.dtype).removeprefix("torch.")
        fields["model_type"], architecture = self.published_as()
        fields["architectures"] = [architecture]
        write_json(directory / CONFIG_FILE, fields, sort_keys=True)
        if generation is not None:
            write_json(directory / GENERATION_FILE, options, sort_keys=True)
        copies = tied_copies(self)
        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items() if name not in copies}
        state = {self.stored_name(name): tensor for name, tensor in state.items()}
        with replacing(directory / WEIGHT_FILES[0]) as temporary:
            try:
                safetensors.torch.save_file(state, temporary, metadata={"format": "pt", CHECKSUM: checksum_of(state)})
                sort_metadata(temporary)
            except SafetensorError as error:
                number = re.search(r"os error (\d+)", str(error))
                if number is None:
                    raise
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(directory / WEIGHT_FILES[0])) from error
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)

    # ---- Inference

    def for_inference(self, precision: str = "fp32") -> Self:
        """A copy that only predicts, and faster: projections fused, weights packed for this processor.

        The copy shares embeddings and norms with this model where their precision is the same.

        Args:
            precision: fp32; bf16 (fp32 on CPUs that cannot multiply it, with a warning); fp16 (on GPUs); or int8 (on
                CPUs): matrix products in 8 bits, attention in bf16 or 8 bits where that is faster, all else in fp32.

        Raises:
            InputError: another precision, int8 where it cannot be computed, or the model is such a copy itself.
        """
        self._check_whole()
        packer = Packer(precision, self.device, leaves_out_padding=not self.reads_padding)
        with torch.device("meta"):  # a skeleton without memory
            packed = type(self)(copy.deepcopy(self.config))
        packed.pack(self, packer)
        packed.compute_with(packer.backend)
        return packed.requires_grad_(False).eval()

    def pack(self, model: Self, packer: Packer) -> None:
        """Make this skeleton the copy for inference of a model."""
        self.is_packed = True
        replaced = {getattr(self, "lm_head", None), *(part for layer in self.layers for part in layer.modules())}
        for module, original in zip(self.modules(), model.modules(), strict=True):
            if module not in replaced or isinstance(module, nn.LayerNorm):
                weights = original.named_parameters(recurse=False)
                cast_weights = {name: weight.detach().to(packer.dtype) for name, weight in weights}
                module.load_state_dict(cast_weights, strict=False, assign=True)
        for layer, original in zip(self.layers, model.layers, strict=True):
            packer.replace_modules(layer, original)

    def _check_whole(self) -> None:
        """Raise InputError where matrices are packed, and no parameters."""
        if self.is_packed:
            raise InputError("the model is a copy for inference, which only predicts; use the model it was made from")
