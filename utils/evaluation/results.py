"""The files that a scored split leaves, and the same for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from utils.files import write_json, write_whole


def write_results(
    folder: Path, split: str, articles: Iterable[Mapping[str, Any]], scores: Mapping[str, Any], speed: Mapping[str, Any]
) -> None:
    """Write `<split>_generations.txt`, `<split>_articles.jsonl`, `<split>_speed.json`, and last `<split>_scores.json`.

    Args:
        articles: index, source, reference, summary and more of each article, in the order of the input.
    """
    rows = list(articles)
    write_whole(folder / f"{split}_generations.txt", "".join(f"{row['summary']}\n" for row in rows))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(folder / f"{split}_articles.jsonl", lines)
    write_json(folder / f"{split}_speed.json", speed)
    write_json(folder / f"{split}_scores.json", scores)


def format_scores(scores: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    """Scores and speed as a few lines for people."""
    figures = [
        f"{name.replace('rouge', 'ROUGE-').replace('bleu', 'BLEU')} {value:.2f}"
        for name, value in scores.items()
        if isinstance(value, float) and name != "loss"
    ]
    beams = scores.get("generation", {}).get("num_beams")
    lines = [
        f"{scores['split']}: {scores['examples']} examples, "
        + (f"{beams} beams, " if beams else "")
        + f"{scores['precision']} on {speed['device']}",
        "  " + "   ".join([*figures, f"loss {scores['loss']:.3f}"]),
    ]
    if speed["timed_articles"]:
        latency = "  ".join(f"{name} {value:.0f}" for name, value in speed["latency_ms"].items())
        each = "batch of" if speed["batching"] == "static" else "article among"
        seconds = "  ".join(f"{name} {value:.2f}" for name, value in speed["seconds"].items())
        lines += [
            f"  {speed['articles_per_second']:.2f} articles/s, {speed['generated_tokens_per_second']:.0f} tokens/s, "
            f"{speed['timed_articles']} articles timed after {speed['warmup_articles']} to warm up",
            f"  ms per {each} {speed['batch_size']}: {latency}",
            f"  seconds: {seconds}; peak memory {speed['peak_memory_gb']:.2f} GB",
        ]
    return "\n".join(lines)
