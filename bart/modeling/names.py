"""Names of BART's weights in other people's files: transformers', fairseq's, Lightning's."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from bart.errors import InputError
from bart.modeling.checkpoint import prefix_of, shorten

SHARED = "model.shared.weight"
_COPIES = (  # names under which files hold the same embeddings again
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "model.decoder.output_projection.weight",
    "lm_head.weight",
)
_ANCHOR = re.compile(r"(?:^|(?<=\.))(shared|encoder\.embed_(tokens|positions))\.weight$")  # follows a network's prefix
# Of fairseq, and not trained: its bookkeeping, and the weights of fused layers beside the real ones.
_UNUSED = re.compile(
    r"(^|\.)((en|de)coder\.version|_float_tensor|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias))$"
)
SOURCE_ENCODER = "model.encoder.embed_tokens"  # where it is a module of its own
# Names that heads' weights begin with.
_OF_GENERATION = ("final_logits_bias", "lm_head")
_CLASSIFIERS = ("classification_head", "qa_outputs", "classifier")
_FAIRSEQ_HEAD = re.compile(r"^(model\.)?classification_heads\.[^.]+\.")


def canonical_names(state: dict[str, Tensor], path: Path, head: tuple[str, ...]) -> tuple[dict[str, Tensor], list[str]]:
    """Rename to our classes' names, each weight once (the tied embeddings as model.shared.weight).

    Returns:
        The weights, and the names of those left out: of heads that classify, whose first parts are not in `head`.

    Raises:
        InputError: no BART network in it, or more than one, or copies of the embeddings that differ.
    """
    prefix = re.sub(r"(^|(?<=\.))model\.$", "", prefix_of(state, _ANCHOR, "BART", path))

    matches = [_FAIRSEQ_HEAD.search(name.removeprefix(prefix)) for name in state]
    heads = {match[0] for match in matches if match is not None}
    if len(heads) > 1:
        raise InputError(f"{path}: {len(heads)} heads in it: {shorten(sorted(heads))}; allowed: one")
    left_out: list[str] = []
    renamed: dict[str, Tensor] = {}
    for stored, tensor in state.items():
        if _UNUSED.search(stored):
            continue
        name = _FAIRSEQ_HEAD.sub("classification_head.", stored.removeprefix(prefix))
        owner = name.split(".")[0]
        if owner in (*_OF_GENERATION, *_CLASSIFIERS) and owner not in head and name not in _COPIES:
            if owner in _CLASSIFIERS:
                left_out.append(stored)
            continue
        if name.startswith(("encoder.", "decoder.", "shared.")):
            name = f"model.{name}"
        if name.endswith((".in_proj_weight", ".in_proj_bias")):  # (3D, D) and (3D,): queries, keys, values
            owner, kind = name.rsplit(".in_proj_", 1)
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{owner}.{part}_proj.{kind}"] = rows
        else:
            renamed[name] = tensor

    tied = {name: renamed.pop(name) for name in (SHARED, *_COPIES) if name in renamed}
    for name, tensor in tied.items():
        renamed.setdefault(SHARED, tensor)
        if not torch.equal(tensor, renamed[SHARED]):
            raise InputError(f"{path}: {name} differs from {next(iter(tied))}; BART's embeddings are tied")
    if SHARED in renamed and "final_logits_bias" in head:
        # Files of a bare BartModel (facebook/bart-large) and of fairseq have none.
        renamed.setdefault("final_logits_bias", torch.zeros(1, renamed[SHARED].shape[0]))
    return renamed, left_out
