"""BERT in PyTorch, built of BART's layers."""

from typing import TYPE_CHECKING

from bart.lazy import public_names

__all__ = ["BertConfig", "BertForMaskedLM", "BertForPreTraining", "BertModel", "BertTokenizer"]
__all__ += ["BertForQuestionAnswering", "BertForSequenceClassification", "BertForTokenClassification"]

if TYPE_CHECKING:
    from bert.configuration.configuration_bert import BertConfig
    from bert.modeling.modeling_bert import (
        BertForMaskedLM,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
    )
    from bert.tokenization.tokenization_bert import BertTokenizer
else:
    _FILES = ["configuration.configuration_bert", "tokenization.tokenization_bert", "modeling.modeling_bert"]
    __getattr__, __dir__ = public_names(__name__, __all__, *_FILES)
