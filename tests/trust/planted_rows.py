"""Planted bugs for rows of the reliability table that no other bug is about: processes, states, sources, abuse."""

from __future__ import annotations

from planted import Bug, Edit

WORKER = "headrace/serve/worker.py"

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
)
