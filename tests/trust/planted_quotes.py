"""Planted bugs of messages: text of a file in them, which may be one that a link in a folder of data leads to."""

from __future__ import annotations

from planted import Bug, Edit

LINKS = "tests/trust/test_links.py"
INFO, TEMPLATE = f"{LINKS}::test_a_robot_s_info_is_not_quoted", "headrace/lerobot/template.py"
VALUE = f"{LINKS}::test_a_value_that_is_no_text_or_no_tokens_is_not_quoted"
PREPARE, OF_A_ROW = "headrace/make/prepare.py", f"{LINKS}::test_other_values_of_a_row_are_not_quoted"
MADE = f"{LINKS}::test_what_a_formatter_makes_of_a_row_is_not_quoted"
TWICE = f"{LINKS}::test_a_key_that_comes_again_is_told_by_its_place"
WRITTEN = "tests/test_template.py::test_what_a_template_writes_is_not_quoted"

BUGS = (
    Bug(
        "fields of a robot quoted",
        "meta/info.json may be a link to a file of secrets",
        (Edit("headrace/lerobot/info.py", "return described(values[name]) if", "return repr(values[name]) if"),),
        (INFO,),
    ),
    Bug(
        "size in a robot's shape quoted",
        "the list is not quoted, and what is wrong in it is",
        (Edit("headrace/lerobot/info.py", "with {described(wrong)} in it", "with {wrong!r} in it"),),
        (INFO,),
    ),
    Bug(
        "unit of a robot's depth quoted",
        "it is short where it is right",
        (Edit("headrace/lerobot/info.py", "depth_unit is {described(unit)}", "depth_unit is {unit!r}"),),
        (INFO,),
    ),
    Bug(
        "path template quoted",
        "it says best what is wrong with it",
        (Edit(TEMPLATE, "it is {described(text)} with a brace", "it is {text!r} with a brace"),),
        (INFO,),
    ),
    Bug(
        "file name of a template quoted",
        "the path is in the message of what refuses it",
        (
            Edit(TEMPLATE, "        except NotAllowed:\n", "        except NotAllowed as error:\n"),
            Edit(
                TEMPLATE,
                '                f"path template {self.name} in meta/info.json gives a',
                '                f"{error} a',
            ),
        ),
        (INFO,),
    ),
    Bug(
        "declared type quoted",
        "any text may be declared as the type of a column",
        (Edit("headrace/lerobot/columns.py", " if _NUMBERS.fullmatch(feature.dtype) else", " if feature.dtype else"),),
        (f"{LINKS}::test_a_type_that_a_robot_s_info_declares_is_shown_only_where_it_is_one",),
    ),
    Bug(
        "no text, quoted",
        "what is no text may have some in it",
        (Edit(PREPARE, 'f"is {described(text)}: a text', 'f"is {text!r}: a text'),),
        (VALUE,),
    ),
    Bug(
        "no tokens, quoted",
        "a text without a tokenizer",
        (Edit(PREPARE, "{described(value)}{_wrong_item(value)}", "{value!r}"),),
        (VALUE,),
    ),
    Bug(
        "no token in a list, quoted",
        "one text among numbers",
        (Edit(PREPARE, "with {described(item)} at place", "with {item!r} at place"),),
        (f"{LINKS}::test_what_is_no_token_in_a_list_is_told_by_its_place",),
    ),
    Bug(
        "what a formatter gives quoted",
        "it is made of the row",
        (Edit("headrace/make/formatted.py", "        return described(one)\n", "        return repr(one)\n"),),
        (MADE,),
    ),
    Bug(
        "messages of a formatter quoted",
        "they are made of the row",
        (Edit("headrace/make/template.py", "gave as messages {described(messages)}", "gave as messages {messages!r}"),),
        (f"{LINKS}::test_messages_of_a_formatter_are_not_quoted",),
    ),
    Bug(
        "flag of a row quoted",
        "it is short where it is right",
        (Edit("headrace/make/values.py", "{name} is {described(value)}; true", "{name} is {value!r}; true"),),
        (MADE,),
    ),
    Bug(
        "time of a clip quoted",
        "it is short where it is right",
        (Edit("headrace/fetch/media/clip.py", "has {described(time)} in it", "has {time!r} in it"),),
        (OF_A_ROW,),
    ),
    Bug(
        "rate of a sound quoted",
        "it is a number where it is right",
        (Edit("headrace/fetch/media/audio.py", "rate of {described(rate)};", "rate of {rate!r};"),),
        (OF_A_ROW,),
    ),
    Bug(
        "no row, quoted",
        "a formatter that is called by hand",
        (
            Edit(
                "headrace/make/formatters/base.py",
                'got {described(sample)}")\n    if isinstance(sample, Row)',
                'got {sample!r}")\n    if isinstance(sample, Row)',
            ),
        ),
        (OF_A_ROW,),
    ),
    Bug(
        "key that comes again quoted",
        "a line of another file",
        (
            Edit(
                "headrace/fetch/lines.py",
                'raise _Twice("has a key twice in one object, the',
                'raise _Twice(f"has a key twice in one object ({[key for key, _ in pairs]}), the',
            ),
        ),
        (TWICE,),
    ),
    Bug(
        "key that comes again without its place",
        "nobody finds it in a line of a megabyte",
        (
            Edit(
                "headrace/fetch/lines.py", "            if isinstance(error, _Twice):\n", "            if not error:\n"
            ),
        ),
        (TWICE,),
    ),
    Bug(
        "text quoted by the tokenizer",
        "a panic of Rust has the text in it",
        (Edit("headrace/make/tokenize.py", "the tokenizer says: {unquoted(wrong)}", "the tokenizer says: {wrong}"),),
        ("tests/test_tokenize_open.py::test_a_text_on_which_the_tokenizer_fails_is_named_by_its_place",),
    ),
    Bug(
        "quotes in a quote",
        "it is taken to end at the first of them",
        (Edit("headrace/errors.py", "(?:.*{_QUOTE}|.*)", "(?:.*?{_QUOTE}|.*)"),),
        (f"{LINKS}::test_what_a_tokenizer_says_of_a_text_is_told_without_its_quotes",),
    ),
    Bug(
        "row quoted where two tokenizers differ",
        "what is right for our own texts is done with those of the data set",
        (
            Edit(
                "headrace/make/backends.py", '{shown(text, 60)!r}" if quoted else', '{shown(text, 60)!r}" if text else'
            ),
        ),
        ("tests/test_tokenize_watch.py::test_a_difference_in_the_first_rows_is_found_and_mended",),
    ),
    Bug(
        "box of no video quoted",
        "four characters of any file are a kind of box",
        (Edit("headrace/fetch/media/boxes.py", "name_of(kind) if kind in _KINDS else", "name_of(kind) if kind else"),),
        (f"{LINKS}::test_the_first_letters_of_a_video_that_is_none_are_not_quoted",),
    ),
    Bug(
        "writing of a template quoted",
        "a file without a brace is a template that writes itself",
        (
            Edit(
                "headrace/make/open_template.py",
                "made = described(template.write(_BASE)[0])",
                "made = template.write(_BASE)[0]",
            ),
        ),
        (WRITTEN,),
    ),
    Bug(
        "marked writing of a template quoted",
        "it is not only what the assistant said",
        (Edit("headrace/make/open_template.py", "they stand around {_lengths(said)}", "they stand around {said!r}"),),
        (WRITTEN,),
    ),
)
