"""Scores of tags: of entities as seqeval counts them, BIOES and its like strictly; of plain tags, of each word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import repr as shortened

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOBES, Tokens

from bart.errors import InputError
from utils.app.cli import option, parse_dataclass
from utils.data.columns import TAGS, TableOptions
from utils.data.conll import Sentence, read_conll
from utils.data.places import TABLES, suffix_of
from utils.data.tables import column_in
from utils.metrics.classification import ByClass, scores_by_class
from utils.metrics.files import FileOptions, print_scores, refuse_module
from utils.text.lines import iter_lines, list_in
from utils.text.tags import OUTSIDE, Scheme, scheme_of

ENTITY_METRICS, PLAIN_METRICS = ("f1", "entity_precision", "entity_recall", "accuracy"), ("accuracy", "macro_f1")


def groups_of(tags: Iterable[str], scheme: Scheme | None) -> list[str]:
    """The kinds of entities or, of plain tags, the tags, each of which gets scores of its own."""
    return list(dict.fromkeys(tags) if scheme is None else sorted({*kinds_of(tags, scheme)} - {OUTSIDE}))


def kinds_of(tags: Iterable[str], scheme: Scheme | None) -> list[str]:
    """The kind of entity that each word is of, `_` where the scheme names none; O outside. A plain tag is itself."""
    if scheme is None:
        return list(tags)
    kinds = map(scheme.kind, tags)
    return [OUTSIDE if kind is None else kind or "_" for kind in kinds]


def _entities(tags: Sequence[str], scheme: Scheme) -> set[tuple[str, int, int]]:
    spelled = [scheme.in_bioes(tag) for tag in tags]
    if scheme.name in ("BIO", "IOE"):
        return set(get_entities(spelled))
    return {(entity.tag, entity.start, entity.end) for entity in Tokens(spelled, IOBES).entities}


def tag_counts(
    predicted: Sequence[str], right: Sequence[str], groups: Sequence[str], scheme: Scheme | None
) -> np.ndarray:
    """The counts (2 + 3 (G + 1),) of a sentence: words; those that are right; and entities, or plain tags, of each
    group and of all others that are right, predicted, and there.
    """
    hits = [guess == tag for guess, tag in zip(predicted, right, strict=True)]
    places, others = {group: number for number, group in enumerate(groups)}, len(groups)
    if scheme is not None:
        guessed, existing = _entities(predicted, scheme), _entities(right, scheme)
        named = [[kind for kind, *_ in entities] for entities in (guessed & existing, guessed, existing)]
    else:
        named = [[tag for tag, is_hit in zip(right, hits, strict=True) if is_hit], predicted, right]
    counts = [np.bincount([places.get(name, others) for name in names], minlength=others + 1) for names in named]
    return np.concatenate([[len(hits), sum(hits)], *counts])


def tag_scores(counts: Sequence[float], scheme: Scheme | None) -> dict[str, float]:
    """Precision, recall and F1 of entities, or macro F1 of plain tags, and accuracy of words, in percent, of sums."""
    words, right, *each = counts
    counts = np.reshape(each, (3, -1)).astype(float)
    accuracy = right / max(words, 1)
    if scheme is None:
        hits, predicted, existing = counts
        f1 = 2 * hits / np.maximum(predicted + existing, 1)
        scores = {"accuracy": accuracy, "macro_f1": f1.sum() / max(np.count_nonzero(predicted + existing), 1)}
    else:
        hits, predicted, existing = counts.sum(axis=1)
        scores = {"f1": 2 * hits / max(predicted + existing, 1), "entity_precision": hits / max(predicted, 1)}
        scores |= {"entity_recall": hits / max(existing, 1), "accuracy": accuracy}
    return {name: 100 * float(score) for name, score in scores.items()}


def scores_by_group(counts: Sequence[float], groups: Sequence[str]) -> ByClass:
    """Precision, recall, F1 and support of each kind of entity, or of each plain tag, from sums of `tag_counts`."""
    return scores_by_class(groups, *np.reshape(counts[2:], (3, -1))[:, : len(groups)])


@dataclass(frozen=True)
class EntityOptions(FileOptions):
    tags_field: str | None = option(
        None,
        section="columns",
        help=f"column of the right tags: in CoNLL its number or name, by default the last one; else {', '.join(TAGS)}",
    )


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    text = "Score tags of CoNLL files, or of tables with lists of tags: entities as seqeval counts them, or words."
    files = parse_dataclass(EntityOptions, argv, text, prog)
    references = _read(files.references, files.tags_field, "tags_field", TAGS, files.tables)
    predicted_in, right_in = (files.predictions, files.prediction_field), (files.references, files.tags_field)
    if predicted_in == right_in and references[0].column is None:  # of a CoNLL file
        raise InputError(f"{files.references}: its tags would be its predictions; name these with --prediction_field")
    right = [sentence.tags for sentence in references]
    scheme = scheme_of(chain.from_iterable(right))
    predicted = [_predicted(path, files, references) for path in files.systems]

    def groups_in(*systems: Sequence[Sequence[str]]) -> list[str]:
        return groups_of(sorted({*chain.from_iterable(chain.from_iterable(systems))}), scheme)

    groups = groups_in(right, *predicted)
    pairs = [zip(tags, right, strict=True) for tags in predicted]
    counts = [np.array([tag_counts(*pair, groups, scheme) for pair in of_file], dtype=np.float64) for of_file in pairs]
    name = "plain tags" if scheme is None else f"entities in {scheme.name}"
    words = sum(map(len, right))
    facts = {"words": words, "scheme": None if scheme is None else scheme.name}
    every = scores_by_group(counts[0].sum(axis=0), groups)
    shown = {group: every[group] for group in groups_in(right, predicted[0])}
    facts["groups"] = {"tag" if scheme is None else "kind": shown}
    title = f"Scores in percent of {name}, {len(right):,} sentences of {words:,} words"
    print_scores(files, title, counts, lambda sums: tag_scores(sums, scheme), facts)


def _read(path: str, field: str | None, option_name: str, usual: Sequence[str], tables: TableOptions) -> list[Sentence]:
    """Sentences with their tags, of a CoNLL file or a table; a table's may lack words, and hold tags between blanks."""
    suffix, header = suffix_of(Path(path)), []
    if suffix == ".tsv":  # which is a CoNLL file unless its header is that of the tables that utils.predict writes
        header = next(iter_lines(path, blank=True)).split("\t")
    if suffix not in TABLES or (suffix == ".tsv" and not {"prediction", "score"} <= {*header}):
        return read_conll(Path(path), tags_column=field, tags_option=option_name)
    (records, chosen), sentences = column_in(path, option_name, field, usual, tables), []
    for record in records:
        tags, words = record.values.get(chosen), record.values.get("words", record.values.get("tokens"))
        words = list_in(words) if isinstance(words, str) else words
        if isinstance(tags, str):
            tags = list_in(tags) or tags.split()
        if not isinstance(tags, list) or not all(isinstance(tag, str) and tag.strip() for tag in tags):
            raise InputError(f"{record.name}: {chosen} is {shortened(tags)}; allowed: a list of tags, none blank")
        sentences.append(Sentence(record.name, words if isinstance(words, list) else [], tags, chosen))
    return sentences


def _predicted(path: str, files: FileOptions, references: Sequence[Sentence]) -> list[list[str]]:
    """The predicted tags of each sentence; InputError where they are not of the sentences of the references."""
    usual = files.usual(path, ("prediction", *TAGS), references[0].column)
    sentences = _read(path, files.prediction_field, "prediction_field", usual, files.tables)
    if len(sentences) != len(references):
        raise InputError(f"{path} has {len(sentences)} sentences; allowed: {len(references)}, as the references have")
    for sentence, reference in zip(sentences, references, strict=True):
        if len(sentence.tags) != len(reference.tags):
            allowed = f"{len(reference.tags)}, as {reference.name} has"
            raise InputError(f"{sentence.name}: {len(sentence.tags)} tags; allowed: {allowed}")
        if sentence.words and reference.words and sentence.words != reference.words:
            raise InputError(f"{sentence.name}: other words than those of {reference.name}; allowed: the same ones")
    return [sentence.tags for sentence in sentences]


if __name__ == "__main__":
    refuse_module()
