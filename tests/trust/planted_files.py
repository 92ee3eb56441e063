"""Planted bugs of files: the user's own, the cache, downloads, what tells that a file is the same, clocks."""

from __future__ import annotations

from planted import CACHE, DOWNLOAD, FILES, PREFETCH, Bug, Edit

ORIGIN, LEASES, SIDECAR = "headrace/catalog/hub_origin.py", "headrace/fetch/leases.py", "headrace/fetch/sidecar.py"
PLAIN, IDENTITY = "headrace/catalog/plain.py", "headrace/catalog/identity.py"
USER = "tests/trust/test_user_files.py"
HEARTBEAT = "headrace/fetch/heartbeat.py"
SHARED = "tests/test_shared_disk.py"
TOUCHED = "tests/test_rows.py::test_user_files_are_never_touched"
FAULTS, CONTENT = "tests/test_download.py::TestFaults", "tests/test_download.py::TestContent"
ROT = "tests/test_cache.py::TestRot"
CHUNK, VALUES, BOMBS = "headrace/fetch/chunk.py", "headrace/fetch/values.py", "tests/test_parquet_bombs.py"
SIZES = "tests/test_python_size.py"
QUIET = "tests/test_quiet_exit.py::test_no_thread_of_pyarrow_has_a_file_of_ours_when_it_was_looked_at"
FEW = "test_values_that_come_again_are_made_once_where_few_rows_are_read_at_a_time"
BESIDE_BAD = "test_values_that_come_again_are_made_once_beside_one_that_cannot_be_read"

