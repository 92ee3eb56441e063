"""Planted bugs of states and resumes: what was delivered, re-deals, ends of epochs, limits, rows left out."""

from __future__ import annotations

from planted import Bug, Edit

LANE, LOADER, EPOCH = "headrace/serve/lane.py", "headrace/serve/loader.py", "headrace/serve/epoch.py"
STATE, RESUME, REDEAL = "headrace/serve/state.py", "headrace/serve/resume.py", "headrace/serve/redeal.py"
POOL, FAULTS, VERIFY = "headrace/fetch/pool.py", "headrace/make/faults.py", "headrace/serve/verify.py"
EVERYWHERE = "tests/test_resume_everywhere.py::test_a_resume_after_every_micro_batch_goes_on_exactly"
TOPOLOGY = "tests/test_topology.py"
ENDS = "tests/test_epoch_ends.py"
DATASET_STEPS = (
    "tests/test_loader_dataset.py::test_a_dataset_that_resumes_has_as_many_steps_as_one_that_was_not_stopped"
)
AS_MANY_STEPS = "test_a_run_that_resumes_near_the_end_of_an_epoch_has_as_many_steps_as_one_that_was_not_stopped"
PLACES = "tests/test_resume_places.py"

BUGS = (
    # --- what a state says was delivered
    Bug(
        "receipt before its batch counts",
        "the count is raised one line too late",
        (
            Edit(
                LANE,
                "        self._given += 1\n"
                "        batch.m = m\n"
                '        batch.receipt = self.receipt = self._receipt() if receipt else b""\n',
                "        batch.m = m\n"
                '        batch.receipt = self.receipt = self._receipt() if receipt else b""\n'
                "        self._given += 1\n",
            ),
        ),
        (f"{EVERYWHERE}[best fit]", f"{PLACES}::test_a_lane_keeps_the_laws_of_stages"),
    ),
    Bug(
        "slots of a block one row behind",
        "off by one between the row that is given and those given before it",
        (Edit(POOL, "np.bincount(done.picks[:given], ", "np.bincount(done.picks[: given - 1], "),),
        (f"{EVERYWHERE}[rows]",),
    ),
    Bug(
        "digest without the last row",
        "off by one; only `verify` looks at it",
        (Edit(POOL, "done.positions[:given])", "done.positions[: given - 1])"),),
        ("tests/test_verify.py::test_every_state_of_a_run_is_reachable[rows]",),
    ),
    Bug(
        "last sample of a row lost",
        "`<` for `<=` where a row of several samples is cut by the end of a round",
        (Edit("headrace/sequence/pack.py", "        if sub <= last:\n", "        if sub < last:\n"),),
        ("tests/test_packing.py::test_every_token_of_every_sample_comes_once_and_a_resume_packs_the_same",),
    ),
    Bug(
        "held pieces not saved",
        "datasets#7901, for a packer",
        (
            Edit(
                "headrace/sequence/pack.py",
                '"held": [list(piece[:6]) for piece in self._held],',
                '"held": [],',
            ),
        ),
        (f"{EVERYWHERE}[best fit]",),
    ),
    Bug(
        "round that failed begins again",
        "state that a retry needs is cleared first",
        (
            Edit(
                "headrace/sequence/pack.py",
                "        self._fill(take)\n        out = self._chosen(rounds %",
                "        self._full = []\n        self._fill(take)\n        out = self._chosen(rounds %",
            ),
        ),
        ("tests/test_packing.py::test_a_round_that_fails_at_any_row_goes_on_with_what_it_had",),
    ),
    Bug(
        "step of one rank only",
        "`m + 1` where `m` counts the micro-batches of all ranks",
        (Edit(LOADER, "m = batch.m - self._rank + self._ranks\n", "m = batch.m + 1\n"),),
        (f"{TOPOLOGY}::test_the_parts_of_all_ranks_are_one_state_in_any_order",),
    ),
    Bug(
        "earlier state at an epoch's end",
        "the newest of two places with one number is taken",
        (Edit(LOADER, "return found[1] if begins and len(found) > 1 else found[0]", "return found[0]"),),
        (f"{PLACES}::test_states_can_be_had_over_the_end_of_an_epoch",),
    ),
    Bug(
        "earlier state with facts of now",
        "the lanes of then with the origins of now",
        (
            Edit(
                LOADER,
                'replace(saved, **{"facts": _as_they_were(saved.facts, facts), **told})',
                "replace(saved, **told)",
            ),
        ),
        (f"{PLACES}::test_states_can_be_had_over_the_end_of_an_epoch",),
    ),
    Bug(
        "one step less is kept",
        "off by one",
        (Edit(LOADER, "deque(maxlen=KEPT_STEPS)", "deque(maxlen=KEPT_STEPS - 1)"),),
        (f"{PLACES}::test_the_states_of_the_last_64_steps_can_still_be_had",),
    ),
    # --- a state that was damaged, or is of something else
    Bug(
        "checksum over some fields",
        "numbers are thought to be checked elsewhere",
        (Edit(STATE, "for key in sorted(KEYS):", "for key in sorted(KEYS - set(NUMBERS)):"),),
        ("tests/test_bad_states.py::test_the_checksum_is_over_every_field_and_every_number_in_it",),
    ),
    Bug(
        "state without a checksum taken",
        "a missing field means an old state",
        (Edit(STATE, "if state.get(CHECKSUM) != found:", "if state.get(CHECKSUM, found) != found:"),),
        ("tests/test_bad_states.py::test_a_state_whose_checksum_is_missing_or_another_is_refused",),
    ),
    Bug(
        "parts of two steps joined",
        "Megatron-Bridge#5604",
        (Edit(STATE, '(*same, "size", "m", "m_plan",', '(*same, "size", "m_plan",'),),
        (f"{TOPOLOGY}::test_parts_of_different_steps_are_refused",),
    ),
    Bug(
        "parts of other data joined",
        "only steps are compared",
        (Edit(STATE, "        _check_same_data(rank, one.kept, first.kept)\n", ""),),
        ("tests/test_bad_counts.py::test_parts_that_do_not_go_together_are_named",),
    ),
    Bug(
        "verify without digests",
        "a field left out of the list that is compared",
        (Edit(VERIFY, '"d": "digest", ', ""),),
        ("tests/test_verify.py::test_what_is_off_in_a_state_is_found_and_named",),
    ),
    Bug(
        "verify misses what waits twice",
        "a check that is written and not called",
        (Edit(VERIFY, "[*self._turns(), *self._pieces_twice()]", "[*self._turns()]"),),
        ("tests/test_verify.py::test_what_is_off_in_a_state_is_found_and_named",),
    ),
    # --- re-deal
    Bug(
        "half a chunk dealt whole",
        "what is left of a chunk is taken for all of it",
        (
            Edit(
                REDEAL,
                "(slot.position, slot.position + slot.left)",
                "(slot.chunk.start, slot.position + slot.left)",
            ),
        ),
        (f"{TOPOLOGY}::test_every_change_of_topology_gives_every_token_exactly_once[rows]",),
    ),
    Bug(
        "rest of rows not dealt",
        "two kinds of pieces wait, one is forgotten",
        (Edit(REDEAL, 'for piece in lane["rest"]]', 'for piece in lane["rest"][:0]]'),),
        (f"{TOPOLOGY}::test_chains_of_five_changes_end_with_everything_given_once",),
    ),
    Bug(
        "passes that were dealt are forgotten",
        "the highest pass that was entered, not the highest that was dealt",
        (Edit(REDEAL, "max(max([pool.epoch, *pool.explicit]) for", "max(pool.epoch for"),),
        (f"{TOPOLOGY}::test_what_was_dealt_of_passes_to_come_is_dealt_again_before_anybody_has_entered_them",),
    ),
    Bug(
        "counts shared out by rounding down",
        "grain 0.2.17, for what is counted",
        (Edit(REDEAL, "[total * (j + 1) // parts - total * j // parts for", "[total // parts for"),),
        ("tests/test_limits.py::test_a_re_deal_shares_out_all_that_was_counted",),
    ),
    Bug(
        "same stream after a re-deal",
        "the generation is carried over",
        (Edit(REDEAL, "max(pool.generation for pool in pools) + 1", "max(pool.generation for pool in pools)"),),
        ("tests/test_verify.py::test_states_are_reachable_through_a_chain_of_other_numbers_of_ranks[rows]",),
    ),
    # --- a state of another recipe
    Bug(
        "row read again in two lanes",
        "each lane looks at its own pieces",
        (Edit(RESUME, "for piece in pieces) if row not in seen]", "for piece in pieces)]"),),
        ("tests/test_resume_changes.py::test_a_row_whose_samples_wait_in_two_lanes_is_read_again_once",),
    ),
    Bug(
        "debts of other weights",
        "credits are kept when weights change",
        (Edit(RESUME, "same_weights = in_order and _weights(saved, pipeline)", "same_weights = in_order"),),
        ("tests/test_resume_changes.py::test_other_weights_owe_nobody_anything",),
    ),
    # --- ends of epochs
    Bug(
        "tail that is to be dropped is given",
        "rounded up in both cases",
        (Edit(EPOCH, "return things // of if drop else -(-things // of)", "return -(-things // of)"),),
        (f"{TOPOLOGY}::test_a_tail_is_dropped_or_filled_up_whatever_the_topology_was",),
    ),
    Bug(
        "second vote on one step",
        "a step that failed is asked about again, and others do not answer",
        (Edit(EPOCH, " and step not in self._votes:\n", ":\n"),),
        ("tests/test_epoch_ends.py::test_a_rank_whose_step_fails_and_is_tried_again_ends_with_the_others",),
    ),
    Bug(
        "votes before a resume forgotten",
        "a run that resumes at the end of an epoch fills slots for longer than one that was not stopped",
        (Edit(EPOCH, "Settled(self._word(m, given, over))", "Settled(GOING)"),),
        (f"{ENDS}::{AS_MANY_STEPS}[best fit-pad]",),
    ),
    Bug(
        "last rows that give nothing",
        "a lane whose end was found late counts as over a round before",
        (Edit(LANE, '"o": OVER_LATE if self._over and self._over_late else', '"o":'),),
        (f"{ENDS}::{AS_MANY_STEPS}[last documents empty-pad]",),
    ),
    Bug(
        "word of a rank that was elsewhere",
        "a rank takes what it knows of other ranks' lanes for what they have come to since",
        (Edit(EPOCH, "            if place.is_whole:\n", "            if True:\n"),),
        (
            "tests/test_loader_dataset.py::"
            "test_what_is_taken_of_a_loader_in_the_middle_ends_at_the_same_step_on_every_rank",
        ),
    ),
    Bug(
        "lanes that began with the first epoch",
        "a dataset's state of a later epoch is counted from the start of the run, and the epoch ends too early",
        (Edit("headrace/serve/dataset.py", "m=place.m + later, m_plan=plan, m_epoch=begun)", "m_epoch=begun)"),),
        (f"{DATASET_STEPS}[rows-drop-1]",),
    ),
    Bug(
        "lanes told by where they begin",
        "the rest of an epoch that was dealt anew begins where a later round of all of it does",
        (
            Edit(
                "headrace/serve/dataset.py",
                "if (plan, begun) == (place.m_plan, place.m_epoch):",
                "if plan == place.m_plan:",
            ),
        ),
        ("tests/test_loader_dataset.py::test_a_dataset_of_other_lanes_refuses_a_state_of_lanes_that_were_dealt_anew",),
    ),
    Bug(
        "lane passed by forgotten",
        "one rank alone does not save what a lane found that had nothing to give",
        (
            Edit(
                "headrace/serve/steps.py",
                "made.batch.receipts, self._passed = self._passed, {}",
                "made.batch.receipts, self._passed = {lane: self._passed[lane]}, {}",
            ),
        ),
        (f"{ENDS}::test_a_lane_that_a_skipped_step_emptied_stays_empty_after_a_resume",),
    ),
    Bug(
        "filled slot that failed counts",
        "it is tried again, and counted again",
        (Edit(LANE, "            if items is None:  # it was not given", "            if False:  # it was not given"),),
        ("tests/test_loader_dataset.py::test_what_fills_a_slot_and_fails_is_tried_again_and_counts_once",),
    ),
    Bug(
        "vote only on the step to come",
        "ranks that resumed their own lanes do not say again what they said before",
        (Edit(EPOCH, "for step in range(about, m + 1, self._ranks):", "for step in (m,):"),),
        (f"{DATASET_STEPS}[tokens-pad-3]",),
    ),
    Bug(
        "epoch begins in the middle of a round",
        "the number of the next micro-batch is not rounded to the lanes",
        (
            Edit(
                EPOCH,
                "m = -(-(place.m if end is None else end) // lanes) * lanes  #",
                "m = place.m if end is None else end  #",
            ),
        ),
        (f"{PLACES}::test_an_epoch_is_the_same_from_wherever_it_was_gone_to",),
    ),
    Bug(
        "what fills a slot is learned",
        "padding has labels",
        (Edit(LANE, "silent = np.zeros(pack.seq_len", "silent = np.ones(pack.seq_len"),),
        (f"{TOPOLOGY}::test_what_only_fills_a_step_is_marked_and_teaches_nothing",),
    ),
    Bug(
        "filled slot not marked",
        "a batch that only fills a step counts like others",
        (Edit(LANE, "        batch.pad = True\n", ""),),
        (f"{TOPOLOGY}::test_what_only_fills_a_step_is_marked_and_teaches_nothing",),
    ),
    Bug(
        "filled step of samples is learned",
        "the labels of the first sample stay",
        (
            Edit(
                LANE,
                '        if self.pipeline.samples is not None and "labels" in batch:\n'
                '            batch["labels"].fill_(IGNORED)\n',
                "",
            ),
        ),
        ("tests/test_streaming_limits.py::test_a_step_that_is_only_filled_has_no_labels_to_learn_from",),
    ),
    # --- limits
    Bug(
        "token limit of each epoch",
        "counts start again with an epoch, and the limit is of the run",
        (Edit(EPOCH, '[{**one, "tok": lane_of(old)["tok"]} for one, old', "[dict(one) for one, _"),),
        ("tests/test_limits.py::test_a_token_limit_counts_over_all_epochs",),
    ),
    Bug(
        "document that reaches a limit is whole",
        "the limit is looked at before a document, not in it",
        (
            Edit(
                "headrace/mix/mixer.py",
                "        return row._replace(most=left), left\n",
                "        return row, tokens\n",
            ),
        ),
        ("tests/test_limits.py::test_documents_longer_than_a_lanes_share_are_cut_and_the_limit_is_given_exactly",),
    ),
    Bug(
        "limit of rows in each pass",
        "what was given in passes before is not taken off",
        (Edit("headrace/fetch/plan.py", "min(num_rows, limit - epoch * num_rows)", "min(num_rows, limit)"),),
        ("tests/test_limits.py::test_a_row_limit_and_a_number_of_passes_count_over_all_epochs_and_re_deals",),
    ),
    # --- rows that are left out
    Bug(
        "one bad row more than the budget",
        "`>` for `>=`",
        (Edit(FAULTS, "if len(self._places) >= budget:", "if len(self._places) > budget:"),),
        ("tests/test_bad_rows.py::test_more_rows_than_the_budget_stop_the_run_at_the_same_place_after_a_resume",),
    ),
    Bug(
        "bad row counts in each pass",
        "it is not looked up before it is counted",
        (Edit(FAULTS, "if self._all_pass or place in self._places:", "if self._all_pass:"),),
        ("tests/test_bad_rows.py::test_a_row_that_comes_in_every_pass_counts_once",),
    ),
    Bug(
        "bad rows forgotten at a resume",
        "the budget begins again",
        (Edit(FAULTS, "= dict.fromkeys(places_in(state)), []", "= {}, []"),),
        ("tests/test_bad_rows.py::test_more_rows_than_the_budget_stop_the_run_at_the_same_place_after_a_resume",),
    ),
    Bug(
        "bad rows forgotten at an epoch",
        "fresh lanes have none",
        (Edit(EPOCH, "    _keep_faults(place, states, m)\n", ""),),
        ("tests/test_bad_rows.py::test_epochs_of_the_trainer_count_rows_over_the_whole_run",),
    ),
    Bug(
        "skip list counts from the chunk",
        "numbers in the shard are taken for numbers in the chunk",
        (Edit(FAULTS, "dtype=np.int64) - chunk.first", "dtype=np.int64)"),),
        ("tests/test_packing.py::test_rows_on_the_skip_list_are_left_out_in_every_pass",),
    ),
    Bug(
        "skip list of the first pass",
        "what is remembered is not told apart by pass",
        (Edit(FAULTS, "key = order.epoch, chunk.start", "key = 0, chunk.start"),),
        ("tests/test_packing.py::test_rows_on_the_skip_list_are_left_out_in_every_pass",),
    ),
    Bug(
        "one bad sample more than the budget",
        "`>` for `>=`",
        (Edit("headrace/sequence/samples.py", "self.skipped >= self._faults", "self.skipped > self._faults"),),
        ("tests/test_streaming_limits.py::test_one_bad_row_more_than_the_budget_is_an_error",),
    ),
)
