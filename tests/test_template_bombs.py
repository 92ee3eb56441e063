"""A chat template that would run for years or fill the memory ends with our error: soon, and within its budget."""

# ruff: noqa: E501 - a template is read in one line

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from importlib import metadata
from typing import Any

import pytest

from headrace.errors import DataError
from headrace.make import chat_budget, chat_sandbox
from headrace.make.chat_budget import ROOM, STEPS
from headrace.make.template import Template
from headrace.make.tokens import TOKENS

TWICE = (
    "{% set ns = namespace(x='x' * 100) %}{% for i in range(60) %}{% set ns.x = BODY %}{% endfor %}{{ ns.x | length }}"
)
TREE = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
MANY = "{% set many = range(10 ** 5) %}{% for a in many %}{% for b in many BODY %}{% endfor %}{% endfor %}"
BIG = "{% set big = 'x' * 10 ** 7 %}"

LONG = {
    "nested loops": "{% for a in range(10**5) %}{% for b in range(10**5) %}x{% endfor %}{% endfor %}",
    "empty loops": MANY.replace("BODY", ""),
    "loops whose rounds are left out": MANY.replace("BODY", "if false"),
    "loops with loop.last": MANY.replace("BODY %}", "%}{{ loop.last and '' }}"),
    "a recursive loop": "{% for a in range(10**5) recursive %}{{ loop(range(10**5)) if loop.depth < 3 }}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "a block that calls itself twice": "{% block b %}{{ self.b() if messages | length < 0 }}{% for i in range(10**5) %}"
    "{% for j in range(10**5) %}{% endfor %}{% endfor %}{% endblock %}",
    "many expressions in each round": "{% for a in range(10**5) %}"
    + "{{ messages[0] and '' }}" * 2000
    + "{% endfor %}",
    "maps of maps": "{% for a in range(10**5) %}{{ range(10**5) | map('string') | list | length }}{% endfor %}",
    "selects": "{% for a in range(10**5) %}{{ range(10**5) | select('odd') | first }}{% endfor %}",
    "long searches": BIG + "{% for a in range(10**5) %}{{ '' if 'y' in big }}{% endfor %}",
    "long tests": BIG + "{% for a in range(10**5) %}{{ '' if 'y' is in big }}{% endfor %}",
    "long comparisons": "{% set a = 'x' * 10**7 %}{% set b = 'x' * 10**7 %}"
    "{% for i in range(10**5) %}{{ '' if a == b }}{% endfor %}",
    "long methods": BIG + "{% for a in range(10**5) %}{{ big.find('y') and '' }}{% endfor %}",
    "cyclers": "{% set c = cycler(1) %}{% for i in range(10**5) %}{% for j in range(10**5) %}{{ c.next() and '' }}{% endfor %}{% endfor %}",
    "many arguments": "{% macro m() %}{{ varargs | length }}{% endmacro %}{% for i in range(10**5) %}{{ m(*range(10**5)) and '' }}"
    "{% endfor %}",
    "sums of lists": "{{ range(10**5) | map('string') | map('list') | sum(start=[]) | length }}",
}
"""Templates that take long."""
LARGE = {
    "a product": "{{ 'x' * 10**9 }}",
    "a product of a list": "{{ ([1] * 10**9) | length }}",
    "a large product of small ones": "{% set ns = namespace(x=[]) %}{% for i in range(10**4) %}{% set ns.x = ns.x + "
    "['x' * 10**6] %}{% endfor %}",
    "~ in a loop": TWICE.replace("BODY", "ns.x ~ ns.x"),
    "+ in a loop": TWICE.replace("BODY", "ns.x + ns.x"),
    "+ of lists in a loop": TWICE.replace("'x' * 100", "[1]").replace("BODY", "ns.x + ns.x"),
    "format in a loop": TWICE.replace("BODY", "'{}{}'.format(ns.x, ns.x)"),
    "% in a loop": TWICE.replace("BODY", "'%s%s' % (ns.x, ns.x)"),
    "% of a dict": BIG + "{{ ('%(a)s' * 1000) % {'a': big} }}",
    "| format": BIG + "{{ ('%s' * 100) | format(*([big] * 100)) }}",
    "| join": BIG + "{{ ([big] * 1000) | join }}",
    "| join by much": BIG + "{{ range(1000) | join(big) }}",
    "join": BIG + "{{ big.join('x' * 1000) }}",
    "| replace": BIG + "{{ big | replace('x', 'x' * 1000) }}",
    "replace": BIG + "{{ big.replace('', big) }}",
    "| center": "{{ 'x' | center(10**9) }}",
    "center": "{{ 'x'.center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "a marked text": "{{ ('x' | safe).rjust(10**9) }}",
    "expandtabs": "{{ ('\\t' * 100).expandtabs(10**8) }}",
    "split": BIG + "{{ ('x ' * 10**7).split() | length }}",
    "split by": "{{ ('x ' * 10**7).split(' ') | length }}",
    "splitlines": "{{ ('\\n' * 10**8).splitlines() | length }}",
    "| list of characters": "{{ ('x' * 10**8) | list | length }}",
    "| indent": "{{ ('\\n' * 10**6) | indent(10**6) }}",
    "| tojson with an indent": "{{ messages | tojson(indent=10**9) }}",
    "| tojson with separators": BIG + "{{ range(1000) | list | tojson(separators=(big, big)) }}",
    "| batch": "{{ range(10) | batch(10**9, 'x') | list | length }}",
    "| slice": "{{ range(10) | slice(10**9) | list | length }}",
    "a width in %": "{{ '%1000000000d' % 1 }}",
    "a precision in %": "{{ '%.1000000000f' % 1 }}",
    "a width in % from a value": "{{ '%*d' % (10**9, 1) }}",
    "a width in format": "{{ '{:1000000000}'.format(1) }}",
    "a width in format from a value": "{{ '{:{}}'.format(1, 10**9) }}",
    "a width in format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a product of numbers": TWICE.replace("'x' * 100", "10 ** 9").replace("BODY", "ns.x * ns.x"),
    "a long number": "{% set n = ('f' * 10**6) | int(base=16) %}{% set m = ('7' * 400000) | int(base=16) %}{{ n // m and 1 }}",
    "| round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "a tree that is written": TREE + "{% endfor %}{{ ns.x }}",
    "a tree as JSON": TREE + "{% endfor %}{{ ns.x | tojson }}",
    "a tree as a string": TREE + "{% endfor %}{{ ns.x | string }}",
    "a tree in ~": TREE + "{% endfor %}{{ ns.x ~ '' }}",
    "a tree in %": TREE + "{% endfor %}{{ '%s' % [ns.x] }}",
    "a tree in format": TREE + "{% endfor %}{{ '{!r}'.format(ns.x) }}",
    "two trees compared": TREE + "{% endfor %}{{ ns.x == ns.y }}",
    "a tree looked for": TREE + "{% endfor %}{{ ns.x in [ns.y, 1] }}",
    "a tree tested": TREE + "{% endfor %}{{ ns.x is eq(ns.y) }}",
    "a tree of tuples as a key": TREE.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{% endfor %}{{ {ns.x: 1} | length }}",
    "a tree of tuples in dict": TREE.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{% endfor %}{{ dict([[ns.x, 1]]) }}",
    "trees sorted": TREE + "{% endfor %}{{ [ns.x, ns.y] | sort | length }}",
    "namespaces in each other": "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a }}",
    "output of a macro": BIG + "{% macro m() %}{% for i in range(10**5) %}{{ big }}{% endfor %}{% endmacro %}"
    "{{ m() | length }}",
    "output of a set": BIG + "{% set a %}{% for i in range(10**5) %}{{ big }}{% endfor %}{% endset %}",
    "output of a generation": BIG
    + "{% generation %}{% for i in range(10**5) %}{{ big }}{% endfor %}{% endgeneration %}",
    "output": BIG + "{% for i in range(10**5) %}{{ big }}{% endfor %}",
    "text of the template": "{% for i in range(10**5) %}" + "x" * 10**4 + "{% endfor %}",
    "a chain of lists": "{% set ns = namespace(x=1) %}{% for i in range(10**5) %}{% for j in range(10**5) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
    "kept macros": "{% set ns = namespace(x=1) %}{% for i in range(10**5) %}{% for j in range(10**5) %}"
    "{% macro m() %}{{ i }}{% endmacro %}{% set ns.x = [ns.x, m] %}{% endfor %}{% endfor %}",
    "a long template": "x" * 2_000_000,
}
"""Templates that take memory."""
REFUSED = {
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') | length }}",
    "bytes": "{{ 'x'.encode().center(10**9) | length }}",
    "translate": "{{ 'x'.translate({120: 'y' * 1000}) }}",
    "keys of Python's dict": "{{ {}.fromkeys(range(10**5)) | length }}",
    "| pprint": "{{ messages | pprint }}",
    "| wordwrap": "{{ 'x' | wordwrap(1) }}",
    "| xmlattr": "{{ {'a': 1} | xmlattr }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a deep expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a range": "{% for i in range(10**9) %}x{% endfor %}",
    "a name with an underscore": "{% set ns = namespace(__class__=1) %}",
}
"""What is not there for a template."""

