"""What is made of a robot's frames, as a description: checked, hashable, and the same after YAML, JSON and a pickle."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest

from headrace.catalog.frames import Frames
from headrace.catalog.source import Source
from headrace.errors import SpecError
from headrace.recipe import Part, Recipe

FULL = Frames(
    delta_timestamps={"observation.state": (-0.1, 0), "action": (0.0, 0.1, 0.2)},
    episodes=(7, 2, 2, 5),
    tolerance_s=1e-3,
    return_uint8=True,
    depth_unit="m",
    window=3,
    rename={"observation.state": "state"},
    normalize={"action": "min_max", "observation.state": "mean_std"},
)


def source(frames: Frames | None = FULL, **fields: Any) -> Source:
    return Source(kind="lerobot", path="org/robot", frames=frames, **fields)


def test_frames_are_one_value_however_they_are_written() -> None:
    times: Any = {"action": [0, 0.1, 0.2], "observation.state": [-0.1, -0.0]}
    other = Frames(
        delta_timestamps=times,
        episodes=[2, 5, 7],  # type: ignore[arg-type]
        tolerance_s=0.001,
        return_uint8=True,
        depth_unit="m",
        window=3,
        rename={"observation.state": "state"},
        normalize={"observation.state": "mean_std", "action": "min_max"},
    )
    assert other == FULL
    assert hash(other) == hash(FULL)
    assert repr(other) == repr(FULL)
    assert FULL.episodes == (2, 5, 7)
    assert dict(FULL.delta_timestamps) == {"action": (0.0, 0.1, 0.2), "observation.state": (-0.1, 0.0)}
    assert FULL.delta_timestamps["action"] == (0.0, 0.1, 0.2)
    assert Frames() == Frames(delta_timestamps={}, rename={}, normalize={}, episodes=None)
    assert Frames() != FULL
    assert Frames(episodes=range(3)).episodes == (0, 1, 2)  # type: ignore[arg-type]


def test_frames_travel_to_workers_and_may_be_keys() -> None:
    for frames in (FULL, Frames()):
        again = pickle.loads(pickle.dumps(source(frames)))  # noqa: S301 - our own
        assert again == source(frames)
        assert {again: 1}[source(frames)] == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "times": ({"delta_timestamps": [0.1]}, r"^delta_timestamps=\[0\.1\] is not a mapping of features"),
    "no times": ({"delta_timestamps": {"a": []}}, r"^delta_timestamps\['a'\]=\[\] is not a list of seconds"),
    "a time": ({"delta_timestamps": {"a": 0.1}}, r"^delta_timestamps\['a'\]=0\.1 is not a list of seconds"),
    "NaN": ({"delta_timestamps": {"a": [0, math.nan]}}, r"^delta_timestamps\['a'\]\[1\]=nan is not a number"),
    "text": ({"delta_timestamps": {"a": ["0"]}}, r"^delta_timestamps\['a'\]\[0\]='0' is not a number"),
    "huge": ({"delta_timestamps": {"a": [10**400]}}, r"\['a'\]\[0\]=1000"),
    "too long": ({"episodes": [10**5000]}, r"episodes\[0\]=a int too long to be shown"),
    "a name": ({"delta_timestamps": {1: [0.1]}}, "1 is not the name of a feature"),
    "no name": ({"rename": {"": "x"}}, "'' is not the name of a feature"),
    "episodes": ({"episodes": 3}, "^episodes=3 is not a list of numbers"),
    "no episodes": ({"episodes": []}, "leaves no episode"),
    "an episode": ({"episodes": [1, -2]}, r"^episodes\[1\]=-2 is not a whole number of at least 0"),
    "half": ({"episodes": [1.5]}, r"^episodes\[0\]=1\.5 is not a whole number"),
    "true": ({"episodes": [True]}, r"^episodes\[0\]=True is not a whole number"),
    "tolerance": ({"tolerance_s": -1}, "^tolerance_s=-1 is not a number of at least 0"),
    "infinite": ({"tolerance_s": math.inf}, "^tolerance_s=inf is not a number"),
    "uint8": ({"return_uint8": 1}, "^return_uint8=1 is not True or False"),
    "unit": ({"depth_unit": "cm"}, "^depth_unit='cm' is not one of mm, m"),
    "window": ({"window": 0}, "^window=0 is not a whole number of at least 1"),
    "rename": ({"rename": {"a": ""}}, r"^rename\['a'\]='' is not a name"),
    "one name": ({"rename": {"a": "x", "b": "x"}}, "^rename: 'b' and 'a' both become 'x'"),
    "scaling": ({"normalize": {"a": "z"}}, r"^normalize\['a'\]='z' is not one of mean_std, min_max"),
    "no text": ({"normalize": {"a": ["min_max"]}}, r"^normalize\['a'\]=\['min_max'\] is not one of"),
    "escape": ({"rename": "\x1b"}, r"^rename='\\x1b' is not a mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_frames_name_the_field(case: str) -> None:
    fields, said = WRONG[case]
    with pytest.raises(SpecError, match=said):
        Frames(**fields)


def test_frames_belong_to_robots() -> None:
    with pytest.raises(SpecError, match="frames: only sources of kind lerobot have frames"):
        Source(kind="hf", path="org/a", frames=Frames())
    with pytest.raises(SpecError, match="frames={} is not of type Frames"):
        Source(kind="lerobot", path="org/a", frames={})  # type: ignore[arg-type]
    wrong: list[tuple[str, Any]] = [("config", "en"), ("split", "test"), ("column", "action")]
    for name, value in wrong:
        with pytest.raises(SpecError, match=f"a LeRobot data set has no {name}; leave it out"):
            Source(kind="lerobot", path="org/a", **{name: value})
    assert source(revision="main").revision == "main"


# --- in recipes

RECIPE = Recipe.of([Part(source=source(), weight=2), source(None), source(None, revision="v3.0"), "hf:org/a"])
WRITTEN = """\
parts:
  - source:
      kind: lerobot
      path: org/robot
      frames:
        delta_timestamps:
          action:
            - 0.0
            - 0.1
            - 0.2
          observation.state:
            - -0.1
            - 0.0
        episodes:
          - 2
          - 5
          - 7
        tolerance_s: 0.001
        return_uint8: true
        depth_unit: m
        window: 3
        rename:
          observation.state: state
        normalize:
          action: min_max
          observation.state: mean_std
    weight: 2.0
  - source: lerobot:org/robot
    name: lerobot:org/robot#2
  - source:
      kind: lerobot
      path: org/robot
      revision: v3.0
    name: lerobot:org/robot#3
  - hf:org/a:train:text
