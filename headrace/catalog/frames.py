"""What is made of the frames of a robot data set: the description `Frames`, which a source of kind lerobot carries.

A complaint starts with `field=value` or `field:`, so that whoever reads a recipe from a file can say where it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, Literal, TypeVar, get_args

from headrace.errors import SpecError, shown

DepthUnit = Literal["mm", "m"]
Scaling = Literal["mean_std", "min_max"]

T = TypeVar("T")


class Fixed(Mapping[str, T]):
    """A mapping that stays as it is, and so can be hashed. Its order is that of the names."""

    __slots__ = ("_pairs",)

    def __init__(self, values: Mapping[str, T] | None = None) -> None:
        self._pairs: dict[str, T] = dict(sorted((values or {}).items()))

    def __getitem__(self, name: str) -> T:
        return self._pairs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(tuple(self._pairs.items()))

    def __repr__(self) -> str:
        return repr(self._pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fixed, (self._pairs,)


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Which frames are read, with which frames around them, and how their values come out.

    Features go by the names they have in the data set; `rename` is what happens to them last.
    """

    delta_timestamps: Mapping[str, tuple[float, ...]] = Fixed()
    """Feature to seconds from each frame, back and ahead: its values at these times, and a mask `<name>_is_pad`."""
    episodes: tuple[int, ...] | None = None
    """Numbers of episodes, kept sorted and once each; None: all."""
    tolerance_s: float = 1e-4
    """A time may lie so far from the frame that is taken for it."""
    return_uint8: bool = False
    """Video frames as whole numbers up to 255, not as floats up to 1."""
    depth_unit: DepthUnit = "mm"
    window: int | None = None
    """Data files whose episodes are mixed at a time; None: all."""
    rename: Mapping[str, str] = Fixed()
    """Feature to the name it has in what comes out."""
    normalize: Mapping[str, Scaling] = Fixed()
    """Feature to how it is scaled, by the data set's own statistics."""

    def __post_init__(self) -> None:
        values: dict[str, Any] = {
            "delta_timestamps": _mapped("delta_timestamps", self.delta_timestamps, _times),
            "episodes": None if self.episodes is None else _episodes(self.episodes),
            "tolerance_s": _number("tolerance_s", self.tolerance_s, least=0.0),
            "return_uint8": _truth("return_uint8", self.return_uint8),
            "depth_unit": _one_of("depth_unit", self.depth_unit, DepthUnit),
            "window": None if self.window is None else _whole("window", self.window, least=1),
            "rename": _mapped("rename", self.rename, _name),
            "normalize": _mapped("normalize", self.normalize, lambda field, how: _one_of(field, how, Scaling)),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        names: dict[str, str] = {}
        for feature, name in self.rename.items():
            if name in names:
                raise SpecError(f"rename: {_given(feature)} and {_given(names[name])} both become {_given(name)}")
            names[name] = feature


# --- checks


def _given(value: object) -> str:
    try:
        return shown(repr(value))
    except ValueError:  # a number of too many digits
        return f"a {type(value).__name__} too long to be shown"


def _mapped(field: str, values: Any, check: Callable[[str, Any], T]) -> Fixed[T]:
    if not isinstance(values, Mapping):
        raise SpecError(f"{field}={_given(values)} is not a mapping of features")
    for name in values:
        if not isinstance(name, str) or not name:
            raise SpecError(f"{field}={_given(dict(values))}: {_given(name)} is not the name of a feature")
    return Fixed({name: check(f"{field}[{_given(name)}]", value) for name, value in values.items()})


def _times(field: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or not values:
        raise SpecError(f"{field}={_given(values)} is not a list of seconds, such as [-0.1, 0.0]")
    return tuple(_number(f"{field}[{i}]", value) for i, value in enumerate(values))


def _episodes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple | range):
        raise SpecError(f"episodes={_given(values)} is not a list of numbers of episodes")
    if not values:
        raise SpecError("episodes=() leaves no episode; leave the field out to read all")
    return tuple(sorted({_whole(f"episodes[{i}]", value, least=0) for i, value in enumerate(values)}))


def _number(field: str, value: Any, least: float = -math.inf) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise SpecError(f"{field}={_given(value)} is not a number{'' if least == -math.inf else ' of at least 0'}")
    return number + 0.0  # -0.0 is the same time, and shall be the same text


def _whole(field: str, value: Any, least: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = -1
    if not least <= number < 2**63:
        raise SpecError(f"{field}={_given(value)} is not a whole number of at least {least}")
    return number


def _truth(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{field}={_given(value)} is not True or False")
    return value


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError(f"{field}={_given(value)} is not a name")
    return value


def _one_of(field: str, value: Any, words: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(words):
        raise SpecError(f"{field}={_given(value)} is not one of {', '.join(get_args(words))}")
    return value