MANY_TIMES = "{% for i in range(10**5) %}{% for j in range(10**5) %}{{ (BODY) and '' }}{% endfor %}{% endfor %}"
HASHES = " ".join(str(k * (2**61 - 1)) for k in range(1, 2001))
"""Numbers that all have the hash 0."""
NUMBERS = "{% set l = '" + HASHES + "'.split() | map('int') | list %}"
ALIKE = "{% set b = 'a' * 10**6 %}{% set c = 'a' * 10**5 ~ 'b' ~ 'a' * 10**5 %}"
"""Two texts of which one is almost in the other, at each place."""
TWO = "{% set a = 'x' * 10**7 %}{% set b = 'x' * 10**7 %}"
LIGATURES = "{% set b = 'ﬃ' * 6 * 10**6 %}"
SLOW = {
    "unique of one hash": NUMBERS + "{% for i in range(10**4) %}{{ l | unique | list | length }}{% endfor %}",
    "unique of one hash by attribute": NUMBERS
    + "{% for i in range(10**4) %}{{ l | unique(attribute='real') | length }}{% endfor %}",
    "unique of tuples of one hash": NUMBERS
    + "{% set ns = namespace(t=[]) %}{% for n in l %}{% set ns.t = ns.t + [(n, 1)] %}{% endfor %}"
    + "{% for i in range(10**4) %}{{ ns.t | unique | list | length }}{% endfor %}",
    "a dict of one hash": "{% for i in range(10**4) %}{% set d = {"
    + ", ".join(f"{k}: 1" for k in HASHES.split())
    + "} %}{% endfor %}",
    "dict of one hash": NUMBERS
    + "{% set ns = namespace(t=[]) %}{% for n in l %}{% set ns.t = ns.t + [[n, 1]] %}{% endfor %}"
    + "{% for i in range(10**4) %}{{ dict(ns.t) | length }}{% endfor %}",
    "dict of ranges of one hash": NUMBERS
    + "{% set ns = namespace(t=[]) %}{% for n in l %}{% set ns.t = ns.t + [range(n, n + 2)] %}{% endfor %}"
    + "{% for i in range(10**4) %}{{ dict(ns.t) | length }}{% endfor %}",
    "keys of one hash": NUMBERS + "{% for i in range(10**4) %}{{ dict.fromkeys(l) | length }}{% endfor %}",
    "| title": "{% set b = 'é ' * 10**5 %}" + MANY_TIMES.replace("BODY", "b | title"),
    "| title of a letter": MANY_TIMES.replace("BODY", "'é' | title"),
    "| wordcount": "{% set b = 'é ' * 10**5 %}" + MANY_TIMES.replace("BODY", "b | wordcount"),
    "| int": "{% set b = '9' * 300 %}" + MANY_TIMES.replace("BODY", "b | int"),
    "| int of 4,000 digits": "{% set b = '9' * 4000 ~ 'x' %}" + MANY_TIMES.replace("BODY", "b | int(7)"),
    "| float": "{% set b = '9' * 4000 %}" + MANY_TIMES.replace("BODY", "b | float"),
    "products": "{% set n = 2 ** 500 - 1 %}" + MANY_TIMES.replace("BODY", "n * n"),
    "quotients": "{% set n = 2 ** 500 - 1 %}{% set m = 2 ** 250 + 1 %}" + MANY_TIMES.replace("BODY", "n // m + n % m"),
    "fractions": "{% set n = 2 ** 500 - 1 %}{% set m = 2 ** 250 + 1 %}" + MANY_TIMES.replace("BODY", "n / m"),
    "powers": MANY_TIMES.replace("BODY", "3 ** 512"),
    "a macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "| map": MANY_TIMES.replace("BODY", "range(10**5) | map('string') | list | length"),
    "| map by a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | map(attribute=name) | list | length"),
    "| selectattr by a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | selectattr(name) | list | length"),
    "| sort by a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | sort(attribute=name) | length"),
    "| groupby a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | groupby(name) | length"),
    "| sum by a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | sum(attribute=name)"),
    "| join by a long attribute": "{% set name = 'real' ~ '.real' * 10**4 %}"
    + MANY_TIMES.replace("BODY", "range(10**5) | join('', attribute=name)"),
    "| sort": MANY_TIMES.replace("BODY", "range(10**5) | sort(reverse=true) | list | length"),
    "format of many fields": "{% set f = '{0}' * 10**6 %}" + MANY_TIMES.replace("BODY", "f.format(1)"),
    "format of many braces": "{% set f = '{{' * 10**6 %}".replace("'{{'", "'{' '{'")
    + MANY_TIMES.replace("BODY", "f.format(1)"),
    "% of many fields": "{% set f = '%%' * 10**6 %}" + MANY_TIMES.replace("BODY", "f % ()"),
    "searches": "{% set b = 'a' * 10**7 %}{% set c = 'a' * 5000 ~ 'b' ~ 'a' * 5000 %}"
    + MANY_TIMES.replace("BODY", "b.count(c)"),
    "lower": "{% set b = 'İ' * 10**7 %}" + MANY_TIMES.replace("BODY", "b.lower()"),
    "| tojson": "{% set l = range(10**5) | list %}" + MANY_TIMES.replace("BODY", "l | tojson"),
    "a text in a range": "{% set l = range(10**5) %}" + MANY_TIMES.replace("BODY", "'a' in l"),
    "a fraction in a range": "{% set l = range(10**5) %}" + MANY_TIMES.replace("BODY", "2.5 not in l"),
    "a search from the end": ALIKE + "{{ b.rfind(c) }}",
    "a split from the end": ALIKE + "{{ b.rsplit(c) | length }}",
    "a part from the end": ALIKE + "{{ b.rpartition(c) | length }}",
    "a search for almost all": ALIKE + MANY_TIMES.replace("BODY", "b[: c | length + 2000].count(c)"),
    "searches in short texts": "{% set b = 'a' * 2499 %}{% set c = 'a' * 600 ~ 'b' ~ 'a' * 600 %}"
    + MANY_TIMES.replace("BODY", "c in b or b.find(c) or c is in b"),
    "many ends": "{% set b = 'a' * 10**6 %}{% set c = 'b' * 10**6 ~ 'a' %}{{ b.strip(c) }}{{ b | trim(c) }}",
    "long keys": TWO + "{% set d = {a: 1} %}" + MANY_TIMES.replace("BODY", "d[b] and d[b] and d[b]"),
    "long keys by get": TWO + "{% set d = {a: 1} %}" + MANY_TIMES.replace("BODY", "d.get(b)"),
    "long keys of a new dict": TWO + MANY_TIMES.replace("BODY", "{a: 1, b: 2}"),
    "a namespace of many": "{% set d = dict.fromkeys(range(10**5) | map('string')) %}"
    + MANY_TIMES.replace("BODY", "namespace(d)"),
    "| safe": BIG + MANY_TIMES.replace("BODY", "big | safe"),
}
"""Templates that take long within few steps, or few bytes."""

