"""Where LeRobot data sets lie: on the Hub, in a folder, behind fsspec, in a bucket of the Hub."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import robot_meta as made
from refused import check_refused
from robot_meta import EPISODES, INFO, TASKS, TOP
from robots import numbers, small_set

from headrace import StreamingLeRobotDataset
from headrace.errors import Changed, DataError, HeadraceError, NotAllowed, NotFound, SpecError, StateError, Unreachable
from headrace.lerobot.meta import Meta
from headrace.lerobot.root import Root
from headrace.run import Run
from headrace.testing import LocalHub
from headrace.testing.hub import Status

REPO = "org/robot"
TAG = "refs/tags/v3.0"


@pytest.fixture
def run(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return Run(endpoint=hub.endpoint, cache_dir=tmp_path / "data")


def refusal(*args: Any, **options: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        Root.open(*args, **options)
    assert str(caught.value).isprintable(), repr(str(caught.value))
    return caught.value


def kinds(hub: LocalHub) -> dict[str, int]:
    return {kind: hub.count(kind=kind) for kind in ("api", "tree", "resolve")}


# --- the Hub


def test_a_repo_is_read_at_its_tag_in_few_requests(hub: LocalHub, run: Run) -> None:
    commit = hub.push(REPO, made.files(), branch=TAG)
    hub.push(REPO, {"README.md": b"later"})
    root = Root.open(REPO, run)
    assert root.revision == commit
    assert root.name == f"{REPO}@{commit[:8]}"
    assert root.url == f"hf://datasets/{REPO}@{commit}"
    meta = Meta.open(root)
    assert meta.task_names == ["pick", "place"]
    assert meta.episodes.first.tolist() == [0, 5, 8, 12]
    assert meta.stats["action"]["count"].tolist() == [18]
    assert kinds(hub) == {"api": 1, "tree": 1, "resolve": 4}  # info, episodes, tasks, stats
    assert all(request.path.startswith(f"/datasets/{REPO}/resolve/{commit}/meta/") for request in hub.requests[2:])


def test_the_listing_is_kept_and_ranks_of_a_launch_share_the_commit(hub: LocalHub, run: Run) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    first = Root.open(REPO, Run(endpoint=run.endpoint, cache_dir=run.cache_dir, launch="one"))
    hub.clear_log()
    again = Root.open(REPO, Run(endpoint=run.endpoint, cache_dir=run.cache_dir, launch="one"))
    assert kinds(hub) == {"api": 0, "tree": 0, "resolve": 0}
    assert list(again.paths()) == list(first.paths()) == sorted(made.files())
    Root.open(REPO, run)
    assert kinds(hub) == {"api": 1, "tree": 0, "resolve": 0}


def test_the_highest_tag_of_v3_is_taken_where_there_is_no_v3_0(
    hub: LocalHub, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    hub.push(REPO, {"README.md": b"main"})
    hub.push(REPO, made.files() | {"x": b"3.2"}, branch="refs/tags/v3.2")
    commit = hub.push(REPO, made.files() | {"x": b"3.10"}, branch="refs/tags/v3.10")
    hub.push(REPO, made.files() | {"x": b"2.1"}, branch="refs/tags/v2.1")
    hub.push(REPO, made.files() | {"x": b"other"}, branch="refs/tags/v3.x-old")
    assert Root.open(REPO, run).revision == commit
    assert "org/robot has no tag v3.0; reading v3.10" in caplog.text


def test_a_branch_may_name_the_format_too(hub: LocalHub, run: Run) -> None:
    hub.push(REPO, {"README.md": b"main"})
    commit = hub.push(REPO, made.files(), branch="v3.0")
    assert Root.open(REPO, run).revision == commit


NO_TAG: dict[str, tuple[list[str], type[HeadraceError], str]] = {
    "none": ([], NotFound, r"org/robot has no tag v3\.0, by which .*have its owner make one, or .* revision='main'"),
    "no version": (["final"], NotFound, r"has no tag v3\.0"),
    "older": (["v2.1", "v2.0", "v1.6"], DataError, r"org/robot: it is of format v2\.1, .*convert_dataset_v21_to_v30"),
    "newer": (["v4.1", "v2.1"], DataError, r"it is of format v4\.1, which is newer than the v3 .*update headrace"),
}


@pytest.mark.parametrize("case", NO_TAG)
def test_a_repo_without_a_tag_of_v3_is_refused(hub: LocalHub, run: Run, case: str) -> None:
    tags, kind, said = NO_TAG[case]
    hub.push(REPO, made.files())
    for tag in tags:
        hub.push(REPO, made.files(), branch=f"refs/tags/{tag}")
    check_refused(refusal(REPO, run), kind, said)
    assert Root.open(REPO, run, "main").has(INFO)


def test_a_branch_that_moves_is_seen_by_the_next_run_and_not_by_a_state(hub: LocalHub, run: Run) -> None:
    old = hub.push(REPO, made.files())
    root = Root.open(REPO, run, "main")
    new = hub.push(REPO, made.files() | {"x": b"more", TASKS: made.tasks(("other",))})
    assert Meta.open(root).task_names == ["pick", "place"]
    assert Root.open(REPO, run, "main").revision == new
    for resumed in (Root.open(REPO, run, "main", pinned=old), Root.open(REPO, run, old)):
        assert resumed.revision == old
        assert not resumed.has("x")
    check_refused(refusal(REPO, run, pinned="files-00"), StateError, "'files-00' is not a commit")


def test_a_url_of_a_repo_is_that_repo(hub: LocalHub, run: Run) -> None:
    commit = hub.push(REPO, made.files())
    assert Root.open(f"hf://datasets/{REPO}@main", run).revision == commit
    assert Root.open(f"hf://datasets/{REPO}@{commit}/", run).revision == commit
    check_refused(refusal(f"hf://datasets/{REPO}@main/sub", run), NotFound, f"^{REPO}@main/sub: not found")
    check_refused(refusal(f"hf://datasets/{REPO}/sub", run), SpecError, "is not the name of a Hub repo")


def test_a_repo_that_cannot_be_read_says_what_the_catalog_says(
    hub: LocalHub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(refusal("org/none", run), NotFound, "org/none: there is no such repo, or it is private")
    hub.push(REPO, made.files(), branch=TAG)
    hub.restrict(REPO, "private")
    check_refused(refusal(REPO, run), NotFound, "there is no such repo, or it is private.*hf auth login")
    hub.restrict(REPO, "gated")
    check_refused(refusal(REPO, run), NotAllowed, "the repo is gated")
    monkeypatch.setenv("HF_TOKEN", "hf_local")
    assert Root.open(REPO, run).has(INFO)


def test_a_revision_that_there_is_not_is_named(hub: LocalHub, run: Run) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    check_refused(refusal(REPO, run, "nope"), NotFound, "org/robot@nope: not found")


def test_tags_that_cannot_be_read_are_no_missing_tag(hub: LocalHub, run: Run, quick: None) -> None:
    hub.push(REPO, made.files())
    unread = "the Hub's list of its tags cannot be read"
    bodies = {b"<html>log in</html>": "is no answer of a Hub .*login page", b"[]": unread, b'{"tags": [{}]}': unread}
    for body, said in bodies.items():
        hub.clear_faults()
        hub.fault("*/refs", Status(200, {"Content-Type": "application/json"}, body))
        check_refused(refusal(REPO, run), Unreachable, said)
    hub.clear_faults()
    hub.fault("*/refs", 503)
    check_refused(refusal(REPO, run), Unreachable, "gave up after 4 attempts")


def test_offline_the_listing_that_is_here_is_used(hub: LocalHub, run: Run) -> None:
    offline = Run(endpoint=run.endpoint, cache_dir=run.cache_dir, offline=True)
    check_refused(refusal(REPO, offline), Unreachable, "HF_HUB_OFFLINE is set")
    commit = hub.push(REPO, made.files(), branch=TAG)
    Root.open(REPO, run)
    hub.clear_log()
    root = Root.open(REPO, offline)
    assert root.revision == commit
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE forbids to fetch it"):
        Meta.open(root)
    assert hub.requests == []


def test_of_a_large_table_only_the_columns_that_count_travel(hub: LocalHub, run: Run) -> None:
    lengths = (5,) * 2000
    columns: dict[str, Any] = made.episodes(lengths)
    columns["stats/action/mean"] = list(np.random.default_rng(0).random((2000, 300)))
    content = made.files(info=made.info(total_frames=10_000, total_episodes=2000))
    content[EPISODES] = made.parquet(columns, row_group_size=500)
    whole = len(content[EPISODES])
    assert whole > 4 << 20
    hub.push(REPO, content, branch=TAG)
    meta = Meta.open(Root.open(REPO, run))
    assert len(meta.episodes) == 2000
    asked = [request for request in hub.requests if request.path.endswith(EPISODES)]
    assert all(request.range for request in asked)
    assert sum(request.bytes_sent for request in asked) < whole / 4
    assert len(asked) <= 2 + 2 * 4


def test_many_tables_are_read_side_by_side(hub: LocalHub, run: Run) -> None:
    content = made.files(info=made.info(total_frames=60, total_episodes=12))
    for i in range(12):
        content[f"meta/episodes/chunk-000/file-{i:03d}.parquet"] = made.parquet(made.episodes((5,), i, 5 * i))
    hub.push(REPO, content, branch=TAG)
    root = Root.open(REPO, run)
    hub.clear_log()
    assert Meta.open(root).episodes.first.tolist() == list(range(0, 60, 5))
    assert kinds(hub) == {"api": 0, "tree": 0, "resolve": 12 + 3}


def test_a_file_that_changes_on_the_way_is_noticed(hub: LocalHub, run: Run, quick: None) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    root = Root.open(REPO, run)
    hub.fault(f"*{TASKS}", Status(200, {"ETag": '"other"'}, made.tasks(("x",))))
    with pytest.raises(Changed, match=r"tasks\.parquet: the server has etag other"):
        Meta.open(root)


# --- a folder


def test_a_folder_is_read_where_it_lies(run: Run, tmp_path: Path, hub: LocalHub) -> None:
    folder = made.write(tmp_path / "set")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_bytes(b"")
    root = Root.open(str(folder), run)
    assert sorted(made.files()) == list(root.paths())
    assert root.shard(INFO).origin.local_path(root.shard(INFO)) == folder / INFO
    assert root.shard(INFO).size == len(made.files()[INFO])
    assert Root.open(f"file://{folder}", run).revision == root.revision
    assert Root.open(f"{folder}/", run).revision == root.revision
    assert hub.requests == []
    assert not run.cache_dir.exists()


def test_a_folder_comes_before_a_repo_of_the_same_name(hub: LocalHub, run: Run, tmp_path: Path) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    (tmp_path / REPO).mkdir(parents=True)
    assert Root.open(REPO, run).name.startswith("org/robot@")  # a folder, but not a data set
    made.write(tmp_path / REPO)
    assert Root.open(REPO, run).name == REPO


def test_root_says_where_a_repo_lies(hub: LocalHub, run: Run, tmp_path: Path) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    here = made.write(tmp_path / "here")
    assert Root.open(REPO, run, root=here).name == str(here)
    assert Root.open(REPO, run, "v3.0", root=here).name == str(here)
    assert Root.open(REPO, run, root=tmp_path / "nowhere").name.startswith("org/robot@")


def test_a_folder_that_changed_is_not_that_of_a_state(run: Run, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "set")
    before = Root.open(str(folder), run)
    assert Root.open(str(folder), run, before.revision).revision == before.revision
    assert Root.open(str(folder), run, pinned=before.revision).revision == before.revision
    moved = folder.rename(tmp_path / "moved")
    assert Root.open(str(moved), run, pinned=before.revision).revision == before.revision
    (moved / f"videos/{TOP}/chunk-001/file-001.mp4").write_bytes(b"new")
    for options in ({"revision": before.revision}, {"pinned": before.revision}):
        check_refused(refusal(str(moved), run, **options), Changed, "its files are not those the state was made on")
    after = Root.open(str(moved), run)
    (moved / INFO).write_bytes(b"{}")
    (moved / "data/more").write_bytes(b"{}")
    with pytest.raises(Changed, match="changed since it was listed"):
        after.read(INFO)
    with pytest.raises(Changed, match="was not there when the data set was listed"):
        after.shard("data/more")


def test_only_repos_have_revisions(run: Run, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "set")
    for revision in ("main", "0" * 40):
        check_refused(
            refusal(str(folder), run, revision), SpecError, "is no repo of the Hub, and only those have revisions"
        )


PLACES: dict[str, tuple[str, type[HeadraceError], str]] = {
    "no folder": ("/no/such/folder", NotFound, "there is no such folder, and it is no repo name"),
    "no name": ("robots", NotFound, "robots: there is no such folder, and it is no repo name like 'org/name'"),
    "up": ("../robots", NotFound, "there is no such folder"),
    "a file": ("set/README.md", NotFound, "."),
    "not a set": ("set/meta", NotFound, "no LeRobot data set: it has no meta/info.json"),
    "http": ("https://h/x?sig=secret", SpecError, "^https://h/x: the files of a folder behind https cannot be listed"),
    "empty": ("", SpecError, "is the name of no place"),
    "NUL": ("a\0b", SpecError, "is the name of no place"),
    "no scheme": ("nosuch://b/x", SpecError, "pip install"),
    "no hub name": ("hf://datasets/..", SpecError, "is not the name of a Hub repo"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_without_a_data_set_says_so(run: Run, tmp_path: Path, case: str) -> None:
    path, kind, said = PLACES[case]
    made.write(tmp_path / "set")
    where = str(tmp_path / path) if path.startswith("set/") else path
    check_refused(refusal(where, run), kind, said)


def test_a_file_that_is_not_there_is_named_with_the_nearest(run: Run, tmp_path: Path, hub: LocalHub) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    root = Root.open(REPO, run)
    with pytest.raises(NotFound, match=rf"org/robot@\w+: there is no file {TASKS[:-1]}; nearest: {TASKS}"):
        root.shard(TASKS[:-1])
    with pytest.raises(NotFound, match=r"no file videos/x/chunk-001/file-000\.mp4; nearest: videos/obs"):
        root.shard("videos/x/chunk-001/file-000.mp4")
    folder = made.write(tmp_path / "set")
    local = Root.open(str(folder), run)
    with pytest.raises(NotFound, match=r"file-009\.parquet: no such file .* nearest there: file-00"):
        local.shard("data/chunk-000/file-009.parquet")
    assert not local.has("data/chunk-000/file-009.parquet")
    (folder / "data/chunk-000/file-009.parquet").symlink_to("/no/such/blob")
    with pytest.raises(NotFound, match="is a broken symbolic link"):
        Root.open(str(folder), run).shard("data/chunk-000/file-009.parquet")
    for path in ("../set/README.md", "/etc/passwd", "data/../README.md", ""):
        for one in (root, local):
            assert not one.has(path)
            with pytest.raises(NotAllowed, match="is refused"):
                one.shard(path)


def test_links_are_followed_and_rings_of_them_are_not(run: Run, tmp_path: Path) -> None:
    folder, elsewhere = made.write(tmp_path / "set"), tmp_path / "disk"
    (folder / "videos").rename(elsewhere)
    (folder / "videos").symlink_to(elsewhere)
    (folder / "data" / "ring").symlink_to(folder / "data")
    os.mkfifo(folder / "data" / "fifo")
    assert sorted(Root.open(str(folder), run).paths()) == sorted(made.files())


def test_a_folder_that_may_not_be_read_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.write(tmp_path / "set")
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("data/"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    check_refused(refusal(str(folder), run), NotAllowed, "set/data/ may not be read by this user")


def test_a_root_travels_to_workers(hub: LocalHub, run: Run, tmp_path: Path) -> None:
    hub.push(REPO, made.files(), branch=TAG)
    for root in (Root.open(REPO, run), Root.open(str(made.write(tmp_path / "set")), run)):
        again = pickle.loads(pickle.dumps(root))  # noqa: S301 - our own
        assert again.revision == root.revision
        assert again.read(INFO) == made.files()[INFO]


def test_a_file_of_metadata_has_no_gigabytes(run: Run, tmp_path: Path) -> None:
    root = Root.open(str(made.write(tmp_path / "set")), run)
    with pytest.raises(DataError, match=r"meta/info\.json has [\d,]+ bytes, more than the 10"):
        root.read(INFO, limit=10)


# --- fsspec


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    files = fsspec.filesystem("memory")
    for path, data in made.files().items():
        files.pipe(f"/robots/one/{path}", data)
    yield files
    files.rm("/robots", recursive=True)


@pytest.mark.parametrize("url", ["memory://robots/one", "memory:///robots/one/"])
def test_a_folder_behind_a_url_is_read(memory: Any, run: Run, url: str) -> None:
    root = Root.open(url, run)
    assert root.name == url.rstrip("/")
    assert list(root.paths()) == sorted(made.files())
    meta = Meta.open(pickle.loads(pickle.dumps(root)))  # noqa: S301 - our own
    assert meta.episodes.first.tolist() == [0, 5, 8, 12]
    assert meta.files.shard(TASKS).origin.folder is not None
    assert Root.open(url, run, root.revision).revision == root.revision
    assert Root.open(REPO, run, root=url).revision == root.revision
    with pytest.raises(NotFound, match=f"there is no file {TASKS}x; nearest: {TASKS}"):
        root.shard(f"{TASKS}x")
    memory.pipe(f"/robots/one/{TASKS}", made.tasks(("more", "and", "more")))
    check_refused(refusal(url, run, pinned=root.revision), Changed, "its files are not those the state was made on")


def test_a_url_without_a_data_set_says_so(memory: Any, run: Run) -> None:
    check_refused(refusal("memory://robots/two", run), NotFound, "no such folder, or no file in it; nearest in .*: one")
    check_refused(refusal("memory://robots", run), NotFound, r"it has no meta/info\.json; nearest: one/meta/info\.json")
    check_refused(refusal(f"memory://robots/one/{INFO}", run), NotFound, "no such folder, or no file in it")
    check_refused(refusal("memory://robots/one", run, "main"), SpecError, "only those have revisions")


# --- buckets of the Hub


class Bucket(ThreadingHTTPServer):
    """As much of the Hub's buckets as reading takes, by what its client asks for."""

    daemon_threads = True

    def __init__(self, content: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.asked = content, list[tuple[str, str]]()
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, wanted: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, wanted))
        if path == "/api/buckets/me/robot":
            date = "2026-01-01T00:00:00.000Z"
            own = {"id": "me/robot", "private": False, "createdAt": date, "size": 1, "totalFiles": len(self.content)}
            return 200, {}, json.dumps(own).encode()
        if path.startswith("/api/buckets/me/robot/tree"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "xetHash": f"{hash(data):x}"}
                for name, data in self.content.items()
            ]
            return 200, {}, json.dumps(listed).encode()
        data = self.content.get(path.removeprefix("/buckets/me/robot/resolve/"))
        if data is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        start, stop = (int(x) for x in wanted.removeprefix("bytes=").split("-"))
        return 206, {"Content-Range": f"bytes {start}-{stop}/{len(data)}"}, data[start : stop + 1]


