"""Business papers whose numbers agree with each other: to be read, to be asked about, and to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

from headrace.synth.dice import Dice
from headrace.synth.words import MONTHS, NUMBERS, PEOPLE, SURNAMES, WEEKDAYS, clock, counted, listing, money

_COMPANIES = ("Alder & Sons", "Brightwater Ltd", "Cobalt Tools", "Dovetail Works", "Eastgate Foods", "Fenwick Paper")
_CITIES = ("North", "South", "East", "West")
_WARES = ("desk", "chair", "lamp", "shelf", "monitor", "keyboard", "cable set", "printer")


class Paper(NamedTuple):
    title: str
    text: str
    asked: tuple[str, str]
    """A question about it, and the answer."""
    order: str
    """What somebody says who wants it written; it has all that cannot be worked out."""


def documents(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """One third whole papers, one third with a question, one third to be written from what is known."""
    form = list(PAPERS)[i % len(PAPERS)]
    use = ("whole", "read", "write")[i // len(PAPERS) % 3]
    made = PAPERS[form](dice)
    question, answer = {"whole": ("", ""), "read": made.asked, "write": (made.order, made.text)}[use]
    return {
        "form": form,
        "use": use,
        "title": made.title,
        "text": made.text,
        "context": made.text if use == "read" else "",
        "question": question,
        "answer": answer,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """In Markdown; all but the first column are numbers and stand right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _day(dice: Dice) -> date:
    return date(dice.between(2019, 2026), 1, 1) + timedelta(dice.roll(365))


def _written(day: date) -> str:
    return f"{WEEKDAYS[day.weekday()]}, {MONTHS[day.month - 1]} {day.day}, {day.year}"


def _person(dice: Dice) -> str:
    return f"{dice.pick(PEOPLE)} {dice.pick(SURNAMES)}"


def invoice(dice: Dice) -> Paper:
    number, day, seller = dice.between(1000, 9999), _day(dice), dice.pick(_COMPANIES)
    buyer, rate = _person(dice), dice.pick((5, 10, 20))
    wares = dice.some(_WARES, dice.between(2, 4))
    lines = [(ware, dice.between(1, 9), dice.between(8, 190) * 100) for ware in wares]
    net = sum(count * price for _, count, price in lines)
    tax = net * rate // 100
    due = day + timedelta(30)
    rows: list[list[object]] = [[ware, count, money(price), money(count * price)] for ware, count, price in lines]
    title = f"Invoice {number}"
    text = (
        f"# {title}\n\n{seller}\nTo: {buyer}\nDate: {_written(day)}\n\n"
        f"{table(('Item', 'Quantity', 'Price', 'Amount'), rows)}\n\n"
        f"Net: {money(net)}\nTax ({rate}%): {money(tax)}\nTotal: {money(net + tax)}\n\n"
        f"Please pay within 30 days, by {_written(due)}.\n"
    )
    wanted = listing([f"{counted(count, ware, _several(ware))} at {money(price)}" for ware, count, price in lines])
    order = (
        f"Write invoice {number} of {seller} to {buyer}, dated {_written(day)}: {wanted}. The tax is {rate}%, and it "
        f"is due in 30 days."
    )
    ware, count, price = dice.pick(lines)
    asked = dice.pick(
        (
            (f"What has {buyer} to pay in all?", f"In all {buyer} has to pay {money(net + tax)}."),
            (f"How much is the tax on invoice {number}?", f"The tax is {money(tax)}, {rate}% of {money(net)}."),
            (
                f"What do the {_several(ware)} cost together?",
                f"{counted(count, ware, _several(ware))} at {money(price)} cost {money(count * price)}.",
            ),
            ("By when is the invoice to be paid?", f"By {_written(due)}."),
        )
    )
    return Paper(title, text, asked, order)


def _several(ware: str) -> str:
    return "shelves" if ware == "shelf" else f"{ware}s"


