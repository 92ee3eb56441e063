"""Planted bugs of the order: random streams, plans, pools and mixes."""

from __future__ import annotations

from planted import Bug, Edit

RNG, PLAN, POOL = "headrace/rng.py", "headrace/fetch/plan.py", "headrace/fetch/pool.py"
MIXER, WEIGHTS = "headrace/mix/mixer.py", "headrace/mix/weights.py"
GOLDEN = "tests/trust/test_golden.py::test_the_first_thousand_rows_come_in_the_order_of_the_first_release"

BUGS = (
    Bug(
        "draw by the remainder",
        "`%` for a product; blocks are drawn in another way",
        (Edit(RNG, "return ((mix64(stream, k) >> 32) * n) >> 32", "return mix64(stream, k) % n"),),
        ("tests/test_rng.py::test_a_block_is_its_draws_one_by_one",),
    ),
    Bug(
        "names hashed by Python",
        "`hash` of a string is another one in each process",
        (
            Edit(
                RNG,
                'return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), '
                'digest_size=8).digest(), "big")',
                "return hash(text) & MASK",
            ),
        ),
        ("tests/trust/test_golden.py::test_the_order_hangs_on_no_hash_seed_locale_time_zone_or_threads",),
    ),
    Bug(
        "library's permutation",
        "numpy does not promise the same stream in its next version",
        (
            Edit(
                RNG,
                "return np.argsort(mix64_block(stream, 0, n))",
                "return np.random.default_rng(stream).permutation(n)",
            ),
        ),
        (GOLDEN,),
    ),
    Bug(
        "digest of a set",
        "a sum does not tell orders apart",
        (Edit(RNG, "powers[1:] = np.uint64(DIGEST_FACTOR)", "powers[1:] = 1"),),
        ("tests/test_rng.py::test_a_digest_does_not_depend_on_how_it_was_cut",),
    ),
    Bug(
        "small source for the first lanes only",
        "the shares are not turned from pass to pass",
        (Edit(PLAN, "if self.rules.shuffle or n < lanes:", "if self.rules.shuffle:"),),
        ("tests/test_plan.py::test_a_source_smaller_than_the_lanes_reaches_every_lane_in_turn",),
    ),
    Bug(
        "rows of a chunk in the same order each pass",
        "the pass is left out of a key",
        (
            Edit(
                PLAN,
                "rng.key(r.seed, r.source, self.epoch, chunk.shard, chunk.first)",
                "rng.key(r.seed, r.source, 0, chunk.shard, chunk.first)",
            ),
        ),
        ("tests/test_plan.py::test_epochs_differ_and_an_epoch_repeats",),
    ),
    Bug(
        "slice named by its row group",
        "litData#810: rows of a slice have the addresses of the first one",
        (Edit(PLAN, "shard, group, first + skip, skip,", "shard, group, first, skip,"),),
        ("tests/test_rows.py::test_every_row_is_what_its_address_says",),
    ),
    Bug(
        "all lanes draw alike",
        "the lane is left out of a key",
        (Edit(POOL, '"pool", self.lane, self.generation, epoch)', '"pool", 0, self.generation, epoch)'),),
        ("tests/test_pool.py::test_the_draws_are_those_of_the_specification",),
    ),
    Bug(
        "pool not put back whole",
        "one field of a mark is forgotten",
        (Edit(POOL, "        self._at, self._more = mark.at, mark.more\n", "        self._at = mark.at\n"),),
        ("tests/test_pool.py::test_a_mark_brings_a_pool_back",),
    ),
    Bug(
        "half a fill stays",
        "an error on the way to the next chunk leaves what was done before it",
        (Edit(POOL, "            self.go_to(mark)\n            raise\n", "            raise\n"),),
        ("tests/test_cursor.py::test_counts_that_come_at_the_second_try_make_no_difference",),
    ),
    Bug(
        "range that was dealt is left half",
        "the first of several ranges is taken for all",
        (
            Edit(
                POOL,
                "[(position, self.ranges[part][1]), *self.ranges[part + 1 :]]",
                "[(position, self.ranges[part][1])]",
            ),
        ),
        (
            "tests/trust/test_machine_pool.py::test_lanes_together_draw_every_row_of_every_pass_once_whatever_happens_to_them",
        ),
    ),
    Bug(
        "cost shared with those that ended",
        "credits flow to sources that can give nothing for them",
        (Edit(WEIGHTS, "    for i in active:\n        out[i] +=", "    for i in range(len(out)):\n        out[i] +="),),
        ("tests/test_weights.py::test_credits_add_up_to_the_same_and_stay_bounded",),
    ),
    Bug(
        "all lanes begin with one source",
        "ties go to the first in the list",
        (Edit(WEIGHTS, "-((i - lane) % n)))", "-i))"),),
        ("tests/test_mixing.py::test_lanes_do_not_all_begin_with_the_same_source",),
    ),
    Bug(
        "debts through a schedule's change",
        "credits of the weights before are kept",
        (Edit(MIXER, "self._weights(m - self._lanes) != weights:", "False:"),),
        ("tests/test_mixing.py::test_after_a_change_of_weights_nobody_owes_anybody_anything",),
    ),
    Bug(
        "change of weights one batch late",
        "`<` for `<=`",
        (Edit(WEIGHTS, "if change.at <= m]", "if change.at < m]"),),
        ("tests/test_weights.py::test_a_change_holds_from_its_micro_batch_until_the_next",),
    ),
    Bug(
        "ended source goes on after a resume",
        "who has ended is not saved",
        (Edit(MIXER, '"off": sorted(self._off), "tok"', '"off": [], "tok"'),),
        ("tests/test_mixing.py::test_a_pass_until_the_first_source_ends_resumes_exactly_on_several_lanes",),
    ),
    Bug(
        "tokens counted when mixed by rows only",
        "the counts that limits need are left out of the state",
        (Edit(MIXER, '"tok": list(self._tokens)}', '"tok": [0] * len(self._tokens)}'),),
        ("tests/test_limits.py::test_a_resume_on_the_same_ranks_gives_the_same_batches",),
    ),
    Bug(
        "dropped row costs its source a turn",
        "the cost is taken before it is known whether there is a sample",
        (
            Edit(
                MIXER,
                "                self.dropped += 1\n",
                "                self.dropped += 1\n"
                "                self._credits = settle(self._credits, weights, self._active, i, 1)\n",
            ),
        ),
        (
            "tests/trust/test_machine_mix.py::test_a_mixer_that_is_restored_at_any_row_goes_on_as_one_that_was_left_alone",
        ),
    ),
)
