"""Bugs that loaders have had, written into ours one at a time: each must turn a test red. `planted_all.py` has more.

An edit is a text that stands exactly once in a file, and what takes its place. The tests are the narrowest that should
notice; `plant.py` runs them on a copy of the tree.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    file: str
    old: str
    new: str


class Bug(NamedTuple):
    name: str
    seen_in: str
    """Where somebody had it, or how one comes to write it."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    hangs: bool = False
    """Tests that never end are how it shows."""


DOWNLOAD, CACHE, PREFETCH = "headrace/fetch/download.py", "headrace/fetch/cache.py", "headrace/fetch/prefetch.py"
TRANSPORT, POOL, FILES = "headrace/catalog/transport.py", "headrace/fetch/pool.py", "headrace/files.py"
AUDIO, PLACED = "headrace/fetch/media/audio.py", "headrace/make/formatters/media.py"
SOUND_LIMITS, MISSING = "tests/test_media_sound_limits.py", "tests/test_format_media_missing.py"

BUGS = (
    Bug(
        "skip hash",
        "huggingface_hub#3643",
        (Edit(DOWNLOAD, "if got is None or got == shard.etag:", "if True:"),),
        ("tests/test_download.py::TestContent::test_a_flipped_byte_is_found_and_fetched_again",),
    ),
    Bug(
        "shared partial name",
        "streaming#863, huggingface_hub#4228",
        (
            Edit(FILES, "{process_tag()}.{secrets.token_hex(4)}{PART}", "{host_tag()}.1.0.00000000{PART}"),
            Edit(FILES, "os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW", "os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW"),
        ),
        (
            "tests/test_cache_shared.py::TestManyProcesses::test_without_working_locks_all_is_right_but_for_the_bandwidth",
        ),
    ),
    Bug(
        "append on 200",
        "huggingface_hub#3778",
        (
            Edit(
                "headrace/catalog/hub_origin.py",
                'raise Restart(f"status {reply.status} to a request for a range")',
                "pass",
            ),
        ),
        ("tests/trust/test_one_wall.py",),
    ),
    Bug(
        "no fsync",
        "all nine peers",
        (Edit(DOWNLOAD, "            self._files.fsync(self._fd)\n", ""),),
        ("tests/test_download_disk.py::TestDisk",),
    ),
    Bug(
        "rename before verify",
        "litData#463",
        (
            Edit(
                DOWNLOAD,
                "        got = part.digest()\n",
                "        if not part._named:\n"
                "            part._files.rename(part._path, part._target)\n"
                "            part._named = True\n"
                "        got = part.digest()\n",
            ),
        ),
        ("tests/test_download.py::TestContent::test_wrong_bytes_for_good_are_an_error_with_nothing_published",),
    ),
    Bug(
        "refcount after read",
        "litData#846",
        (
            Edit(
                CACHE,
                "            lease = self._lease(place)\n            try:\n",
                "            lease = Lease(place)\n            try:\n",
            ),
            Edit(
                CACHE,
                "                    return lease\n            except",
                "                    return self._lease(place)\n            except",
            ),
        ),
        ("tests/trust/test_one_wall.py",),
    ),
    Bug(
        "state at table end",
        "datasets#8145, datasets#8359",
        (
            Edit(
                "headrace/fetch/cursor.py",
                "        mark, done = self._blocks[0]\n",
                "        return self.pool.state_dict()\n",
            ),
        ),
        ("tests/test_cursor.py",),
    ),
    Bug(
        "forget shuffle buffer",
        "datasets#7901",
        (Edit(POOL, '"s": [[p - origin, left] for p, left in slots],', '"s": [],'),),
        ("tests/test_pool.py::test_a_state_at_any_draw_goes_on_exactly",),
    ),
    Bug(
        "rank files not checked",
        "Megatron-Bridge#5637, torchtitan#811",
        (Edit("headrace/serve/state.py", "    whole.lane_states()\n", ""),),
        ("tests/test_topology.py::test_a_state_that_lacks_a_rank_is_refused",),
    ),
    Bug(
        "retry on 404",
        "datasets#7440",
        (Edit("headrace/catalog/retry.py", "HEALS = frozenset({408, ", "HEALS = frozenset({404, 408, "),),
        ("tests/test_download.py::TestFaults::test_a_file_that_is_not_there_fails_with_one_request",),
    ),
    Bug(
        "token on redirect",
        "huggingface_hub#1345, unsloth#7382",
        (Edit(TRANSPORT, "extra = self._for_home(if_range) if at_home else {}", "extra = self._for_home(if_range)"),),
        ("tests/test_transport_trust.py::TestRedirects::test_the_token_stays_with_the_endpoint",),
    ),
    Bug(
        "`startswith` containment",
        "datasets' tar check",
        (
            Edit(
                "headrace/fetch/media/paths.py", 'path.startswith(folder.rstrip("/") + "/")', "path.startswith(folder)"
            ),
        ),
        ("tests/test_media_abuse.py::test_a_name_is_refused_by_a_rule",),
    ),
    Bug(
        "follow redirect unchecked",
        "vllm#57157",
        (
            Edit(
                "headrace/fetch/media/urls.py",
                "        found = _checked(url, policy)\n",
                "        parts = split_url(url)\n"
                "        port = parts.port or PORTS.get(parts.scheme, 80)\n"
                '        found = Hop(parts.scheme, parts.hostname or "", port, parts.path or "/", plain_url(url))\n',
            ),
        ),
        ("tests/test_media_urls.py::TestRedirects::test_they_are_checked_like_the_first_address",),
    ),
    Bug(
        "autodetect demuxer",
        "CVE-2016-1897, CVE-2026-107697",
        (
            Edit("headrace/fetch/media/ffmpeg.py", "            format=name,\n", ""),
            Edit("headrace/fetch/media/ffmpeg.py", '        "format_whitelist": name,\n', ""),
            Edit(
                "headrace/fetch/media/ffmpeg.py",
                "    name = container_format(data, kind)\n",
                '    name = "mov" if data[4:8] == b"ftyp" else ""\n',
            ),
        ),
        ("tests/test_media_abuse.py::test_content_is_refused_by_a_rule",),
    ),
    Bug(
        "swallow RuntimeError",
        "lerobot#4066",
        (
            Edit(
                "headrace/serve/worker.py",
                "            batch = None if lane is None else lane.next(self.m, receipt=receipt)\n",
                "            batch = None if lane is None else lane.next(self.m, receipt=receipt)\n"
                "        except RuntimeError:\n"
                "            return None\n",
            ),
        ),
        ("tests/test_worker_death.py::test_an_error_in_a_row_is_raised_once_with_its_address_and_is_never_the_end",),
    ),
    Bug(
        "daemon thread at exit",
        "streaming#386, cpython#129536",
        (Edit(PREFETCH, "        weakref.finalize(self, desk.close)\n", ""),),
        ("tests/test_prefetch_end.py::TestEnd::test_the_interpreter_exits_in_time_also_mid_download",),
    ),
    Bug(
        "lock inherited on fork",
        "fsspec#2073, litData#823",
        (
            Edit(
                PREFETCH,
                "        if self._desk.pid != os.getpid():\n            # Forked",
                "        if False:\n            # Forked",
            ),
        ),
        ("tests/test_prefetch_end.py::TestFork",),
    ),
    Bug(
        "evict user file",
        "streaming#988",
        (Edit(CACHE, "            if found is not None and found.ours:\n", "            if found is not None:\n"),),
        ("tests/test_cache.py::TestRot::test_a_file_that_is_not_ours_is_used_if_right_and_left_alone_in_any_case",),
    ),
    Bug(
        "drop remainder",
        "grain 0.2.17, litData's rounding",
        (
            Edit(
                "headrace/fetch/plan.py",
                "            found = (turn * n // lanes, (turn + 1) * n // lanes)\n",
                "            found = (turn * (n // lanes), (turn + 1) * (n // lanes))\n",
            ),
        ),
        ("tests/test_plan.py::test_every_row_has_exactly_one_position_in_exactly_one_lane",),
    ),
    Bug(
        "epoch not sent to workers",
        "datasets#6673",
        (
            Edit(
                "headrace/serve/crew.py",
                "states=states, worker=worker.number",
                "epoch=0, states=states, worker=worker.number",
            ),
        ),
        ("tests/test_workers.py::test_any_number_of_workers_gives_the_same_batches_epoch_after_epoch[rows-2-True]",),
    ),
    # --- robot episodes
    Bug(
        "frame by its global index",
        "lerobot#3080",
        (Edit("headrace/lerobot/items.py", 'episode.columns["frame_index"][r]', 'episode.columns["index"][r]'),),
        ("tests/test_robot_parity.py::test_without_windows",),
    ),
    Bug(
        "missing frames not missed",
        "lerobot#4066, refiner#194",
        (
            Edit("headrace/lerobot/videos.py", " or max(wanted) >= track.num_frames:\n", ":\n"),
            Edit(
                "headrace/lerobot/videos.py",
                "wanted = [first + frame for frame in frames]",
                "wanted = [min(first + frame, track.num_frames - 1) for frame in frames]",
            ),
            Edit("headrace/lerobot/videos.py", "(0.5 / fps if frame == 0 else self._tolerance_s)", "9.0"),
        ),
        ("tests/test_robot_parity.py::test_missing_frames_are_said_with_file_episode_and_frame",),
    ),
    Bug(
        "times of frames not checked",
        "lerobot#2364",
        (
            Edit(
                "headrace/lerobot/videos.py",
                "if frame == 0 else self._tolerance_s)",
                "if frame == 0 else 9.0)",
            ),
        ),
        ("tests/test_robot_parity.py::test_a_video_of_another_rate_is_said_with_its_distance",),
    ),
    Bug(
        "window beyond its episode",
        "lerobot's delta_timestamps",
        (Edit("headrace/lerobot/windows.py", "np.clip(wanted, 0, length - 1)", "np.minimum(wanted, length - 1)"),),
        ("tests/test_robot_parity.py::test_with_past_and_future_windows_on_all_keys",),
    ),
    Bug(
        "decoder shared with a fork",
        "lerobot#2488",
        (Edit("headrace/lerobot/decoders.py", "        pid = os.getpid()\n", "        pid = 0\n"),),
        ("tests/test_decoders_forked.py::test_a_forked_child_begins_with_none_and_leaves_its_parent_s_alone",),
    ),
    Bug(
        "episode dealt to two lanes",
        "strands-labs/robots#2151",
        (
            Edit(
                "headrace/fetch/plan.py",
                "            if self.rules.atomic:\n                found",
                "            if False:\n                found",
            ),
        ),
        ("tests/trust/test_machine_pool.py",),
    ),
    Bug(
        "template that climbs out",
        "CVE-2026-15717",
        (
            Edit(
                "headrace/lerobot/template.py",
                '        made._path(dict.fromkeys(names, "0"))\n',
                "",
            ),
            Edit("headrace/lerobot/template.py", "            safe_parts(found)\n", "            pass\n"),
        ),
        ("tests/test_lerobot_meta.py::test_a_template_can_do_nothing_but_place_numbers",),
    ),
    Bug(
        "no limit while a sound is decoded",
        "a red team",
        (Edit(AUDIO, "        _require_length(got, channels, rate, budget)\n", ""),),
        (f"{SOUND_LIMITS}::test_decoding_stops_soon_after_a_limit_is_passed",),
    ),
    Bug(
        "no limit while FFmpeg decodes a sound",
        "a red team",
        (Edit(AUDIO, "        _require_length(got, most, rate, clock.budget)\n", ""),),
        (f"{SOUND_LIMITS}::test_ffmpeg_stops_soon_after_a_limit_is_passed",),
    ),
    Bug(
        "samples not counted",
        "148 kB of FLAC at 655,350 Hz took 5 GB",
        (Edit(AUDIO, '"max_samples", samples * channels, "the', '"max_samples", 0, "the'),),
        (f"{SOUND_LIMITS}::test_decoding_stops_soon_after_a_limit_is_passed",),
    ),
    Bug(
        "channels not counted",
        "a red team",
        (Edit(AUDIO, '"max_samples", samples * channels, "the', '"max_samples", samples, "the'),),
        (f"{SOUND_LIMITS}::test_what_a_header_announces_is_refused_before_anything_is_decoded",),
    ),
    Bug(
        "what the resampler makes not counted",
        "a red team",
        (Edit(AUDIO, "both = len(wave) + len(wave) * sample_rate // rate", "both = len(wave)"),),
        (f"{SOUND_LIMITS}::test_a_sound_of_too_many_samples_is_refused_within_twice_its_memory",),
    ),
    Bug(
        "header not asked",
        "a red team",
        (Edit(AUDIO, '_COUNTED = ("wav", "flac", "aiff")', "_COUNTED = ()"),),
        (f"{SOUND_LIMITS}::test_what_a_header_announces_is_refused_before_anything_is_decoded",),
    ),
    Bug(
        "samples checked before resampling only",
        "finite samples of 3.3e38 came out as NaN",
        (Edit(AUDIO, "    if not _are_numbers(found):\n", "    if not _are_numbers(wave):\n"),),
        (f"{SOUND_LIMITS}::test_samples_that_resampling_makes_no_numbers_are_a_data_error",),
    ),
    Bug(
        "spectrogram not checked",
        "finite samples of 3.3e38 came out as NaN",
        (Edit("headrace/fetch/media/mel.py", "    if not np.isfinite(found.max()):", "    if False:"),),
        (f"{SOUND_LIMITS}::test_a_spectrogram_that_is_no_numbers_is_a_data_error",),
    ),
    Bug(
        "lost image is a text",
        "all rows dropped: FAI-RL#81",
        (Edit(PLACED, "    if not (given or about) or is_optional(row, kind):\n", "    if True:\n"),),
        (f"{MISSING}::test_a_row_without_what_it_is_about_is_a_data_error",),
    ),
    Bug(
        "mapped image may be missing",
        "a red team",
        (Edit(PLACED, "    if not (given or about) or", "    if not about or"),),
        (f"{MISSING}::test_a_medium_that_the_map_names_has_to_be_there",),
    ),
    Bug(
        "hole in a list of images closed",
        "a red team",
        (Edit(PLACED, "if at is not None and not is_optional(row, kind):", "if False:"),),
        (f"{MISSING}::test_a_list_with_a_hole_is_a_data_error",),
    ),
    Bug(
        "batches need files in memory",
        "sandboxes without memfd_create",
        (Edit("headrace/serve/wire.py", 'memory_file("headrace")', 'os.memfd_create("headrace")'),),
        ("tests/test_no_memfd.py::test_workers_send_their_batches_all_the_same",),
    ),
    Bug(
        "a column of pixels made wide first",
        "32 kB of PNG took 13 GB",
        (Edit("headrace/fetch/media/tensors.py", "_MOST_BETWEEN = 1 << 24", "_MOST_BETWEEN = 1 << 60"),),
        ("tests/test_media_tall.py::test_a_column_of_pixels_is_made_a_square_within_its_memory",),
    ),
)
