"""What networks share whatever their architecture and head: initial weights, files, the copy for inference."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bart.configuration.configuration import ModelConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError
from bart.hub import push
from bart.modeling.checkpoint import load_pretrained, save_pretrained
from bart.modeling.layers import BartDecoderLayer, BartEncoderLayer
from bart.modeling.packed import Packer
from bart.tokenization.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:
    from typing import Self


class PretrainedModel(nn.Module):
    """A network under a head.

    Weights start from N(0, init_std) with zero biases; `from_pretrained` loads trained ones.

    Attributes:
        config_class: of its configs, which have a field or property `init_std`.
        tokenizer_class: of its vocabularies.
        shared: the name of the token embeddings.
        head: what the names of the head's weights begin with.
        lookalikes: other classes whose heads' weights have the same names.
        output_weight: of a head that classifies, its last weight, with a row for each of the config's labels.
        generation_config: of a model that generates.
        is_packed: whether it is a copy for inference.
    """

    config_class: ClassVar[type[ModelConfig]]
    tokenizer_class: ClassVar[type[PretrainedTokenizer]]
    shared: ClassVar[str]
    head: ClassVar[tuple[str, ...]]
    lookalikes: ClassVar[tuple[str, ...]] = ()
    output_weight: ClassVar[str | None] = None
    generation_config: GenerationConfig | None = None
    is_packed = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config

    # ---- Weights

    def init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a module and of those in it, unless they are on the meta device."""
        for part in module.modules():
            own = next(part.parameters(recurse=False), None)
            if own is None or own.is_meta:
                continue
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=self.config.init_std)
                if isinstance(part, nn.Linear) and part.bias is not None:
                    nn.init.zeros_(part.bias)
                if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                    with torch.no_grad():
                        part.weight[part.padding_idx].zero_()
            else:  # norms, and parameters of a module's own
                part.reset_parameters()

    def new_weights(self, parts: tuple[str, ...]) -> dict[str, Tensor]:
        """Random weights of some modules, by name; the modules are on the CPU from now on."""
        for name in parts:
            self.init_weights(self.get_submodule(name).to_empty(device="cpu"))
        return {name: weight for name, weight in self.state_dict().items() if name.startswith(parts)}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.get_submodule(self.shared.removesuffix(".weight"))

    def get_output_embeddings(self) -> nn.Linear | None:
        """The layer that gives logits over the vocabulary, of a model that has one."""
        return None

    @property
    def device(self) -> torch.device:
        return self.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.get_input_embeddings().weight.dtype

    def num_parameters(self, only_trainable: bool = False) -> int:
        """How many numbers the parameters hold, tied ones counted once."""
        self._check_whole()
        return sum(one.numel() for one in self.parameters() if one.requires_grad or not only_trainable)

    @property
    def network(self) -> nn.Module:
        """All but the head; its stacks have the names that the config's `depths` give them."""
        raise NotImplementedError

    @property
    def stacks(self) -> list[nn.Module]:
        """The parts that have `layers`, and can recompute their activations."""
        return [getattr(self.network, name) for name in self.config.depths]

    @property
    def layers(self) -> list[nn.Module]:
        """All layers: the blocks that a network is sharded by."""
        return [layer for stack in self.stacks for layer in stack.layers]

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them (Chen et al., 2016)."""
        for stack in self.stacks:
            stack.activation_checkpointing = enabled

    def compile_layers(self) -> None:
        """Let `torch.compile` make the code that the layers run in training, for inputs of any length."""
        for stack in self.stacks:
            stack.compiled = True

    def leave_out_padding(self) -> None:
        """In training on CPUs, let layers compute no padding, whose states are zeros then.

        The loss must not read them, as that of a question-answering head does: a softmax over all places.
        """
        for stack in self.stacks:
            stack.leaves_out_padding = True

    # ---- Files

    @classmethod
    def read_names(cls, state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
        """The weights of a file under this class's names, each once, and the stored names of other heads' weights.

        Raises:
            InputError: they are of another architecture.
        """
        raise NotImplementedError

    def stored_name(self, name: str) -> str:
        """What a weight is called in files that `transformers` loads."""
        return name

    @property
    def optional(self) -> tuple[str, ...]:
        """Modules that begin with random weights where a file has none of theirs."""
        return ()

    def published_as(self) -> tuple[str, str]:
        """The model type and the class under which `transformers` knows this network."""
        return self.config.model_types[0], type(self).__name__

    @classmethod
    def from_pretrained(
        cls, path_or_name: str | os.PathLike[str], config: ModelConfig | None = None, **options: Any
    ) -> Self:
        """Load weights from a directory, a file or the Hub, in eval mode; see `bart.modeling.checkpoint`."""
        return load_pretrained(cls, path_or_name, config, **options)

    def save_pretrained(self, directory: str | os.PathLike[str], tokenizer: PretrainedTokenizer | None = None) -> None:
        """Write a Hub-format directory that `transformers` loads; see `bart.modeling.checkpoint`."""
        self._check_whole()
        save_pretrained(self, directory, tokenizer)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hub; options and result are those of `bart.hub.push`."""
        return push(self.save_pretrained, repo_id, **options)

    # ---- Inference

    def for_inference(self, precision: str = "fp32") -> Self:
        """A copy that only predicts, and faster: projections fused, weights packed for this processor.

        One that generates encodes inputs that repeat once. The copy shares embeddings and norms with this model where
        their precision is the same.

        Args:
            precision: fp32; bf16 (fp32 on CPUs that cannot multiply it, with a warning); fp16 (on GPUs); or int8 (on
                CPUs): inputs and weights of matrix products in 8 bits, or weights in 7 bits on processors that would
                overflow; attention in bf16 or 8 bits where that is faster; all else in fp32.

        Raises:
            InputError: another precision, int8 where it cannot be computed, or the model is such a copy itself.
        """
        self._check_whole()
        packer = Packer(precision, self.device)
        with torch.device("meta"):  # a skeleton without memory
            own = self.inference_class()(copy.deepcopy(self.config))
        own.pack(self, packer)
        return own.requires_grad_(False).eval()

    def inference_class(self) -> type[Self]:
        """The class of a copy for inference."""
        return type(self)

    def pack(self, model: Self, packer: Packer) -> None:
        """Make this skeleton the copy for inference of a model."""
        self.is_packed = True
        pairs = list(zip(self.modules(), model.modules(), strict=True))
        packed = {self.get_output_embeddings(), *(part for layer in self.layers for part in layer.modules())}
        for own, original in pairs:
            if own not in packed or isinstance(own, nn.LayerNorm):
                weights = dict(original.named_parameters(recurse=False))
                weights = {name: weight.detach().to(packer.dtype) for name, weight in weights.items()}
                own.load_state_dict(weights, strict=False, assign=True)
        for own, original in pairs:
            if isinstance(own, (BartEncoderLayer, BartDecoderLayer)):
                packer.replace_modules(own, original)

    def _check_whole(self) -> None:
        """Raise InputError where matrices are packed, and no parameters."""
        if self.is_packed:
            raise InputError("the model is a copy for inference, which only predicts; use the model it was made from")
