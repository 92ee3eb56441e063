from __future__ import annotations

import pytest

from headrace.catalog import layouts
from headrace.catalog.patterns import glob_regex
from headrace.errors import DataError, NotFound

CARD = """---
license: odc-by
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: ["sample/10BT/*", "sample/extra/a.parquet"]
  - split: test
    path: sample/test/*.parquet
- config_name: old
  data_files: old/*.parquet
- config_name: folder
  data_dir: deep/folder
---
# A dataset
"""
PATHS = [
    "README.md",
    "data/CC-MAIN-2013-20/000_00000.parquet",
    "data/CC-MAIN-2013-20/000_00001.parquet",
    "data/CC-MAIN-2014-10/000_00000.parquet",
    "deep/folder/x/1.parquet",
    "old/1.parquet",
    "sample/10BT/000.parquet",
    "sample/10BT/notes.txt",
    "sample/extra/a.parquet",
    "sample/test/t.parquet",
]


def by_card(config: str | None, split: str) -> list[str]:
    patterns = layouts.card_patterns(layouts.read_card(CARD), config, split)
    assert patterns is not None
    return layouts.match(patterns, PATHS)


def test_the_readme_says_which_files_are_a_split() -> None:
    assert by_card(None, "train") == PATHS[1:4]
    assert by_card("sample-10BT", "train") == ["sample/10BT/000.parquet", "sample/extra/a.parquet"]
    assert by_card("sample-10BT", "test") == ["sample/test/t.parquet"]
    assert by_card("old", "train") == ["old/1.parquet"]
    assert layouts.card_patterns(layouts.read_card(CARD), "folder", "train") is None
    assert layouts.card_folder(layouts.read_card(CARD), "folder") == "deep/folder"
    assert layouts.card_folder(layouts.read_card(CARD), "old") is None


def test_an_unknown_configuration_or_split_lists_the_known_ones() -> None:
    with pytest.raises(NotFound, match="no configuration 'sample-10B'.*nearest: sample-10BT"):
        by_card("sample-10B", "train")
    with pytest.raises(NotFound, match="no split 'validation'.*train, test"):
        by_card("sample-10BT", "validation")


@pytest.mark.parametrize(
    ("paths", "config", "split", "found"),
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            None,
            "train",
            [0, 1],
        ),
        (["data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"], None, "test", [1]),
        (["en/train-0.parquet", "en/test-0.parquet", "de/train-0.parquet"], "de", "train", [2]),
        (["data/en/train-0.parquet", "data/de/train-0.parquet"], "en", "train", [0]),
        (["default/train/0000.parquet", "default/train/0001.parquet"], None, "train", [0, 1]),
        (["train/a.parquet", "test/a.parquet"], None, "train", [0]),
        (["train.parquet", "val.parquet"], None, "validation", [1]),
        (["data/CC-MAIN-2013-20/000_00000.parquet", "data/CC-MAIN-2014-10/x.parquet"], None, "train", [0, 1]),
        (["a.parquet", "b.parquet"], None, "train", [0, 1]),
        (["a.parquet"], None, "test", []),
        (["constraints/x.parquet"], None, "train", [0]),
        (["data/train-0.parquet", ".hidden/train-1.parquet", "__pycache__/train-2.parquet"], None, "train", [0]),
        ([], None, "train", []),
    ],
)
def test_common_layouts_are_known(paths: list[str], config: str | None, split: str, found: list[int]) -> None:
    assert layouts.standard(paths, config, split) == sorted(paths[i] for i in found)


def test_several_configurations_without_a_name_are_an_error_that_lists_them() -> None:
    with pytest.raises(NotFound, match="several configurations.*de, en"):
        layouts.standard(["en/train-0.parquet", "de/train-0.parquet"], None, "train")


def test_a_partial_conversion_is_refused_unless_asked_for() -> None:
    paths = ["default/partial-train/0000.parquet"]
    with pytest.raises(NotFound, match="allow_partial=True"):
        layouts.converted(paths, None, "train", allow_partial=False)
    assert layouts.converted(paths, None, "train", allow_partial=True) == paths


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("data/*", "data/a.parquet", True),
        ("data/*", "data/x/a.parquet", False),
        ("data/**", "data/x/a.parquet", True),
        ("**/*.parquet", "a.parquet", True),
        ("**/*.parquet", "x/y/a.parquet", True),
        ("data/train-[0-4]*", "data/train-3.parquet", True),
        ("data/train-[!0-4]*", "data/train-3.parquet", False),
        ("data/train-?.parquet", "data/train-12.parquet", False),
        ("a.b/*", "aXb/c", False),
        ("data/[", "data/[", True),
        ("data/[]].parquet", "data/].parquet", True),
        ("data/[!/]x.parquet", "data//x.parquet", False),
        ("data/[z-a].parquet", "data/z.parquet", False),
        ("data/[[a&&b].parquet", "data/&.parquet", True),
        ("*b*b.parquet", "xbxbxb.parquet", True),
        ("a*b*c/*d", "abxbc/d", True),
        ("a*b*c/*d", "abxb/cd", False),
        ("**/**/a.parquet", "x/a.parquet", True),
        ("data/**train**.parquet", "data/x/y-train-0.parquet", True),
        ("***.parquet", "x/a.parquet", True),
    ],
)
def test_patterns_match_like_the_hub(pattern: str, path: str, matches: bool) -> None:
    assert bool(glob_regex(pattern).fullmatch(path)) is matches


@pytest.mark.timeout(5)
@pytest.mark.parametrize("pattern", ["*" * 40 + "z", "*a" * 40 + "z", "**/" * 9 + "z", "a*b**a*b**a*z", "**a**z"])
def test_no_pattern_takes_long(pattern: str) -> None:
    for path in ("a" * 200, "ab" * 100, "a/" * 100, "ab/" * 60):
        assert not glob_regex(pattern).fullmatch(path)


def test_more_crossings_than_can_be_tried_are_refused() -> None:
    with pytest.raises(DataError, match=r"the pattern '\*\*a.*' has more than 2 `\*\*`"):
        glob_regex("**a**b**c")


@pytest.mark.parametrize(
    "text", ["", "no front matter", "---\nunfinished", "---\nconfigs: 7\n---\n", "---\n- a\n---\n"]
)
def test_a_readme_without_configurations_says_nothing(text: str) -> None:
    assert layouts.read_card(text) == []


def test_yaml_tags_in_a_readme_are_not_executed() -> None:
    with pytest.raises(ValueError, match="not YAML"):
        layouts.read_card("---\nconfigs: !!python/object/apply:os.system ['true']\n---\n")