WIDE = {
    "| urlencode": "{% set b = '😀' * 4 * 10**6 %}{{ b | urlencode | length }}",
    "| urlencode of ASCII": "{% set b = '<' * 5 * 10**6 %}{{ b | urlencode | length }}",
    "upper": LIGATURES + "{{ b.upper() | length }}",
    "casefold": LIGATURES + "{{ b.casefold() | length }}",
    "capitalize": LIGATURES + "{{ b.capitalize() | length }}",
    "swapcase": LIGATURES + "{{ b.swapcase() | length }}",
    "title": LIGATURES + "{{ b.title() | length }}",
    "| upper": LIGATURES + "{{ b | upper | length }}",
    "| capitalize": LIGATURES + "{{ b | capitalize | length }}",
    "| wordcount": "{% set b = 'ﬃ ' * 2 * 10**6 %}{{ b | wordcount }}",
    "| e": "{% set b = '\"' * 10**7 ~ '😀' %}{{ b | e | length }}",
    "a product": "{{ ('😀' * 4 * 10**7) | length }}",
    "center": "{{ 'x'.center(4 * 10**7, '😀') | length }}",
    "| center": "{{ '😀' | center(4 * 10**7) | length }}",
    "| indent": "{{ '😀\n\n' | indent(4 * 10**7, blank=true) | length }}",
    "expandtabs": "{{ '\t😀'.expandtabs(4 * 10**7) | length }}",
    "replace": "{% set b = 'x' * 10**7 %}{{ (b ~ b ~ b).replace('y', '') | length }}{{ (b ~ b).replace('x', 'x😀') }}",
    "~ with one emoji": BIG + "{{ (big ~ big ~ big ~ big ~ '😀') | length }}",
    "+ with one emoji": BIG + "{{ (big + big + big + big + '😀') | length }}",
    "| join with one emoji": BIG + "{{ [big, big, big, big, '😀'] | join | length }}",
    "% with one emoji": BIG + "{{ ('%s%s%s😀' % (big, big, big)) | length }}",
    "format with one emoji": BIG + "{{ '{}{}{}{}😀'.format(big, big, big, big) | length }}",
    "output with one emoji": BIG + "{% set a %}{{ big }}{{ big }}{{ big }}{{ big }}😀{{ '😀' }}{% endset %}",
    "| tojson of controls": "{% set b = '\0' * 10**7 %}{{ [b, b, '😀'] | tojson | length }}".replace("\0", "\x01"),
    "a list of controls": "{% set b = '\x01' * 10**7 %}{{ [b, b, '😀'] ~ '' }}",
    "| safe": BIG
    + "{% set ns = namespace(l=[]) %}{% for i in range(40) %}{% set ns.l = ns.l + [big | safe] %}{% endfor %}",
    "a marked text": "{% set b = '\"' * 2 * 10**7 %}{{ (('<' | e) + b) | length }}",
}
"""Templates whose texts take more bytes than they have characters, or grow while they are made."""

