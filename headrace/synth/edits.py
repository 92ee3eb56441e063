"""Changes that mend nothing: names, parameters, tests, checks of what is given, clearer code."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from headrace.synth.change import Change, Check, both, fill, place, swap
from headrace.synth.dice import Dice

_WORDS = ("amber", "basil", "cedar", "delta", "ember", "flint", "grove", "hazel")


def rename_function(dice: Dice) -> Change:
    old, new = dice.pick((("calc", "area_of"), ("do_it", "rectangle_area"), ("get", "compute_area"), ("f", "area")))
    w, h, n = dice.between(2, 20), dice.between(2, 20), dice.between(2, 9)
    before = fill(
        '''
        def $old(width, height):
            """The area of a rectangle."""
            return width * height


        def total_area(rooms):
            """The area of all rooms of a flat, each given by its width and its height."""
            return sum($old(width, height) for width, height in rooms)
        ''',
        {"old": old},
    )
    return Change(
        type="rename",
        file=place(dice, "geometry"),
        before=before,
        after=swap(before, (f"{old}(width", f"{new}(width")),
        subject=f"Rename {old} to {new}",
        body=f"{old} says nothing about what it gives. The one place that calls it is changed too.",
        checks=[
            Check("before", f"{old}({w}, {h})", repr(w * h)),
            Check("after", f"{new}({w}, {h})", repr(w * h)),
            *both(f"total_area([({w}, {h}), ({n}, {n})])", w * h + n * n),
        ],
    )


def rename_variable(dice: Dice) -> Change:
    old, new = dice.pick((("x", "seconds"), ("n", "duration"), ("val", "seconds"), ("t", "total_seconds")))
    total = dice.between(61, 9000)
    before = fill(
        '''
        def clock_time($old):
            """A number of seconds as hours, minutes and seconds."""
            hours = $old // 3600
            minutes = $old % 3600 // 60
            return f"{hours}:{minutes:02d}:{$old % 60:02d}"
        ''',
        {"old": old},
    )
    after = swap(before, (f"({old})", f"({new})"), (f"= {old} ", f"= {new} "), (f"{{{old} %", f"{{{new} %"))
    return Change(
        type="rename",
        file=place(dice, "durations"),
        before=before,
        after=after,
        subject=f"Call the argument of clock_time {new}",
        body=f"The name {old} hid that the unit is the second.",
        checks=both(f"clock_time({total})", f"{total // 3600}:{total % 3600 // 60:02d}:{total % 60:02d}"),
    )


def add_separator(dice: Dice) -> Change:
    name, other = dice.pick(("join_names", "listing", "as_line")), dice.pick(("; ", " / ", " | ", " - "))
    words = dice.some(_WORDS, 3)
    before = fill(
        '''
        def $name(items):
            """The items in one line."""
            return ", ".join(str(item) for item in items)
        ''',
        {"name": name},
    )
    after = swap(
        before,
        ("(items)", '(items, separator=", ")'),
        ('", ".join', "separator.join"),
        ("in one line.", "in one line, with a separator between them."),
    )
    return Change(
        type="feature",
        file=place(dice, "lines"),
        before=before,
        after=after,
        subject=f"Let callers of {name} choose the separator",
        body="The default is the comma that was written before, so that nothing changes for present callers.",
        checks=[
            *both(f"{name}({words})", ", ".join(words)),
            Check("after", f"{name}({words}, separator={other!r})", repr(other.join(words))),
        ],
    )


def add_limit(dice: Dice) -> Change:
    name, text = dice.pick(("slug", "slugify", "file_name_for")), " ".join(dice.some(_WORDS, 4)).title()
    limit = dice.between(6, 14)
    before = fill(
        '''
        def $name(title):
            """A title as a name for a file: small letters, and a dash between words."""
            return "-".join(title.lower().split())
        ''',
        {"name": name},
    )
    made = "-".join(text.lower().split())
    after = swap(
        before,
        ("(title)", "(title, limit=None)"),
        ("between words.", "between words, cut at `limit`."),
        ('return "-".join(title.lower().split())', 'made = "-".join(title.lower().split())\n    return made[:limit]'),
    )
    return Change(
        type="feature",
        file=place(dice, "names"),
        before=before,
        after=after,
        subject=f"Add a limit to {name}",
        body="Some file systems refuse long names. Without a limit the name stays whole.",
        checks=[
            *both(f"{name}({text!r})", made),
            Check("after", f"{name}({text!r}, limit={limit})", repr(made[:limit])),
        ],
    )


def add_test(dice: Dice) -> Change:
    name, low = dice.pick(("clamp", "limit_to", "bounded")), dice.between(0, 10)
    high, above = low + dice.between(5, 30), dice.between(1, 50)
    before = fill(
        '''
        def $name(value, low, high):
            """The value, or the end of the range that it is beyond."""
            return max(low, min(value, high))


        def test_a_value_in_the_range_stays():
            assert $name($inside, $low, $high) == $inside
        ''',
        {"name": name, "inside": str(low + 2), "low": str(low), "high": str(high)},
    )
    name_of_test = "test_a_value_above_the_range_becomes_its_end"
    more = f"def {name_of_test}():\n    assert {name}({high + above}, {low}, {high}) == {high}\n"
    return Change(
        type="test",
        file=place(dice, "ranges"),
        before=before,
        after=f"{before}\n\n{more}",
        subject=f"Test {name} above its range",
        body="Only values inside the range were tested.",
        checks=[
            *both("test_a_value_in_the_range_stays()", None),
            Check("after", f"{name_of_test}()", "None"),
        ],
    )


def check_argument(dice: Dice) -> Change:
    name, price, off = (
        dice.pick(("discounted", "reduced_price", "sale_price")),
        dice.between(2, 50) * 100,
        dice.between(1, 9) * 10,
    )
    wrong = dice.between(101, 180)
    before = fill(
        '''
        def $name(cents, percent):
            """A price in cents after a discount."""
            return cents * (100 - percent) // 100
        ''',
        {"name": name},
    )
    after = swap(
        before,
        (
            "    return",
            "    if not 0 <= percent <= 100:\n"
            '        raise ValueError(f"percent is {percent}; it should lie between 0 and 100")\n    return',
        ),
    )
    return Change(
        type="feature",
        file=place(dice, "prices"),
        before=before,
        after=after,
        subject=f"Refuse impossible discounts in {name}",
        body="A discount above 100 gave a negative price, which was noticed only much later.",
        checks=[
            *both(f"{name}({price}, {off})", price * (100 - off) // 100),
            Check("before", f"{name}({price}, {wrong})", repr(price * (100 - wrong) // 100)),
            Check(
                "after", f"{name}({price}, {wrong})", f"ValueError: percent is {wrong}; it should lie between 0 and 100"
            ),
        ],
    )


def name_constant(dice: Dice) -> Change:
    rate, net = dice.pick((7, 12, 19, 20, 21, 25)), dice.between(3, 90) * 100
    before = fill(
        '''
        def gross(net):
            """A price with tax, in cents."""
            return net + net * $rate // 100


        def tax(net):
            """The tax in a price, in cents."""
            return net * $rate // 100
        ''',
        {"rate": str(rate)},
    )
    after = f"TAX_PERCENT = {rate}\n\n\n" + swap(before, (f"net * {rate} //", "net * TAX_PERCENT //"))
    return Change(
        type="refactor",
        file=place(dice, "prices"),
        before=before,
        after=after,
        subject="Name the tax rate",
        body=f"{rate} was written in two places; a new rate would have been forgotten in one of them.",
        checks=[*both(f"gross({net})", net + net * rate // 100), *both(f"tax({net})", net * rate // 100)],
    )


def comprehension(dice: Dice) -> Change:
    name, words = dice.pick(("long_words", "words_longer_than", "keep_long")), dice.some((*_WORDS, "oak", "fir"), 4)
    before = fill(
        '''
        def $name(words, length):
            """The words that have more than `length` letters."""
            found = []
            for word in words:
                if len(word) > length:
                    found.append(word)
            return found
        ''',
        {"name": name},
    )
    cut = before.index("    found = []")
    return Change(
        type="refactor",
        file=place(dice, "words"),
        before=before,
        after=before[:cut] + "    return [word for word in words if len(word) > length]\n",
        subject=f"Write {name} as a comprehension",
        body="One line says what five lines did.",
        checks=both(f"{name}({words}, 4)", [word for word in words if len(word) > 4]),
    )


def document_types(dice: Dice) -> Change:
    name, a, b = dice.pick(("gcd", "common_divisor")), dice.between(2, 12), dice.between(2, 12)
    shared = dice.between(2, 9)
    before = fill(
        """
        def $name(a, b):
            while b:
                a, b = b, a % b
            return a
        """,
        {"name": name},
    )
    after = swap(
        before,
        ("(a, b):\n", '(a: int, b: int) -> int:\n    """The largest number that divides both."""\n'),
    )
    return Change(
        type="docs",
        file=place(dice, "numbers_tools"),
        before=before,
        after=after,
        subject=f"Document {name}",
        body="Types and a sentence, for readers who do not know the method.",
        checks=both(f"{name}({a * shared}, {b * shared})", gcd(a * shared, b * shared)),
    )


def add_method(dice: Dice) -> Change:
    kind, noun = dice.pick((("Stack", "item"), ("Pile", "card"), ("History", "entry")))
    one, two = dice.some(_WORDS, 2)
    before = fill(
        '''
        class $kind:
            """Last in, first out."""

            def __init__(self):
                self._held = []

            def push(self, $noun):
                self._held.append($noun)
                return self

            def pop(self):
                return self._held.pop()
        ''',
        {"kind": kind, "noun": noun},
    )
    more = (
        f'    def peek(self):\n        """The last {noun}, which stays where it is."""\n        return self._held[-1]\n'
    )
    return Change(
        type="feature",
        file=place(dice, kind.lower()),
        before=before,
        after=f"{before}\n{more}",
        subject=f"Add {kind}.peek",
        body=f"To look at the last {noun}, callers had to pop it and push it again.",
        checks=[
            *both(f"{kind}().push({one!r}).push({two!r}).pop()", two),
            Check("after", f"{kind}().push({one!r}).push({two!r}).peek()", repr(two)),
        ],
    )


def early_return(dice: Dice) -> Change:
    name, price = dice.pick(("fee", "shipping_fee", "delivery_cost")), dice.between(3, 9) * 100
    free, weight = dice.between(20, 60) * 100, dice.between(1, 9)
    before = fill(
        '''
        def $name(total, weight):
            """What sending a parcel costs, in cents; nothing for large orders."""
            if total < $free:
                if weight > 5:
                    cost = $price * 2
                else:
                    cost = $price
            else:
                cost = 0
            return cost
        ''',
        {"name": name, "free": str(free), "price": str(price)},
    )
    cut = before.index("    if total")
    lines = f"    if total >= {free}:\n        return 0\n    return {price} * 2 if weight > 5 else {price}\n"
    return Change(
        type="refactor",
        file=place(dice, "shipping"),
        before=before,
        after=before[:cut] + lines,
        subject=f"Flatten {name}",
        body="The case that costs nothing is decided first, which takes one level of nesting away.",
        checks=[
            *both(f"{name}({free}, {weight})", 0),
            *both(f"{name}({free - 1}, {weight})", price * 2 if weight > 5 else price),
        ],
    )


EDITS: tuple[Callable[[Dice], Change], ...] = (
    rename_function,
    add_separator,
    check_argument,
    name_constant,
    add_test,
    comprehension,
    rename_variable,
    add_method,
    add_limit,
    document_types,
    early_return,
)
