"""Planted bugs of processes: workers, devices, wrappers of other packages, the command line."""

from __future__ import annotations

from planted import Bug, Edit

WORKER, DEVICE, WRAPPERS = "headrace/serve/worker.py", "headrace/serve/device.py", "headrace/serve/wrappers.py"
STEPS = "headrace/serve/steps.py"

BUGS = (
    Bug(
        "a fork waits for its parent's threads",
        "a process that is forked while decoders are at work, and fails, never ends",
        (Edit("headrace/sequence/side_by_side.py", "if not done and process == os.getpid():", "if not done:"),),
        ("tests/test_side_by_side.py::test_a_fork_in_the_midst_of_jobs_waits_for_no_thread_of_its_parent",),
    ),
    Bug(
        "length of an array without axes",
        "a video that is a single number is a TypeError, which a run that skips bad rows does not skip",
        (Edit("headrace/sequence/finish.py", ' and getattr(video, "shape", None) != ()', ""),),
        ("tests/test_sample_totals.py::test_an_array_without_axes_is_no_video",),
    ),
    Bug(
        "batch of the job before",
        "what a worker made before it was told to go elsewhere is taken",
        (Edit(WORKER, "            if message[0] != self._job:\n                continue\n", ""),),
        ("tests/test_workers.py::test_a_loop_left_early_goes_on_with_the_next_one[2-True]",),
    ),
    Bug(
        "stuck worker outlives the trainer",
        "whether the trainer lives is looked at between two batches only",
        (
            Edit(
                WORKER,
                'threading.Thread(target=_watch, args=(os.getppid(),), name="headrace-watch", daemon=True).start()',
                "pass",
            ),
        ),
        ("tests/test_worker_death.py::test_a_worker_that_is_stuck_does_not_outlive_a_killed_trainer",),
    ),
    Bug(
        "worker's error without a batch's number",
        "an error of a worker ends the epoch",
        (Edit(WORKER, "                raise self._failed(*message[1:])\n", "                raise StopIteration\n"),),
        ("tests/test_worker_death.py::test_an_error_in_a_row_is_raised_once_with_its_address_and_is_never_the_end",),
    ),
    Bug(
        "trainer's handlers run in workers",
        "streaming: a signal saves checkpoints in every worker",
        (Edit(WORKER, "    for number in _TRAINERS:\n        signal.signal(number, signal.SIG_IGN)\n", ""),),
        ("tests/test_workers.py::test_a_worker_keeps_the_trainers_signal_handlers_from_running",),
    ),
    Bug(
        "interrupted step is not taken back",
        "a batch that was taken and never given is lost",
        (Edit(STEPS, "        if self._is_torn:\n", "        if False:\n"),),
        ("tests/test_workers.py::test_an_interrupt_at_any_line_loses_and_repeats_no_batch[0]",),
    ),
    Bug(
        "torn message",
        "the length of an array is taken for where it ends",
        (Edit("headrace/serve/wire.py", "        at += -at % ALIGN\n        parts.append(", "        parts.append("),),
        ("tests/test_wire.py::test_plain_values_arrive_as_they_were",),
    ),
    # --- devices
    Bug(
        "error overtakes batches",
        "it is raised while batches before it are under way",
        (
            Edit(
                DEVICE,
                "        except Exception as error:\n            self._error = error\n",
                "        except Exception:\n            raise\n",
            ),
        ),
        ("tests/test_device.py::test_an_error_comes_after_the_batches_before_it_and_the_next_call_tries_again",),
    ),
    Bug(
        "attributes stay behind",
        "`cu_seqlens` is on the CPU and the tokens are not",
        (
            Edit(
                DEVICE,
                "batch.with_attributes(partial(_moved_value, move=move)) if isinstance(batch, Batch) else copy(batch)",
                "copy(batch)",
            ),
        ),
        ("tests/test_device.py::test_where_documents_begin_goes_along_to_the_device",),
    ),
    Bug(
        "copy is not waited for",
        "the work on a batch begins before it is there",
        (Edit(DEVICE, "            self._road.receive(mark, tensors)\n", ""),),
        ("tests/test_device.py::test_the_next_copies_are_under_way_and_not_waited_for",),
    ),
    # --- wrappers
    Bug(
        "reader ahead is not known",
        "Accelerate holds one batch back, and the state says that it was trained on",
        (Edit(WRAPPERS, 'READERS = ("DataLoaderShard", ', "READERS = ("),),
        ("tests/test_wrappers.py::test_under_accelerate_plain_states_are_refused_and_at_gives_the_right_one",),
    ),
    Bug(
        "data split twice",
        "one of two classes that split data is not known: all ranks get the part of the first",
        (
            Edit(
                WRAPPERS,
                'SPLITTERS = ("IterableDatasetShard", "DataLoaderDispatcher")',
                'SPLITTERS = ("IterableDatasetShard",)',
            ),
        ),
        ("tests/test_wrappers.py::test_data_that_ranks_share_already_is_not_split_again_by_accelerate",),
        hangs=True,
    ),
    # --- the command line
    Bug(
        "verify ends with 0",
        "a script goes on with a state that cannot be",
        (Edit("headrace/tools/verify.py", "        raise typer.Exit(1)\n", "        return\n"),),
        ("tests/test_state_files.py::test_verify_says_which_lane_cannot_be_where_it_is",),
    ),
    Bug(
        "rows of the step after",
        "off by one from a state",
        (Edit("headrace/tools/rows.py", "(saved.m if step.startswith", "(saved.m + 1 if step.startswith"),),
        ("tests/test_state_files.py::test_the_rows_of_a_step_to_come_are_those_that_come",),
    ),
    Bug(
        "rows begin one row late",
        "off by one",
        (Edit("headrace/tools/rows.py", '{"sample_index": skip}', '{"sample_index": skip + 1}'),),
        ("tests/test_demo.py::test_rows_can_be_looked_at_from_the_command_line",),
    ),
)
