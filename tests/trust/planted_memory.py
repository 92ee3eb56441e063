"""Planted bugs of what is small and becomes large, or takes long: parquet files, lines, templates, replies, sounds."""

from __future__ import annotations

from planted import Bug, Edit

PARQUET, WEIGHT = "headrace/fetch/parquet.py", "headrace/fetch/weight.py"
CHUNK, SIZE = "headrace/fetch/chunk.py", "headrace/fetch/python_size.py"
IN_PYTHON = "test_rows_that_are_small_until_they_are_python_values_are_read_within_the_budget"
BOMBS, ROBOT_BOMBS = "tests/test_parquet_bombs.py", "tests/test_robot_bombs.py"
COME_AGAIN = "test_values_that_come_again_in_many_rows_are_read_within_the_budget"
REFUSED = "test_rows_that_do_not_fit_are_refused_before_they_are_decoded"
RESUMES = "tests/test_resume_lines.py::test_the_name_of_a_file_is_escaped_in_them"
VALUES = "tests/test_json_bombs.py"
COMPILED = "tests/test_template_bombs.py::test_a_template_that_would_take_more_to_compile_is_refused"
LINES, LINE_MEMORY = "headrace/fetch/lines.py", "headrace/fetch/line_memory.py"
NO_ROOM = "except NoRoom:\n            raise\n        except DataError as error:\n            if done.count > 1:"
LINE_BOMBS = "tests/test_lines_bombs.py"
BECOME_MUCH = "test_lines_that_become_much_are_refused_before_they_are_parsed"

