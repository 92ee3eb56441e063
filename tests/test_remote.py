"""Parquet behind fsspec: a real S3 client against a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import rows
from headrace.errors import Changed, NotFound, SpecError
from headrace.testing import check_laws, write_parquet


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import fsspec
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testsecret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HEADRACE_CACHE_DIR": str(tmp_path / "data"),
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = fsspec.filesystem("s3")
    fs.mkdir("bucket")
    for path in write_parquet(tmp_path / "in", [[20, 20], [30], [5, 5]]):
        fs.put(str(path), f"bucket/corpus/{path.name}")
    yield fs
    fs.rm("bucket", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


SPEC = "parquet:s3://bucket/corpus/*.parquet"


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_from_a_bucket_keep_the_laws(bucket: Any, shuffle: bool) -> None:
    items = check_laws(
        lambda: rows(SPEC, shuffle=shuffle, pool_size=2), positions=range(0, 81, 16), key=lambda row: row.data["uid"]
    )
    assert len(set(items)) == 80


def test_shards_of_a_bucket_are_fetched_ahead_and_removed_behind(bucket: Any, tmp_path: Path) -> None:
    with rows(SPEC) as stage:
        assert len([next(stage) for _ in range(60)]) == 60
        assert any((tmp_path / "data").rglob("train-*.parquet"))
        list(stage)
    assert not list((tmp_path / "data").rglob("train-*.parquet"))


def test_a_bucket_without_such_files_says_so(bucket: Any) -> None:
    with pytest.raises(NotFound, match="no file matches s3://bucket/other"):
        rows("parquet:s3://bucket/other/*.parquet")
    with pytest.raises(NotFound, match="no such file"):
        rows("parquet:s3://bucket/other.parquet")


def test_an_object_replaced_after_the_listing_is_noticed(bucket: Any, tmp_path: Path) -> None:
    stage = rows(SPEC)
    path = write_parquet(tmp_path / "new", [[20, 20]])[0]
    bucket.put(str(path), "bucket/corpus/train-00001-of-00003.parquet")
    with pytest.raises(Changed, match="changed since it was listed"):
        list(stage)
    stage.close()


def test_an_unknown_scheme_says_what_to_install() -> None:
    with pytest.raises(SpecError, match="pip install"):
        rows("parquet:nosuch://bucket/x.parquet")
