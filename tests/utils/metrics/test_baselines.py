from __future__ import annotations

from utils.metrics.baselines import leads


def test_leads_take_whole_sentences() -> None:
    articles = ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early. It rained.", "Just one."]
    assert leads(articles) == {
        "first 1 sentence": ["Prices rose by 3.5 per cent.", "Just one."],
        "first 2 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke.", "Just one."],
        "first 3 sentences": ["Prices rose by 3.5 per cent. Dr. Lee spoke. Shops shut early.", "Just one."],
    }