class _Handler(BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        status, headers, body = self.server.answer(path, self.headers.get("range", ""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    import huggingface_hub

    if not hasattr(huggingface_hub.HfApi, "list_bucket_tree"):
        pytest.skip(
            f"huggingface_hub {huggingface_hub.__version__} is from before buckets, which another test is about"
        )
    server = Bucket(made.files())
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.endpoint)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_client_from_before_buckets_is_named_and_not_the_bucket(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delattr("huggingface_hub.HfApi.list_bucket_tree", raising=False)
    check_refused(refusal("hf://buckets/me/robot", run), SpecError, r"too old for buckets.*--upgrade huggingface_hub")


def test_a_bucket_is_read_by_the_client_of_the_hub(bucket: Bucket, run: Run) -> None:
    root = Root.open("hf://buckets/me/robot", run)
    assert list(root.paths()) == sorted(made.files())
    assert root.name == root.url == "hf://buckets/me/robot"
    assert Meta.open(root).task_names == ["pick", "place"]
    shard = root.shard(INFO)
    assert shard.etag.startswith("xet_hash=")
    bucket.asked.clear()
    assert shard.origin.read(shard, 10, 20) == made.files()[INFO][10:20]
    assert [wanted for path, wanted in bucket.asked if "/resolve/" in path] == ["bytes=10-19"]  # and not one byte more


def test_a_bucket_that_changed_is_not_that_of_a_state(bucket: Bucket, run: Run) -> None:
    root = Root.open("hf://buckets/me/robot/", run)
    assert Root.open("hf://buckets/me/robot", run, pinned=root.revision).revision == root.revision
    bucket.content[TASKS] = made.tasks(("pick", "plate"))
    assert len(bucket.content[TASKS]) == root.shard(TASKS).size
    check_refused(refusal("hf://buckets/me/robot", run, pinned=root.revision), Changed, "are not those the state was")


def test_a_bucket_that_there_is_not_is_named(bucket: Bucket, run: Run) -> None:
    check_refused(refusal("hf://buckets/me/other", run), NotFound, "hf://buckets/me/other: no such file")


def test_a_bucket_is_named_like_a_repo(bucket: Bucket, tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set", cameras={})
    bucket.content = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    far = StreamingLeRobotDataset("me/robot", repo_type="bucket", cache_dir=tmp_path / "cache")
    near = StreamingLeRobotDataset("me/robot", root=folder, cache_dir=tmp_path / "cache")
    assert far.meta.url_root == far.root == "hf://buckets/me/robot"
    assert numbers(far) == numbers(near)