BUGS = (
    # --- rows are read whatever their columns are
    Bug(
        "views inside of others left as they are",
        "columns are looked at, and not what is inside of them",
        (
            Edit(
                "headrace/catalog/stored.py",
                "if pa.types.is_binary_view(kind) else _with_inside(kind, _without_views)",
                "if pa.types.is_binary_view(kind) else kind",
            ),
        ),
        ("tests/test_parquet_kinds.py::test_texts_that_are_views_are_read_and_resumed",),
    ),
    # --- rows are counted as what they are
    Bug(
        "rows counted as all that they share",
        "a row with a few words of a large dictionary is left out as too large",
        (Edit(CHUNK, "if (nbytes := row_bytes(self._data, place, arrays)) >", "if (nbytes := 1 << 60) >"),),
        (f"{SIZES}::test_rows_that_use_little_of_a_large_dictionary_are_no_bad_rows",),
    ),
    Bug(
        "words in lists counted as one",
        "a list may have many words of a dictionary, and is measured as if it had one",
        (
            Edit(
                "headrace/fetch/python_size.py", "word = together(self.word) if self.shared else 0", "word = self.word"
            ),
        ),
        (f"{SIZES}::test_what_a_few_rows_take_of_a_dictionary_in_lists_is_known",),
    ),
    Bug(
        "lists of one length as numpy's numbers",
        "a column with words of a dictionary in lists of one length cannot be read at all",
        (Edit("headrace/fetch/python_size.py", "min(word, self.shared) if isinstance(word, int) else ", ""),),
        (f"{SIZES}::test_words_in_lists_of_one_length_are_read",),
    ),
    Bug(
        "large dictionaries made as a whole",
        "a row with one word of forty has all of them made",
        (Edit(VALUES, " and dictionary.nbytes <= FEW_BYTES", ""),),
        (f"{SIZES}::test_rows_that_use_little_of_a_large_dictionary_are_no_bad_rows",),
    ),
    Bug(
        "buffers without bytes as keys",
        "a column that is empty in every row ends the run once another has a value that cannot be read",
        (Edit(VALUES, "None if part is None else part.address for", "part and part.address for"),),
        ("tests/test_bad_parquet.py::test_a_bad_value_harms_no_other_row_whatever_the_other_columns_hold",),
    ),
    Bug(
        "groups that are kept for ever",
        "the groups of several data sets fill the memory budget, and every other row is refused",
        (Edit("headrace/make/groups.py", "            kept.memory.measure_by(partial(_let_go, kept.rows))\n", ""),),
        ("tests/test_memory_room.py::test_groups_that_are_kept_for_later_make_room",),
    ),
    # --- threads of pyarrow
    Bug(
        "a file left with a thread of pyarrow",
        "a process that ends soon after a footer was looked at aborts",
        (Edit("headrace/catalog/soundness.py", "while held() is not None and", "while False and"),),
        (QUIET,),
    ),
    Bug(
        "metadata read in threads of pyarrow",
        "a process that ends soon after metadata of robots was read aborts",
        (Edit("headrace/lerobot/projection.py", "pre_buffer=False,", "pre_buffer=True,"),),
        (QUIET,),
    ),
    Bug(
        "sweep removes what came meanwhile",
        "a name that was taken in vain is given up with the file that came since",
        (
            Edit(
                "headrace/fetch/cache.py",
                "self._give_up_name(place)\n        if passed",
                "self._remove(place)\n        if passed",
            ),
        ),
        ("tests/test_cache_shared.py::TestSweep::test_a_name_whose_file_comes_while_it_is_swept_keeps_its_file",),
    ),
    # --- values that come again in a parquet file
    Bug(
        "few rows value by value",
        "a list has a text for each reference that it has into a dictionary",
        (
            Edit(
                VALUES,
                "return to_python(column.take(pa.array(rows, pa.int64())))",
                "return [column[i].as_py() for i in rows]",
            ),
        ),
        (f"{BOMBS}::{FEW}[lists-shuffled]",),
    ),
    Bug(
        "rows beside a bad value by themselves",
        "one value that cannot be read, and no other row shares what it had shared",
        (Edit(CHUNK, "return to_python(one, self._words)[0]", "return one[0].as_py()"),),
        (f"{BOMBS}::{BESIDE_BAD}[lists-loader]",),
    ),
    Bug(
        "words of a spoiled chunk made anew",
        "rows that are asked for one by one have a text each",
        (Edit(VALUES, "if number not in known:", "if number is not None:"),),
        (f"{BOMBS}::test_rows_that_are_asked_for_one_by_one_share_what_comes_again",),
    ),
    Bug(
        "single rows by themselves",
        "those that a packer holds are made again one by one",
        (
            Edit(
                "headrace/fetch/block.py",
                "_columns(chunk.picked(turns, arrays))",
                "_joined([chunk.picked([turn], arrays) for turn in turns], range(len(turns)))",
            ),
        ),
        (f"{BOMBS}::test_rows_that_are_asked_for_one_by_one_share_what_comes_again",),
    ),
    # --- what the user owns
    Bug(
        "local shard made read-only",
        "what is read is sealed, as fetched files are",
        (
            Edit(
                CACHE,
                "        if local is not None:\n            return Lease(local)\n        with stopped_by(stop):\n",
                "        if local is not None:\n            local.chmod(0o444)\n            return Lease(local)\n"
                "        with stopped_by(stop):\n",
            ),
        ),
        (f"{USER}::test_files_that_a_prefetcher_is_given_are_left_as_they_were", TOUCHED),
    ),
    Bug(
        "text file made read-only",
        "so that nobody writes to it while it is read",
        (
            Edit(
                PLAIN,
                "    return fd, Signature.of(found)\n",
                "    os.fchmod(fd, 0o444)\n    return fd, Signature.of(os.fstat(fd))\n",
            ),
        ),
        (TOUCHED, f"{USER}::test_files_of_rows_are_left_as_they_were"),
    ),
    Bug(
        "robot's files made read-only",
        "as text files are",
        (
            Edit(
                PLAIN,
                "    return fd, Signature.of(found)\n",
                "    os.fchmod(fd, 0o444)\n    return fd, Signature.of(os.fstat(fd))\n",
            ),
        ),
        (f"{USER}::test_a_robot_s_files_are_left_as_they_were",),
    ),
    Bug(
        "medium that a row names made read-only",
        "as text files are",
        (
            Edit(
                "headrace/fetch/media/paths.py",
                "        data = read_exactly(fd, 0, ",
                "        os.fchmod(fd, 0o444)\n        data = read_exactly(fd, 0, ",
            ),
        ),
        (f"{USER}::test_media_that_rows_name_their_rows_and_the_tokenizer_are_left_as_they_were",),
    ),
    Bug(
        "file in the cache that is not ours marked",
        "it is given the attribute that our own files have",
        (
            Edit(
                CACHE,
                "            ours = dataclasses.replace(ours.seen(there), ours=False)\n",
                "            os.chmod(place, 0o444)\n"
                "            ours = dataclasses.replace(ours.seen(place.lstat()), ours=False)\n",
            ),
        ),
        (f"{USER}::test_a_file_that_lay_in_the_cache_before_us_is_left_as_it_was",),
    ),
    Bug(
        "copy of our file taken for ours",
        "an attribute goes along with a copy, and says nothing of where the copy lies",
        (Edit(SIDECAR, 'if value["lies"] == lies and sidecar.file', "if sidecar.file"),),
        ("tests/test_cache_lost.py::test_what_the_user_put_there_is_never_removed",),
    ),
    # --- clocks
    Bug(
        "pause by the wall clock",
        "`time.time` for `time.monotonic`",
        (
            Edit(
                "headrace/catalog/stop.py",
                "    until = time.monotonic() + seconds\n",
                "    until = time.time() + seconds\n",
            ),
            Edit("headrace/catalog/stop.py", "until - time.monotonic()", "until - time.time()"),
        ),
        ("tests/trust/test_inherited.py::test_a_pause_is_as_long_as_it_was_asked_for_when_the_clock_jumps",),
    ),
    Bug(
        "worker given up by the wall clock",
        "`time.time` for `time.monotonic`",
        (
            Edit(
                "headrace/serve/worker.py",
                "        began = time.monotonic()\n",
                "        began = time.time()\n",
            ),
            Edit(
                "headrace/serve/worker.py",
                "+ stall_seconds - time.monotonic()\n",
                "+ stall_seconds - time.time()\n",
            ),
        ),
        ("tests/trust/test_inherited.py::test_a_worker_is_waited_for_as_long_when_the_clock_jumps",),
    ),
    Bug(
        "removal that slept goes on",
        "the time between mark and unlink is not looked at",
        (Edit(LEASES, " and _now() - began < REMOVAL_SECONDS", ""),),
        (
            "tests/trust/test_one_wall.py::test_who_slept_before_a_removal_leaves_the_file_to_those_who_no_longer_waited",
            "tests/trust/test_one_wall.py::test_a_removal_gives_up_when_it_took_longer_than_a_removal_may",
        ),
    ),
    # --- leases
    Bug(
        "leases of another machine are dead",
        "its processes are looked for on this one",
        (
            Edit(
                FILES,
                "    if host != host_tag():\n        return None\n",
                "    if host != host_tag():\n        return False\n",
            ),
        ),
        ("tests/test_cache.py::TestLeases::test_a_lease_of_another_machine_holds_until_that_is_silent",),
    ),
    Bug(
        "age of another machine's lease by the local clock",
        "the time of its file is compared with ours",
        (
            Edit(
                HEARTBEAT,
                "    seen = _SEEN.get(path)\n",
                "    return abs(time.time() - times[0] / 1e9) > (SILENT_SECONDS if limit is None else limit)\n"
                "    seen = _SEEN.get(path)\n",
            ),
        ),
        (f"{SHARED}::TestLife::test_a_living_reader_keeps_its_file_whatever_its_clock_says",),
    ),
    Bug(
        "silence judged at the first look",
        "a disk that was away for everybody ends the leases of the living",
        (Edit(HEARTBEAT, "    return now - seen.doubted >= 2 * BEAT_SECONDS\n", "    return True\n"),),
        ("tests/faults/test_clocks.py::test_a_disk_that_was_away_ends_no_lease",),
    ),
    Bug(
        "heartbeat stops after a fork",
        "the child takes the parent's thread for its own",
        (Edit(HEARTBEAT, "    global _HERE\n    _HERE = _Heartbeat()\n", "    return\n"),),
        (f"{SHARED}::TestHeartbeat::test_after_a_fork_each_shows_its_own_life",),
    ),
    Bug(
        "lost lease not taken again",
        "the reader does not look whether its lease is still there",
        (
            Edit(
                "headrace/fetch/prefetch.py",
                "(lease.grade is Grade.READ and not lease.is_lost)",
                "lease.grade is Grade.READ",
            ),
        ),
        (f"{SHARED}::TestLoss::test_who_asks_for_a_shard_that_was_lost_gets_it_again",),
    ),
    Bug(
        "stale file is an error",
        "a file that another machine removed is not fetched again",
        (
            Edit(
                "headrace/fetch/shelf.py",
                "            if not self._is_harmed(chunk.shard, error):\n",
                "            if is_stale(error) or not self._is_harmed(chunk.shard, error):\n",
            ),
        ),
        (f"{SHARED}::TestLoss::test_a_reader_that_was_suspended_reads_every_row_once",),
    ),
    Bug(
        "needs without a sign of life",
        "what a reader of another machine needs is forgotten while it reads",
        (Edit("headrace/fetch/needs.py", "        if begun and noted.sign is None:\n", "        if False:\n"),),
        (f"{SHARED}::TestLife::test_what_readers_need_counts_while_their_machine_lives",),
    ),
    Bug(
        "number of a process comes again",
        "a process is known by its number alone",
        (Edit(FILES, "        return now == int(started)\n", "        return True\n"),),
        ("tests/test_cache.py::TestLeases::test_a_lease_of_a_process_whose_number_another_has_now_holds_nothing",),
    ),
    Bug(
        "child ends its parent's lease",
        "a forked copy of a lease is released",
        (Edit(LEASES, "self._forgotten.detach() and self._pid == os.getpid() and", "self._forgotten.detach() and"),),
        ("tests/test_cache.py::TestLeases::test_a_forked_child_cannot_end_its_parents_lease",),
    ),
    Bug(
        "reader does not wait for a removal",
        "it looks for marks before it puts up its lease",
        (
            Edit(
                CACHE,
                "                self._leases.wait_for_removals(self._key(place))\n",
                "",
            ),
        ),
        ("tests/test_cache.py::TestLeases::test_a_removal_waits_for_nobody_and_a_reader_waits_for_a_removal",),
    ),
    Bug(
        "what was used last goes first",
        "places are sorted by name",
        (Edit("headrace/fetch/cache_room.py", ", key=lambda file: sidecar.last_use(file.place))", ")"),),
        ("tests/test_cache_shared.py::TestLimit::test_the_longest_unused_go_first",),
    ),
    Bug(
        "room made twice",
        "what another removed meanwhile does not count",
        (
            Edit(
                "headrace/fetch/cache_room.py",
                "(not os.path.lexists(file.place) or ",
                "(os.path.lexists(file.place) and ",
            ),
        ),
        ("tests/test_cache_limit.py::test_two_who_make_room_at_once_remove_no_more_than_one_would",),
    ),
    Bug(
        "sweep given up at close",
        "a sweep that was stopped counts as done",
        (
            Edit(
                "headrace/fetch/prefetch.py",
                "        _SWEPT.discard(key)  # the next one removes the rest\n",
                "        pass\n",
            ),
        ),
        ("tests/test_cache_left_shards.py::test_who_is_closed_while_it_removes_what_others_left_removes_all_of_it",),
    ),
    # --- downloads
    Bug(
        "resume without If-Range",
        "the rest of another content is appended",
        (Edit(ORIGIN, "if_range=f'\"{shard.etag}\"' if resumed and shard.etag else None", "if_range=None"),),
        (f"{FAULTS}::test_a_body_that_breaks_off_is_resumed_with_its_etag",),
    ),
    Bug(
        "range from another place",
        "that it is a range is enough",
        (Edit(ORIGIN, "        or int(found[1]) != start\n", ""),),
        (
            "tests/trust/test_one_wall.py::"
            "test_a_range_from_another_place_is_not_appended_where_neither_size_nor_hash_would_tell",
        ),
    ),
    Bug(
        "other etag not noticed",
        "huggingface_hub#4815",
        (
            Edit(
                ORIGIN,
                "if etag and shard.etag and etag != shard.etag:",
                "if not etag and shard.etag and etag != shard.etag:",
            ),
        ),
        ("tests/test_transport.py::TestRanges::test_another_etag_or_commit_is_a_change",),
    ),
    Bug(
        "packed body taken as it is",
        "a proxy compresses what nobody asked it to",
        (Edit(ORIGIN, 'if encoding not in ("identity", ""):', 'if encoding == "none":'),),
        ("tests/trust/test_one_wall.py::test_a_packed_body_is_not_taken_where_neither_size_nor_hash_would_tell",),
    ),
    Bug(
        "hash goes on after a restart",
        "the file begins again and its hash does not",
        (
            Edit(
                DOWNLOAD,
                "        self.size = 0\n        self._hash = _hasher(self.shard.etag, self.shard.size)\n",
                "        self.size = 0\n",
            ),
        ),
        (f"{CONTENT}::test_a_flipped_byte_is_found_and_fetched_again",),
    ),
    Bug(
        "partial file is not hashed",
        "the hash of a file that is taken over begins with its second half",
        (
            Edit(
                DOWNLOAD,
                "        elif self._hash is not None:\n            _hash_into(self._hash, self._fd, 0)\n",
                "",
            ),
        ),
        (
            "tests/test_download.py::TestContent::test_what_an_ended_process_left_is_hashed_and_only_the_rest_is_fetched",
        ),
    ),
    Bug(
        "short body is whole",
        "xet-core#800: the end of a body is the end of the file",
        (Edit(DOWNLOAD, "                part.check_size()\n", ""),),
        ("tests/test_download.py::TestFaults::test_a_body_without_length_that_ends_early_is_resumed",),
    ),
    Bug(
        "file looks the same with its time set back",
        "size and time of change are compared, which anybody can set",
        (
            Edit(
                SIDECAR,
                "return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns",
                "return found.st_ino, found.st_size, found.st_mtime_ns, 0",
            ),
        ),
        (f"{ROT}::test_a_damaged_file_is_fetched_again",),
    ),
    Bug(
        "fewer shards ahead than asked for",
        "off by one",
        (
            Edit(
                PREFETCH,
                "min(number + 1 + self._lookahead, len(self._shards))",
                "min(number + self._lookahead, len(self._shards))",
            ),
        ),
        ("tests/test_prefetch.py::TestOrder::test_lookahead_is_how_far_it_goes",),
    ),
    # --- files that are published
    Bug(
        "name of a state is not synced",
        "the folder is not written when the power goes",
        (
            Edit(
                FILES,
                "        files.rename(part, path)\n        files.fsync_dir(path.parent)\n",
                "        files.rename(part, path)\n",
            ),
        ),
        ("tests/trust/test_power_loss.py::test_a_state_is_the_old_one_or_the_new_one_after_a_crash_at_any_call",),
    ),
    Bug(
        "state is renamed before it is synced",
        "all nine peers",
        (Edit(FILES, "            files.fsync(fd)\n        finally:", "        finally:"),),
        ("tests/trust/test_power_loss.py::test_a_state_is_the_old_one_or_the_new_one_after_a_crash_at_any_call",),
    ),
    # --- whether files are the same
    Bug(
        "files with the same rows are the same",
        "their contents are not compared",
        (
            Edit(
                IDENTITY,
                "return (self.shape, self.content) == (other.shape, other.content)",
                "return self.shape == other.shape",
            ),
        ),
        ("tests/test_moved_files.py::test_parts_of_ranks_that_read_other_contents_in_as_many_rows_are_refused",),
    ),
    Bug(
        "changed file of the same size",
        "the time of its last change is left out",
        (
            Edit(
                PLAIN,
                "return cls(found.st_size, found.st_mtime_ns, found.st_ino)",
                "return cls(found.st_size, 0, found.st_ino)",
            ),
        ),
        ("tests/test_bad_changes.py::test_a_file_that_changes_before_it_is_read_is_named",),
    ),
    Bug(
        "end of a large text is not compared",
        "samples are taken at even distances, and the last one is not",
        (
            Edit(
                "headrace/catalog/lines.py",
                "if at // BLOCK % apart == 0 or at + BLOCK >= source.size:",
                "if at // BLOCK % apart == 0:",
            ),
        ),
        ("tests/test_moved_files.py::test_large_text_is_compared_by_samples_and_says_so",),
    ),
)
