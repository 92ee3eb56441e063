"""Planted bugs of robot data and of videos by frames."""

from __future__ import annotations

from planted import Bug, Edit

WINDOWS, VIDEOS, ITEMS = "headrace/lerobot/windows.py", "headrace/lerobot/videos.py", "headrace/lerobot/items.py"
MP4 = "headrace/fetch/media/mp4.py"
PARITY = "tests/test_robot_parity.py"
ALL_KEYS = f"{PARITY}::test_with_past_and_future_windows_on_all_keys"

BUGS = (
    Bug(
        "seconds cut down to frames",
        "0.7 s of 30 a second are 20.999999999999996 frames",
        (Edit(WINDOWS, "frames = np.rint(times * fps)", "frames = np.floor(times * fps)"),),
        (f"{PARITY}::test_seconds_fall_on_the_frame_that_is_meant",),
    ),
    Bug(
        "first row behind an episode is no padding",
        "`>` for `>=`",
        (Edit(WINDOWS, "(wanted >= length)", "(wanted > length)"),),
        (ALL_KEYS,),
    ),
    Bug(
        "time between two frames taken",
        "lerobot's check of delta_timestamps left out",
        (Edit(WINDOWS, "        if len(off):\n", "        if len(off) < 0:\n"),),
        (f"{PARITY}::test_wrong_arguments_are_said_at_once",),
    ),
    Bug(
        "next frame for the nearest",
        "times that drift lead one frame on",
        (
            Edit(
                VIDEOS,
                "    if number and (number == len(times) or wanted - times[number - 1] <= times[number] - wanted):\n",
                "    if number and number == len(times):\n",
            ),
        ),
        ("tests/test_robot_parity.py::test_dirty_data_survives",),
    ),
    Bug(
        "frame of the next episode",
        "that an episode is shorter in its video is not noticed",
        (Edit(VIDEOS, "if max(frames) >= (end - start) * self._meta.info.fps - 0.5:", "if max(frames) < 0:"),),
        (f"{PARITY}::test_a_frame_of_the_next_episode_is_never_given_for_a_missing_one",),
    ),
    Bug(
        "divided by a deviation of nothing",
        "a value that never changes becomes NaN",
        (Edit(ITEMS, "return first, torch.where(span > 0, span, torch.ones_like(span))", "return first, span"),),
        ("tests/test_robot_source.py::test_a_value_that_never_changes_is_only_moved_where_values_are_scaled",),
    ),
    Bug(
        "flags of a window keep their old name",
        "a feature is renamed and its padding is not",
        (
            Edit(
                ITEMS,
                'names = self._rename | {f"{old}_is_pad": f"{new}_is_pad" for old, new in self._rename.items()}',
                "names = self._rename",
            ),
        ),
        ("tests/test_robot_source.py::test_the_flags_of_a_window_are_renamed_with_it",),
    ),
    Bug(
        "values that share memory with the episode",
        "a transform in place changes what comes next time",
        (Edit(ITEMS, "return tensor[row].clone() if rows is None", "return tensor[row] if rows is None"),),
        (f"{PARITY}::test_what_is_written_into_an_item_changes_no_other",),
    ),
    Bug(
        "rank begins with its lanes of the start",
        "where the run is, is left out",
        (
            Edit(
                "headrace/serve/going.py",
                "own = [(place.m + rank + turn * ranks) % lanes for",
                "own = [(rank + turn * ranks) % lanes for",
            ),
        ),
        ("tests/test_topology.py::test_chains_of_five_changes_end_with_everything_given_once[rows]",),
    ),
    # --- videos
    Bug(
        "frames in the order of decoding",
        "a video with B-frames is shown in another order than it is stored in",
        (Edit(MP4, 'order = np.argsort(shown_at, kind="stable")', "order = np.arange(len(shown_at))"),),
        ("tests/test_frames.py::test_pixels_are_those_of_a_plain_decode_in_whatever_order_they_are_asked_for",),
    ),
    Bug(
        "edit list not followed",
        "frames that are not shown are counted",
        (Edit(MP4, "    if edits is not None and number(edits, 4):\n", "    if False:\n"),),
        ("tests/test_mp4.py::test_the_table_is_the_one_that_ffmpeg_reads",),
    ),
    Bug(
        "frames of a video without the last",
        "np.linspace with an open end",
        (
            Edit(
                "headrace/fetch/media/video.py",
                "return [i * (count - 1) // (most - 1) for i in range(most)]",
                "return [i * count // most for i in range(most)]",
            ),
        ),
        ("tests/test_media_video.py::test_frames_are_spread_from_first_to_last",),
    ),
    Bug(
        "row groups of an episode read in two ways",
        "memory is short from the second of them on, and values stay in their dictionaries",
        (Edit("headrace/lerobot/table.py", "if parts and batch.schema != parts[0].schema:", "if not self._columns:"),),
        (
            "tests/test_robot_bombs.py::"
            "test_an_episode_is_whole_where_the_reader_leaves_values_in_dictionaries_from_one_of_its_row_groups_on",
        ),
    ),
)
