"""Planted bugs of what comes from outside: servers that are away, ask for pauses, lie or never end; chat templates."""

from __future__ import annotations

from planted import Bug, Edit

RETRY, TRANSPORT = "headrace/catalog/retry.py", "headrace/catalog/transport.py"
PATIENCE = "headrace/catalog/patience.py"
OUTAGES, REPLIES = "tests/test_outages.py", "tests/test_replies.py"
CONNECTIONS = "headrace/catalog/connections.py"
HOSTS, FLOODS = "tests/test_reply_hosts.py", "tests/test_reply_floods.py"

DENSE = "tests/test_lines_bombs.py::test_dense_lines_count_as_what_they_became_where_memory_is_short"

BUDGET = "headrace/make/chat_budget.py"
SLOW_TEMPLATES = (
    "tests/test_template_bombs.py::test_templates_that_are_slow_are_stopped_by_counting_before_their_time_is_up"
)
WIDE_TEXTS = "tests/test_template_bombs.py::test_texts_count_by_their_bytes_before_they_are_made"

MISSING = "tests/test_format_media_missing.py"
ROOM, MEMORY = "tests/test_memory_room.py", "headrace/fetch/memory.py"

BUGS = (
    Bug(
        "short outage ends the run",
        "six failures in a row are enough, however soon they come",
        (Edit(RETRY, "            if now >= end or ", "            if self._failures >= 6 or "),),
        (f"{OUTAGES}::TestHowLong::test_a_storm_of_nine_minutes_costs_no_run",),
    ),
    Bug(
        "outage tried without end",
        "the time is not looked at",
        (Edit(RETRY, "            if now >= end or ", "            if now >= end + 1e9 or "),),
        (f"{OUTAGES}::TestHowLong::test_the_time_can_be_set",),
        hangs=True,
    ),
    Bug(
        "waiting worker given up",
        "its signs of life do not count",
        (Edit("headrace/serve/worker.py", "max(began, self._pulse.last())", "began"),),
        ("tests/test_worker_waits.py::test_a_pause_that_the_server_asks_for_may_be_longer_than_the_workers_limit",),
    ),
    Bug(
        "parent's connections used in a forked child",
        "the table is not begun again",
        (Edit(CONNECTIONS, "    _MANAGERS = {}\n", "    pass\n"),),
        (
            "tests/test_connections_forked.py::test_threads_of_forked_processes_use_connections_of_their_own_without_an_error",
        ),
    ),
    Bug(
        "token over plain http",
        "it goes to the endpoint, whatever lies between",
        (Edit(TRANSPORT, 'return parts.scheme == "https" or is_loopback(parts.hostname)', "return bool(parts)"),),
        (f"{REPLIES}::TestTokens::test_no_request_carries_it_over_plain_http_to_another_machine",),
    ),
    Bug(
        "token over plain http, sent by transformers",
        "it is told to send none, and sends it with a listing",
        (Edit("headrace/make/load.py", "            if _must_be_fetched(name):", "            if not name:"),),
        ("tests/test_tokenizer_token.py",),
    ),
    Bug(
        "token over plain http, sent for the files of a tokenizer",
        "they are fetched with what the client finds",
        (Edit("headrace/make/load.py", "list(_FILES), token=False)", "list(_FILES))"),),
        ("tests/test_tokenizer_token.py",),
    ),
    Bug(
        "listing from another host",
        "a redirect of the API is followed anywhere",
        (Edit(TRANSPORT, "    return host == other_host and (", "    return True or ("),),
        (f"{REPLIES}::TestRedirects::test_a_listing_is_not_redirected_to_another_host",),
    ),
    Bug(
        "listing from another host, asked for again",
        "after a 403 the rule for the API is forgotten",
        (Edit(TRANSPORT, "if_range=if_range, api=api)\n        if 200", "if_range=if_range)\n        if 200"),),
        (f"{HOSTS}::test_a_listing_is_taken_from_the_endpoint_also_when_it_is_asked_for_again",),
    ),
    Bug(
        "another host for the endpoint",
        "an address with a backslash is read in two ways",
        (
            Edit(CONNECTIONS, "    if _ODD.search(url) or ", "    if "),
            Edit(CONNECTIONS, ".netloc) or not agreed:", ".netloc):"),
            Edit(CONNECTIONS, '    if "@" in parts.netloc and not login:', "    if parts.username and not login:"),
        ),
        (f"{HOSTS}::TestAddresses::test_no_other_host_is_taken_for_the_endpoint",),
    ),
    Bug(
        "host that only the client reads otherwise",
        "what is compared is not compared with what is connected to",
        (Edit(CONNECTIONS, ".netloc) or not agreed:", ".netloc):"),),
        (f"{HOSTS}::TestAddresses::test_what_the_client_reads_otherwise_is_refused",),
    ),
    Bug(
        "empty user name",
        "it passes a test of its truth",
        (Edit(CONNECTIONS, '    if "@" in parts.netloc and not login:', "    if parts.username and not login:"),),
        (f"{HOSTS}::TestAddresses::test_no_other_host_is_taken_for_the_endpoint",),
    ),
    Bug(
        "reply that is waited for without end",
        "each silence has its limit, and all of them together have none",
        (Edit(TRANSPORT, "\nSTALLS = 4.0\n", "\nSTALLS = 400.0\n"),),
        (f"{REPLIES}::TestTime::test_all_waiting_for_a_reply_is_as_long_as_four_silences",),
        hangs=True,
    ),
    Bug(
        "reply that floods without end",
        "bytes that are no body are not counted",
        (Edit(PATIENCE, "        self._spare -= arrived\n", "        self._spare -= 0 * arrived\n"),),
        (f"{FLOODS}::test_an_answer_of_the_api_that_floods_is_given_up",),
        hangs=True,
    ),
    Bug(
        "body that counts as a flood",
        "what was read of it is not given back",
        (Edit(TRANSPORT, "                self._patience.took(len(data))\n", ""),),
        (f"{FLOODS}::test_a_large_file_in_chunks_is_read_whole",),
    ),
    Bug(
        "deadline of media that a flood does not see",
        "only the time inside of a read counts",
        (Edit("headrace/fetch/media/urls.py", "_left(deadline), ends=deadline)", "_left(deadline))"),),
        (f"{FLOODS}::test_a_media_address_that_floods_is_left_at_its_deadline",),
        hangs=True,
    ),
    Bug(
        "body unpacked whole",
        "the limit is looked at when all of a chunk was inflated",
        (Edit(TRANSPORT, "unpacker.decompress(chunk, most)", "unpacker.decompress(chunk)"),),
        ("tests/test_reply_bombs.py",),
    ),
    Bug(
        "listing of any number of pages",
        "the pages that are shipped as a limit are never reached",
        (Edit("headrace/catalog/hub.py", "\nPAGES = 5000\n", "\nPAGES = 10**9\n"),),
        (f"{REPLIES}::TestPages::test_what_is_shipped_bounds_a_listing_in_pages_time_and_memory",),
    ),
    Bug(
        "listing that may take for ever",
        "the time that is shipped as a limit is never reached",
        (Edit("headrace/catalog/hub.py", "\nLISTING_STALLS = 60.0\n", "\nLISTING_STALLS = 6e9\n"),),
        (f"{REPLIES}::TestPages::test_what_is_shipped_bounds_a_listing_in_pages_time_and_memory",),
    ),
    Bug(
        "listing of any size",
        "the memory that is shipped as a limit is never reached",
        (Edit("headrace/catalog/hub.py", "\nLISTING_BYTES = 1 << 30\n", "\nLISTING_BYTES = 1 << 60\n"),),
        (f"{REPLIES}::TestPages::test_what_is_shipped_bounds_a_listing_in_pages_time_and_memory",),
    ),
    Bug(
        "body of a redirect unpacked",
        "what nobody wants is inflated all the same",
        (Edit(TRANSPORT, "self._raw.read1(left, decode_content=False)", "self._raw.read1(left, decode_content=True)"),),
        (
            "tests/test_reply_bombs.py::test_what_is_passed_by_of_a_body_stays_packed_whatever_the_client_does_by_itself",
        ),
    ),
    Bug(
        "another client for one more question",
        "a request goes out by a package with rules of its own",
        (
            Edit(
                "headrace/catalog/hub.py",
                "import hashlib\n",
                "import hashlib\n\nfrom huggingface_hub import HfApi as HfApi\n",
            ),
        ),
        ("tests/trust/test_no_code_from_data.py::test_clients_that_connect_by_themselves_are_used_where_it_is_said",),
    ),
    Bug(
        "file of a tokenizer of any size",
        "its values are counted when all of it was read",
        (Edit("headrace/make/load.py", "read_whole(path, LARGEST_FILE)", "read_whole(path, 1 << 40)"),),
        ("tests/test_json_bombs.py::test_a_file_of_a_tokenizer_that_is_one_long_text_is_refused",),
    ),
    Bug(
        "rule that replaces one letter by a page",
        "only rules whose growth does not depend on their own text are counted",
        (Edit("headrace/make/growth.py", '    if kind == "Replace":', '    if kind == "Replace" and not rule:'),),
        (
            "tests/test_tokenizer_growth.py::"
            "test_a_tokenizer_that_makes_far_more_of_a_text_is_refused_where_it_is_opened",
        ),
    ),
    Bug(
        "number to the base of 60",
        "a README card may say 1:30 and go on",
        (
            Edit(
                "headrace/catalog/card.py",
                "elif node.tag in (",
                "elif node.tag not in (None, node.tag) and node.tag in (",
            ),
        ),
        ("tests/test_bad_repos.py",),
        hangs=True,
    ),
    Bug(
        "template without an end",
        "steps are counted and not taken off",
        (Edit("headrace/make/chat_budget.py", "        self.steps -= count\n", "        self.steps -= 0 * count\n"),),
        ("tests/test_template_bombs.py::test_a_template_stops_after_the_same_rounds_in_every_thread",),
        hangs=True,
    ),
    Bug(
        "fork while a source is opened",
        "Python 3.11's cached_property holds a lock of the class while it computes",
        (
            Edit(
                "headrace/serve/pipeline.py",
                "from headrace.lazy import cached_property\n",
                "from functools import cached_property\n",
            ),
        ),
        ("tests/test_fork_while_opening.py::test_a_child_that_is_forked_while_a_thread_opens_a_source_opens_its_own",),
        hangs=True,
    ),
    Bug(
        "files of a tokenizer as the cache has them",
        "snapshot_download gives what there is where the Hub gives no answer",
        (
            Edit(
                "headrace/make/load.py",
                "if listed and (folder.name != info.sha or not all((folder / file).is_file() for file in listed)):",
                "if False:",
            ),
            Edit("headrace/make/load.py", "if not constants.HF_HUB_OFFLINE:\n        info", "if False:\n        info"),
        ),
        ("tests/test_tokenizer_token.py::test_what_the_cache_happens_to_have_is_not_taken_where_the_hub_is_away",),
    ),
    Bug(
        "threads that others still use are ended",
        "an iterator that is closed ends the decoders of all iterators",
        (Edit("headrace/sequence/side_by_side.py", "if not self._is_over or self._users:", "if not self._is_over:"),),
        ("tests/test_side_by_side.py::test_jobs_are_done_though_others_who_share_the_threads_end",),
    ),
    Bug(
        "threads that are taken before they are needed",
        "another thread ends the decoders between the moment they are taken and the moment that is noted",
        (
            Edit(
                "headrace/sequence/side_by_side.py",
                "            self._users.add(user)  # first: from",
                "            # from",
            ),
            Edit(
                "headrace/sequence/side_by_side.py",
                "            return self._pool\n",
                "            pool = self._pool\n        self._users.add(user)\n        return pool\n",
            ),
        ),
        ("tests/test_side_by_side.py::test_threads_that_are_taken_are_ended_by_nobody_else",),
    ),
    Bug(
        "dense lines of other chunks never measured",
        "objects of a few keys count four times what they take, and a pool of them is refused",
        (Edit("headrace/fetch/memory.py", "            largest.measure()\n", "            return False\n"),),
        (f"{DENSE}[shuffled-100000000]",),
    ),
    Bug(
        "dense lines of a chunk never measured",
        "a chunk of small objects is refused, of which three would fit",
        (
            Edit(
                "headrace/fetch/line_memory.py",
                "            self._measure()\n            self._find",
                "            self._find",
            ),
        ),
        (f"{DENSE}[in order-20000000]",),
    ),
    Bug(
        "a large piece of dense lines",
        "all lines of a piece are parsed before what they take is looked at",
        (Edit("headrace/fetch/lines.py", "PIECES = 16 * STRUCTURE", "PIECES = 16"),),
        (f"{DENSE}[in order-20000000]",),
    ),
    Bug(
        "a text per key",
        "what lines became is measured with each key of each object",
        (
            Edit(
                "headrace/fetch/line_memory.py",
                "some = list(dict(zip(map(id, some), some, strict=True)).values())",
                "some = list(some)",
            ),
        ),
        ("tests/test_lines_bombs.py::test_what_rows_of_json_take_is_measured[dense]",),
    ),
    Bug(
        "words of a template in an error",
        "jinja2 quotes the tag that it does not know",
        (Edit("headrace/make/template.py", "which {what};", "which {what}: {error};"),),
        ("tests/trust/test_links.py::test_a_chat_template_that_is_none_is_not_quoted",),
    ),
    Bug(
        "an image mark too many beside a video",
        "marks that are left over are counted in one of the two spellings",
        (
            Edit(
                "headrace/make/formatters/media.py",
                "for mark in marks}) if count",
                "for mark in [_MARKS[kind]]}) if count",
            ),
        ),
        ("tests/test_format_media_missing.py::test_a_mark_for_images_that_is_left_over_beside_a_video_is_an_error",),
    ),
    Bug(
        "a long skip list in a state",
        "the recipe in a state may have fewer values than the state",
        (Edit("headrace/serve/state.py", "parse(self.recipe, MOST_VALUES)", "parse(self.recipe)"),),
        ("tests/test_bad_states.py::test_a_recipe_may_have_as_many_values_as_the_state_that_it_stands_in",),
    ),
    Bug(
        "marks of the system for media",
        "whoever writes <image> first gets it",
        (Edit("headrace/make/formatters/media.py", '        return some, {"user"}\n', "            pass\n"),),
        ("tests/test_format_media_missing.py",),
    ),
    Bug(
        "rows before a bad one held back",
        "a run of rows becomes Python values at once, or not at all",
        (
            Edit(
                "headrace/fetch/chunk.py",
                "                count = min(count, max(bad[0] - first, 1))",
                "                pass",
            ),
        ),
        ("tests/test_bad_rows.py::test_all_rows_before_a_bad_line_are_given_in_file_order",),
    ),
    Bug(
        "null in a column for images is nothing",
        "only columns that are named after the kind of media are looked at",
        (
            Edit(
                "headrace/make/fields.py",
                "name.lower() not in _ABOUT_ANYTHING)",
                'any(kind in name.lower() for kind in ("image", "video", "audio")))',
            ),
        ),
        (f"{MISSING}::test_a_mark_whose_null_column_can_be_of_its_kind_only_is_a_data_error",),
    ),
    Bug(
        "every column for media is about them",
        "rows of texts have a file that is null, too",
        (Edit("headrace/make/fields.py", "name.lower() not in _ABOUT_ANYTHING)", "True)"),),
        (f"{MISSING}::test_a_null_column_that_may_be_about_anything_loses_nothing",),
    ),
    Bug(
        "an image mark is never a word beside a video",
        "both marks stand for videos, though one of them does for all",
        (Edit("headrace/make/formatters/media.py", "for some in (marks[:1], marks):", "for some in (marks,):"),),
        (f"{MISSING}::test_a_mark_for_images_is_a_word_where_those_for_videos_stand_for_all_of_them",),
    ),
    Bug(
        "lines measured for nothing",
        "what rows take is measured wherever memory is needed, be there room or not",
        (Edit(MEMORY, "while self._room() < wanted and", "while"),),
        (f"{ROOM}::test_lines_are_not_measured_where_nothing_is_refused",),
    ),
    Bug(
        "an estimate that another thread measures is final",
        "who needs room does not wait for what it will be",
        (
            Edit(MEMORY, "    with _measuring:\n", "    if True:\n"),
            Edit(
                MEMORY,
                "nbytes = measured(self.nbytes + self.unknown)\n",
                "self._measured = None\n            nbytes = measured(self.nbytes + self.unknown)\n"
                "            self._measured = measured\n",
            ),
        ),
        (f"{ROOM}::test_who_needs_room_waits_for_who_measures",),
    ),
    Bug(
        "released memory counts again",
        "it is measured while it is let go",
        (Edit(MEMORY, "            if self._measured is not None:  # not", "            if True:  # not"),),
        (f"{ROOM}::test_what_is_released_while_it_is_measured_takes_nothing",),
    ),
    Bug(
        "a row that a caller made endless",
        "each value in it is measured again and again",
        (Edit("headrace/fetch/line_memory.py", "while values and total < most:", "while values:"),),
        (f"{ROOM}::test_rows_that_a_caller_made_endless_can_be_measured",),
        hangs=True,
    ),
    Bug(
        "a used-up chunk held while the next is read",
        "the next chunk has its place in the pool before the last one is let go",
        (
            Edit(
                "headrace/fetch/rows.py",
                "            self._tidy()\n            self._pool.fill()",
                "            self._pool.fill()",
            ),
        ),
        ("tests/test_python_size.py::test_a_chunk_that_is_used_up_is_let_go_before_the_next_is_read",),
    ),
    Bug(
        "a silent Hub is waited for without end",
        "the client of the Hub has no limit of its own",
        (Edit("headrace/make/load.py", ", timeout=constants.HF_HUB_ETAG_TIMEOUT)", ")"),),
        ("tests/test_tokenizer_token.py::test_a_hub_that_takes_connections_and_says_nothing_is_given_up",),
        hangs=True,
    ),
    Bug(
        "a lock that came along with a fork",
        "another thread had it",
        (Edit("headrace/sequence/side_by_side.py", "os.register_at_fork(after_in_child=_after_fork)\n", ""),),
        ("tests/test_side_by_side.py::test_a_process_that_is_forked_while_threads_are_taken_can_take_some",),
        hangs=True,
    ),
    Bug(
        "pictures that are not numbers",
        "what an image processor makes is not looked at",
        (
            Edit(
                "headrace/sequence/processors.py",
                "    if not _is_finite(values):\n",
                "    if False:\n",
            ),
        ),
        ("tests/test_streaming_limits.py::test_a_processor_that_divides_by_nothing_is_no_bad_row",),
    ),
    Bug(
        "texts looked for in a range",
        "only whole numbers are found without a look at each item",
        (Edit(BUDGET, "(type(where) is range and type(wanted) in _AT_ONCE)", "type(where) is range"),),
        (SLOW_TEMPLATES,),
    ),
    Bug(
        "searches from the end of a text",
        "Python begins no other way there, however often it fails",
        (Edit(BUDGET, "    if not backward and (", "    if ("),),
        (SLOW_TEMPLATES,),
    ),
    Bug(
        "characters counted for bytes",
        "an emoji takes four",
        (Edit(BUDGET, "min(4, (getsizeof(text) - _HEAD) // (len(text) + 1))", "1"),),
        (f"{WIDE_TEXTS}[a product]",),
    ),
    Bug(
        "upper case counted when it is made",
        "it takes 12 bytes for each character meanwhile",
        (Edit("headrace/make/chat_parts.py", "(1 if text.isascii() else 24)", "1"),),
        (f"{WIDE_TEXTS}[upper]",),
    ),
    Bug(
        "token for a proxy",
        "clients of others ask one also for this machine",
        (Edit(TRANSPORT, "return None if safe and _may", "return None if _may"),),
        ("tests/test_tokenizer_token.py::test_no_request_for_a_tokenizer_carries_it_to_a_proxy",),
    ),
    Bug(
        "memory that Arrow keeps for later",
        "it is not asked to give back what decoding took",
        (Edit("headrace/lerobot/table.py", "        pa.default_memory_pool().release_unused()", "        pass"),),
        ("tests/test_robot_bombs.py::test_what_arrow_keeps_of_shared_row_groups_does_not_add_up",),
    ),
)
