"""Where tokenizers come from: a folder, a file, the Hub, an object."""

from __future__ import annotations

import logging
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import outside_json
from headrace.catalog.connections import causes_of, is_broken_connection
from headrace.catalog.retry import HEALS, retrying
from headrace.catalog.shard import Broken
from headrace.catalog.source import REPO
from headrace.catalog.transport import client_token
from headrace.errors import DataError, NotAllowed, NotFound, SpecError, Unreachable, shown, unquoted
from headrace.files import read_whole
from headrace.make import growth
from headrace.make.backends import is_failure

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("headrace")

FILE, CONFIG, TOKEN_MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    TOKEN_MAP,
    "added_tokens.json",
    "config.json",
    "chat_template*",
    "additional_chat_templates/*",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "bpe.codes",
    "dict.txt",
)
"""What transformers may ask for to open a tokenizer, by patterns of the Hub's client."""
LARGEST_FILE = 128 << 20
"""Bytes of one of them; the largest that are known have a quarter of that."""
INSTALL = "pip install 'headrace[tokenizers]'"
AN_OBJECT = "an object"


class Names(NamedTuple):
    """What a tokenizer.json does not say about its tokenizer."""

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    adds_bos: bool | None = None
    """Whether documents begin with bos, where that is said apart from the post-processor."""
    split_special: bool = False
    """Special tokens that stand in a text are read as plain text."""


def by_name(name: str) -> tuple[tokenizers.Tokenizer, Names]:
    path = Path(name).expanduser()
    if path.is_file():
        siblings = path.parent if path.name == FILE else None
        return parse(_text(path), path), _names(lambda other: siblings / other if siblings else None)
    if path.is_dir():
        if not (path / FILE).is_file():
            return _by_transformers(name, f"{shown(name)} has no {FILE}")
        return parse(_text(path / FILE), path / FILE), _names(lambda other: path / other)
    if name.startswith(("/", ".", "~")) or name.endswith(".json") or not REPO.fullmatch(name) or ".." in name:
        raise NotFound(
            f"tokenizer {shown(name)!r}: there is no such file or folder, and it is not a name on the Hub like "
            f"'org/name'; check the path"
        )
    return _from_hub(name)


def _from_hub(name: str) -> tuple[tokenizers.Tokenizer, Names]:
    """The same files as in a folder, so that a name and its download give the same tokenizer."""
    path = _download(name, FILE, None)
    if path is None:
        return _by_transformers(name, f"the model {shown(name)} on the Hub has no {FILE}")
    commit = path.parent.name
    return parse(_text(path), path), _names(lambda other: _download(name, other, commit))


