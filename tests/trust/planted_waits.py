"""Planted bugs of waiting: by which clock, until when, who may end it, and who is told that it goes on."""

from __future__ import annotations

from planted import Bug, Edit

RETRY, CACHE, HEARTBEAT = "headrace/catalog/retry.py", "headrace/fetch/cache.py", "headrace/fetch/heartbeat.py"
LEASES, THREADS, WALL = "headrace/fetch/leases.py", "tests/test_threads.py", "tests/trust/test_one_wall.py"
WAITS = "tests/test_transport.py::TestWaits"
WALL_CLOCK = "tests/trust/test_wall_clock.py::test_the_time_of_day_is_asked_for_only_where_others_are_told"
MONOTONIC, DAY = "time.monotonic()", "time.time()"

BUGS = (
    Bug(
        "interrupt waits for reading threads",
        "the threads of a pool are joined, and nothing ends what they wait for",
        (Edit("headrace/catalog/threads.py", "        self._stop.set()\n", ""),),
        (f"{THREADS}::test_an_interrupt_ends_the_waits_and_begins_nothing_more",),
    ),
    Bug(
        "threads that outwait who asks for them",
        "a part has a Stop of its own, which the whole does not set",
        (Edit("headrace/catalog/stop.py", "            whole._add(self.set)\n", "            pass\n"),),
        (f"{THREADS}::test_what_ends_the_one_that_asks_ends_its_threads_too",),
    ),
    Bug(
        "footers read without a sign of life",
        "the lock is touched when a footer has come",
        (
            Edit(
                "headrace/catalog/index.py",
                'Threads(READERS, "headrace-index", beat)',
                'Threads(READERS, "headrace-index")',
            ),
        ),
        (f"{THREADS}::test_who_waits_for_footers_in_an_outage_shows_life_to_the_others",),
    ),
    Bug(
        "wires gone through while others are made",
        "another thread starts a worker at that moment",
        (Edit("headrace/serve/worker.py", "list(_ENDS.values())", "_ENDS.values()"),),
        ("tests/test_workers.py::test_threads_may_start_workers_at_once",),
    ),
    Bug(
        "removal by a clock that stands still in suspend",
        "time.monotonic() is CLOCK_MONOTONIC",
        (
            Edit(
                LEASES,
                'time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()',
                "time.monotonic()",
            ),
        ),
        (f"{WALL}::test_a_removal_gives_up_when_it_took_longer_than_a_removal_may",),
    ),
    Bug(
        "disk that does not answer is silence",
        "any error is taken for a file that is gone",
        (
            Edit(
                HEARTBEAT,
                "    except OSError:\n        return False\n    seen",
                "    except OSError:\n        return True\n    seen",
            ),
        ),
        ("tests/faults/test_clocks.py::test_a_disk_that_does_not_answer_ends_no_lease",),
    ),
    Bug(
        "retries by the time of day",
        "a clock that is set ends them, or makes them endless",
        (Edit(RETRY, f"def _now() -> float:\n    return {MONOTONIC}", f"def _now() -> float:\n    return {DAY}"),),
        (WALL_CLOCK,),
    ),
    Bug(
        "turn at a download by the time of day",
        "a clock that is set makes a living owner silent",
        (
            Edit(CACHE, f"last, since, dead = -1, {MONOTONIC}, False", f"last, since, dead = -1, {DAY}, False"),
            Edit(CACHE, f"last, since = sign, {MONOTONIC}", f"last, since = sign, {DAY}"),
            Edit(CACHE, f"{MONOTONIC} - since > patience", f"{DAY} - since > patience"),
        ),
        (WALL_CLOCK,),
    ),
    Bug(
        "shard found and evicted",
        "it is looked at before the lease only",
        (
            Edit(
                CACHE,
                "if not self._leases.is_being_removed(self._key(place)) and self.looks_right(shard, place):",
                "if not self._leases.is_being_removed(self._key(place)):",
            ),
        ),
        (f"{WALL}::test_a_shard_that_is_evicted_between_look_and_lease_is_not_found",),
    ),
    Bug(
        "deadline of each attempt",
        "a medium takes as often as long as it is tried",
        (
            Edit(
                "headrace/fetch/media/urls.py",
                "_follow(hop, policy, deadline), hop.url",
                "_follow(hop, policy, time.monotonic() + policy.timeout), hop.url",
            ),
        ),
        ("tests/test_media_urls.py::TestBodies::test_attempts_at_a_body_that_breaks_off_have_one_deadline_together",),
    ),
    Bug(
        "first wish of a reply",
        "Retry-After hides what the ratelimit header says",
        (Edit(RETRY, "return max(0.0, *waits) if waits", "return max(0.0, waits[0]) if waits"),),
        (f"{WAITS}::test_waits_are_read_from_seconds_dates_and_the_ratelimit_header",),
    ),
    Bug(
        "429 without a time holds nobody",
        "no wish is taken for a wish of none",
        (
            Edit(
                "headrace/catalog/transport.py",
                "hold.ask(asked if asked is not None else 1.0)",
                "hold.ask(asked if asked is not None else 0.0)",
            ),
        ),
        (f"{WAITS}::test_a_server_that_has_had_enough_and_gives_no_time_is_left_alone_for_a_second",),
    ),
    Bug(
        "any byte is progress",
        "a server that breaks off after each byte is asked for ever",
        (Edit(RETRY, "progressed = gained > 0 and (", "progressed = gained > 0 or ("),),
        (f"{WAITS}::test_failures_are_forgotten_on_real_progress_only",),
    ),
    Bug(
        "twice the memory before a chunk is refused",
        "each chunk may take half, whatever the others take",
        (
            Edit(
                "headrace/fetch/memory.py",
                "self.nbytes + self.nbytes // 2 - self.in_use()",
                "2 * self.nbytes - self.in_use()",
            ),
        ),
        ("tests/test_parquet_bombs.py::test_a_chunk_may_take_half_of_the_budget_or_what_the_others_leave",),
    ),
    Bug(
        "lease made again for nobody",
        "it was let go meanwhile, and stays",
        (
            Edit(
                HEARTBEAT,
                "            if sign not in self._held:  # let go meanwhile, and nobody else removes it\n"
                "                with suppress(OSError):\n                    sign.path.unlink()\n",
                "",
            ),
        ),
        ("tests/test_shared_disk.py::TestHeartbeat::test_what_is_let_go_while_it_is_made_again_does_not_stay",),
    ),
    Bug(
        "lock on a file that is gone",
        "its last owner removes it between open and flock",
        (
            Edit(
                "headrace/locks.py", "                    if self._is_at_path(fd):\n", "                    if True:\n"
            ),
        ),
        (
            "tests/test_cache_shared.py::TestManyProcesses::"
            "test_a_lock_that_its_owner_removes_before_it_is_taken_is_made_again",
        ),
    ),
)
