"""BART (Lewis et al., 2020, https://arxiv.org/abs/1910.13461): configuration, tokenizer, network, weights, decoding.

The letters of shapes, in the docstrings of bart/ and bert/: B batch, or articles; S length of a source or text, special
tokens included; T target length, or queries; L keys; K beams, or other sequences of an article; R = B·K decoder rows,
of which row r belongs to article r // K; D model width; H heads; Dh = D / H; V vocabulary; N labels, returned sequences
of an article, or rows; I and O inputs and outputs of a product. What else a file needs stands at its head.
"""

from typing import TYPE_CHECKING

from bart.lazy import public_names

__all__ = ["BartConfig", "BartForConditionalGeneration", "BartModel", "BartTokenizer", "GenerationConfig"]
__all__ += ["BartForQuestionAnswering", "BartForSequenceClassification", "BartForTokenClassification"]

if TYPE_CHECKING:
    from bart.configuration.configuration_bart import BartConfig
    from bart.configuration.configuration_generation import GenerationConfig
    from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
    from bart.modeling.modeling_bart import BartForConditionalGeneration, BartModel
    from bart.tokenization.tokenization_bart import BartTokenizer
else:
    _FILES = ["configuration.configuration_bart", "configuration.configuration_generation"]
    _FILES += ["tokenization.tokenization_bart", "modeling.modeling_bart", "modeling.heads"]
    __getattr__, __dir__ = public_names(__name__, __all__, *_FILES)
