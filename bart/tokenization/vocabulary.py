"""A vocabulary over the `tokenizers` library: tokens and their ids, and the text of ids.

Shapes: B batch, S sequence length in tokens, special tokens included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from bart.errors import InputError

Ids = Sequence[int] | torch.Tensor
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")  # in the order of transformers


class Vocabulary:
    """Tokens with their ids, which may become more.

    Attributes:
        vocab_size: number of ids, added tokens included (`len(tokenizer)` is the same), so the ids are below it.
        unk_token_id: of the token that stands for what is unknown.
        clean_up_tokenization_spaces: the default of that option of `decode`.
        add_prefix_space: true, of byte-level BPE, if a text is read as if its first word followed a space.
    """

    vocab_size: int
    unk_token_id: int
    clean_up_tokenization_spaces: bool = False
    add_prefix_space: bool = False
    _backend: Tokenizer

    def __len__(self) -> int:
        return self.vocab_size

    # ---- Tokens

    def get_vocab(self) -> dict[str, int]:
        """The ids of all tokens, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def same_vocabulary(self, vocabulary: Vocabulary) -> bool:
        """True if both have the same tokens, with the same ids."""
        return self.get_vocab() == vocabulary.get_vocab()

    def add_tokens(
        self, new_tokens: str | AddedToken | Sequence[str | AddedToken], special_tokens: bool = False
    ) -> int:
        """Add tokens, which are found in texts before all else; returns how many were added, as transformers
        counts: those that the vocabulary has already, too.

        A model needs rows for them: `model.resize_token_embeddings(len(tokenizer))`.

        Args:
            special_tokens: true if `skip_special_tokens` shall leave them out.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens)
        for token in tokens:
            if not isinstance(token, (str, AddedToken)):
                raise InputError(f"new_tokens has {token!r}; allowed: strings, or AddedToken of tokenizers")
        added = self._backend.add_special_tokens(tokens) if special_tokens else self._backend.add_tokens(tokens)
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        return added

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """The id of a token, or those of several; that of the unknown token for what is no token."""
        if not isinstance(tokens, (str, list, tuple)):
            raise InputError(f"tokens is {tokens!r}; allowed: a token, or a list of tokens")
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        number = self._backend.token_to_id(tokens)
        return self.unk_token_id if number is None else number

    def convert_ids_to_tokens(self, ids: int | Ids, skip_special_tokens: bool = False) -> str | list[str | None] | None:
        """The token of an id, or those of several; None beyond the vocabulary.

        Raises:
            InputError: ids that are negative or no integers.
        """
        is_single = isinstance(ids, int)
        try:
            numbers = [int(number) for number in ([ids] if is_single else as_list(ids))]
            tokens = [self._backend.id_to_token(number) for number in numbers]
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"cannot convert: expected integer ids from 0 ({error})") from error
        if is_single:
            return tokens[0]
        added = self._backend.get_added_tokens_decoder() if skip_special_tokens else {}
        special = {number for number, token in added.items() if token.special}
        return [token for number, token in zip(numbers, tokens, strict=True) if number not in special]

    # ---- Ids to text

    def decode(
        self, ids: int | Ids, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        """The text of one sequence of ids: a list, a 1-D tensor, or a single id.

        Args:
            ids: ids from 0. Those beyond the vocabulary, which a padded output table may generate, give no text.
            skip_special_tokens: leave out special tokens.
            clean_up_tokenization_spaces: leave out spaces before English marks and contractions; by default as the
                tokenizer's files say, or false. Without effect on byte-level BPE, as in transformers 5.

        Raises:
            InputError: ids that are negative (-100 marks ignored labels), not integers, or several sequences.
        """
        if isinstance(ids, int) or (torch.is_tensor(ids) and ids.dim() == 0):
            ids = [int(ids)]
        return self.batch_decode([ids], skip_special_tokens, clean_up_tokenization_spaces)[0]

    def batch_decode(
        self,
        sequences: Sequence[Ids] | torch.Tensor,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The texts of several sequences of ids: lists or 1-D tensors, or one tensor (B, S). Options as in `decode`."""
        backend = self._backend
        try:
            rows = [row if isinstance(row, list) else as_list(row) for row in as_list(sequences)]
            texts = backend.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise InputError(
                f"cannot decode: expected integer ids from 0, one list or 1-D tensor per sequence ({error})"
            ) from error
        cleans = clean_up_tokenization_spaces
        if (self.clean_up_tokenization_spaces if cleans is None else cleans) and not isinstance(backend.model, BPE):
            for spaced in _SPACED:
                texts = [text.replace(spaced, spaced.strip()) for text in texts]
        return texts


def as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)
