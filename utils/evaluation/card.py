"""The model card of a run's export: `README.md`, which the Hub shows and reads scores from."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from bart.files import as_named, read_json, write_json
from utils.app.output_files import write_whole
from utils.app.run_directory import CARD, EXAMPLES
from utils.app.stores import local_path
from utils.corpora.data_directory import PROVENANCE
from utils.corpora.get_data import ON_HUB, SETS
from utils.data.places import HUB, HUB_NAME
from utils.data.rows import json_lines
from utils.data.shard_format import SPECIAL
from utils.evaluation.report import tables
from utils.evaluation.report.runs import ReportedRun, scores_of
from utils.metrics.files import label_of
from utils.models.options import SCRATCH
from utils.tasks import find_task

logger = logging.getLogger(__name__)
ENGLISH = {*SETS, "abisee/cnn_dailymail", "EdinburghNLP/xsum", "nyu-mll/glue"}
OURS = "<!-- Training and scoring write this file anew until you delete this line. -->"


def write_card(folder: Path, export: Path, options_of: Callable[[Path], Sequence[str]]) -> None:
    """Write the card of a run's export, with the options that `options_of` names, unless a user has deleted the line
    OURS. Since the run is done, whatever goes wrong here is a warning.
    """
    path = export / CARD
    try:
        if not path.exists() or OURS in path.read_text(encoding="utf-8"):
            write_whole(path, str(card_of(folder, export, options_of(folder))))
    except Exception as error:
        logger.warning("%s was not written: %s: %s", path, type(error).__name__, error)


def card_of(folder: Path, export: Path, options: Sequence[str]) -> ModelCard:
    """The card, from what the run's directory tells of training and, since the export was written, of scoring; writes
    EXAMPLES, which other programs show: how the model was `trained`, and `examples` of a split that was summarised.
    """
    run, config_file = ReportedRun(folder), export / "config.json"
    arguments, exported = run.arguments, config_file.stat().st_mtime_ns
    data_dir, task = arguments["data_dir"], Path(arguments["task"]).stem
    start = arguments.get("model_name_or_path") or _first_weights(folder)
    base, base_id = (None, None) if start == SCRATCH else _named(start, not Path(start).exists())
    shards, provenance = (Path(local_path(data_dir)) / name for name in ("manifest.json", PROVENANCE))
    made_of = read_json(provenance).get("set") if provenance.is_file() else None
    if made_of in ON_HUB:
        data_dir = HUB + ON_HUB[made_of]
    data, data_id = _named(data_dir, data_dir.startswith(HUB))
    for split in list(run.scores):
        if (folder / f"{split}_scores.json").stat().st_mtime_ns < exported:
            del run.scores[split]
    config = json.loads(config_file.read_bytes())
    if arguments.get("class_weights"):  # a file's name would tell nobody the weights
        named = [f"{label} {weight:.4g}" for label, weight in config["class_weights"].items()]
        arguments["class_weights"] = ", ".join(named)
    pipeline, pretrains = find_task(arguments["task"]).pipeline, task in SPECIAL
    [architecture], has_sources = config["architectures"], bool(config.get("source_encoder_layers"))
    generates = "ForConditionalGeneration" in architecture and not has_sources
    library = None if has_sources or architecture == "BartForTokenClassification" else "transformers"  # knows neither
    tags = ["bert" if config["model_type"] == "bert" else "bart"]
    metadata = ModelCardData(license="unknown", library_name=library, pipeline_tag=pipeline, tags=tags)
    metadata.base_model, metadata.datasets = base_id, data_id
    metadata.language = "en" if {made_of, data_id} & ENGLISH else None
    how = "trained" if base is None else "pretrained further" if pretrains else "fine-tuned"
    examples = next((_examples(run.articles_path(split)) for split in run.scores), [])
    known = {"trained": f"{how} from {base or 'random weights'} on the data “{data}”", "examples": examples}
    if examples:
        write_json(export / EXAMPLES, known)
    if run.scores:
        metadata.model_name = run.name
        metadata.eval_results = [
            EvalResult(
                task_type=pipeline,
                dataset_type=data_id or data,
                dataset_name=data,
                metric_type="rouge" if name.startswith("rouge") else name,
                metric_value=round(value, 4),
                dataset_split=split,
                metric_name=label_of(name),
            )
            for split, record in run.scores.items()
            for name, value in scores_of(record).items()
        ]
    return ModelCard.from_template(
        metadata,
        str(Path(__file__).with_suffix(".md")),
        ours=OURS,
        run=run,
        task=task,
        base=base,
        place=run.name if export.is_absolute() else export.as_posix(),
        **known,
        verdict_of=lambda split: tables.verdict_of(run, split),
        tables_of=lambda split: [table for table in tables_of(run, split) if table.rows],
        config=config,
        generates=generates,
        pretrains=pretrains,
        shards=json.loads(shards.read_bytes()) if pretrains and shards.exists() else None,
        options={name: arguments[name] for name in options if arguments.get(name) not in (None, False)},
    )


def tables_of(run: ReportedRun, split: str) -> list[tables.ScoreTable]:
    """The tables of a split's scores; of errors not the texts that were read, which may be private."""
    others = tables.confusion_table(run, split), tables.errors_table(run, split, with_texts=False)
    return [tables.score_table(run, split), *tables.group_tables(run, split), *others]


def _examples(articles: Path) -> list[dict[str, str]]:
    """Three articles with their summaries: the first ones that are short, or else the first ones."""
    rows = [row for _, row in json_lines(articles) if {"source", "summary"} <= row.keys()]
    rows.sort(key=lambda row: len(row["source"]) > 1500)
    return [{name: row[name] for name in ("source", "reference", "summary") if name in row} for row in rows[:3]]


def _first_weights(folder: Path) -> str:
    """The weights that a pretraining run began with; one that went on keeps its first arguments under a number."""
    for path in folder.glob("arguments*.yaml"):
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
        if weights := stored.get("model_name_or_path"):
            return weights
        if stored.get("load_model_weights_only"):  # of an earlier version
            return stored["resume_from_checkpoint"]
    return SCRATCH


def _named(place: str, is_on_hub: bool) -> tuple[str, str | None]:
    """The name of a model or a data set for readers, and its name on the Hub if it has one."""
    if is_on_hub and (match := HUB_NAME.fullmatch(place.removeprefix(HUB))):
        return match["name"], match["name"]
    path = as_named(place)
    return (path.parent if path.name == "export" or path.suffix == ".ckpt" else path).name, None
