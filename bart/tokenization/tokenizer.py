"""The base of tokenizers over the `tokenizers` library: pipelines, special tokens, files."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tokenizers import AddedToken, Tokenizer

from bart.elsewhere import check_others
from bart.errors import InputError, brief, naming
from bart.files import PathName, read_json, write_json
from bart.hub import resolve
from bart.tokenization.added_tokens import ADDED_FILE, FLAGS, ROLES, SPECIAL_FILE, add_tokens
from bart.tokenization.encoding import TextEncoder

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger(__name__)
TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
_ANY_PIPELINE = ("PreTrainedTokenizer", "TokenizersBackend")  # classes that take all from tokenizer.json


class OtherTokenizer(InputError):
    """A vocabulary is of another kind than the class that shall read it."""


def _check_side(_: PretrainedTokenizer, side: str) -> None:
    if side != "right":
        raise InputError(f"the side of padding and truncation is {side!r}; allowed: 'right'")


class PretrainedTokenizer(TextEncoder):
    """A text encoder with its pipeline, in files.

    Attributes:
        names: of the classes of transformers with this pipeline; each may end in Fast.
        vocabulary_files: the files that a folder may hold in place of tokenizer.json.
        mask_takes_space: true if the spaces before a mask in a text belong to it.
        cls_token, pad_token, sep_token, unk_token, mask_token: `special_tokens` by transformers' names, as their ids.
        padding_side, truncation_side: always "right"; others are refused.
    """

    names: ClassVar[tuple[str, ...]]
    vocabulary_files: ClassVar[tuple[str, ...]]
    mask_takes_space: ClassVar[bool] = False
    bos_token: str | None = None
    eos_token: str | None = None
    padding_side = truncation_side = property(lambda _: "right", _check_side)

    def __init__(self, backend: Tokenizer, model_max_length: int, *, source: str) -> None:
        """Wrap a pipeline, whose ids are 0 ... V-1; errors call it `source`."""
        if not self.is_pipeline(backend):
            raise OtherTokenizer(
                f"{source}: a pipeline of {type(backend.model).__name__}; allowed: that of {type(self).__name__}"
            )
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if missing := [token for token in self.special_tokens if token not in vocabulary]:
            raise InputError(f"{source}: the vocabulary lacks {' '.join(missing)} (of {' '.join(self.special_tokens)})")
        if set(vocabulary.values()) != set(range(len(vocabulary))):
            raise InputError(f"{source}: the {len(vocabulary)} token ids must be 0 to {len(vocabulary) - 1}, each once")
        declared = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        mask = self.special_tokens[-1]
        backend.add_special_tokens(
            [
                AddedToken(token, lstrip=token == mask and self.mask_takes_space, normalized=False, special=True)
                for token in self.special_tokens
                if token not in declared
            ]
        )
        self.bos_token_id, self.pad_token_id, self.eos_token_id, self.unk_token_id, self.mask_token_id = (
            vocabulary[token] for token in self.special_tokens
        )
        self.cls_token_id, self.sep_token_id = self.bos_token_id, self.eos_token_id
        self.cls_token, self.pad_token, self.sep_token, self.unk_token, self.mask_token = self.special_tokens
        self.vocab_size = len(vocabulary)
        self.model_max_length = model_max_length
        self._backend = backend

    @classmethod
    def is_pipeline(cls, backend: Tokenizer) -> bool:
        """True if a pipeline is of this kind."""
        raise NotImplementedError

    # ---- Files

    @classmethod
    def from_pretrained(cls, path_or_name: PathName, **others: Any) -> Self:
        """Load a tokenizer; settings and added tokens are those that transformers finds there.

        Args:
            path_or_name: a folder with `tokenizer.json`, or with all of `vocabulary_files`; a Hub name; a file of such
                a folder; a run's directory; or a checkpoint of this project.

        Raises:
            InputError: nothing there, no tokenizer in it, or files that cannot be read as one.
        """
        check_others("from_pretrained()", ("path_or_name",), others)
        files = (SETTINGS_FILE, SPECIAL_FILE, ADDED_FILE, "config.json")
        path = resolve(path_or_name, [TOKENIZER_FILE, *cls.vocabulary_files, *files])
        names = (TOKENIZER_FILE, cls.vocabulary_files[0])
        if path.is_file() and path.suffix != ".ckpt" and any((path.parent / name).exists() for name in names):
            path = path.parent
        if path.is_file():
            from bart.tensor_files import read_file  # here, because it needs torch

            text = read_file(path).get("tokenizer_json")
            if not isinstance(text, str):
                raise InputError(f"{path}: the checkpoint has no tokenizer: name a folder or a Hub name that has one")
            return cls.from_json(text, source=str(path))
        settings, special, added, model = (read_json(path / name) if (path / name).exists() else {} for name in files)
        named = settings.get("tokenizer_class") or model.get("tokenizer_class") or cls.names[0]
        kind = str(named).removesuffix("Fast")
        if kind not in cls.names + _ANY_PIPELINE:
            raise OtherTokenizer(f"{path}: its tokenizer_class is {named!r}; allowed: {', '.join(cls.names)}")
        backend, source = cls._pipeline_in(path, path_or_name)
        own = None  # ids by the post-processor in the file, where that class takes it
        if kind in _ANY_PIPELINE:
            own = [backend.encode("a").ids, backend.encode("a", "b").ids]
        elif cls.is_pipeline(backend):
            try:
                cls.configure(backend, settings)
            except TypeError as error:
                raise InputError(f"{path / SETTINGS_FILE}: {brief(error)}") from error
        with naming(path):
            add_tokens(backend, settings, special, added, cls.special_tokens)
        tokenizer = cls(backend, source=str(source))  # type: ignore[call-arg]  # subclasses have a default
        if own not in (None, [tokenizer.encode("a"), tokenizer.encode("a", "b")]):
            raise InputError(
                f"{source}: its post-processor makes {own[1]} of a pair; allowed: {tokenizer.encode('a', 'b')}"
            )
        if settings.get("padding_side", "right") != "right":
            logger.warning("%s: padding_side is %s; batches are padded on the right", path, settings["padding_side"])
        if settings.get("truncation_side", "right") != "right":
            raise InputError(f"{path}: its truncation_side is {settings['truncation_side']!r}; allowed: 'right'")
        tokenizer.clean_up_tokenization_spaces = settings.get("clean_up_tokenization_spaces") is True
        length = settings.get("model_max_length", settings.get("max_len"))  # as transformers 2 called it
        if length is not None:
            if isinstance(length, bool) or not isinstance(length, (int, float)) or not length >= 3:
                raise InputError(
                    f"{path / SETTINGS_FILE}: its model_max_length is {length!r}; allowed: a number of at least 3"
                )
            if length < 10**9:  # transformers writes 1e30 where there is no limit
                tokenizer.model_max_length = int(length)
        return tokenizer

    @classmethod
    def _pipeline_in(cls, folder: Path, name: PathName) -> tuple[Tokenizer, Path]:
        """The pipeline that a folder holds, which an error calls `name`, and the first of the files it is read from."""
        source, files = folder / TOKENIZER_FILE, [folder / file for file in cls.vocabulary_files]
        if source.exists():
            return _parsed(Tokenizer.from_file, str(source), str(source)), source
        if all(file.exists() for file in files):
            try:
                return cls.pipeline_of(files), files[0]
            except Exception as error:  # the library raises bare Exception for every fault of the files
                named = " and ".join([str(files[0]), *(file.name for file in files[1:])])
                raise InputError(f"{named}: {brief(error)}") from error
        raise OtherTokenizer(f"{name}: holds neither {TOKENIZER_FILE} nor {' with '.join(cls.vocabulary_files)}")

    @classmethod
    def pipeline_of(cls, files: Sequence[Path]) -> Tokenizer:
        """The pipeline of `vocabulary_files`."""
        raise NotImplementedError

    @classmethod
    def configure(cls, backend: Tokenizer, settings: dict[str, Any]) -> None:
        """Set all that transformers' class sets by tokenizer_config.json alone, whatever tokenizer.json says."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str, *, source: str = "tokenizer JSON") -> Self:
        """Inverse of `to_json`; reads any `tokenizer.json` of this kind. Errors call it `source`."""
        return cls(_parsed(Tokenizer.from_str, text, source), source=source)  # type: ignore[call-arg]

    def to_json(self) -> str:
        """The whole tokenizer, apart from `model_max_length`, in the format of `tokenizer.json`."""
        return self._backend.to_str()

    def settings(self) -> dict[str, Any]:
        """The settings in tokenizer_config.json for `transformers`, apart from tokens and model_max_length."""
        raise NotImplementedError

    def save_pretrained(self, directory: PathName) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and `vocabulary_files`; make the folder if need be.

        `transformers.AutoTokenizer` loads the folder, with or without a model's `config.json` in it.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TOKENIZER_FILE).write_text(self.to_json(), encoding="utf-8")
            added = {
                str(number): {flag: getattr(token, flag) for flag in FLAGS}
                for number, token in self._backend.get_added_tokens_decoder().items()
            }
            settings = {**self.settings(), **{role: token for role in ROLES if (token := getattr(self, role))}}
            settings |= {"added_tokens_decoder": added, "model_max_length": self.model_max_length}
            write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot write the tokenizer here: {error.strerror}") from error
        try:
            self._backend.model.save(str(folder))  # vocabulary_files
        except Exception as error:  # the library raises bare Exception, in which the system's number of a fault stands
            number = re.search(r"\(os error (\d+)\)$", str(error))
            cause = OSError(int(number[1]), str(error)) if number else error
            raise InputError(f"{folder}: cannot write the tokenizer here: {brief(error)}") from cause


def texts_to_learn(texts: Iterable[str]) -> Iterator[str]:
    """Texts to learn a vocabulary from, without empty ones; InputError where there are none, or it is a single text."""
    if isinstance(texts, str):
        raise InputError("texts must be several texts, not one string")
    texts = filter(None, texts)
    first = next(texts, None)
    if first is None:
        raise InputError("texts is empty: there is nothing to learn a vocabulary from")
    return itertools.chain([first], texts)


def _parsed(parse: Callable[[str], Tokenizer], given: str, source: str) -> Tokenizer:
    try:
        backend = parse(given)
    except Exception as error:  # the library raises bare Exception for every fault of file and text
        raise InputError(f"{source}: not a tokenizer.json: {brief(error)}") from error
    # The file may hold settings for other uses; each call decides about truncation and padding.
    backend.no_truncation()
    backend.no_padding()
    return backend
