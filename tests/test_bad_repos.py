"""Repos that cannot be read, and READMEs that mean harm: the right rows, or an error with the repo and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from refused import CANARY, POINTER, a_parquet, check_refused, everything, refusal

from headrace.catalog.source import Source
from headrace.errors import DataError, HeadraceError, NotAllowed, NotFound, Unreachable
from headrace.testing import LocalHub
from headrace.testing.hub import Status

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


CARD = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - {split: train, path: 'x/tr*.parquet'}\n---\n"
NO_RIGHTS = r"hf auth login.*HF_TOKEN"
REPOS: dict[str, tuple[str | Source, type[HeadraceError], str]] = {
    "missing": ("hf:org/none", NotFound, rf"^org/none@main: there is no such repo, or it is private.*{NO_RIGHTS}"),
    "private": ("hf:org/private", NotFound, rf"^org/private@main: .* or it is private.*{NO_RIGHTS}"),
    "gated": (
        "hf:org/gated",
        NotAllowed,
        rf"^org/gated@main: .*gated.*accept its terms on http\S+/org/gated.*{NO_RIGHTS}",
    ),
    "gated files": ("hf:org/files", NotAllowed, rf"^org/files@[0-9a-f]{{8}}/\S+: .*gated.*{NO_RIGHTS}"),
    "no such branch": (Source(kind="hf", path="org/good", revision="v9"), NotFound, "^org/good@v9: not found"),
    "no such commit": (
        Source(kind="hf", path="org/good", revision="0" * 40),
        NotFound,
        "^org/good@00000000: not found",
    ),
    "no such split": (
        "hf:org/good:validation",
        NotFound,
        r"^org/good@[0-9a-f]{8}: no parquet file for split 'validation'; tried data/validation-\*.parquet.*"
        "nearest there: data.*data/train-0.parquet",
    ),
    "no such configuration": (
        "hf:org/good:fr:train:text",
        NotFound,
        r"^org/good@[0-9a-f]{8}: no configuration 'fr'; there are data",
    ),
    "card, no such file": (
        "hf:org/card",
        NotFound,
        r"^org/card@[0-9a-f]{8}: .*; tried x/tr\*.parquet; nearest there: x/train.json",
    ),
    "card, no such split": (
        "hf:org/card:test",
        NotFound,
        r"^org/card@[0-9a-f]{8}: no split 'test' .*'en'; it has train",
    ),
    "card, no such configuration": (
        "hf:org/card:fr:train:text",
        NotFound,
        r"^org/card@[0-9a-f]{8}: no configuration 'fr'; there are en",
    ),
    "several configurations": (
        "hf:org/two",
        NotFound,
        r"^org/two@[0-9a-f]{8}: .*several configurations; name one as hf:.*: de, en",
    ),
    "only a part converted": (
        "hf:org/part",
        NotFound,
        r"^org/part@[0-9a-f]{8}: the Hub converted only a part.*allow_partial=True",
    ),
    "no parquet": (
        "hf:org/csv",
        NotFound,
        r"^org/csv@[0-9a-f]{8}: no parquet file for split 'train'; tried data/train-\*.*: train.csv",
    ),
    "nothing in it": ("hf:org/nothing", NotFound, r"no parquet file for split 'train'.*nearest there: no file"),
    "a file of 0 bytes": ("hf:org/zero", DataError, r"^org/zero@[0-9a-f]{8}/data/train-0.parquet has 0 bytes.*again"),
    "a pointer": (
        "hf:org/pointer",
        DataError,
        r"^org/pointer@[0-9a-f]{8}/data/train-0.parquet .*Git LFS pointer.*git lfs",
    ),
    "mixed columns": (
        "hf:org/mixed",
        DataError,
        r"column 'n' is int64 in org/mixed@\w{8}/data/train-0.parquet but string in org/mixed@\w{8}/data/train-1",
    ),
}


@pytest.mark.parametrize("token", ["", CANARY])
@pytest.mark.parametrize("case", REPOS)
def test_a_repo_that_cannot_be_read_says_which_why_and_what_to_do(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, token: str
) -> None:
    good, name = {"data/train-0.parquet": a_parquet(), "data/test-0.parquet": a_parquet()}, "data/train-0.parquet"
    repos: dict[str, dict[str, bytes]] = {
        **dict.fromkeys(("good", "private", "gated", "files"), good),
        "card": {"README.md": CARD, "x/train.json": b"1"},
        "two": {"en/train-0.parquet": a_parquet(), "de/train-0.parquet": a_parquet()},
        "part": {"train.csv": b"a\n"},
        "csv": {"train.csv": b"a\n"},
        "nothing": {},
        "zero": {name: b""},
        "pointer": {name: POINTER},
        "mixed": {name: a_parquet(), "data/train-1.parquet": a_parquet({"text": ["a"], "n": ["x"]})},
    }
    for repo, files in repos.items():
        hub.push(f"org/{repo}", files)
    hub.push("org/part", {"default/partial-train/0000.parquet": a_parquet()}, branch="refs/convert/parquet")
    hub.restrict("org/private", "private")
    hub.restrict("org/gated", "gated")
    hub.restrict("org/files", "gated-files")
    monkeypatch.setenv("HF_TOKEN", token)
    spec, kind, said = REPOS[case]
    check_refused(refusal(spec, tmp_path), kind, said)


def card(*lines: str) -> bytes:
    """A README. The space in its first line keeps the local Hub from reading it too."""
    return "\n".join(["--- ", *lines, "---", "# A dataset"]).encode()


LAUGHS = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"] + [
    f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)
]
MERGES = ["m0: &m0 {x: 1}"] + [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12)]
TAGS = "only str, int, float, bool, null, seq and map are supported"


def merges(key: str, *before: str) -> bytes:
    """Mappings that each hold the one before twenty times: 20 ** 12 values."""
    levels = [f"m{i}: &m{i} {{{key}: [{', '.join([f'*m{i - 1}'] * 20)}]}}" for i in range(1, 13)]
    return card(*before, "m0: &m0 {x: 1}", *levels, "configs: *m12")


OWN_TAG = "%TAG !y! tag:yaml.org,2002:\r---"  # a line end that does not end the front matter


HARMFUL: dict[str, tuple[bytes, str]] = {
    "merges by a tag": (merges("!!merge x"), TAGS),
    "merges by a tag in full": (merges("!<tag:yaml.org,2002:merge> x"), TAGS),
    "merges by a tag of its own": (merges("!y!merge x", OWN_TAG), TAGS),
    "merges by a tag in letters": (merges("!!%6Derge x"), TAGS),
    "merges by a tag at a quoted key": (merges('!!merge "x"'), TAGS),
    "a set": (card("configs: !!set {? a}"), TAGS),
    "pairs": (card("configs: !!omap [a: b]"), TAGS),
    "other pairs": (card("configs: !!pairs [a: b]"), TAGS),
    "bytes as text": (card("configs: !!binary YQ=="), TAGS),
    "a time by a tag": (card("configs: !!timestamp 2024-01-01"), TAGS),
    "a number of many digits by a tag": (card('configs: [{config_name: !!int "' + "9" * 100_000 + '"}]'), ""),
    "a number to the base of 60 by a tag": (card('configs: [{config_name: !!int "1' + ":59" * 260_000 + '"}]'), ""),
    "a fraction to the base of 60 by a tag": (card('configs: [{config_name: !!float "1' + ":59" * 300 + '"}]'), ""),
    "not YAML": (card("configs: ["), "not YAML: .*; going by file names"),
    "depth of lists": (card("configs: " + "[" * 200_000), "nested more than 64 deep; going by file names"),
    "depth of keys": (card("configs: " + "{a: " * 100_000), "nested more than 64 deep"),
    "depth of blocks": (card("- " * 100_000), "nested more than 64 deep"),
    "a tag": (card("configs: !!python/object/apply:os.abort []"), "not YAML: .*; going by file names"),
    "merges of merges": (card(*MERGES, "configs: *m11"), "merge keys"),
    "laughs for a name": (card(*LAUGHS, "configs: [{config_name: *l11, data_files: 'x'}]"), ""),
    "laughs for all": (card(*LAUGHS, "configs: *l11"), ""),
    "itself": (card("configs: &c [{config_name: *c, data_files: *c}]"), ""),
    "a date that is none": (card("configs: 2024-99-99"), "not YAML"),
    "bytes": (b"--- \n\xff\xfe\0\n---\n", "not YAML"),
    "a number to the base of 60": (card("configs: [{config_name: 1" + ":59" * 260_000 + "}]"), ""),
    "a fraction to the base of 60": (card("configs: [{config_name: 1" + ":59" * 300 + ".5}]"), ""),
    "a number of many digits": (card("configs: [{config_name: 0x" + "f" * 100_000 + "}]"), ""),
    "an empty number": (card('configs: [{config_name: !!int ""}]'), "not YAML"),
    "a truth that is none": (card("configs: [{config_name: !!bool x}]"), "not YAML"),
    "a date without a zone": (card("configs: [{config_name: 9999-12-31 23:59:59 -99:99}]"), "not YAML"),
    "very many values": (card("configs: [" + "a," * 200_001 + "]"), "more than 200,000 values"),
    "files that are a number": (card("configs: [{config_name: default, data_files: [{path: 5}]}]"), ""),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_a_readme_that_means_harm_is_passed_over(
    hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    readme, said = HARMFUL[case]
    commit = hub.push("org/harm", {"README.md": readme, "data/train-0.parquet": a_parquet()})
    with caplog.at_level(logging.WARNING):
        assert len(everything("hf:org/harm", tmp_path)) == 2
    messages = [r.message for r in caplog.records]
    assert len(messages) == bool(said)
    for message in messages:
        check_refused(DataError(message), DataError, rf"^org/harm@{commit[:8]}: .*{said}")


FILES: dict[str, tuple[str, str]] = {
    "out of the repo": ("../../../api/whoami-v2/*.parquet", r"which lead out of the repo"),
    "too many crossings": ("**a**b**c.parquet", r"has more than 2 `\*\*`"),
    "slow stars": ("*a" * 60 + "z.parquet", "no parquet file for split 'train'; tried .*nearest there: a"),
    "a folder that is not there": ("no/such/*.parquet", r"tried no/such/\*.parquet; nearest there: a"),
    "a range that is none": ("[z-a].parquet", r"tried \[z-a\].parquet; nearest there: a"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_a_readme_names_in_vain_are_shown(hub: LocalHub, tmp_path: Path, case: str) -> None:
    pattern, said = FILES[case]
    readme = card("configs:", "- config_name: en", f"  data_files: '{pattern}'")
    commit = hub.push("org/vain", {"README.md": readme, "a" * 200 + ".parquet": a_parquet()})
    with pytest.raises((NotFound, DataError), match=rf"^org/vain@{commit[:8]}: .*{said}"):
        everything("hf:org/vain", tmp_path)
    assert all("whoami" not in request.path for request in hub.requests)


@pytest.mark.parametrize(("split", "names"), [("train", ["0", "1"]), ("test", ["2"]), ("validation", None)])
def test_a_folder_that_a_readme_names_is_split_by_the_names_of_its_files(
    hub: LocalHub, tmp_path: Path, split: str, names: list[str] | None
) -> None:
    readme = card("configs:", "- config_name: en", "  data_dir: deep/en")
    paths = ["deep/en/train-0.parquet", "deep/en/train-1.parquet", "deep/en/test-0.parquet", "other/train-0.parquet"]
    files = {path: a_parquet({"name": [str(i)]}) for i, path in enumerate(paths)}
    hub.push("org/folder", {"README.md": readme, **files})
    if names is None:
        check_refused(refusal(f"hf:org/folder:en:{split}:text", tmp_path), NotFound, "no parquet file for split")
    else:
        assert [row["name"] for row in everything(f"hf:org/folder:en:{split}:text", tmp_path)] == names


INFO, TREE = "/api/datasets/org/good/revision/*", "/api/datasets/org/good/tree/*"
LOGIN = b"<html><a href='https://portal/?token=secret'>Log in first</a></html>"
ANSWERS: dict[str, tuple[str, bytes, str]] = {
    "a login page": (INFO, LOGIN, r"^org/good@main: what http\S+ answers is no answer of a Hub .*login page"),
    "a list": (INFO, b"[]", "no answer of a Hub"),
    "nothing": (INFO, b"{}", "no answer of a Hub"),
    "no commit": (INFO, b'{"id": "org/good"}', "^org/good@main: the Hub named no commit for it"),
    "a login page for a listing": (
        TREE,
        LOGIN,
        r"^org/good@[0-9a-f]{8}: what http\S+ answers is no answer of a Hub .it is not JSON.*proxy",
    ),
    "no listing": (TREE, b"{}", "^org/good@[0-9a-f]{8}: the Hub's listing is not a list"),
    "a deep listing": (TREE, b"[" * 100_000, "^org/good@[0-9a-f]{8}: .*it is not JSON"),
    "a size that is none": (
        TREE,
        b'[{"type": "file", "path": "a", "size": "x"}]',
        "^org/good@.*: .* file that cannot be",
    ),
    "a size too large": (TREE, b'[{"type": "file", "path": "a", "size": 1e30}]', "a file that cannot be: .*1e[+]30"),
    "less than no bytes": (TREE, b'[{"type": "file", "path": "a", "size": -1}]', "a file that cannot be"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_is_no_hub_is_told_from_one(hub: LocalHub, tmp_path: Path, case: str) -> None:
    match, body, said = ANSWERS[case]
    hub.push("org/good", {"data/train-0.parquet": a_parquet()})
    hub.fault(match, Status(200, body=body))
    check_refused(refusal("hf:org/good", tmp_path), Unreachable, said)


NEAR = r"; nearest in .*bad: .*c\.parquet"
BUCKET: dict[str, tuple[str, type[HeadraceError], str]] = {
    "no such file": ("bad/d.parquet", NotFound, rf"^memory://bad/d\.parquet: no such file{NEAR}"),
    "no match": ("bad/d*.parquet", NotFound, rf"^no file matches memory://bad/d\*\.parquet{NEAR}"),
    "no folder": ("none/*.parquet", NotFound, r"^no file matches memory://none/\*\.parquet"),
    "a folder": ("bad", DataError, r"^memory://bad is a folder, not a file; .* for example memory://bad/\*\.parquet"),
    "no bytes": ("bad/zero.parquet", DataError, r"^memory://\S*bad/zero\.parquet has 0 bytes"),
    "not parquet": ("bad/page.parquet", DataError, r"^memory://\S*bad/page\.parquet has no parquet footer"),
    "no rights": ("bad/locked.parquet", NotAllowed, r"^parquet:memory://bad/locked.*refused .*; check the credentials"),
    "no credentials": ("bad/keyless.parquet", NotAllowed, r"access was refused \(NoCredentialsError\); check the cred"),
    "no size": ("bad/endless.parquet", DataError, r"^memory://\S*bad/endless\.parquet: .*does not say how large"),
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import fsspec

    files = fsspec.filesystem("memory")
    found = type(files).info

    class NoCredentialsError(Exception):
        pass

    def info(self: object, path: str, **options: object) -> dict[str, object]:
        if "locked" in path:
            raise PermissionError("Forbidden: https://x/?X-Amz-Signature=0123")
        if "keyless" in path:
            raise NoCredentialsError("Unable to locate credentials")
        return found(self, path, **options) | ({"size": None} if "endless" in path else {})  # type: ignore[no-any-return]

    monkeypatch.setattr(type(files), "info", info)
    bad = {"c": a_parquet(), "zero": b"", "page": b"<html>" * 50, "endless": a_parquet()}
    for name, data in bad.items():
        files.pipe(f"/bad/{name}.parquet", data)
    yield
    files.rm("/bad", recursive=True)


@pytest.mark.parametrize("case", BUCKET)
def test_a_bucket_that_cannot_be_read_says_what_and_where(bucket: None, tmp_path: Path, case: str) -> None:
    path, kind, said = BUCKET[case]
    check_refused(refusal(f"parquet:memory://{path}", tmp_path), kind, said)


def test_paths_from_the_root_of_a_file_system_are_read(bucket: None, tmp_path: Path) -> None:
    assert len(everything("parquet:memory://bad/c*.parquet", tmp_path)) == 2
    assert len(everything("parquet:memory:///bad/c.parquet", tmp_path)) == 2