SETS = "".join(f"{{% set a{i} = 1 %}}" for i in range(990))
COMPILED = {
    "a list": "{{ [" + "a," * 24_000 + "] }}",
    "a chain of comparisons": "{% if 0 %}{{ a" + "<a" * 24_000 + " }}{% endif %}",
    "a chain of ~": "{{ a" + "~a" * 24_000 + " }}",
    "outputs": "{{a}}" * 16_000,
    "conditions": "{{ [" + "a if a," * 12_000 + "] }}",
    "macros": "{%macro a()%}{%endmacro%}" * 5_000,
    "names and conditions": SETS + "{%if a%}{%endif%}" * 6_000,
    "names and loops": "{%for x in y%}" + SETS + "{%for a in b%}{%endfor%}" * 4_500 + "{%endfor%}",
}
"""Templates that only just may be: they are compiled."""
UNCOMPILED = {
    "many characters": (" " * (1 << 17) + "{{ a }}", "131,072 may be"),
    "a list": ("{{ [" + "a," * 60_000 + "] }}", "50,000 tokens"),
    "a list that is never made": ("{% if 0 %}{{ [" + "a," * 60_000 + "] }}{% endif %}", "50,000 tokens"),
    "a chain of comparisons": ("{{ a" + "<a" * 60_000 + " }}", "50,000 tokens"),
    "a chain of ~": ("{{ a" + "~a" * 60_000 + " }}", "50,000 tokens"),
    "names and conditions": (
        "".join(f"{{%set a{i}=1%}}" for i in range(4000)) + "{%if a%}{%endif%}" * 3900,
        "1,000 diff",
    ),
    "a block with every name": (
        SETS + "".join(f"{{%block a{i} scoped%}}{{%endblock%}}" for i in range(900)),
        "characters of Python code",
    ),
    "an include with every name": (
        "{% for x in y %}" + SETS + "{% include a %}" * 1000 + "{% endfor %}",
        "characters of Python code",
    ),
}
"""Templates that become gigabytes, or take minutes, before they write anything; and what is said of them."""

