"""Names and things that several kinds of rows are about, and how numbers and lists are written."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

PEOPLE = (
    "Ada", "Bruno", "Clara", "David", "Edith", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Lukas",
    "Mira", "Nils", "Olga", "Paul", "Rosa", "Samir", "Tilda", "Viktor", "Wanda", "Yusuf", "Zora", "Amina",
)  # fmt: skip
SURNAMES = (
    "Archer", "Baker", "Carver", "Dyer", "Fisher", "Glover", "Harper", "Keeler", "Mason", "Potter", "Sawyer",
    "Thatcher", "Turner", "Walker", "Weaver", "Wright",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def listing(items: Sequence[object], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def counted(number: int | Fraction, thing: str, several: str = "") -> str:
    """`1 apple`, `2 apples`."""
    return f"{number} {thing if number == 1 else several or thing + 's'}"


def money(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02d}"


def clock(minutes: int) -> str:
    """Minutes after midnight as `09:05`."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"
