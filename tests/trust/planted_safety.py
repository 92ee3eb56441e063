"""Planted bugs of what must not happen: secrets and names in messages, folders of others, states of something else."""

from __future__ import annotations

from planted import FILES, MISSING, PLACED, Bug, Edit

ERRORS, LOGBOOK = "headrace/errors.py", "headrace/serve/logbook.py"
NO_CODE = "tests/trust/test_no_code_from_data.py::test_the_package_has_nothing_that_turns_data_into_code"
TOTAL, TOTALS = "headrace/sequence/total.py", "tests/test_sample_totals.py"
LOADER, RESUME = "headrace/serve/loader.py", "headrace/serve/resume.py"

BUGS = (
    # --- messages
    Bug(
        "names sent to the terminal as they are",
        "text is cut to its length and not escaped",
        (Edit(ERRORS, "    if not text.isprintable():\n", "    if not text:\n"),),
        ("tests/test_specs.py::test_escape_sequences_are_shown_not_sent_to_the_terminal",),
    ),
    Bug(
        "signature in a message",
        "huggingface_hub#2520: the query of an address is shown",
        (Edit(ERRORS, 'parts.path, "", "")))', 'parts.path, parts.query, "")))'),),
        (
            "tests/test_transport_trust.py::TestSecrets::"
            "test_a_token_and_a_signature_are_in_no_message_log_repr_or_pickle",
        ),
    ),
    # --- folders and files of others
    Bug(
        "folder that a group may write to",
        "only others are looked at",
        (Edit(FILES, "found.st_mode & 0o022:", "found.st_mode & 0o002:"),),
        (
            "tests/trust/test_cache_safety.py::TestFolder::test_a_folder_that_others_may_write_to_is_refused_and_nothing_is_fetched",
        ),
    ),
    Bug(
        "folder of another user",
        "its mode is looked at, its owner is not",
        (Edit(FILES, "found.st_uid != os.geteuid() or ", ""),),
        ("tests/trust/test_cache_safety.py::TestFolder::test_a_folder_of_another_user_is_refused",),
    ),
    Bug(
        "another commit not noticed",
        "huggingface_hub#4815",
        (Edit("headrace/catalog/hub_origin.py", "        if commit != self.commit:\n", "        if not commit:\n"),),
        ("tests/test_transport.py::TestRanges::test_another_etag_or_commit_is_a_change",),
    ),
    Bug(
        "text tokenized for each of its media",
        "3,000 images in 1.2 kB of parquet took minutes to cut",
        (
            Edit(
                "headrace/make/cut.py",
                "for tokens in tokens_before(own))",
                "for end in own for tokens in tokens_before([end]))",
            ),
        ),
        ("tests/test_cut_media.py::test_many_marks_cost_no_more_than_the_text",),
    ),
    Bug(
        "sounds of a sample counted one by one",
        "20 times the same sound in 49 kB of parquet took 2.4 GB",
        (Edit(TOTAL, "        if not self._samples:\n", "        if True:\n"),),
        (
            f"{TOTALS}::test_sounds_of_a_sample_may_have_what_one_may",
            f"{TOTALS}::test_many_sounds_in_a_sample_take_no_more_than_twice_the_limit",
        ),
    ),
    Bug(
        "pictures of a sample counted one by one",
        "each is within its limits",
        (Edit(TOTAL, "if self._bytes and self._bytes + least > self._max_bytes:", "if least > self._max_bytes:"),),
        (f"{TOTALS}::test_pictures_of_a_sample_are_limited_together",),
    ),
    Bug(
        "counted anew for each field",
        "a sample has media in seven fields",
        (
            Edit(
                "headrace/sequence/finish.py",
                "            own = clip if name in CLIPPED else picture",
                "            total = Total(policy, self.max_sample_bytes)\n"
                "            own = clip if name in CLIPPED else picture",
            ),
        ),
        (f"{TOTALS}::test_pictures_and_frames_of_all_fields_count_together",),
    ),
    Bug(
        "counted when it is there",
        "what is too much is decoded before it is refused",
        (Edit("headrace/sequence/finish.py", "        total.require_pixels(self._least(kind, value))\n", ""),),
        (f"{TOTALS}::test_frames_in_a_list_are_counted_before_they_are_decoded",),
    ),
    Bug(
        "what an extractor makes not counted",
        "features may be larger than the sound",
        (Edit("headrace/sequence/finish.py", "            total.add_sound(sound)\n", "            pass\n"),),
        (f"{TOTALS}::test_what_an_extractor_makes_counts",),
    ),
    Bug(
        "features kept whole",
        "a view of ten frames keeps all that were made",
        (Edit("headrace/sequence/processors.py", "    found = _apart(found)\n", ""),),
        (f"{TOTALS}::test_what_is_cut_off_of_features_is_not_kept",),
    ),
    # --- media that are lost in silence
    Bug(
        "null is no lost image",
        "a conversation with <image> and a null column was a text",
        (
            Edit(
                "headrace/make/fields.py",
                "not is_media(value) and (value is not None or name.lower() not in _ABOUT_ANYTHING)",
                "not is_media(value) and value is not None",
            ),
        ),
        (f"{MISSING}::test_a_mark_whose_column_holds_nothing_is_a_data_error",),
    ),
    Bug(
        "marks left over",
        "of two marks and one image, the second mark was a word",
        (Edit(PLACED, "    if left and not is_optional(row, kind):\n", "    if False:\n"),),
        (f"{MISSING}::test_more_marks_than_media_are_a_data_error",),
    ),
    Bug(
        "mark of a video taken for an image",
        "sets of videos with a null column for images lose all their rows",
        (Edit(PLACED, "lost = kind in spoken and not taken and", "lost = kind in spoken and"),),
        (f"{MISSING}::test_a_mark_for_images_may_stand_for_a_video",),
    ),
    Bug(
        "source of an edit lost",
        "of two sources one was null",
        (
            Edit(
                "headrace/make/formatters/generation.py",
                'without_holes(row, "image", row.find("source_image"))',
                '[one for one in row.find("source_image") or [] if one]',
            ),
        ),
        (f"{MISSING}::test_a_hole_where_the_map_leads_is_a_data_error[one of several sources]",),
    ),
    Bug(
        "null records left out",
        "three shots, one of them null, gave two images",
        (Edit("headrace/make/fields.py", "for item in items if holes or item", "for item in items if item"),),
        (f"{MISSING}::test_a_hole_where_the_map_leads_is_a_data_error",),
    ),
    Bug(
        "voice may be missing",
        "a map that names the voice promises it",
        (Edit("headrace/make/formatters/voice_tts.py", '"audio", _VOICES)', '"audio", ("",))'),),
        (f"{MISSING}::test_a_voice_that_the_map_names_has_to_be_there",),
    ),
    # --- states of something else
    Bug(
        "state of another order",
        "only the seed is compared",
        (Edit(RESUME, 'for name in ("seed", "shuffle")', 'for name in ("seed",)'),),
        ("tests/test_resume_changes.py::test_a_change_that_gives_positions_another_meaning_is_refused",),
    ),
    Bug(
        "state loaded under an iterator",
        "prime-rl#3299",
        (Edit(LOADER, '        self._no_iterator("load_state_dict")\n', ""),),
        ("tests/test_bad_states.py::test_a_state_is_not_loaded_under_a_live_iterator",),
    ),
    Bug(
        "refused state changes the loader",
        "what is fixed for a state is kept before the state is found to fit",
        (
            Edit(
                LOADER,
                "            pipeline = self._given.resumed(saved.kept, saved.size, trust=trust)\n",
                "            pipeline = self._pipeline = self._given.resumed(saved.kept, saved.size, trust=trust)\n",
            ),
        ),
        ("tests/test_bad_states.py::test_after_a_refused_load_the_loader_goes_on_as_before",),
    ),
    # --- workers of torch
    Bug(
        "lanes of others as they were",
        "a worker's page overwrites what other workers wrote of their own lanes",
        (Edit(LOGBOOK, "        for i in page.own:\n", "        for i in range(len(lanes)):\n"),),
        ("tests/test_streaming_plain.py::test_after_a_break_workers_go_on_with_their_own_rows",),
    ),
    Bug(
        "epoch that comes again with its seed",
        "torch gives the same number where its generator is seeded anew",
        (
            Edit(
                "headrace/serve/turnstile.py",
                'if found is None or (who is not None and who in found["who"]):',
                "if found is None:",
            ),
        ),
        ("tests/test_robot_review.py::test_epochs_go_on_where_torch_is_seeded_before_each",),
    ),
    Bug(
        "state of a worker of other data",
        "torch hands the state of one data set to another",
        (
            Edit(
                "headrace/serve/going.py",
                'if state["of"] != mark(pipeline, state["L"]) or state["ranks"] != pipeline.run.world_size:',
                'if state["ranks"] != pipeline.run.world_size:',
            ),
        ),
        ("tests/test_robot_resume.py::test_a_state_of_a_worker_of_other_data_is_refused",),
    ),
    # --- ways to code that have another name
    Bug(
        "all of yaml imported",
        "a star import hides where a loader comes from",
        (Edit("headrace/recipe_yaml.py", "import yaml\n", "import yaml\nfrom yaml import *\n"),),
        (NO_CODE,),
    ),
    Bug(
        "yaml handed on",
        "a module under another name is looked for under its own",
        (
            Edit(
                "headrace/catalog/known.py",
                "rows = yaml.load(_text(), Loader=loader)",
                "reader, _ = yaml, loader\n    rows = reader.load(_text(), Loader=reader.Loader)",
            ),
        ),
        (NO_CODE,),
    ),
    Bug(
        "loader by another path",
        "yaml.UnsafeLoader is also in yaml.loader",
        (
            Edit(
                "headrace/testing/hub/card.py",
                "data = yaml.safe_load(",
                "data = (lambda text: yaml.loader.UnsafeLoader(text).get_single_data())(",
            ),
        ),
        (NO_CODE,),
    ),
)