CHILD = """
import json, resource, sys, time
from headrace.errors import DataError
from headrace.make import chat_budget
from headrace.make.template import Template
chat_budget.STEPS, chat_budget.ROOM = map(int, sys.argv[1:])
template = Template(plain="{{ messages }}", with_tools="", special={}, tokens={})
template.write([{"role": "user", "content": "a"}])
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 2 * chat_budget.ROOM, used + 2 * chat_budget.ROOM))
for name, text in json.load(sys.stdin).items():
    began = time.thread_time()
    try:
        made = Template(plain=text, with_tools="", special={}, tokens={}).write([{"role": "user", "content": "a"}])
        print(json.dumps([name, "made", str(made)[:50]]), flush=True)
    except DataError as error:
        print(json.dumps([name, type(error).__name__, str(error)]), flush=True)
    print(f"{time.thread_time() - began:8.2f} s {name}", file=sys.stderr, flush=True)
"""


COMPILE = """
import json, resource, sys, time
from headrace.errors import DataError
from headrace.make.template import Template
def written(text):
    return Template(plain=text, with_tools="", special={}, tokens={}).write([])
written("{{ messages }}")
most = int(open("/proc/self/statm").read().split()[0]) * 4096 + (400 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
seconds = int(time.process_time()) + 5
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    written(json.load(sys.stdin))
    print(json.dumps(["made", ""]))
except DataError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def template(text: str) -> Template:
    return Template(plain=text, with_tools=text, special={}, tokens=TOKENS)


def played(templates: dict[str, str], steps: int = 1 << 20, room: int = 1 << 26) -> dict[str, tuple[str, str]]:
    """What becomes of templates in a process that may have twice their budget and no more."""
    command = [sys.executable, "-c", CHILD, str(steps), str(room)]
    ran = subprocess.run(command, input=json.dumps(templates), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return {name: (kind, said) for name, kind, said in map(json.loads, ran.stdout.splitlines())}


def compiled_in_child(text: str) -> tuple[str, str]:
    """What becomes of a template in a process that may have 400 MB more than a small one takes, and five seconds."""
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE],
        input=json.dumps(text),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-2000:])
    kind, said = json.loads(ran.stdout)
    return kind, said


@pytest.mark.alone
def test_templates_that_take_for_ever_are_stopped_by_their_steps() -> None:
    found = played(LONG)
    assert found.keys() == LONG.keys()
    assert {name: said for name, (kind, said) in found.items() if kind != "TooMuchOfIt"} == {}


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_templates_that_are_slow_are_stopped_by_counting_before_their_time_is_up() -> None:
    """With the budgets that are set. The limit of 30 seconds is never reached, so a slower machine refuses the same."""
    found = played(SLOW, STEPS, ROOM)
    assert found.keys() == SLOW.keys()
    assert {name: said for name, (kind, said) in found.items() if kind != "TooMuchOfIt"} == {}
    assert {name: said for name, (_, said) in found.items() if "seconds" in said} == {}


def test_a_template_that_is_slow_in_a_way_that_is_not_counted_ends_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 10.0 * looks

    monkeypatch.setattr(chat_budget, "thread_time", clock)
    for text in (LONG["nested loops"], LARGE["output"]):
        looks = 0
        with pytest.raises(DataError, match="takes more than 30 seconds for one sample; correct the template"):
            template(text).write([])
        assert looks == 5


def test_a_usual_template_does_not_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no machine is too slow for it."""
    monkeypatch.setattr(chat_budget, "SECONDS", -1.0)
    text = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim }}{% endfor %}"
    messages: list[Any] = [{"role": "user", "content": "x" * 10_000}] * 200
    assert len(template(text).write(messages)[0]) > 2_000_000


