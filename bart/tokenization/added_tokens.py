"""Tokens that a tokenizer's folder adds to its vocabulary, with the ids and the flags that transformers gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from bart.errors import InputError, brief

SPECIAL_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"  # of transformers' slow tokenizers
FLAGS = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_tokens(
    backend: Tokenizer, settings: dict[str, Any], special: dict[str, Any], added: dict[str, int], fixed: Sequence[str]
) -> None:
    """Add the tokens of a folder to a pipeline.

    Args:
        settings: the content of tokenizer_config.json; its added_tokens_decoder, if any, takes the place of special and
            added, which are the contents of special_tokens_map.json and added_tokens.json.
        fixed: as `PretrainedTokenizer.special_tokens`; they keep their flags where files name none.
    """
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None:
        special = {}
    named = settings | special
    for role, token in zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), fixed, strict=True):
        value = named.get(role) or token
        if token != (value.get("content") if isinstance(value, dict) else value):
            raise InputError(f"its {role} is {value!r}; allowed: {token!r}")
    keys = [*ROLES, *(key for key in named if key.endswith("_token") and key not in ROLES)]
    roles = [named[key] for key in keys if isinstance(named.get(key), (str, dict)) and named[key]]
    roles = [token for token in roles if token not in fixed]
    additional = settings.get("additional_special_tokens") or []
    extra = settings.get("extra_special_tokens") or additional
    if isinstance(extra, dict):  # names of roles; both are added
        extra = additional if isinstance(additional, str) else [*extra.values(), *additional]
    listed = extra or special.get("additional_special_tokens") or []
    try:
        if isinstance(listed, str):
            raise TypeError(f"{listed!r} is no list")
        if decoder is None:
            are_special = {_token(token).content for token in [*roles, *extra]}.union(fixed)
            stated = {int(number): _token(token, token in are_special) for token, number in added.items()}
        else:
            stated = {int(number): _token(dict(token), special=False) for number, token in decoder.items()}
        backend.add_tokens([stated[number] for number in sorted(stated)])
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        others = [*map(_token, roles), *(_token(token, "__type" not in token) for token in listed)]
        backend.add_tokens([other for other in others if other.content not in known])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"its added tokens cannot be read: {brief(error)}") from error
    for number, added_token in stated.items():
        place = backend.token_to_id(added_token.content)
        if place != number:
            raise InputError(f"its added token {added_token.content!r} has id {number}; allowed: {place}")


def _token(token: str | dict[str, Any], special: bool = True) -> AddedToken:
    """A token to add; it is special or not as its own flags say, and without such a flag as `special` says."""
    flags = {"content": token} if isinstance(token, str) else {key: token[key] for key in FLAGS if key in token}
    return AddedToken(**{"special": special, **flags})
