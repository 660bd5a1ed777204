"""Translation, scored by BLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from utils.data.line_files import Pairs
from utils.metrics.bleu import bleu
from utils.tasks.task import Prediction
from utils.tasks.text_to_text import TextToText


class Translation(TextToText):
    """Sentences to their translations. Validation reports the loss alone, since corpus BLEU is no mean."""

    def score(
        self, raw: Pairs, predictions: Sequence[Prediction]
    ) -> tuple[dict[str, Any], Mapping[str, Sequence[float] | np.ndarray]]:
        return dict(bleu([prediction.values["texts"][0] for prediction in predictions], raw[1])), {}