@pytest.mark.alone
def test_templates_that_fill_the_memory_are_stopped_within_twice_their_budget() -> None:
    found = played(LARGE)
    assert found.keys() == LARGE.keys()
    assert {name: said for name, (kind, said) in found.items() if kind != "TooMuchOfIt"} == {}
    assert "for one sample; correct the template" in found["a product"][1]


@pytest.mark.alone
@pytest.mark.parametrize("name", WIDE)
def test_texts_count_by_their_bytes_before_they_are_made(name: str) -> None:
    (found,) = played({name: WIDE[name]}, steps=1 << 24).values()
    assert found[0] == "TooMuchOfIt", found
    assert "bytes of values" in found[1]


@pytest.mark.alone
@pytest.mark.parametrize("name", COMPILED)
def test_a_template_is_compiled_within_seconds_and_400_megabytes(name: str) -> None:
    text = COMPILED[name]
    assert compiled_in_child(text) == ("made", "")


@pytest.mark.alone
@pytest.mark.parametrize("name", UNCOMPILED)
def test_a_template_that_would_take_more_to_compile_is_refused(name: str) -> None:
    text, why = UNCOMPILED[name]
    kind, said = compiled_in_child(text)
    assert kind == "TooMuchOfIt", said
    assert why in said
    assert said.endswith("; correct the template")


