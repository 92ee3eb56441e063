"""Planted bugs for rows of the reliability table that no other bug is about: processes, states, sources, abuse."""

from __future__ import annotations

from planted import Bug, Edit

BAD_COLUMNS = "tests/test_bad_columns.py"
STATES, BAD_STATES = "headrace/serve/state.py", "tests/test_bad_states.py"
FOOTER, WORKER = "headrace/catalog/footer.py", "headrace/serve/worker.py"
ABUSE, HOSTILE = "tests/test_media_abuse.py", "tests/trust/test_hostile_data.py"

BUGS = (
    # --- T12 to T25: processes that die, and few resources
    Bug(
        "marks of ended removals stay",
        "only leases are looked at when what dead processes left is removed",
        (
            Edit(
                "headrace/fetch/leases.py",
                "        if not alive:\n",
                "        if not alive and path.suffix != REMOVING:\n",
            ),
        ),
        (
            "tests/test_crash_points.py::"
            "test_a_kill_at_any_system_call_leaves_nothing_that_a_rerun_does_not_put_right[clean up-15]",
        ),
    ),
    Bug(
        "partial files of an index stay",
        "who writes it next has a name of its own for them",
        (Edit("headrace/files.py", "            _remove_orphans(path.parent)\n", "            pass\n"),),
        ("tests/test_processes.py::test_a_kill_while_the_index_is_written_leaves_the_old_or_the_new_one",),
    ),
    Bug(
        "lock of each process for itself",
        "its name has the number of the process in it, as the names of partial files have",
        (
            Edit(
                "headrace/fetch/leases.py",
                'Lock(self.folder / f"{key}{LOCK}")',
                'Lock(self.folder / f"{key}.{os.getpid()}{LOCK}")',
            ),
        ),
        ("tests/trust/test_herd.py::test_a_herd_waits_for_one_slow_download_and_makes_no_other",),
    ),
    Bug(
        "slow downloader taken for one that hangs",
        "it is waited for so many seconds, whatever it shows meanwhile",
        (
            Edit(
                "headrace/fetch/cache.py",
                "                last, since = sign, time.monotonic()\n",
                "                last = sign\n",
            ),
        ),
        ("tests/trust/test_herd.py::test_a_herd_waits_for_one_slow_download_and_makes_no_other",),
    ),
    Bug(
        "bytes of a stopped downloader taken over",
        "it goes on some day, and writes to what has another owner",
        (
            Edit(
                "headrace/fetch/download.py",
                'if not is_orphan(path) or _stem_in(entry.name) != f".{short}":',
                'if _stem_in(entry.name) != f".{short}":',
            ),
        ),
        (
            "tests/test_cache_shared.py::TestManyProcesses::"
            "test_when_the_downloader_is_stopped_another_takes_over_in_time",
        ),
    ),
    Bug(
        "bytes of a killed downloader thrown away",
        "what a dead process left is only cleaned up",
        (
            Edit(
                "headrace/fetch/download.py",
                "            if self._fd >= 0:\n                remove",
                "            if True:\n                remove",
            ),
        ),
        (
            "tests/test_cache_shared.py::TestManyProcesses::"
            "test_when_the_downloader_is_killed_another_goes_on_where_it_was",
        ),
    ),
    Bug(
        "workers that outlive a killed trainer",
        "a fork has the trainer's ends of the wires too, and compares its parent of now with itself",
        (
            Edit(WORKER, "    for end in inherited:\n        end.close()\n", ""),
            Edit(WORKER, "    return os.getppid() == parent and (", "    return os.getppid() == os.getppid() or ("),
        ),
        ("tests/test_worker_death.py::test_workers_do_not_outlive_a_killed_trainer[fork-5]",),
    ),
    Bug(
        "dead worker asked again",
        "the workers of a loop that failed are kept for the next one",
        (
            Edit(
                "headrace/serve/loader.py",
                "if self._serving.persistent_workers and not broken and self._crew is None:",
                "if self._serving.persistent_workers and self._crew is None:",
            ),
        ),
        (
            "tests/test_worker_death.py::"
            "test_a_killed_worker_is_named_at_once_and_the_same_iterator_goes_on_exactly[9-rows-True]",
        ),
    ),
    Bug(
        "message whose file found no room",
        "the kernel drops a descriptor where no more files may be open, and says so in a flag only",
        (Edit("headrace/serve/wire.py", "if flags & socket.MSG_CTRUNC:", "if flags & socket.MSG_TRUNC:"),),
        ("tests/test_wire.py::test_no_room_for_another_open_file_is_said",),
    ),
    # --- B2 to B10: states
    Bug(
        "newer state is no state",
        "the formats that are known are checked before it is asked which of them is newer",
        (Edit(STATES, "type(found) is not int or found < 1:", "type(found) is not int or not 1 <= found <= FORMAT:"),),
        (f"{BAD_STATES}::test_a_state_of_a_newer_version_says_to_upgrade",),
    ),
    Bug(
        "state of the next version taken",
        "the number of the format to come for that of this one",
        (Edit(STATES, "    if found > FORMAT:\n", "    if found > FORMAT + 1:\n"),),
        (f"{BAD_STATES}::test_a_state_of_a_newer_version_says_to_upgrade",),
    ),
    Bug(
        "credits of the first format as they were",
        "lanes of old states that were dealt anew owe only together what adds up to nothing",
        (Edit("headrace/serve/check.py", "if saved.format > 1 or of_samples", "if saved.format > 0 or of_samples"),),
        (f"{BAD_STATES}::test_credits_of_the_first_format_that_add_up_to_nothing_only_together_are_settled",),
    ),
    Bug(
        "old state without a checksum refused",
        "each state is taken to have what this version writes",
        (Edit(STATES, 'if state["format"] == 1:\n', 'if state["format"] < 1:\n'),),
        ("tests/trust/test_golden.py::test_a_state_of_any_version_goes_on_as_it_did[0.1.0-rows]",),
    ),
    Bug(
        "first difference only",
        "whoever sets it back is told the next one at the next start",
        (Edit("headrace/serve/resume.py", "f\"{'; '.join(differ)}: rows", 'f"{differ[0]}: rows'),),
        (f"{BAD_STATES}::test_a_state_of_other_data_names_what_differs",),
    ),
    Bug(
        "lane that gave too few micro-batches",
        "a lane may be behind where it is over, and who goes on without an end has none that are",
        (
            Edit(
                "headrace/serve/check.py",
                "        if n > due or (n < due and exact):\n",
                "        if n > due:\n",
            ),
        ),
        (f"{BAD_STATES}::test_a_number_that_is_off_by_one_is_noticed_wherever_it_stands[endless rows]",),
    ),
    Bug(
        "fields of a checkpoint taken for those of a state",
        "what is not known is refused, and a trainer keeps its own beside it",
        (
            Edit(
                STATES,
                "sorted(key for key in KEYS if key not in state)",
                "sorted(str(key) for key in KEYS ^ (state.keys() - {CHECKSUM}))",
            ),
        ),
        (f"{BAD_STATES}::test_a_checkpoints_own_fields_beside_the_state_are_left_alone",),
    ),
    Bug(
        "state from the very start refused",
        "an epoch that has just begun has given as many micro-batches as when it began",
        (
            Edit(
                STATES,
                'if numbers["m"] < max(numbers["m_plan"], numbers["m_epoch"])',
                'if numbers["m"] <= max(numbers["m_plan"], numbers["m_epoch"])',
            ),
        ),
        (f"{BAD_STATES}::test_states_from_the_very_start_and_the_end_of_an_epoch_work",),
    ),
    Bug(
        "revision of a state raw in an error",
        "what a message is about is put into it as it is",
        (
            Edit(
                "headrace/catalog/open.py",
                "revision: {shown(revision)!r} is not a commit",
                "revision: {revision} is not a commit",
            ),
        ),
        ("tests/test_hostile_states.py::test_a_revision_in_a_state_is_a_commit_or_nothing_is_asked",),
    ),
    Bug(
        "field of a state raw in an error",
        "Python's own message is quoted, with the name that it could not use",
        (
            Edit(
                "headrace/serve/pipeline.py",
                "does not say how its sources were read: {shown(error)}",
                "does not say how its sources were read: {error}",
            ),
        ),
        ("tests/test_hostile_states.py::test_names_of_fields_in_a_state_are_shown_escaped",),
    ),
    # --- B13 to B21: sources
    Bug(
        "columns of the first shard only",
        "a later shard that has one more is read without it",
        (
            Edit(
                "headrace/catalog/schemas.py",
                "[*first, *(name for name in found if name not in first)]",
                "list(first)",
            ),
        ),
        (f"{BAD_COLUMNS}::test_shards_that_do_not_agree_are_named_both_with_the_column[a column more-False]",),
    ),
    Bug(
        "source without a row in silence",
        "no rows are looked for as no count of them",
        (
            Edit(
                "headrace/fetch/doors.py",
                'reading.rules.coordinate == "rows" and not index.num_rows:',
                'reading.rules.coordinate == "rows" and index.num_rows is None:',
            ),
        ),
        ("tests/test_bad_input.py::test_a_source_without_a_single_row_has_none_and_says_so[parquet]",),
    ),
    Bug(
        "checksums of pages not looked at",
        "the default of pyarrow",
        (
            Edit(
                "headrace/fetch/parquet.py",
                "page_checksum_verification=True",
                "page_checksum_verification=False",
            ),
        ),
        ("tests/test_bad_parquet.py::test_one_flipped_bit_under_a_checksum_is_found_and_only_where_it_is_read",),
    ),
    Bug(
        "NaN in a line of JSON",
        "the default of Python",
        (
            Edit(
                "headrace/fetch/lines.py",
                "object_hook=count, parse_constant=_refuse_constant)",
                "object_hook=count)",
            ),
        ),
        ("tests/test_lines_faults.py::test_a_bad_json_line_is_named_by_file_row_line_and_byte[NaN]",),
    ),
    Bug(
        "bytes that are no text given as text",
        "Arrow looks at the letters only where all is to be validated",
        (Edit("headrace/fetch/lines.py", "column.validate(full=True)", "column.validate()"),),
        ("tests/test_lines_faults.py::test_text_in_another_encoding_is_named_by_row_line_and_byte",),
    ),
    Bug(
        "file that changes under pyarrow",
        "it is looked at before a chunk is read only",
        (
            Edit(
                "headrace/fetch/parquet.py",
                "            memory.release()\n        self._check_plain()\n",
                "            memory.release()\n",
            ),
        ),
        ("tests/test_bad_changes.py::test_a_file_that_is_rewritten_while_one_chunk_of_it_is_read_is_named",),
    ),
    Bug(
        "open file by its time only",
        "who writes may set it back, as rsync and tar do",
        (
            Edit(
                "headrace/catalog/plain.py",
                "        if found != self.signature:\n",
                "        if found.mtime_ns != self.signature.mtime_ns:\n",
            ),
        ),
        (
            "tests/test_bad_changes.py::"
            "test_a_file_that_changes_while_it_is_read_gives_its_own_rows_or_is_named[grows with its old time-txt]",
        ),
    ),
    Bug(
        "pipe taken for a file",
        "only folders are asked about",
        (
            Edit(
                "headrace/catalog/plain.py",
                "    if stat.S_ISREG(found.st_mode):\n        return\n    if",
                "    if not stat.S_ISDIR(found.st_mode):\n        return\n    if",
            ),
        ),
        ("tests/test_bad_input.py::test_what_is_not_a_regular_file_is_named_and_never_waited_for[fifo-False-txt]",),
    ),
    Bug(
        "state of the file before",
        "its name is compared, which is all that a branch of a repo needs",
        (
            Edit(
                "headrace/fetch/resume.py",
                "        require_same(index, before, trust)\n        return index\n",
                "        return index\n",
            ),
        ),
        ("tests/test_bad_changes.py::test_a_file_replaced_between_epochs_is_counted_anew_and_fits_no_state[txt]",),
    ),
    Bug(
        "robot of a version to come",
        "only older ones are refused",
        (Edit("headrace/lerobot/info.py", "    if version[0] > 3:\n", "    if version[0] > 9:\n"),),
        ("tests/test_lerobot_meta.py::test_info_with_a_wrong_field_names_the_file_and_the_field[v4.0]",),
    ),
    # --- B27 to B29: media and settings
    Bug(
        "number of frames as the file announces it",
        "FFmpeg passes on what the header says",
        (
            Edit(
                "headrace/fetch/media/video.py",
                "sorted(keys), len(times), _seconds",
                "sorted(keys), stream.frames or len(times), _seconds",
            ),
        ),
        ("tests/test_media_video.py::test_frames_that_are_only_announced_are_not_waited_for[stream of avi]",),
    ),
    Bug(
        "room for the first shard",
        "the others are taken to be as large",
        (
            Edit(
                "headrace/fetch/sources.py",
                "    largest = int(index.shard_bytes.argmax())\n",
                "    largest = 0\n",
            ),
        ),
        (
            "tests/test_bad_config.py::"
            "test_a_cache_smaller_than_the_largest_shard_is_refused_before_anything_is_fetched",
        ),
    ),
    Bug(
        "ranks counted from 1",
        "the last of them is as high as the world size",
        (Edit("headrace/run.py", "if not 0 <= pair[0] < pair[1]:", "if not 0 <= pair[0] <= pair[1]:"),),
        ("tests/test_bad_config.py::test_settings_that_cannot_be_are_refused_by_name[a rank beyond the world]",),
    ),
    # --- B33 to B50: abuse
    Bug(
        "file opened again by its name",
        "what was looked at and what is read are two files, where a link comes in between",
        (
            Edit(
                "headrace/fetch/media/paths.py",
                'os.open(f"/proc/self/fd/{handle}", _READ)',
                'os.open(f"{home}/{name}", _READ)',
            ),
        ),
        (f"{ABUSE}::TestSwaps::test_what_was_looked_at_is_what_is_read",),
    ),
    Bug(
        "first address of a host only",
        "a connection goes on to the next one where the first does not answer",
        (
            Edit(
                "headrace/fetch/media/addresses.py",
                "for address in found if not is_public(address)]",
                "for address in found[:1] if not is_public(address)]",
            ),
        ),
        (
            "tests/test_media_urls.py::TestAddresses::test_a_private_address_is_refused_even_among_public_ones[10.0.0.1]",
        ),
    ),
    Bug(
        "pickle of an extension type loaded",
        "CVE-2023-47248",
        (
            Edit(
                FOOTER,
                "        schema = meta.schema.to_arrow_schema()\n",
                "        schema = meta.schema.to_arrow_schema()\n"
                "        for field in schema:\n"
                '            if b"ARROW:extension:metadata" in (field.metadata or {}):\n'
                '                __import__("pickle").loads(field.metadata[b"ARROW:extension:metadata"])\n',
            ),
        ),
        (f"{HOSTILE}::test_an_extension_type_that_is_a_pickle_is_not_run",),
    ),
    Bug(
        "pickle in the place of a file loaded",
        "torch and NumPy go by the first bytes of a file",
        (
            Edit(
                FOOTER,
                "    magic = tail[-4:]\n",
                '    magic = tail[-4:]\n    if tail.startswith(b"\\x80"):\n        __import__("pickle").loads(tail)\n',
            ),
        ),
        (f"{HOSTILE}::test_files_that_run_something_elsewhere_are_rows_or_an_error_here[pickle-parquet]",),
    ),
    Bug(
        "name that climbs out of the cache",
        "CVE-2026-15717",
        (Edit("headrace/catalog/shard.py", 'part in ("", ".", "..")', 'part in ("", ".")'),),
        ("tests/test_cache.py::TestPlaces::test_a_name_that_leads_out_or_is_ours_is_refused[../x]",),
    ),
    Bug(
        "letters of a name counted for bytes",
        "a disk counts bytes",
        (
            Edit(
                "headrace/catalog/shard.py",
                'len(part.encode("utf-8", "surrogatepass")) > 255',
                "len(part) > 255",
            ),
        ),
        ("tests/test_replies.py::test_a_path_that_no_disk_takes_is_refused",),
    ),
    Bug(
        "pipe waited for as a sidecar",
        "an open waits until somebody writes to it",
        (
            Edit(
                "headrace/fetch/sidecar.py",
                "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC",
                "os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC",
            ),
        ),
        (
            "tests/trust/test_cache_safety.py::"
            "test_what_is_planted_in_the_cache_holds_nobody_up_and_harms_no_victim[sidecar-fifo]",
        ),
    ),
)