"""


def test_a_recipe_with_frames_comes_back_from_yaml_and_json() -> None:
    assert RECIPE.to_yaml() == WRITTEN
    for again in (
        Recipe.from_yaml(WRITTEN),
        Recipe.from_dict(json.loads(json.dumps(RECIPE.to_dict()))),
        pickle.loads(pickle.dumps(RECIPE)),  # noqa: S301 - our own
    ):
        assert again == RECIPE
        assert again.fingerprint() == RECIPE.fingerprint()
    assert Recipe.from_yaml("parts: [lerobot:org/robot]") == Recipe.of(source(None))


def test_each_field_of_the_frames_counts_in_the_fingerprint() -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"delta_timestamps": {"a": [0.1]}},
        {"delta_timestamps": {"a": [0.2]}},
        {"episodes": [1]},
        {"tolerance_s": 1.0},
        {"return_uint8": True},
        {"depth_unit": "m"},
        {"window": 1},
        {"rename": {"a": "b"}},
        {"normalize": {"a": "min_max"}},
    ]
    recipes = [Recipe.of(source(Frames(**one))) for one in fields]
    assert len({recipe.fingerprint() for recipe in recipes}) == len(fields)
    assert len({recipe.text for recipe in recipes}) == len(fields)


def test_recipes_from_before_there_were_frames_keep_their_fingerprints() -> None:
    assert Recipe.of([Source(kind="hf", path="org/a", revision="v2")]).fingerprint() == "2d57c33976b56da8"
    assert Recipe.of([Source(kind="txt", path="a:b", column="c"), "hf:org/b"]).fingerprint() == "cae9cbd4e8812e9d"


HEAD = "parts:\n  - source:\n      kind: lerobot\n      path: org/a\n      frames:\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("        episodes: [1, x]\n", r"line 6: parts[0].source.frames.episodes[1]: 'x' is not a whole number"),
        ("        window: 0\n", "line 6: parts[0].source.frames.window: 0 is not a whole number of at least 1"),
        ("        deltas: {}\n", "line 6: parts[0].source.frames.deltas: there is no such field"),
        (
            "        window: 2\n        delta_timestamps:\n          a: now\n",
            "line 7: parts[0].source.frames.delta_timestamps['a']: 'now' is not a list of seconds",
        ),
        ("        depth_unit: cm\n", "line 6: parts[0].source.frames.depth_unit: 'cm' is not one of mm, m"),
        ("        normalize: {a: z}\n", "line 6: parts[0].source.frames.normalize['a']: 'z' is not one of mean_std"),
    ],
)
def test_wrong_frames_in_a_file_are_named_with_their_line(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        Recipe.from_yaml(HEAD + text)
    assert said in str(caught.value)


def test_a_robot_is_drawn_by_its_spec() -> None:
    assert "lerobot:org/robot" in RECIPE.describe()