@pytest.mark.alone
def test_the_budgets_that_are_set_stop_templates_as_well() -> None:
    some = {name: {**LONG, **LARGE}[name] for name in ("nested loops", "~ in a loop", "| join", "two trees compared")}
    found = played(some, STEPS, ROOM)
    assert [kind for kind, _ in found.values()] == ["TooMuchOfIt"] * 4


def test_what_cannot_be_bounded_is_not_there_for_a_template() -> None:
    found = played(REFUSED)
    assert found.keys() == REFUSED.keys()
    assert {name: said for name, (kind, said) in found.items() if kind != "DataError"} == {}
    assert not any("MemoryError" in said for _, said in found.values())


def test_a_template_stops_after_the_same_rounds_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_budget, "STEPS", 10_000)
    found: list[tuple[str, int]] = []

    def render() -> None:
        compiled = chat_sandbox._compiled(
            "{% for a in range(10**5) %}{% for b in range(10**5) %}x{% endfor %}{% endfor %}"
        )
        rounds = 0
        try:
            for _ in compiled.root_render_func(compiled.new_context({})):
                rounds += 1
        except chat_budget.TooMuch as error:
            found.append((str(error), rounds))

    threads = [threading.Thread(target=render) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert found[0][0] == "takes more than 10,000 steps for one sample"
    assert 500 < found[0][1] < 10_000


def test_the_budget_is_one_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_budget, "STEPS", 10_000)
    one = template("{% for a in range(500) %}x{% endfor %}")
    for _ in range(10):
        assert one.write([])[0] == "x" * 500
    scoped = template(
        "{% for a in range(40) %}{% block b scoped %}{% for c in range(400) %}{% endfor %}{% endblock %}{% endfor %}"
    )
    with pytest.raises(DataError, match="takes more than 10,000 steps"):
        scoped.write([])


