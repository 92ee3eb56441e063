"""Planted bugs of texts: lines, archives, tokens, what is learned, packing and batches."""

from __future__ import annotations

from planted import Bug, Edit

COLLATE, PACK, TOKENIZE = "headrace/sequence/collate.py", "headrace/sequence/pack.py", "headrace/make/tokenize.py"
FINISH, FORMATTED, TEMPLATE = "headrace/sequence/finish.py", "headrace/make/formatted.py", "headrace/make/template.py"
LINES, INDEX, SEEKABLE = "headrace/fetch/lines.py", "headrace/catalog/lines.py", "headrace/catalog/seekable.py"
BY_HAND = "tests/test_collate.py::test_a_small_example_by_hand"

BUGS = (
    # --- batches of sequences
    Bug(
        "first token of a document is learned",
        "it is predicted from the document before it",
        (Edit(COLLATE, "number, piece.context or 1))", "number, piece.context))"),),
        (BY_HAND,),
    ),
    Bug(
        "documents counted from 0",
        "the first one looks like padding",
        (Edit(COLLATE, "enumerate(sequence, 1):", "enumerate(sequence):"),),
        (BY_HAND,),
    ),
    Bug(
        "positions run on through a sequence",
        "they do not begin again with each document",
        (
            Edit(
                COLLATE,
                "    np.concatenate([counting[:size] for size in sizes], out=position_ids)\n",
                "    position_ids[:] = np.arange(len(position_ids)) % max(1, sum(sizes))\n",
            ),
        ),
        (BY_HAND,),
    ),
    Bug(
        "padding is learned",
        "only its first token is without a label",
        (Edit(COLLATE, "None, 0, room))", "None, 0, 1))"),),
        (BY_HAND,),
    ),
    Bug(
        "longest document of the last sequence",
        "`max_seqlen` is that of one sequence and not of the batch",
        (Edit(COLLATE, "batch.max_seqlen = max(sizes, default=0)", "batch.max_seqlen = sizes[-1] if sizes else 0"),),
        ("tests/test_collate.py::test_the_tensors_are_those_of_a_loop_over_tokens",),
    ),
    Bug(
        "overlap is learned twice",
        "the context of a piece has labels",
        (Edit(COLLATE, "number, piece.context or 1))", "number, 1))"),),
        ("tests/test_packing.py::test_overlap_repeats_the_tokens_before_a_piece_and_learns_none_of_them_twice",),
    ),
    Bug(
        "mask of a piece begins with its row",
        "tokens are cut and their mask is not moved",
        (
            Edit(
                PACK,
                "sample.loss[start - context : stop]",
                "sample.loss[: stop - start + context]",
            ),
        ),
        ("tests/test_packing.py::test_every_token_of_every_sample_comes_once_and_a_resume_packs_the_same",),
    ),
    Bug(
        "oldest piece waits for ever",
        "the rule that lets it go first is lost",
        (Edit(PACK, "rounds % OLDEST_EVERY == OLDEST_EVERY - 1", "rounds < 0"),),
        ("tests/test_packing.py::test_no_document_waits_for_ever_for_company_that_fits",),
    ),
    # --- batches of samples
    Bug(
        "padding of a sample is learned",
        "the pad token is a label",
        (Edit(FINISH, "            labels[count:] = IGNORED\n", ""),),
        ("tests/test_streaming.py::test_text_becomes_tokens_with_labels",),
    ),
    Bug(
        "padding of a sample is attended to",
        "the mask is made of ones",
        (Edit(FINISH, "np.zeros(self.max_length, np.int64)", "np.ones(self.max_length, np.int64)"),),
        ("tests/test_streaming.py::test_text_becomes_tokens_with_labels",),
    ),
    Bug(
        "copies of a sample that waits",
        "each copy is saved as the only one",
        (Edit("headrace/sequence/sample_pack.py", "                rest[-1][4] -= 1\n", "                pass\n"),),
        ("tests/test_sample_packing.py::test_a_try_after_an_error_goes_on_with_the_same",),
    ),
    # --- tokens
    Bug(
        "two ends of a document",
        "the tokenizer's own is not looked for",
        (Edit(TOKENIZE, "return after if self.eos_id in after else [self.eos_id]", "return [*after, self.eos_id]"),),
        ("tests/test_tokenize.py::test_documents_begin_and_end_as_described",),
    ),
    Bug(
        "tokenizer cuts documents",
        "what its file says of truncation holds",
        (Edit(TOKENIZE, "        tokenizer.no_truncation()\n", ""),),
        ("tests/test_tokenize.py::test_a_document_is_never_cut_nor_padded",),
    ),
    Bug(
        "special tokens in a text are special",
        "what the tokenizer says of them is not taken over",
        (Edit(TOKENIZE, "        tokenizer.encode_special_tokens = names.split_special\n", ""),),
        ("tests/test_tokenize.py::test_an_object_that_splits_special_tokens_still_does",),
    ),
    Bug(
        "fingerprint without the end of documents",
        "a resume does not notice that other tokens come out",
        (Edit(TOKENIZE, "[model, self._before, self._after, ", "[model, self._before, "),),
        ("tests/test_tokenize.py::test_a_fingerprint_hangs_on_what_decides_the_ids",),
    ),
    # --- conversations
    Bug(
        "header of a turn is learned",
        "a turn is said to begin where the one before it ends",
        (Edit(TEMPLATE, "self.write(messages[:i], tools, prompt=True)", "self.write(messages[:i], tools)"),),
        ("tests/test_template.py::test_what_a_turn_adds_is_what_the_assistant_says",),
    ),
    Bug(
        "token on the edge of a turn is not learned",
        "a token must lie inside of it",
        (
            Edit(
                FORMATTED,
                "loss |= (places[:, 0] < stop) & ((places[:, 1] > start) | (places[:, 0] >= start))",
                "loss |= (places[:, 0] >= start) & (places[:, 1] < stop)",
            ),
        ),
        ("tests/test_template.py::test_tokens_and_mask_are_those_of_transformers",),
    ),
    Bug(
        "flag of a turn as a text",
        "'false' is true",
        (
            Edit(
                "headrace/make/turns.py",
                'value = value.strip().lower() not in ("", "0", "0.0", "false", "no")',
                "value = bool(value)",
            ),
        ),
        ("tests/test_format_turns.py::test_a_turn_that_is_flagged_is_kept_and_not_learned",),
    ),
    # --- lines
    Bug(
        "index of lines shifts with each block",
        "a sign",
        (Edit(INDEX, "first = -self.rows % self.every", "first = self.rows % self.every"),),
        ("tests/test_lines.py::test_every_range_of_text_rows_is_what_splitting_gives",),
    ),
    Bug(
        "byte order mark in the first row",
        "bytes are passed and the count is not moved",
        (Edit(INDEX, "        self.at = self.line_start = len(_BOM)\n", ""),),
        ("tests/test_lines.py::test_what_is_a_row_of_text",),
    ),
    Bug(
        "last line ends with a carriage return",
        "it is taken for an end of line where none follows",
        (Edit(LINES, "(before == 13) & closed & (lengths > 0)", "(before == 13) & (lengths > 0)"),),
        ("tests/test_lines.py::test_what_is_a_row_of_text",),
    ),
    Bug(
        "row that is cut between two reads",
        "what is left of a block is not put before the next",
        (
            Edit(
                LINES,
                "            else:\n                parts.append(block)\n",
                "            else:\n                parts = [block]\n",
            ),
        ),
        ("tests/test_lines.py::test_every_range_of_text_rows_is_what_splitting_gives",),
    ),
    Bug(
        "key twice is not seen",
        "the fast parser keeps the last one",
        (Edit(LINES, "    _refuse_keys_twice(lines, wanted, kept, block or _joined(lines, wanted))\n", ""),),
        ("tests/test_lines.py::test_a_key_is_refused_exactly_when_it_is_there_twice",),
    ),
    Bug(
        "blank lines shift the number of a line",
        "they are not counted",
        (Edit(INDEX, "return 1 + row + (self.blanks[row // self.every] if self.blanks else 0)", "return 1 + row"),),
        ("tests/test_lines_faults.py::test_the_line_of_a_late_bad_row_counts_the_blank_lines_before_it",),
    ),
    # --- archives
    Bug(
        "first member of an archive only",
        "what follows the end of a member is dropped",
        (Edit(SEEKABLE, "data = engine.unused_data if engine.eof", 'data = b"" if engine.eof'),),
        ("tests/test_seekable.py::test_any_byte_range_is_that_of_the_plain_text",),
    ),
    Bug(
        "archive that changed is not rewritten",
        "its name is made without the time",
        (Edit(SEEKABLE, "{signature.size}|{signature.mtime_ns}|", "{signature.size}|"),),
        ("tests/test_seekable.py::test_it_is_rewritten_once_and_again_only_when_the_file_changed",),
    ),
    Bug(
        "archive without checksums",
        "a flipped bit is a letter",
        (Edit(SEEKABLE, "write_checksum=True", "write_checksum=False"),),
        ("tests/test_seekable.py::test_a_damaged_block_is_an_integrity_error_and_is_then_made_again",),
    ),
    Bug(
        "cut archive is a short one",
        "the end of the file is the end of the data",
        (Edit(SEEKABLE, "    if engine is not None or not members:\n", "    if not members:\n"),),
        ("tests/test_seekable.py::test_a_bad_archive_is_named_by_file_and_byte_and_leaves_nothing",),
    ),
)
