"""The file with the Hub's token: where it cannot be read, an error says which file it is and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError, NotAllowed, SpecError
from headrace.run import hub_token
from headrace.testing import LocalHub, write_parquet


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "home" / "token"
    path.parent.mkdir()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    return path


def closed(path: Path) -> None:
    """As a file of mode 000 is for anyone but root."""
    path.write_text("hf_secret")
    path.chmod(0)


def a_loop(path: Path) -> None:
    path.symlink_to(path)


SPOILED: dict[str, Callable[[Path], object]] = {"a folder": Path.mkdir, "closed": closed, "a loop of links": a_loop}


@pytest.mark.parametrize("how", SPOILED)
def test_a_token_file_that_cannot_be_read_is_named_with_the_remedy(
    token_file: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SPOILED[how](token_file)
    if how == "closed":
        real = Path.read_text

        def read_text(path: Path, *args: str, **named: str) -> str:
            if path == token_file:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **named)

        monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(NotAllowed, match=re.escape(str(token_file))) as told:
        hub_token()
    assert "chmod 600" in str(told.value)
    assert "HF_TOKEN" in str(told.value)
    assert "hf_secret" not in str(told.value)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert hub_token() == "hf_other"


def test_a_token_file_that_is_no_text_is_named(token_file: Path) -> None:
    token_file.write_bytes(b"\xff\xfe\x00secret")
    with pytest.raises(SpecError, match=re.escape(str(token_file))) as told:
        hub_token()
    assert "secret" not in str(told.value)


def test_a_missing_or_empty_token_file_is_no_token(token_file: Path) -> None:
    assert hub_token() is None
    token_file.write_text("\n")
    assert hub_token() is None
    token_file.write_text("hf_mine\n")
    assert hub_token() == "hf_mine"


def test_reading_a_data_set_says_it_too(
    token_file: Path, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "repo", [[5]])
    hub.push("me/rows", tmp_path / "repo")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    token_file.mkdir()
    with pytest.raises(HeadraceError, match=re.escape(str(token_file))):
        next(headrace.rows("hf:me/rows", cache_dir=tmp_path / "data"))
    token_file.rmdir()
    assert len(list(headrace.rows("hf:me/rows", cache_dir=tmp_path / "data"))) == 5
