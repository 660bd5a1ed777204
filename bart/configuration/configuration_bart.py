"""The architecture of a BART model, in the fields of the published `config.json` files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from bart.configuration.configuration import ACTIVATIONS, OF_ALL_NETWORKS, ModelConfig
from bart.configuration.configuration_generation import GenerationConfig
from bart.errors import InputError


@dataclass(init=False, eq=False)
class BartConfig(ModelConfig):
    """Architecture of a BART model; the defaults are `facebook/bart-large`.

    Decoding options among other keywords (`num_beams`, `length_penalty`, …) become the model's generation defaults.
    """

    vocab_size: int = 50265
    max_position_embeddings: int = 1024  # positions a source or target may have; the table has 2 rows more
    d_model: int = 1024
    encoder_layers: int = 12
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    encoder_layerdrop: float = 0.0  # probability of skipping a whole layer in training (Fan et al., 2020)
    decoder_layers: int = 12
    decoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    decoder_layerdrop: float = 0.0
    dropout: float = 0.1  # on embeddings and on every branch before its residual addition
    attention_dropout: float = 0.0  # on attention weights
    activation_dropout: float = 0.0  # after the feed-forward activation
    classifier_dropout: float = 0.0  # before and within a head that classifies
    activation_function: str = "gelu"
    init_std: float = 0.02
    scale_embedding: bool = False  # multiply token embeddings by sqrt(d_model)
    pre_ln: bool = False  # norms inside the residual branches, one more after each stack (mBART's arrangement)
    pad_token_id: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 2
    decoder_start_token_id: int = 2

    model_types = ("bart", "mbart")
    decoding_fields: ClassVar = {field.name for field in fields(GenerationConfig)}
    alike = (
        "source_encoder_layers",
        "source_vocab_size",
        "sep_token_id",
        "static_position_embeddings",
        "classif_dropout",
        "eos_token_ids",
    )
    label_count = 3
    aliases: ClassVar = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }
    supported: ClassVar = {
        "static_position_embeddings": (False,),
        "normalize_embedding": (True,),
        "extra_pos_embeddings": (2,),
        "do_blenderbot_90_layernorm": (False,),
        "add_bias_logits": (False,),
        "is_encoder_decoder": (True,),
        "tie_encoder_decoder": (False,),
        **OF_ALL_NETWORKS,
    }
    dropouts: ClassVar = {
        name: name for name in ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop")
    }
    depths: ClassVar = {"encoder": "encoder_layers", "decoder": "decoder_layers"}

    def __init__(self, **fields: Any) -> None:
        is_mbart = fields.get("model_type") == "mbart"
        if fields.get("pre_ln") is None:
            pre_ln = fields["pre_ln"] = bool(is_mbart or fields.get("normalize_before"))
            for name in ("normalize_before", "add_final_layer_norm"):  # of transformers 2 and 3
                if fields.get(name) not in (None, pre_ln):
                    both = f"allowed: {pre_ln}, for norms in branches and at the ends of stacks go together"
                    raise InputError(f"config field {name!r} is {fields[name]!r}; {both}; pre_ln asks for them")
        if not is_mbart and fields.get("decoder_start_token_id", 2) is None:
            fields["decoder_start_token_id"] = fields.get("bos_token_id") or 0  # as transformers generates
        super().__init__(**fields)

    @property
    def source_encoder_layers(self) -> int:
        """Layers of an encoder that reads sources of another vocabulary in place of the encoder's token embeddings."""
        return self.extra.get("source_encoder_layers") or 0

    @property
    def source_vocab_size(self) -> int:
        """Ids that sources may have."""
        return self.extra.get("source_vocab_size") or self.vocab_size

    def validate(self) -> None:
        super().validate()
        self.check(self.activation_function in ACTIVATIONS, "activation_function", ", ".join(ACTIVATIONS))
        ends = self.extra.get("eos_token_ids")  # of transformers 2
        self.check(ends in (None, self.eos_token_id, [self.eos_token_id]), "eos_token_ids", f"[{self.eos_token_id}]")
        for name, least in (("source_encoder_layers", 0), ("source_vocab_size", 1)):
            value = getattr(self, name)
            self.check(type(value) is int and value >= least, name, f"an integer of at least {least}")