def sales(dice: Dice) -> Paper:
    company, year = dice.pick(_COMPANIES), dice.between(2015, 2026)
    figures = {city: [dice.between(40, 400) for _ in range(4)] for city in dice.some(_CITIES, 3)}
    quarters = [sum(column) for column in zip(*figures.values(), strict=True)]
    totals = {city: sum(values) for city, values in figures.items()}
    whole = sum(quarters)
    rows: list[list[object]] = [[city, *values, totals[city]] for city, values in figures.items()]
    rows.append(["Total", *quarters, whole])
    top = [city for city in totals if totals[city] == max(totals.values())]
    best = quarters.index(max(quarters)) + 1
    title = f"Sales of {company} in {year}"
    lead = f"{listing(top)} sold most, with {max(totals.values())} units{' each' if len(top) > 1 else ''}"
    text = (
        f"# {title}\n\nUnits sold, by region and quarter:\n\n"
        f"{table(('Region', 'Q1', 'Q2', 'Q3', 'Q4', 'Year'), rows)}\n\n"
        f"{company} sold {whole} units in {year}. {lead}. From the first quarter to the last, "
        f"sales {_moved(quarters[0], quarters[3])}.\n"
    )
    told = "; ".join(f"{city} {listing(values)}" for city, values in figures.items())
    order = f"Write a report on the sales of {company} in {year} with a table and totals. Units from Q1 to Q4: {told}."
    city = dice.pick(list(figures))
    asked = dice.pick(
        (
            (f"How many units did the region {city} sell in {year}?", f"{city} sold {totals[city]} units in {year}."),
            (f"How many units were sold in Q{best} in all?", f"{quarters[best - 1]} units were sold in Q{best}."),
            (f"What were the sales of the whole year {year}?", f"{whole} units were sold in {year}."),
        )
    )
    return Paper(title, text, asked, order)


def _moved(first: int, last: int) -> str:
    if first == last:
        return "stayed the same"
    return f"{'rose' if last > first else 'fell'} by {abs(last - first)} units, from {first} to {last}"


def stock(dice: Dice) -> Paper:
    month, company = dice.pick(MONTHS), dice.pick(_COMPANIES)
    lines = []
    for ware in dice.some(_WARES, dice.between(3, 4)):
        opening, received = dice.between(20, 90), dice.between(0, 60)
        lines.append((ware, opening, received, dice.between(5, opening + received)))
    low = [_several(ware) for ware, opening, received, sold in lines if opening + received - sold < 20]
    rows: list[list[object]] = [[ware, a, b, c, a + b - c] for ware, a, b, c in lines]
    title = f"Stock of {company}, {month}"
    text = (
        f"# {title}\n\n{table(('Item', 'Opening', 'Received', 'Sold', 'Closing'), rows)}\n\n"
        f"Of {len(lines)} items, {len(low) or 'none'} closed below 20 pieces{': ' + listing(low) if low else ''}.\n"
    )
    told = "; ".join(f"{_several(ware)}: opening {a}, received {b}, sold {c}" for ware, a, b, c in lines)
    order = f"Write the stock report of {company} for {month}, and name what closed below 20 pieces. {told}."
    ware, a, b, c = dice.pick(lines)
    asked = dice.pick(
        (
            (
                f"How many {_several(ware)} were left at the end of {month}?",
                f"{a} + {b} - {c} = {a + b - c} were left.",
            ),
            (f"How many {_several(ware)} were sold in {month}?", f"{c} {_several(ware)} were sold in {month}."),
            (
                "Which items have to be ordered again, below 20 pieces?",
                f"{listing(low).capitalize()}." if low else "None.",
            ),
        )
    )
    return Paper(title, text, asked, order)


def meeting(dice: Dice) -> Paper:
    writer, reader = _person(dice), _person(dice)
    day, start, length = _day(dice), dice.between(16, 32) * 30, dice.pick((30, 45, 60, 90))
    while day.weekday() > 4:
        day += timedelta(1)
    points = dice.some(("the budget", "the new office", "hiring", "the road map", "open incidents", "training"), 3)
    room = f"room {dice.between(1, 9)}.{dice.between(10, 40)}"
    title = f"Meeting about {points[0]}"
    agenda = "\n".join(f"{i}. {point[0].upper()}{point[1:]}" for i, point in enumerate(points, 1))
    text = (
        f"From: {writer}\nTo: {reader}\nSubject: {title}\n\nDear {reader.split()[0]},\n\nI invite you to a meeting on "
        f"{_written(day)}, from {clock(start)} to {clock(start + length)} in {room}. We have {length} minutes for "
        f"{NUMBERS[len(points)]} points:\n\n{agenda}\n\nBest regards,\n{writer.split()[0]}\n"
    )
    order = (
        f"Write a mail from {writer} to {reader} with an invitation to a meeting of {length} minutes on "
        f"{_written(day)} at {clock(start)} in {room}. Points: {listing(points)}."
    )
    asked = dice.pick(
        (
            ("When does the meeting end?", f"It ends at {clock(start + length)} on {_written(day)}."),
            ("How long is the meeting?", f"It takes {length} minutes, from {clock(start)} to {clock(start + length)}."),
            ("On which day of the week is the meeting?", f"It is on a {WEEKDAYS[day.weekday()]}."),
            ("What will be spoken about last?", f"The last point is {points[-1]}."),
        )
    )
    return Paper(title, text, asked, order)


