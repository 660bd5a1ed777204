"""bart-large at full size, outside the default suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import resource, torch
from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
model = BartForConditionalGeneration(BartConfig.from_pretrained("configs/config.json")).train()
input_ids, labels = torch.randint(3, 50000, (1, 1024)), torch.randint(3, 50000, (1, 142))
model(input_ids, labels=labels).loss.backward()
assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
summary = model.generate(input_ids)  # the config's 4 beams, up to 142 tokens
assert 56 <= summary.shape[1] <= 142
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB on Linux
"""


@pytest.mark.slow
def test_forward_backward_and_beam_search_of_one_article_stay_under_12_gb() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    peak = int(result.stdout) * 1024
    print(f"peak memory {peak / 1e9:.2f} GB")
    assert peak < 12e9
