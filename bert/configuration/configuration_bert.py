"""The architecture of a BERT model, in the fields of the published `config.json` files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bart.configuration.configuration import ACTIVATIONS, OF_ALL_NETWORKS, ModelConfig
from bart.configuration.configuration_bart import BartConfig


@dataclass(init=False, eq=False)
class BertConfig(ModelConfig):
    """Architecture of a BERT model; the defaults are `bert-base-uncased`."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1  # on embeddings and on every branch before its residual addition
    attention_probs_dropout_prob: float = 0.1  # on attention weights
    classifier_dropout: float | None = None  # before a head that classifies; None: hidden_dropout_prob
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    model_types = ("bert",)
    alike = ("embedding_size", "num_labels", "pooler_num_attention_heads", "sep_token_id", "mask_token_id")
    label_count = 2
    aliases: ClassVar = {"d_model": "hidden_size", "init_std": "initializer_range"}  # as BART's layers call them
    supported: ClassVar = {
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "position_embedding_type": ("absolute",),
        **OF_ALL_NETWORKS,
    }
    dropouts: ClassVar = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    depths: ClassVar = {"encoder": "num_hidden_layers"}

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"model_type": "bert", **fields})

    def validate(self) -> None:
        super().validate()
        self.check(self.hidden_act in ACTIVATIONS, "hidden_act", ", ".join(ACTIVATIONS))
        dropout = self.classifier_dropout
        ok = dropout is None or (isinstance(dropout, (int, float)) and 0 <= dropout < 1)
        self.check(ok, "classifier_dropout", "null, or a number from 0 up to, not including, 1")

    def encoder(self) -> BartConfig:
        """The same encoder in the words of BART's layers, of which it is built."""
        return BartConfig(
            max_position_embeddings=self.max_position_embeddings,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=self.intermediate_size,
            decoder_attention_heads=1,
            dropout=self.hidden_dropout_prob,
            attention_dropout=self.attention_probs_dropout_prob,
            activation_function=self.hidden_act,
        )