def expenses(dice: Dice) -> Paper:
    who, day, nights = _person(dice), _day(dice), dice.between(1, 5)
    rate, train = dice.between(60, 140) * 100, dice.between(30, 220) * 100 + dice.pick((0, 25, 50, 75))
    meals = dice.between(12, 40) * 100 * (nights + 1)
    limit = dice.between(3, 9) * 10000
    total = train + rate * nights + meals
    back = day + timedelta(nights)
    items = [["Train", money(train)], [f"Hotel, {counted(nights, 'night')} at {money(rate)}", money(rate * nights)]]
    rows = [*items, [f"Meals, {nights + 1} days", money(meals)], ["Total", money(total)]]
    over = total - limit
    verdict = f"{money(over)} above" if over > 0 else f"{money(-over)} below" if over else "exactly"
    title = f"Travel expenses of {who}"
    text = (
        f"# {title}\n\nFrom {_written(day)} to {_written(back)}.\n\n{table(('Item', 'Amount'), rows)}\n\n"
        f"The total of {money(total)} is {verdict} the limit of {money(limit)}.\n"
    )
    order = (
        f"Write the expense report of {who} for a journey from {_written(day)} with {counted(nights, 'night')}: train "
        f"{money(train)}, hotel {money(rate)} a night, meals {money(meals)} in all. The limit is {money(limit)}."
    )
    asked = dice.pick(
        (
            (f"What did the journey of {who} cost?", f"It cost {money(total)}."),
            (
                "What did the hotel cost in all?",
                f"{counted(nights, 'night')} at {money(rate)} cost {money(rate * nights)}.",
            ),
            (
                "Was the limit kept?",
                f"{'No' if over > 0 else 'Yes'}: the total is {verdict} the limit of {money(limit)}.",
            ),
        )
    )
    return Paper(title, text, asked, order)


def minutes(dice: Dice) -> Paper:
    members, day = dice.between(9, 25), _day(dice)
    absent = dice.between(0, 4)
    here = members - absent
    topic = dice.pick(("a new roof for the hall", "longer opening hours", "the summer festival", "a higher fee"))
    abstained = dice.between(0, 3)
    yes = dice.between(0, here - abstained)
    no = here - abstained - yes
    verdict = "accepted" if yes > no else "rejected"
    chair = _person(dice)
    votes = [["For", yes], ["Against", no], ["Abstained", abstained], ["All", here]]
    title = f"Minutes of {MONTHS[day.month - 1]} {day.day}, {day.year}"
    text = (
        f"# {title}\n\nChair: {chair}\nPresent: {here} of {members} members ({absent} absent)\n\n"
        f"The motion for {topic} was put to the vote.\n\n{table(('Vote', 'Members'), votes)}\n\n"
        f"The motion is {verdict}.\n"
    )
    order = (
        f"Write the minutes of {_written(day)}, chaired by {chair}: {absent} of {members} members were absent, and on "
        f"{topic} {yes} voted for, {no} against, and the others present abstained. More for than against accepts it."
    )
    asked = dice.pick(
        (
            ("How many members were there?", f"{here} of {members} members were present."),
            ("How many did not vote for or against?", f"{counted(abstained, 'member')} abstained."),
            ("What became of the motion?", f"It is {verdict}, with {yes} for and {no} against."),
        )
    )
    return Paper(title, text, asked, order)


PAPERS: dict[str, Callable[[Dice], Paper]] = {
    "invoice": invoice,
    "sales": sales,
    "stock": stock,
    "meeting": meeting,
    "expenses": expenses,
    "minutes": minutes,
}
