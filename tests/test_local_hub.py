"""LocalHub: what real clients get from it, and what its faults do on the wire."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from wire import Reply

from headrace.testing import hub as hub_package
from headrace.testing.hub import LocalHub, StallAfter

DATA = bytes(range(256)) * 4
SHA = hashlib.sha256(DATA).hexdigest()
FILES = {
    "README.md": b"---\nlicense: mit\ntags: [rows]\n---\n# Rows\n",
    "data/train-00000.bin": DATA,
    "data/deep/er/odd #1 %.txt": b"odd",
    "data-more.txt": b"sorts between the folder and its files",
}
BIN = "/datasets/me/rows/resolve/main/data/train-00000.bin"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with LocalHub() as hub:
        hub.push("me/rows", FILES)
        yield hub


# What clients see


def test_the_hub_clients_read_info_tree_refs_commits_and_files(hub: LocalHub, tmp_path: Path) -> None:
    api = HfApi(endpoint=hub.endpoint, token=False)
    second = hub.push("me/rows", FILES | {"new.txt": b"new"})
    hub.push("me/rows", {"0.parquet": b"PAR1"}, branch="refs/convert/parquet")

    info = api.dataset_info("me/rows", files_metadata=True)
    assert (info.sha, info.private, info.gated, info.tags) == (second, False, False, ["license:mit", "rows"])
    assert info.card_data is not None
    assert info.card_data.license == "mit"
    siblings = {one.rfilename: one for one in info.siblings or []}
    assert sorted(siblings) == sorted([*FILES, "new.txt"])
    lfs = siblings["data/train-00000.bin"].lfs
    assert lfs is not None
    assert (lfs.sha256, lfs.size) == (SHA, len(DATA))
    only_sha = api.dataset_info("me/rows", expand=["sha"])
    assert (only_sha.sha, only_sha.siblings, only_sha.private) == (second, None, None)

    refs = api.list_repo_refs("me/rows", repo_type="dataset")
    assert [ref.target_commit for ref in refs.branches] == [second]
    assert [ref.ref for ref in refs.converts] == ["refs/convert/parquet"]
    commits = api.list_repo_commits("me/rows", repo_type="dataset")
    assert [one.title for one in commits] == ["Commit 2", "Commit 1"]
    found = api.get_paths_info("me/rows", ["data", "missing", "data/deep/er/odd #1 %.txt"], repo_type="dataset")
    assert [one.path for one in found] == ["data", "data/deep/er/odd #1 %.txt"]

    folder = Path(snapshot_download("me/rows", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path))
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    parquet = hf_hub_download(
        "me/rows", "0.parquet", repo_type="dataset", revision="refs/convert/parquet",
        endpoint=hub.endpoint, cache_dir=tmp_path,
    )  # fmt: skip
    assert Path(parquet).read_bytes() == b"PAR1"


def test_a_tree_lists_each_folder_alone_or_with_all_below_it(hub: LocalHub) -> None:
    def listing(folder: str | None, recursive: bool) -> list[str]:
        api = HfApi(endpoint=hub.endpoint, token=False)
        return [one.path for one in api.list_repo_tree("me/rows", folder, repo_type="dataset", recursive=recursive)]

    assert listing(None, False) == ["README.md", "data", "data-more.txt"]
    assert listing(None, True) == [
        "README.md", "data", "data-more.txt", "data/deep", "data/deep/er", "data/deep/er/odd #1 %.txt",
        "data/train-00000.bin",
    ]  # fmt: skip
    assert listing("data", False) == ["data/deep", "data/train-00000.bin"]
    assert listing("data/deep", True) == ["data/deep/er", "data/deep/er/odd #1 %.txt"]
    with pytest.raises(EntryNotFoundError):
        listing("nowhere", True)


def test_an_expanded_tree_names_the_commit_that_last_changed_each_entry(hub: LocalHub) -> None:
    second = hub.push("me/rows", FILES | {"data/deep/new.txt": b"new"})
    entries = HfApi(endpoint=hub.endpoint).list_repo_tree("me/rows", repo_type="dataset", expand=True, recursive=True)
    changed = {one.path for one in entries if one.last_commit and one.last_commit.oid == second}
    assert changed == {"data", "data/deep", "data/deep/new.txt"}


def test_the_file_system_globs_seeks_and_reads(hub: LocalHub) -> None:
    fs = HfFileSystem(endpoint=hub.endpoint, token=False, skip_instance_cache=True)
    assert fs.glob("datasets/me/rows/data/**/*.txt") == ["datasets/me/rows/data/deep/er/odd #1 %.txt"]
    assert fs.info("datasets/me/rows/data/train-00000.bin")["lfs"]["sha256"] == SHA
    with fs.open("datasets/me/rows/data/train-00000.bin", block_size=64) as file:
        file.seek(700)
        assert file.read(20) == DATA[700:720]
    assert any(one.range for one in hub.requests)


def test_datasets_streams_from_it_in_a_child_process(hub: LocalHub, tmp_path: Path) -> None:
    rows = b"".join(b'{"n": %d}\n' % n for n in range(50))
    hub.push("me/rows", {"train.jsonl": rows, "README.md": b"# no front matter"})
    code = (
        "import datasets; print(sum(r['n'] for r in datasets.load_dataset('me/rows', split='train', streaming=True)))"
    )
    env = os.environ | hub.env() | {"HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(sum(range(50))), done.stderr
    assert hub.count(kind="resolve", path="*/train.jsonl") >= 1


@pytest.mark.parametrize(
    ("how", "error"), [("gated", GatedRepoError), ("gated-files", GatedRepoError), ("private", RepositoryNotFoundError)]
)
def test_a_restricted_repo_needs_a_token(hub: LocalHub, tmp_path: Path, how: str, error: type[Exception]) -> None:
    hub.restrict("me/rows", how)  # type: ignore[arg-type]

    def download(token: str | bool) -> str:
        return hf_hub_download(
            "me/rows", "README.md", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path, token=token
        )

    for token in (False, "hf_wrong"):
        with pytest.raises(error):
            download(token)
        if how == "gated-files":
            assert HfApi(endpoint=hub.endpoint, token=token).dataset_info("me/rows").gated == "auto"
        else:
            with pytest.raises(error):
                HfApi(endpoint=hub.endpoint, token=token).dataset_info("me/rows")
    assert Path(download("hf_local")).read_bytes() == FILES["README.md"]
    hub.restrict("me/rows", None)
    assert HfApi(endpoint=hub.endpoint, token=False).dataset_info("me/rows").gated is False


def test_what_is_missing_raises_the_clients_own_errors(hub: LocalHub) -> None:
    api = HfApi(endpoint=hub.endpoint, token=False)
    for token in (False, "hf_local"):
        with pytest.raises(RepositoryNotFoundError):
            api.dataset_info("me/nothing", token=token)
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("me/rows", revision="0" * 40)
    with pytest.raises(EntryNotFoundError) as caught:
        hf_hub_download("me/rows", "no.txt", repo_type="dataset", endpoint=hub.endpoint)
    assert not isinstance(caught.value, LocalEntryNotFoundError)  # which means that the Hub was not asked


def test_a_renamed_repo_redirects_its_api_and_its_files(hub: LocalHub, tmp_path: Path) -> None:
    hub.rename("me/rows", "you/lines")
    assert Reply(hub.endpoint + BIN).status == 307
    info = HfApi(endpoint=hub.endpoint, token=False).dataset_info("me/rows", expand=["sha"])
    assert (info.id, info.siblings) == ("you/lines", None)
    file = hf_hub_download(
        "me/rows", "data/deep/er/odd #1 %.txt", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path
    )
    assert Path(file).read_bytes() == b"odd"


def test_a_redirect_to_the_second_origin_leaves_the_token_behind(tmp_path: Path) -> None:
    with LocalHub(cdn=True) as hub:
        hub.push("me/rows", FILES)
        folder = snapshot_download(
            "me/rows", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path, token="hf_local"
        )
        assert Path(folder, "data/train-00000.bin").read_bytes() == DATA
        assert {(one.origin, one.authorized, one.token_ok) for one in hub.requests} == {
            ("hub", True, True), ("cdn", False, False),
        }  # fmt: skip
        head = Reply(hub.endpoint + BIN, "HEAD")
        assert (head.status, head.headers["x-linked-size"], head.headers["x-linked-etag"]) == (302, "1024", f'"{SHA}"')
        part = Reply(head.headers["location"], Range="bytes=10-19")
        assert (part.status, part.body) == (206, DATA[10:20])
        assert Reply(head.headers["location"].replace("Expires=", "Expires=1")).status == 403
        hub.signed_seconds = 0
        assert Reply(Reply(hub.endpoint + BIN).headers["location"]).status == 403


# Ranges, pages, commits, the log


@pytest.mark.parametrize(
    ("asked", "status", "body", "content_range"),
    [
        ("bytes=0-9", 206, DATA[:10], "bytes 0-9/1024"),
        ("bytes=1000-", 206, DATA[1000:], "bytes 1000-1023/1024"),
        ("bytes=1000-9999", 206, DATA[1000:], "bytes 1000-1023/1024"),
        ("bytes=-24", 206, DATA[-24:], "bytes 1000-1023/1024"),
        ("bytes=-9999", 206, DATA, "bytes 0-1023/1024"),
        ("bytes=1024-", 416, b"", "bytes */1024"),
        ("bytes=-0", 416, b"", "bytes */1024"),
        ("bytes=5-2", 200, DATA, None),
        ("bytes=0-1,4-5", 200, DATA, None),
        ("rows=0-1", 200, DATA, None),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_range_gives_the_bytes_it_names(
    hub: LocalHub, tmp_path: Path, on_disk: bool, asked: str, status: int, body: bytes, content_range: str | None
) -> None:
    (tmp_path / "x").write_bytes(DATA)
    hub.push("me/rows", {"data/train-00000.bin": tmp_path / "x" if on_disk else DATA})
    reply = Reply(hub.endpoint + BIN, Range=asked)
    assert (reply.status, reply.body, reply.headers.get("content-range")) == (status, body, content_range)
    assert reply.headers["etag"] == f'"{SHA}"'
    assert hub.requests[-1].bytes_sent == len(body)


def test_if_range_with_another_etag_gives_the_whole_file(hub: LocalHub) -> None:
    assert Reply(hub.endpoint + BIN, Range="bytes=0-9", If_Range=f'"{SHA}"').status == 206
    reply = Reply(hub.endpoint + BIN, Range="bytes=0-9", If_Range='"other"')
    assert (reply.status, reply.body) == (200, DATA)
    assert [one.if_range for one in hub.requests] == [f'"{SHA}"', '"other"']


def test_small_text_files_have_gits_own_ids(hub: LocalHub) -> None:
    hub.push("me/rows", {"a.txt": b"hello\n"})
    assert Reply(f"{hub.endpoint}/datasets/me/rows/resolve/main/a.txt").headers["etag"] == (
        '"ce013625030ba8dba906f756967f9e9ca394464a"'
    )
    tree = HfApi(endpoint=hub.endpoint).list_repo_tree("me/rows", repo_type="dataset")
    assert next(iter(tree)).lfs is None  # type: ignore[union-attr]


def test_a_commit_depends_on_its_files_and_its_parent_only(hub: LocalHub, tmp_path: Path) -> None:
    for path, content in FILES.items():
        (tmp_path / "root/me/rows" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root/me/rows" / path).write_bytes(content)
    first, again = hub.push("me/one", FILES), hub.push("me/one", FILES)
    with LocalHub(tmp_path / "root") as other:
        assert HfApi(endpoint=other.endpoint).dataset_info("me/rows").sha == first
        assert other.push("me/rows", dict(reversed(FILES.items()))) == again
    assert first != again
    hub.push("me/one", {"data/train-00000.bin": b"other"})
    assert Reply(f"{hub.endpoint}/datasets/me/one/resolve/{first}/data/train-00000.bin").body == DATA
    assert Reply(f"{hub.endpoint}/datasets/me/one/resolve/main/data/train-00000.bin").body == b"other"


def test_only_exact_names_of_the_commit_are_served(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_bytes(b"a")
    hub.push("me/rows", tmp_path / "repo")
    for path in ("../secret", "..%2Fsecret", "%2e%2e/secret", "./a.txt", "/a.txt", "", str(tmp_path / "secret")):
        reply = Reply(f"{hub.endpoint}/datasets/me/rows/resolve/main/{path}")
        assert (reply.status, reply.headers["x-error-code"]) == (404, "EntryNotFound"), path


def test_a_file_that_changed_on_disk_is_refused_rather_than_served_under_the_old_etag(
    hub: LocalHub, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(b"old")
    hub.push("me/rows", tmp_path)
    (tmp_path / "x.bin").write_bytes(b"newer")
    reply = Reply(f"{hub.endpoint}/datasets/me/rows/resolve/main/x.bin")
    assert (reply.status, reply.headers["x-error-code"]) == (410, "ChangedOnDisk")


def test_hostile_names_are_listed_as_they_are(hub: LocalHub) -> None:
    names = ["../up.txt", "/root.txt", "a\\..\\b.txt", "a//b.txt", "line\nbreak.txt", "ünï.txt"]
    hub.push("me/rows", dict.fromkeys(names, b"x"))
    listing = json.loads(Reply(f"{hub.endpoint}/api/datasets/me/rows/tree/main?recursive=true").body)
    assert sorted(one["path"] for one in listing if one["type"] == "file") == sorted(names)
    missing = Reply(f"{hub.endpoint}/datasets/me/rows/resolve/main/no%0d%0aSet-Cookie:%20x")
    assert (missing.status, "set-cookie" in missing.headers) == (404, False)


def test_a_name_cannot_be_both_a_file_and_a_folder(hub: LocalHub) -> None:
    with pytest.raises(ValueError, match="both a file and a folder"):
        hub.push("me/rows", {"a": b"", "a/b": b""})
    with pytest.raises(ValueError, match="namespace/name"):
        hub.push("rows", {})


def test_a_repo_of_25000_files_is_pushed_and_listed_by_pages_of_1000_in_seconds(hub: LocalHub) -> None:
    start = time.monotonic()
    hub.push("me/many", {f"data/{n % 100:02}/{n:05}.txt": b"%d" % n for n in range(25_000)})
    entries = HfApi(endpoint=hub.endpoint, token=False).list_repo_tree("me/many", repo_type="dataset", recursive=True)
    files = [one.path for one in entries if hasattr(one, "blob_id")]
    assert time.monotonic() - start < 10
    assert files == sorted(files)
    assert len(set(files)) == 25_000
    assert hub.count(kind="tree") == 26
    sizes = [len(json.loads(Reply(f"{hub.endpoint}/api/datasets/me/many/tree/main{query}").body)) for query in (
        "?recursive=true", "?recursive=true&limit=7", "?recursive=true&expand=true", "/data/07",
    )]  # fmt: skip
    assert sizes == [1000, 7, 50, 250]


def test_the_log_tells_kinds_tokens_and_bytes_apart(hub: LocalHub) -> None:
    Reply(f"{hub.endpoint}/api/datasets/me/rows?expand=sha", Authorization="Bearer hf_local")
    Reply(f"{hub.endpoint}/api/datasets/me/rows/tree/main", Authorization="Bearer nonsense")
    Reply(hub.endpoint + BIN, "HEAD", User_Agent="me/1")
    Reply(f"{hub.endpoint}/nowhere")
    log = hub.requests
    assert [one.kind for one in log] == ["api", "tree", "resolve", "other"]
    assert [(one.authorized, one.token_ok) for one in log] == [
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]
    assert (log[0].query, log[2].user_agent, log[2].bytes_sent, log[3].status) == ("expand=sha", "me/1", 0, 404)
    assert [one.time for one in log] == sorted(one.time for one in log)
    assert (hub.count(), hub.count(method="HEAD"), hub.count(path="*train*")) == (4, 1, 1)
    assert "hf_local" not in repr(log)
    hub.clear_log()
    assert hub.requests == []


def test_closing_ends_every_connection_and_thread_at_once() -> None:
    before = set(threading.enumerate())
    hub = LocalHub(cdn=True)
    hub.push("me/rows", FILES)
    hub.fault("*", StallAfter(None))
    idle = http.client.HTTPConnection(urlsplit(hub.endpoint).netloc)
    idle.connect()
    waiting = threading.Thread(target=Reply, args=(hub.endpoint + BIN,), kwargs={"timeout": 60})
    waiting.start()
    while not hub.requests:
        time.sleep(0.001)
    start = time.monotonic()
    hub.close()
    hub.close()
    waiting.join()
    idle.close()
    assert time.monotonic() - start < 2
    assert set(threading.enumerate()) == before


def test_importing_it_loads_no_heavy_package() -> None:
    heavy = {"torch", "pyarrow", "huggingface_hub", "datasets"}
    code = f"import sys, headrace.testing.hub; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_all_names_are_sorted() -> None:
    assert hub_package.__all__ == sorted(hub_package.__all__)
