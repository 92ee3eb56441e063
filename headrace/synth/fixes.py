"""Bugs that people really write, and what mends them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.synth.change import Change, fill, fixed, place, swap
from headrace.synth.dice import Dice

_WORDS = ("amber", "basil", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "juniper")


def last_left_out(dice: Dice) -> Change:
    name = dice.pick(("sum_between", "add_range", "total_of_range", "sum_from_to"))
    a = dice.between(1, 9)
    b = a + dice.between(2, 8)
    before = fill(
        '''
        def $name(first, last):
            """The sum of the whole numbers from first to last, both included."""
            total = 0
            for number in range(first, last):
                total += number
            return total
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "sums"),
        before=before,
        after=swap(before, ("in range(first, last)", "in range(first, last + 1)")),
        title=f"{name} leaves out the last number",
        subject=f"Include the last number in {name}",
        body="range() stops before its end, so the last number was never added.",
        checks=fixed(f"{name}({a}, {b})", sum(range(a, b)), sum(range(a, b + 1))),
    )


def empty_mean(dice: Dice) -> Change:
    name, items = dice.pick(("mean", "average", "mean_of")), dice.pick(("values", "scores", "numbers", "readings"))
    before = fill(
        '''
        def $name($items):
            """The mean of a list of numbers; 0.0 when there are none."""
            return sum($items) / len($items)
        ''',
        {"name": name, "items": items},
    )
    after = swap(before, ("    return", f"    if not {items}:\n        return 0.0\n    return"))
    data = [dice.between(1, 20) for _ in range(4)]
    return Change(
        type="fix",
        file=place(dice, "statistics_tools"),
        before=before,
        after=after,
        title=f"{name} fails on an empty list",
        subject=f"Return 0.0 from {name} for an empty list",
        body="The length of an empty list is 0, and dividing by it raises ZeroDivisionError.",
        checks=[
            *fixed(f"{name}([])", ZeroDivisionError("division by zero"), 0.0),
            *fixed(f"{name}({data})", sum(data) / 4, sum(data) / 4),
        ],
    )


def unsorted_median(dice: Dice) -> Change:
    name = dice.pick(("median", "middle_value", "median_of"))
    before = fill(
        '''
        def $name(values):
            """The value in the middle; of an even number of values, the higher of the two."""
            return values[len(values) // 2]
        ''',
        {"name": name},
    )
    data = dice.some(range(1, 60), 5)
    data = data if data[2] != sorted(data)[2] else [data[2], data[0], max(data) + 3, data[1], data[3]]
    return Change(
        type="fix",
        file=place(dice, "statistics_tools"),
        before=before,
        after=swap(before, ("return values[", "return sorted(values)[")),
        title=f"{name} depends on the order of its input",
        subject=f"Sort the values in {name}",
        body="The middle of a list is its median only when the list is sorted.",
        checks=fixed(f"{name}({data})", data[len(data) // 2], sorted(data)[len(data) // 2]),
    )


def shared_default(dice: Dice) -> Change:
    name, items = dice.pick(("add_item", "append_to", "collect")), dice.pick(("basket", "items", "bucket"))
    one, two = dice.some(_WORDS, 2)
    before = fill(
        '''
        def $name(item, $items=[]):
            """The list with the item at its end; a new list when none is given."""
            $items.append(item)
            return $items
        ''',
        {"name": name, "items": items},
    )
    return Change(
        type="fix",
        file=place(dice, "lists"),
        before=before,
        after=swap(
            before,
            (f"{items}=[]", f"{items}=None"),
            (f"    {items}.append", f"    if {items} is None:\n        {items} = []\n    {items}.append"),
        ),
        title=f"{name} remembers items of earlier calls",
        subject=f"Do not share the default list of {name}",
        body="A default value is made once, when the function is defined, so all calls shared one list.",
        checks=fixed(f"{name}({one!r}) + {name}({two!r})", [one, two, one, two], [one, two]),
    )


def century_years(dice: Dice) -> Change:
    name, year = dice.pick(("is_leap_year", "is_leap", "leap_year")), dice.pick((1700, 1800, 1900, 2100, 2200, 2300))
    before = fill(
        '''
        def $name(year):
            """Whether a year of the Gregorian calendar has a 29th of February."""
            return year % 4 == 0


        def days_in_year(year):
            return 366 if $name(year) else 365
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "dates"),
        before=before,
        after=swap(before, ("year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)")),
        title=f"{year} is taken for a leap year",
        subject=f"Treat century years right in {name}",
        body="Years that can be divided by 100 are leap years only when they can also be divided by 400.",
        checks=[*fixed(f"days_in_year({year})", 366, 365), *fixed("days_in_year(2000)", 366, 366)],
    )


def last_page(dice: Dice) -> Change:
    name, unit = dice.pick((("page_count", "page"), ("num_batches", "batch"), ("boxes_needed", "box")))
    size = dice.between(3, 25)
    count = size * dice.between(1, 9) + dice.between(1, size - 1)
    before = fill(
        '''
        def $name(num_items, per_$unit):
            """How many of them it takes to hold all items."""
            return num_items // per_$unit
        ''',
        {"name": name, "unit": unit},
    )
    return Change(
        type="fix",
        file=place(dice, "paging"),
        before=before,
        after=swap(before, (f"num_items // per_{unit}", f"(num_items + per_{unit} - 1) // per_{unit}")),
        title=f"{name} does not count the last {unit} when it is not full",
        subject=f"Round up in {name}",
        body=f"// rounds down, so items that do not fill the last {unit} had no place.",
        checks=fixed(f"{name}({count}, {size})", count // size, count // size + 1),
    )


def palindrome_case(dice: Dice) -> Change:
    name, word = (
        dice.pick(("is_palindrome", "reads_the_same")),
        dice.pick(("Anna", "Otto", "Level", "Radar", "Rotor", "Kayak")),
    )
    before = fill(
        '''
        def $name(text):
            """Whether a word reads the same from both ends, whatever its capitals."""
            return text == text[::-1]
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "words"),
        before=before,
        after=swap(before, ("    return text", "    text = text.lower()\n    return text")),
        title=f"{name} is False for {word}",
        subject=f"Ignore capitals in {name}",
        body="A capital at the beginning is not equal to the small letter at the end.",
        checks=fixed(f"{name}({word!r})", False, True),
    )


def search_misses(dice: Dice) -> Change:
    name = dice.pick(("find_sorted", "binary_search", "index_of"))
    data = sorted(dice.some(range(1, 90), dice.between(4, 7)))
    before = fill(
        '''
        def $name(values, wanted):
            """The place of a value in a sorted list, or -1."""
            low, high = 0, len(values) - 1
            while low < high:
                middle = (low + high) // 2
                if values[middle] == wanted:
                    return middle
                if values[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle - 1
            return -1
        ''',
        {"name": name},
    )
    last = len(data) - 1
    return Change(
        type="fix",
        file=place(dice, "search"),
        before=before,
        after=swap(before, ("while low < high", "while low <= high")),
        title=f"{name} does not find the last value",
        subject=f"Look at the last candidate in {name}",
        body="The loop ended when one value was left, without comparing it.",
        checks=[*fixed(f"{name}({data}, {data[-1]})", -1, last), *fixed(f"{name}({data}, 100)", -1, -1)],
    )


def negative_maximum(dice: Dice) -> Change:
    name, data = dice.pick(("largest", "highest", "maximum")), [-n for n in dice.some(range(1, 40), 4)]
    before = fill(
        '''
        def $name(values):
            """The largest of some numbers."""
            best = 0
            for value in values:
                if value > best:
                    best = value
            return best
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "numbers_tools"),
        before=before,
        after=swap(before, ("best = 0", "best = values[0]")),
        title=f"{name} gives 0 when all numbers are negative",
        subject=f"Start with the first value in {name}",
        body="No negative number is above 0, so the start value was never replaced.",
        checks=fixed(f"{name}({data})", 0, max(data)),
    )


def whole_percent(dice: Dice) -> Change:
    name, whole = dice.pick(("percentage", "percent_of", "share")), dice.pick((20, 25, 40, 50))
    part = dice.between(2, whole - 1)
    before = fill(
        '''
        def $name(part, whole):
            """How many percent of the whole a part is, rounded down."""
            return part // whole * 100
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "numbers_tools"),
        before=before,
        after=swap(before, ("part // whole * 100", "part * 100 // whole")),
        title=f"{name} is always 0 for real parts",
        subject=f"Multiply before dividing in {name}",
        body="part // whole is 0 for every part smaller than the whole.",
        checks=fixed(f"{name}({part}, {whole})", 0, part * 100 // whole),
    )


def first_count(dice: Dice) -> Change:
    name, words = dice.pick(("count_words", "word_counts", "tally")), dice.some(_WORDS, 2)
    text = f"{words[0]} {words[1]} {words[0]}"
    before = fill(
        '''
        def $name(text):
            """How often each word is in a text."""
            counts = {}
            for word in text.split():
                counts[word] += 1
            return counts
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "words"),
        before=before,
        after=swap(before, ("counts[word] += 1", "counts[word] = counts.get(word, 0) + 1")),
        title=f"{name} raises KeyError for every text",
        subject=f"Begin counts at 0 in {name}",
        body="The first time a word is seen there is no count that could be raised.",
        checks=[
            *fixed(f"{name}({text!r})", KeyError(words[0]), {words[0]: 2, words[1]: 1}),
            *fixed(f"{name}('')", {}, {}),
        ],
    )


def removed_while_walking(dice: Dice) -> Change:
    name, even = dice.pick(("drop_even", "without_even", "odd_only")), [dice.between(1, 20) * 2 for _ in range(3)]
    data = [dice.between(0, 9) * 2 + 1, *even, dice.between(10, 19) * 2 + 1]
    before = fill(
        '''
        def $name(numbers):
            """The odd ones of some numbers."""
            numbers = list(numbers)
            for number in numbers:
                if number % 2 == 0:
                    numbers.remove(number)
            return numbers
        ''',
        {"name": name},
    )
    left = list(data)
    for number in left:
        if number % 2 == 0:
            left.remove(number)
    cut = before.index("    numbers = list")
    return Change(
        type="fix",
        file=place(dice, "lists"),
        before=before,
        after=before[:cut] + "    return [number for number in numbers if number % 2]\n",
        title=f"{name} keeps some even numbers",
        subject=f"Do not remove from the list that {name} walks over",
        body="After a removal the next number moves into its place, and the loop steps over it.",
        checks=fixed(f"{name}({data})", left, [n for n in data if n % 2]),
    )


FIXES: tuple[Callable[[Dice], Change], ...] = (
    last_left_out,
    empty_mean,
    unsorted_median,
    shared_default,
    century_years,
    last_page,
    palindrome_case,
    search_misses,
    negative_maximum,
    whole_percent,
    first_count,
    removed_while_walking,
)
