"""Texts on which two tokenizers that are not the same are likely to differ."""

# ruff: noqa: RUF001 - characters that look like others are the point of these texts

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from headrace import rng

SCRIPTS = (
    "The quick brown fox can't jump; it's over 3,141.59 lazy dogs (they'll say WE'VE won) — naïve café, Ærøskøbing, ſ.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка №5, Їжак, ўранкі.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· Ὀδυσσεύς ΣΊΣΥΦΟΣ ς.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر، ١٢٣٤٥ ؟ ﷽ لا",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה; שָׁלוֹם עֲלֵיכֶם־",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। क्षत्रिय ज्ञान १२३४ र्‍क",
    "আমি বাংলায় গান গাই। ক্ষমা ৎ ড় ১২৩৪ হ্যাঁ",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம் க்ஷ ௧௨",
    "ข้าพเจ้ากินข้าวที่ร้านอาหารเมื่อวานนี้ น้ำ กำ ๑๒๓",
    "天地玄黄,宇宙洪荒。日月盈昃、辰宿列张;𠀀𪛕 漢字「仮名」１２３４五六 〇",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글 각 ㄱㄴ",
    "いろはにほへと チリヌルヲ ｶﾞｷﾞ ー々〆 ヷ が ぱ゚",
    "ქართული ენა; հայերեն լեզու; አማርኛ; ភាសាខ្មែរ; မြန်မာ; བོད་སྐད; ລາວ; ᠮᠣᠩᠭᠣᠯ; ᏣᎳᎩ; ꦗꦮ; 𐍈𐌰; 𝒜𝓑𝟙",
    "🙂👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇫🇷🇺 1️⃣ ☎️ ☎︎ ©️ 🧑🏿‍🚀👨‍❤️‍💋‍👨 🫠",
    "e\u0301 e\u0301\u0323 a\u030a\u0327 Z\u0351\u036b\u0343\u036a\u0302 \u0301start n\u0303o \u1e9b\u0323",
    "\ufb01 \u2126 \u212b \ufffd \uffff",
    "\u200bzero\u200cwidth\u200djoin\u2060er\ufeff bom \u00adsoft \u202eright to left\u202c \u2066in\u2069",
    "\x01\x02\x07\x08\x0e\x1b[31m\x1f\x7f\x80\x9f\x00end",
    "0 00 000 0000 12345678901234567890 1,000,000.00 3.14e-10 0xDEADBEEF 1_000 ½ ² ₃ Ⅷ ⑨ ١٢٣ १२३ 1st 2nd v1.2.3 7a7",
    " one  two   three    four\ttab\t\ttabs \t mixed\x0bvt\x0cff\x85nel\xa0nbsp",
    "\u1680ogham\u2003em\u2028ls\u2029ps\u202f\u205f\u3000end ",
    "line\nline\n\nline\r\nline\r\n\r\n  indented\n\tindented\r\rcr\n \n  \n end\n\n\n",
    "def f(x: int = 0) -> dict[str, Any]:\n    return {'a': [i**2 for i in range(x)], \"b\": f'{x!r:>10}'}  # TODO\n\n",
    '#include <stdio.h>\nint main(void){for(int i=0;i<10;++i){printf("%d\\n",i);}return 0;}\n',
    '<a href="x?y=1&amp;z">é</a>',
    "SELECT * FROM t WHERE a != 'b' AND c >= 1.5; -- x\n$\\int_0^\\infty e^{-x^2}\\,dx$",
    "~~~ ``` === !!! ... ??? ''' \"\"\" ###",
    "https://example.org/a/b-c_d?e=f%20g#h user@example.org C:\\Users\\x /usr/lib/x86_64 camelCaseWord SCREAMING_CASE",
    "I'm you're he'd she'll we've it's I'M YOU'RE HE'D SHE'LL WE'VE IT'S ’s ’T 'ſ 'K ''s 's' don''t",
    "<0x0A><0x00><0xFF> ▁▁ ▁a Ġ Ċ ĉ Ā ł ## ##ing @@ </w> ▂",
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "a",
    "é",
    "ß",
    "🙂",
    "\u0301",
    "\ufeff",
)

LONG = (
    "a" * 3000,
    "ab" * 700,
    "0123456789" * 120,
    " " * 1500,
    "\n" * 600,
    " \n" * 300,
    "=" * 1200,
    "é" * 500,
    "漢" * 500,
    "🙂" * 200,
    "e\u0301" * 300,
    "Donaudampfschifffahrtsgesellschaftskapitän" * 12,
    "x y" * 400,
)

# First and last code points of the ranges random texts are drawn from, the common ones more than once.
RANGES = (
    *((0x20, 0x7E),) * 6,
    *((0x09, 0x0D),) * 2,
    *((0xA0, 0x24F),) * 2,
    (0x00, 0x1F),
    (0x300, 0x36F),
    (0x370, 0x5FF),
    (0x600, 0x7FF),
    (0x900, 0xDFF),
    (0xE00, 0x11FF),
    (0x1E00, 0x206F),
    (0x2070, 0x2BFF),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7FF),
    (0xE000, 0xFFFF),
    (0x10000, 0x1FFFF),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x10FFFF),
)
RANDOM_TEXTS = 400

# Where character classes change often: libraries built on different versions of Unicode differ here.
SWEEP = ((0x01, 0x33FF), (0xA000, 0xABFF), (0xF900, 0xFFFF), (0x10000, 0x11FFF), (0x1D400, 0x1D7FF), (0x1F000, 0x1FAFF))
SWEEP_TEXT = 256


def texts(special: Sequence[str]) -> list[str]:
    """The probes for a tokenizer whose added tokens are `special`."""
    found = list(_common())
    # Thousands of reserved tokens are alike: some of them are enough.
    for token in [*special[:64], *special[64 :: max(len(special) // 128, 1)]]:
        found += [token, f"a{token}b", f" {token}  {token}{token}\n{token[:-1]} {token.upper()}"]
    return found


@cache
def _common() -> tuple[str, ...]:
    found = [*SCRIPTS, *LONG, "\n\n".join(SCRIPTS * 10), *map(random_text, range(RANDOM_TEXTS))]
    for first, last in SWEEP:
        found += ["".join(map(chr, range(at, min(at + SWEEP_TEXT, last + 1)))) for at in range(first, last, SWEEP_TEXT)]
    return tuple(found)


def random_text(number: int) -> str:
    """A text of mixed scripts, the same one for the same number on every machine."""
    stream = rng.key("probe", number)
    size = 1 + rng.draw(stream, 0, 60)
    if number % 3 == 0:
        # Any characters side by side.
        pairs = [RANGES[rng.draw(stream, 3 * i + 1, len(RANGES))] for i in range(size)]
    else:
        # Words of one script each, as in real text.
        words = [RANGES[rng.draw(stream, 3 * (i // 5) + 1, len(RANGES))] for i in range(size)]
        pairs = [(0x20, 0x20) if i % 5 == 4 else pair for i, pair in enumerate(words)]
    return "".join(chr(first + rng.draw(stream, 3 * i + 2, last - first + 1)) for i, (first, last) in enumerate(pairs))