BUGS = (
    # --- parquet files that are small and become large
    Bug(
        "only the last column weighed",
        "what rows take in memory is counted for one column",
        (
            Edit(
                PARQUET, "pairs = zip(self._forms, columns, strict=True)", "pairs = zip(self._forms[-1:], columns[-1:])"
            ),
        ),
        (f"{BOMBS}::{COME_AGAIN}[a dictionary in the first column-shuffled]",),
    ),
    Bug(
        "only the first row group weighed",
        "what rows take in memory is counted once for a file",
        (Edit(PARQUET, "in self._decoded_for(chunk):", "in self._decoded_for(chunk) if not chunk.group else ():"),),
        (f"{BOMBS}::{COME_AGAIN}[a dictionary in the last row group-shuffled]",),
    ),
    Bug(
        "lists not weighed",
        "only columns with one value in each row are counted",
        (
            Edit(
                PARQUET,
                "read, column) for form, column in pairs]",
                "read, column) for form, column in pairs if form.leaf.flat]",
            ),
        ),
        (f"{BOMBS}::{COME_AGAIN}[in a list-shuffled]",),
    ),
    Bug(
        "footer trusted",
        "the sizes of a footer stand for those of its pages",
        (
            Edit(WEIGHT, "nbytes = packed = page.plain + values", "nbytes = packed = values"),
            Edit(WEIGHT, "self._largest = max((page.plain for page in self._pages), default=0)", "self._largest = 0"),
            Edit(WEIGHT, "self._longest_plain = max(", "self._longest_plain = 0 * max("),
        ),
        (f"{BOMBS}::{REFUSED}[a footer that is false-shuffled]",),
    ),
    Bug(
        "rows that become Python values not counted",
        "only what Arrow takes counts: a struct of one bit becomes a dict",
        (Edit(CHUNK, "self._fitting(sizes, first))", "left)"),),
        (f"{BOMBS}::{IN_PYTHON}[structures in many row groups-shuffled]",),
    ),
    Bug(
        "blocks of rows by their size in the file",
        "rows are made ready by the hundred, whatever they become",
        (Edit("headrace/make/feed.py", "> self._most_python():", "> self._most_python() << 9:"),),
        ("tests/test_python_size.py::test_rows_are_made_ready_in_blocks_that_are_small_as_python_values",),
    ),
    Bug(
        "a first block read again and again",
        "what is too large is drawn again from the start, and its chunks are closed",
        (Edit("headrace/fetch/cursor.py", "return filled, done", "return mark, done"),),
        ("tests/test_first_batch.py::test_a_first_block_that_is_too_large_reads_no_chunk_twice",),
    ),
    Bug(
        "lists of one length that are empty",
        "numpy cannot tell the shape of nothing",
        (Edit(SIZE, "reshape(len(array), length)", "reshape(len(array), -1)"),),
        ("tests/test_python_size.py::test_columns_whose_lists_are_all_empty_are_read",),
    ),
    Bug(
        "structs without a list not counted",
        "a dict for each level of a struct is nothing",
        (Edit(SIZE, "PythonSize(DICT + KEY * count)", "PythonSize(0 * count)"),),
        (f"{BOMBS}::{IN_PYTHON}[structures inside each other-in order]", "tests/test_python_size.py"),
    ),
    Bug(
        "characters of one byte",
        "a text takes in Python what it takes in UTF-8",
        (Edit(SIZE, "if text.max() < TWO_BYTES:", "if text.max() < 256:"),),
        ("tests/test_python_size.py",),
    ),
    Bug(
        "32 bits for what rows take",
        "sums of sizes have the numbers of Arrow's offsets",
        (Edit(SIZE, "np.multiply(edges[1:] - edges[:-1], each, dtype=np.int64)", "(edges[1:] - edges[:-1]) * each"),),
        ("tests/test_python_size.py",),
    ),
    Bug(
        "one heavy row ends the run",
        "a row that is too large is not left out where bad rows are",
        (Edit(CHUNK, "in self._sizes.over(self.most_bytes):", "in self._sizes.over(NO_LIMIT):"),),
        ("tests/test_python_size.py",),
    ),
    Bug(
        "chunks of a pool not counted",
        "each chunk is weighed as if it were the only one",
        (Edit(CHUNK, "else data.get_total_buffer_size())", "else 0)"),),
        (f"{BOMBS}::test_chunks_that_fit_one_by_one_are_refused_where_all_of_them_do_not",),
    ),
    Bug(
        "texts of episodes made once a row",
        "dictionaries of lists are expanded",
        (Edit("headrace/lerobot/projection.py", "read_dictionary=texts,", "read_dictionary=None,"),),
        (f"{BOMBS}::test_lists_of_texts_that_come_again_in_many_episodes_are_read_as_they_are_stored",),
    ),
    Bug(
        "decimals weighed as stored",
        "four bytes in the file are sixteen in memory",
        (Edit(WEIGHT, "decimal = 16 if", "decimal = 0 if"),),
        (f"{BOMBS}::test_decimals_are_weighed_as_they_are_in_memory",),
    ),
    # --- lines that are short and become large
    Bug(
        "lines parsed before they are weighed",
        "three bytes of JSON become 72 of Python",
        (Edit(LINES, "        held.add_json(block.data, block.stops, place.row_of(wanted[-1]))\n", ""),),
        (f"{LINE_BOMBS}::{BECOME_MUCH}[objects-shuffled]",),
    ),
    Bug(
        "lines counted at their worst",
        "lines that nobody looked at count as brackets from end to end, and other sources find no room",
        (
            Edit(
                LINE_MEMORY,
                "worst, nbytes, is_ascii = STRUCTURE * len(data), LIKELY",
                "worst, nbytes, is_ascii = 48 * len(data), 48",
            ),
        ),
        ("tests/test_memory_room.py::test_lines_are_counted_as_about_what_they_are",),
    ),
    Bug(
        "lines that nobody looks at without an end",
        "each chunk of lines is small beside what is free, and there are many",
        (Edit(LINE_MEMORY, " and self._budget.unknown() + worst <= self._budget.nbytes // UNKNOWN_SHARE", ""),),
        ("tests/test_memory_room.py::test_lines_are_counted_as_about_what_they_are",),
    ),
    Bug(
        "groups left out where memory is short",
        "what has no room now is taken for a bad row",
        (Edit("headrace/make/feed.py", NO_ROOM, NO_ROOM.replace("NoRoom", "MemoryError")),),
        ("tests/test_memory_room.py::test_no_group_is_left_out_because_others_fill_the_memory",),
    ),
    Bug(
        "episodes left out where memory is short",
        "what has no room now is taken for a bad episode",
        (Edit("headrace/lerobot/source.py", " or isinstance(error, NoRoom):", ":"),),
        ("tests/test_memory_room.py::test_no_frame_is_left_out_because_others_fill_the_memory",),
    ),
    Bug(
        "groups of lines kept without a limit",
        "chunks of lines that are kept to group them are counted by their number only",
        (Edit("headrace/make/groups.py", "> self._most_bytes\n", "> self._most_bytes << 20\n"),),
        ("tests/test_memory_room.py::test_groups_of_lines_are_kept_as_far_as_there_is_room",),
    ),
    Bug(
        "lines of a pool not counted",
        "each chunk of JSON lines is weighed as if it were the only one",
        (Edit(LINES, "found.count_as(held.kept())", "found"),),
        (f"{LINE_BOMBS}::test_chunks_of_lines_that_fit_one_by_one_are_refused_where_all_of_them_do_not",),
    ),
    Bug(
        "text not weighed",
        "lines of text are taken for small",
        (Edit(LINES, "                held.add(nbytes, COPIES * len(piece.data), row + last - 1)\n", ""),),
        (f"{LINE_BOMBS}::test_long_lines_of_text_stay_within_the_budget[shuffled]",),
    ),
    Bug(
        "a long line held",
        "a line is weighed once all of it is there",
        (Edit(LINES, "                held.check_line(at + len(block) - begin, begin)\n", ""),),
        (f"{LINE_BOMBS}::test_a_line_that_does_not_fit_is_not_held[jsonl]",),
    ),
    Bug(
        "quotes behind backslashes passed over",
        "a backslash that is escaped itself hides the end of a text, and objects behind it count as its characters",
        (
            Edit(
                LINE_MEMORY,
                "if (raw[quotes - 1] != _BACKSLASH).all():\n        return quotes\n",
                "if True:\n        return quotes[raw[quotes - 1] != _BACKSLASH]\n",
            ),
        ),
        (f"{LINE_BOMBS}::{BECOME_MUCH}[behind a backslash-shuffled]",),
    ),
    Bug(
        "a text that goes on in the next line",
        "one line that is cut off turns texts and objects round for all after it",
        (Edit(LINE_MEMORY, "    if not odd.any():\n", "    if True:\n"),),
        (f"{LINE_BOMBS}::{BECOME_MUCH}[behind a line that is cut off-shuffled]",),
    ),
    Bug(
        "characters weighed as bytes",
        "one character of four bytes makes all of a Python text four times as large",
        (Edit(LINE_MEMORY, "return int((width * sizes).sum())", "return int(sizes.sum())"),),
        (
            f"{LINE_BOMBS}::{BECOME_MUCH}[one large character-shuffled]",
            f"{LINE_BOMBS}::{BECOME_MUCH}[one large character that is escaped-shuffled]",
        ),
    ),
    # --- what is small and takes long, or becomes large
    Bug(
        "lists of a footer believed",
        "a list in a parquet footer is read by the kind that it says it has",
        (Edit("headrace/catalog/thrift.py", "    if count and item != known.item:", "    if count and item > 12:"),),
        ("tests/test_footer_check.py::test_a_footer_that_pyarrow_could_read_in_another_way_is_refused",),
    ),
    Bug(
        "merges by a tag",
        "only the key << is looked for in a card",
        (Edit("headrace/catalog/card.py", 'if getattr(event, "tag", None) not in _PLAIN:', "if not event:"),),
        ("tests/test_bad_repos.py::test_a_readme_that_means_harm_is_passed_over[a set]",),
    ),
    Bug(
        "texts of frames made once a row",
        "a value that comes again in the frames of a robot is made for each of them",
        (
            Edit(
                "headrace/lerobot/columns.py",
                "        return to_python(array)\n",
                "        return list(array.to_pylist())\n",
            ),
        ),
        (f"{BOMBS}::test_a_text_that_comes_again_in_many_frames_of_a_robot_is_there_once",),
    ),
    Bug(
        "episodes of a pool not counted",
        "each fits into the budget, and all that are held do not",
        (Edit("headrace/lerobot/items.py", "MemoryUse(bytes_of(self.columns))", "MemoryUse(0)"),),
        (f"{BOMBS}::test_episodes_of_a_robot_that_fit_one_by_one_are_refused_where_all_that_are_held_do_not",),
    ),
    Bug(
        "tasks written out to be hashed",
        "a text that comes again in many rows is there as often while the revision of a folder is made",
        (
            Edit(
                "headrace/lerobot/identity.py",
                "    _update_with_tasks(h, meta)\n    _update(h, [said,",
                "    _update(h, [meta.task_names, said,",
            ),
        ),
        (f"{ROBOT_BOMBS}::test_a_task_that_comes_again_in_many_rows_is_never_written_out",),
    ),
    Bug(
        "tasks hashed without an end",
        "how long it takes to hash texts that come again is not bounded",
        (Edit("headrace/lerobot/identity.py", "if size > MOST_TASK_BYTES:", "if size > 1000 * MOST_TASK_BYTES:"),),
        (f"{ROBOT_BOMBS}::test_tasks_that_would_take_long_to_hash_are_refused",),
    ),
    Bug(
        "columns of episodes counted by a row",
        "a column becomes Python values, and what is counted is its largest row",
        (
            Edit(
                "headrace/lerobot/projection.py",
                "sum(map(python_bytes, column.chunks)) for name",
                "max(python_bytes(c.slice(0, 1)) for c in column.chunks) for name",
            ),
        ),
        (f"{ROBOT_BOMBS}::test_a_column_of_episodes_is_counted_as_python_values[structs]",),
    ),
    Bug(
        "structs counted by their last values",
        "a dict around each value, and one around that, is not counted",
        (Edit(SIZE, "PythonSize(DICT + KEY * count)", "PythonSize(0 * count)"),),
        (f"{ROBOT_BOMBS}::test_a_column_of_episodes_is_counted_as_python_values[deep structs]",),
    ),
    Bug(
        "frames of robots counted as they are in Arrow",
        "structs in the lists of an episode are weighed by their bytes in memory",
        (Edit("headrace/lerobot/table.py", "if sizes and (total", "if not sizes and (total"),),
        (f"{ROBOT_BOMBS}::test_frames_of_an_episode_are_counted_as_python_values",),
    ),
    Bug(
        "files of metadata counted one by one",
        "each may take all of the budget",
        (Edit("headrace/lerobot/projection.py", "self._allowance.left -= kept_of", "0 * kept_of"),),
        (f"{BOMBS}::test_tables_of_episodes_that_do_not_fit_are_refused_before_they_are_decoded",),
    ),
    Bug(
        "row groups of robots kept beside the budget",
        "what several episodes share is kept up to a fixed size, and not counted",
        (
            Edit(
                "headrace/lerobot/table.py",
                "MemoryUse(nbytes))\n                kept.memory.measure_by",
                "MemoryUse(0))\n                kept.memory.measure_by",
            ),
            Edit("headrace/lerobot/table.py", "KEPT_SHARE = 4\n", "KEPT_SHARE = 0.1\n"),
        ),
        (f"{ROBOT_BOMBS}::test_row_groups_that_episodes_share_are_kept_within_the_budget",),
    ),
    Bug(
        "row groups of an episode weighed one by one",
        "each may take half of the budget, and all are held at once",
        (Edit("headrace/lerobot/table.py", "                self._check_size(nbytes, episode)\n", ""),),
        (f"{ROBOT_BOMBS}::test_an_episode_of_many_row_groups_is_refused_before_all_are_decoded",),
    ),
    Bug(
        "footer not looked at first",
        "pyarrow before 26 gets columns nested without end",
        (Edit("headrace/catalog/footer.py", "            check_footer(footer)\n", "            pass\n"),),
        ("tests/test_footer_check.py::test_a_pyarrow_that_does_not_survive_such_a_footer_never_gets_it",),
    ),
    Bug(
        "JSON in an Arrow schema not looked at",
        "pyarrow before 26 gets metadata of an extension type with lists inside each other without end",
        (Edit("headrace/catalog/thrift.py", "            _check_json(_from_base64(value))\n", ""),),
        ("tests/test_footer_check.py::test_a_footer_with_json_inside_json_without_end_never_gets_to_pyarrow",),
    ),
    Bug(
        "JSON that ends in its texts",
        "a byte that may only be in texts ends the JSON for those, too, who have it in a text",
        (Edit("headrace/catalog/brackets.py", "            levels[side] = 0\n", "            levels = [0, 0]\n"),),
        ("tests/test_footer_check.py::test_json_is_deep_wherever_it_begins",),
    ),
    Bug(
        "tokens of a template not counted",
        "only running a chat template has a budget, and not compiling it",
        (Edit("headrace/make/chat_sandbox.py", "if number == MOST_TOKENS:", "if number == 1 << 30:"),),
        (f"{COMPILED}[a list that is never made]",),
    ),
    Bug(
        "names of a template not counted",
        "jinja2 copies all names for each `if`",
        (Edit("headrace/make/chat_sandbox.py", "if len(names) > MOST_NAMES:", "if len(names) > 1 << 30:"),),
        (f"{COMPILED}[names and conditions]",),
    ),
    Bug(
        "code of a template not counted",
        "few tokens that each write out every name",
        (Edit("headrace/make/chat_sandbox.py", "if self._length > MOST_CODE:", "if self._length > 1 << 60:"),),
        (f"{COMPILED}[an include with every name]",),
    ),
    Bug(
        "values of JSON not counted",
        "only the bytes of a file from outside are limited",
        (Edit("headrace/outside_json.py", "    if found > most:", "    if found > 1 << 60:"),),
        (
            f"{VALUES}::test_metadata_of_a_robot_with_very_many_values_is_refused[objects]",
            f"{VALUES}::test_a_state_file_with_very_many_values_is_refused[run]",
        ),
    ),
    Bug(
        "values of statistics not counted",
        "one of the files of a robot is parsed as it is",
        (
            Edit(
                "headrace/lerobot/meta.py",
                "parse(raw, max(MOST_VALUES, min(room // VALUE_BYTES, MOST_STATS)))",
                "parse(raw, 1 << 60)",
            ),
        ),
        (f"{VALUES}::test_statistics_of_a_robot_with_very_many_values_are_refused[objects-100MB]",),
    ),
    Bug(
        "texts in statistics",
        "numpy makes each text of a list as long as the longest",
        (Edit("headrace/lerobot/meta.py", "value if _is_of_numbers(value) else None", "value"),),
        (f"{VALUES}::test_statistics_with_one_long_text_among_many_are_refused",),
    ),
    Bug(
        "names of files raw in the log of a loader",
        "a file that is named like an order to the terminal",
        (Edit("headrace/serve/readable.py", "rows, shown(shard, 1000), offset)", "rows, shard, offset)"),),
        (f"{RESUMES}[loader-False]",),
    ),
    Bug(
        "names of files raw in the log of rows",
        "a file that is named like an order to the terminal",
        (Edit("headrace/fetch/rows.py", "said = shown(shard, 1000)", "said = shard"),),
        (f"{RESUMES}[rows-False]",),
    ),
    Bug(
        "words that grow",
        "only the normalizer of a tokenizer is counted",
        (Edit("headrace/make/growth.py", '    words = _product(whole.get("pre_tokenizer"))', "    words = 1.0"),),
        (
            "tests/test_tokenizer_growth.py::"
            "test_a_tokenizer_that_makes_far_more_of_a_text_is_refused_where_it_is_opened",
        ),
    ),
    Bug(
        "time of a template without an end",
        "the clock is not looked at",
        (Edit("headrace/make/chat_budget.py", "- self._began > SECONDS:", "- self._began > 1000 * SECONDS:"),),
        (
            "tests/test_template_bombs.py::"
            "test_a_template_that_is_slow_in_a_way_that_is_not_counted_ends_when_its_time_is_up",
        ),
    ),
)