def _download(name: str, file: str, commit: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    if commit and not isinstance(try_to_load_from_cache(name, file, revision=commit), str | None):
        return None  # it is known that there is none
    what = f"tokenizer {shown(name)!r}"
    return retrying(lambda: _ask_hub(what, name, file, commit), what)


def _ask_hub(what: str, name: str, file: str, commit: str | None) -> Path | None:
    from huggingface_hub import constants, errors, hf_hub_download

    try:
        return Path(hf_hub_download(name, file, revision=commit, token=client_token()))
    except errors.GatedRepoError as error:
        raise NotAllowed(
            f"{what}: the model is gated; accept its terms on the Hub, then run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFound(
            f"{what}: neither a file or folder here nor a model on the Hub that may be read; check the name, or run "
            f"`hf auth login` if it is private"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        if file == TOKEN_MAP:  # an older form of what the other file says: not worth a wait
            if not constants.HF_HUB_OFFLINE:
                log.warning("%s: %s is not in the cache, and the Hub cannot be asked: it goes without", what, file)
            return None
        why = f"{file} is not in the cache, and the Hub cannot be asked ({shown(error)})"
        raise (Broken(why) if _may_heal(error) else Unreachable(f"{what}: {why}")) from error
    except errors.EntryNotFoundError:
        return None
    except Exception as error:
        if not isinstance(error, errors.HfHubHTTPError | OSError) and not is_broken_connection(error):
            raise
        why = f"the Hub did not give {file} ({shown(error)})"
        if _may_heal(error):
            raise Broken(why) from error
        raise Unreachable(f"{what}: {why}; try again, or give a folder") from error


def _may_heal(error: BaseException) -> bool:
    """Whether asking again later may help. The clients of the Hub wrap the reason in errors of their own."""
    from huggingface_hub import constants

    responses = [getattr(cause, "response", None) for cause in causes_of(error)]
    statuses = [response.status_code for response in responses if response is not None]
    if constants.HF_HUB_OFFLINE or statuses:
        return not HEALS.isdisjoint(statuses)
    return is_broken_connection(error)


def _by_transformers(name: str, why: str) -> tuple[tokenizers.Tokenizer, Names]:
    """For those without a tokenizer.json, which transformers may be able to convert. Their own code is never run."""
    try:
        import transformers  # noqa: F401 - it is asked for below
    except ImportError as error:
        raise SpecError(f"{why}, and to convert what it has takes transformers; {INSTALL}") from error
    try:
        found = transformers_tokenizer(name)
    except Unreachable:
        raise
    except Exception as error:
        raise SpecError(f"{why}, and transformers cannot make a fast tokenizer of it: {shown(error)}") from error
    return from_object(found)


def transformers_tokenizer(name: str | Path) -> Any:
    """A tokenizer of transformers, by its folder or by its name on the Hub, which is waited for. It runs no code of the
    model's."""
    from transformers import AutoTokenizer

    def attempt() -> Any:
        try:
            if _must_be_fetched(name):
                return AutoTokenizer.from_pretrained(
                    _fetched(str(name)), trust_remote_code=False, local_files_only=True
                )
            return AutoTokenizer.from_pretrained(name, trust_remote_code=False, token=client_token())
        except Exception as error:
            if _may_heal(error):
                raise Broken(f"transformers cannot ask the Hub ({shown(error)})") from error
            raise

    return retrying(attempt, f"tokenizer {shown(name)!r}")


def _must_be_fetched(name: str | Path) -> bool:
    """Whether transformers must not ask the Hub itself: it sends the token with some questions, whatever it is told."""
    return client_token() is False and not Path(name).is_dir()


def _fetched(name: str) -> str:
    """A folder with all files of a tokenizer on the Hub, which are asked for without the token."""
    from huggingface_hub import HfApi, constants, snapshot_download

    listed: list[str] = []
    if not constants.HF_HUB_OFFLINE:
        info = HfApi().model_info(name, token=False, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        names = [sibling.rfilename for sibling in info.siblings or []]
        listed = [file for file in names if any(fnmatch(file, pattern) for pattern in _FILES)]
        if not listed:
            raise NotFound(f"the Hub lists no files of a tokenizer for {shown(name)!r}")
    folder = Path(snapshot_download(name, allow_patterns=list(_FILES), token=False))
    # Where the Hub gives no answer, this is what the cache happens to have: an older template, say.
    if listed and (folder.name != info.sha or not all((folder / file).is_file() for file in listed)):
        raise Broken("the Hub did not give all files")
    return str(folder)


def from_object(what: object) -> tuple[tokenizers.Tokenizer, Names]:
    if getattr(what, "is_fast", None) is False:
        raise SpecError(
            f"{type(what).__name__} is a slow tokenizer, which runs in Python and cannot be used here; open its fast "
            f"form with AutoTokenizer.from_pretrained(..., use_fast=True)"
        )
    core: Any = getattr(what, "backend_tokenizer", what)
    if not hasattr(core, "to_str"):
        raise SpecError(
            f"{type(what).__name__} is no tokenizer; a path, a Hub name, a tokenizers.Tokenizer or a fast tokenizer of "
            f"transformers is expected"
        )
    words = (getattr(what, f"{name}_token", None) for name in ("bos", "eos", "pad"))
    bos, eos, pad = (None if word is None else str(word) for word in words)
    split = bool(getattr(core, "encode_special_tokens", False))
    return parse(core.to_str(), AN_OBJECT), Names(bos, eos, pad, split_special=split)


def _text(path: Path) -> str:
    try:
        return read_whole(path, LARGEST_FILE).decode()
    except OSError as error:
        raise DataError(f"{shown(path)}: it cannot be read: {shown(error.strerror or error)}") from error
    except ValueError as error:
        raise DataError(f"{shown(path)}: it cannot be read as text ({shown(error)})") from error


def parse(text: str, where: object) -> tokenizers.Tokenizer:
    try:
        from tokenizers import Tokenizer as Core
    except ImportError as error:
        raise SpecError(f"tokenizing needs the package tokenizers, which is not installed; {INSTALL}") from error
    growth.check(text, where)
    try:
        return Core.from_str(text)
    except BaseException as error:
        if not is_failure(error):
            raise
        why = unquoted(error)  # the file may be a link to one that is no tokenizer at all
        raise DataError(f"{shown(where)}: it is no {FILE} that tokenizers can read ({why})") from None


def _names(find: Callable[[str], Path | None]) -> Names:
    """From the files that lie beside a tokenizer.json."""
    found = _read(find(CONFIG))
    if "eos_token" not in found:
        found = _read(find(TOKEN_MAP)) | found
    words = (found.get(f"{name}_token") for name in ("bos", "eos", "pad"))
    bos, eos, pad = (word.get("content") if isinstance(word, dict) else word for word in words)
    for word in (bos, eos, pad):
        if word is not None and not _is_text(word):
            raise DataError(f"{CONFIG}: a bos, eos or pad token is {type(word).__name__} that is no text; correct it")
    adds_bos = found.get("add_bos_token")
    split = found.get("split_special_tokens") is True
    return Names(bos, eos, pad, adds_bos if isinstance(adds_bos, bool) else None, split)


def _is_text(word: Any) -> bool:
    """Whether it is text, without half of a surrogate pair."""
    return isinstance(word, str) and not any("\ud800" <= character <= "\udfff" for character in word)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.is_file():
        return {}
    try:
        found = outside_json.parse(_text(path), growth.MOST_VALUES)
    except outside_json.TooManyValues as error:
        raise DataError(f"{shown(path)}: {error}; take another tokenizer") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown(path)}: it is not JSON ({shown(error)})") from error
    if not isinstance(found, dict):
        raise DataError(f"{shown(path)}: it holds no JSON object")
    return {key: value for key, value in found.items() if value is not None}
