"""A run's directory with files of all kinds, as training and scoring leave them, without a model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from utils.metrics.rouge import rouge_per_example

METRICS = """epoch,step,train_loss,lr,tokens_per_second,val_loss,val_rouge1,val_rouge2,val_rougeLsum
0,9,3.5,0.001,30000,,,,
0,19,2.25,0.002,31000,,,,
0,19,,,,2.5,30.5,10.25,28.5
1,29,nan,0.0015,32000,,,,
1,39,1.125,0.0005,29000,,,,
1,39,,,,2.125,35.5,14.5,33.25
"""
HOSTILE = {
    "source": "A </script><script>boom()</script> and <b>bold</b> & 'quoted' \"text\"\u2028went on 😀 to İzmir.",
    "reference": "<img src=x onerror=boom()> went on \u2029😀.",
    "summary": "</script><!-- and bold 'quoted' text went on 😀 to İzmir <dialog>",
}


def write_articles(folder: Path, texts: list[dict[str, str]], split: str = "test") -> list[dict[str, Any]]:
    """Write `<split>_articles.jsonl` and `<split>_scores.json` of these sources, references and summaries."""
    rouge = rouge_per_example([text["summary"] for text in texts], [text["reference"] for text in texts])
    articles = [
        {"index": i, **text, **{name: float(values[i]) for name, values in rouge.items()}}
        for i, text in enumerate(texts)
    ]
    lines = "".join(json.dumps(article) + "\n" for article in articles)
    (folder / f"{split}_articles.jsonl").write_text(lines, encoding="utf-8")
    means = {name: float(values.mean()) for name, values in rouge.items()}
    scores = {
        "split": split,
        "task": "summarization",
        "examples": len(texts),
        "rouge_mode": "rouge-score",
        **means,
        "intervals": {name: [mean - 1.5, mean + 1.25] for name, mean in means.items()},
        "loss": 2.1234,
        "precision": "fp32",
        "generation": {"num_beams": 4, "max_length": 64, "top_k": None},
    }
    (folder / f"{split}_scores.json").write_text(json.dumps(scores))
    return articles


def write_run(folder: Path, articles: int = 120, hostile: bool = False) -> list[dict[str, Any]]:
    """Write a trained and scored run; return its articles.

    Args:
        hostile: whether the first article holds markup and odd characters.
    """
    folder.mkdir(parents=True)
    vocabulary = "the a mayor bridge river storm opened closed said after before town harbour workers met on".split()
    rng = random.Random(1)
    texts = []
    for i in range(articles):
        source = [rng.choice(vocabulary) for _ in range(40)]
        begin = rng.randrange(30)
        texts.append(
            {
                "source": f"Report {i}: {' '.join(source)}.",
                "reference": " ".join(source[5:17]) + ".",
                "summary": f"{' '.join(source[begin : begin + 8])} {' '.join(rng.sample(vocabulary, 3))}.",
            }
        )
    if hostile:
        texts[0] = HOSTILE
    (folder / "metrics.csv").write_text(METRICS)
    (folder / "arguments.yaml").write_text("learning_rate: 0.002\nlayers: null\nmax_steps: 40\n")
    (folder / "environment.json").write_text(json.dumps({"date": "2026-01-02T03:04:05+00:00", "devices": ["Some CPU"]}))
    summary = {"steps": 40, "epochs": 2.0, "wall_seconds": 61.2, "tokens_per_second": 30500.0, "train_loss": 1.125}
    (folder / "train_summary.json").write_text(json.dumps(summary))
    speed = {
        "articles_per_second": 12.5,
        "generated_tokens_per_second": 400.25,
        "latency_ms": {"mean": 80.0, "p50": 75.0, "p90": 120.0, "p95": 140.0, "p99": 170.0, "p100": 190.0},
        "batch_size": 64,
        "device": "cpu",
    }
    (folder / "test_speed.json").write_text(json.dumps(speed))
    return write_articles(folder, texts)