EQUAL = {
    "sums": "{{ 1 + 2 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 1.5 + 1 }}{{ 'a' ~ 1 ~ none ~ [1] }}{{ nothing ~ 'x' }}",
    "products": "{{ 2 * 3 }}{{ 'a' * 3 }}{{ 3 * [1] }}{{ 7 % 4 }}{{ '%s-%05d' % ('a', 3) }}{{ 2 ** 8 }}{{ 2 ** -1 }}",
    "loops": "{% for a in [3, 1, 2] | sort %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ a }}{% else %}no{% endfor %}",
    "left out": "{% for a in range(9) if a is odd %}{{ a }}{{ loop.revindex }}{% endfor %}",
    "pairs": "{% for k, v in {'b': 1, 'a': [2]}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'b': 1} | dictsort }}",
    "recursive": "{% for a in [[1, [2]], [3]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
    "breaks": "{% for a in range(9) %}{% if a == 3 %}{% break %}{% endif %}{% if a is even %}{% continue %}{% endif %}{{ a }}"
    "{% endfor %}",
    "macros": "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}"
    "{% call m(3) %}in{% endcall %}",
    "namespaces": "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + "
    "[m.role] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
    "filters": "{{ ' a ' | trim }}{{ messages | length }}{{ messages | map(attribute='role') | join(', ') }}{{ 'x' | upper }}"
    "{{ [1, none] | tojson }}{{ {'a': 'é'} | tojson(indent=2) }}{{ nothing | default('d') }}{{ '3' | int + 1 }}"
    "{{ 'a-b' | replace('-', '+') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ 'a\nb' | indent(2) }}{{ [1, 2, 3] | batch(2) | list }}{{ 2.345 | round(1) }}{{ '%s!' | format('a') }}"
    "{{ 'a<b' | e }}{{ [1, 2] | sum }}{{ [1, 1] | unique | list }}{{ 'x' | center(5) }}{{ [2, 1] | max }}{{ {'a': 1} | items "
    "| list }}{{ [1, 2] | reverse | list }}{{ 'hello' | first }}{{ 'hello' | last }}{{ 'a' | string }}",
    "methods": "{{ 'a b'.split() }}{{ 'a,b,c'.split(',', 1)[0] }}{{ ' a'.strip() }}{{ 'ab'.startswith('a') }}"
    "{{ '-'.join(['a', 'b']) }}{{ 'ab'.replace('a', 'c') }}{{ messages[0].get('role') }}{{ messages[0].get('no', 1) }}"
    "{{ messages[0].keys() | list }}{{ 'a{}b{x}{:>3}'.format(1, 2, x=3) }}{{ 'a\nb'.splitlines() }}{{ 'Ab'.title() }}",
    "comparisons": "{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 'role' in messages[0] }}{{ messages[0] == messages[-1] }}"
    "{{ messages[0]['role'] in ['user', 'system'] }}{{ 'z' not in messages[0].content }}{{ 3 in range(5) }}",
    "slices": "{{ messages[1:] | length }}{{ 'abc'[::-1] }}{{ 'abc'[1] }}{{ [1, 2, 3][:2] }}{{ (1, 2) }}{{ {'a': 1} }}",
    "tests": "{{ messages is iterable }}{{ nothing is defined }}{{ 'a' is string }}{{ {} is mapping }}{{ none is none }}",
    "blocks": "{% set a %}text{% endset %}{{ a }}{% filter upper %}abc{% endfilter %}{% with b = 1 %}{{ b }}{% endwith %}",
    "dicts": "{{ dict(a=1) }}{{ dict({'a': 1}, b=2) }}{{ dict.fromkeys(['a']) }}",
    "thoughts": "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "spaces": "  {% if true %}\n a\n  {%- endif %}\n\n",
    "cyclers": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}a"
    "{{ j() }}b",
}
GIVES_ALL_NAMES = int(metadata.version("transformers").split(".")[0]) >= 5
"""Transformers 5 gives thoughts under all of their names, as we do; before, under those that a message has."""
THOUGHTS = dict.fromkeys(("reasoning",) if GIVES_ALL_NAMES else ("reasoning", "reasoning_content", "thinking"), "hm")
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "what is it?"},
    {"role": "assistant", "content": "7", **THOUGHTS},
    {"role": "user", "content": "é🙂", "n": 1, "l": [1.5, None, True, {"k": "v"}]},
]


@pytest.mark.parametrize("name", EQUAL)
def test_what_comes_out_is_what_transformers_writes(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template(conversations=[MESSAGES], chat_template=EQUAL[name])
    assert template(EQUAL[name]).write(MESSAGES)[0] == texts[0]
    assert texts[0]


def test_a_usual_template_uses_a_small_part_of_its_budget() -> None:
    text = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' and loop.last %}"
        "{{ m['content'] | trim }}{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    )
    messages: list[Any] = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y" * 1000}] * 500
    compiled = chat_sandbox._compiled(text)
    context = compiled.new_context({"messages": messages})
    made = "".join(compiled.root_render_func(context))
    assert len(made) > 1_000_000
    assert isinstance(context, chat_budget.Counted)
    assert chat_budget.STEPS - context.budget.steps < chat_budget.STEPS / 100
    assert chat_budget.ROOM - context.budget.room < chat_budget.ROOM / 50


def test_a_template_of_40_000_characters_uses_a_small_part_of_what_it_may_consist_of() -> None:
    turn = (
        "{%- if m['role'] == 'ROLE' and m['content'] is string and not loop.last %}\n    "
        "{{- '<|start|>' + m['role'] + '\\n' + m['content'] | trim + '<|end|>\\n' }}\n{%- endif %}\n"
    )
    body = "".join(turn.replace("ROLE", f"role {i}") for i in range(250))
    text = "{% for m in messages %}" + body + "{% endfor %}"
    assert 40_000 < len(text) < chat_sandbox.LONGEST_TEMPLATE / 2
    environment = chat_sandbox._Environment()
    assert len(list(environment._tokenize(text, None))) < chat_sandbox.MOST_TOKENS / 3
    assert len(environment.compile(text, raw=True)) < chat_sandbox.MOST_CODE / 10


def test_no_limit_of_the_machine_is_touched() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    template("{{ messages }}").write([])
    assert resource.getrlimit(resource.RLIMIT_AS) == before
