"""Rows of text and JSON-lines files, read by seeking to the nearest indexed row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeAlias
from weakref import ref

from headrace.catalog.lines import LineIndex, LineKind
from headrace.catalog.plain import PlainBytes, PlainFile, Signature, require_same
from headrace.errors import Changed, DataError, SpecError, shown
from headrace.fetch.few_files import forget, in_use, make_room
from headrace.fetch.line_memory import COPIES, STRUCTURE, Held, json_bytes
from headrace.fetch.memory import MemoryBudget, MemoryUse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RowFaults: TypeAlias = dict[int, DataError]
"""Rows of a shard that cannot be read, by their numbers, and why."""

PIECE = 8 << 20
"""Bytes held at once beside the rows asked for: a chunk of long lines is many times this."""
PIECES = 16 * STRUCTURE
"""Where there is little memory, a piece could become no more than a sixteenth of what chunks may take."""
OFFSET = 8
"""Bytes in an Arrow array for each text, in addition to its characters."""
NO_LIMIT = 1 << 62
_MARK = re.compile(r'["{}\[\]]')
_COLON = re.compile(r"[ \t\r]*:")


class Objects(list[dict[str, Any]]):
    """The rows of JSON lines."""

    memory: MemoryUse | None = None
    """What they take, about."""

    def count_as(self, memory: MemoryUse | None) -> Self:
        self.memory = memory
        if memory is not None:
            memory.measure_by(partial(_measured, ref(self)))
        return self


class LineReader:
    """Any rows of one file. Keeps no position, so threads and forks may share it."""

    def __init__(
        self,
        source: PlainBytes | str | Path,
        index: LineIndex,
        *,
        kind: LineKind,
        column: str = "text",
        label: str | None = None,
        signature: Signature | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget`: what chunks may take in memory; None: as much as there is."""
        if kind != index.kind:
            raise SpecError(f"{shown(label or source)}: its rows were counted as {index.kind}, not as {kind}")
        self._budget = budget or MemoryBudget(NO_LIMIT)
        self.num_files = 1
        make_room(self.num_files)
        self.source = source if isinstance(source, PlainBytes) else PlainFile(source, label=label)
        self._is_resting = False
        self.label = self.source.label if label is None else shown(label)
        self.index, self.kind, self.column = index, kind, column
        try:
            self._require(signature)
        except BaseException:
            self.close()
            raise

    def read(self, start: int, stop: int, faults: RowFaults | None = None) -> Any:
        """Rows [start, stop): of txt a pyarrow table with one text column, of jsonl a list of dicts.

        `faults`: takes the rows that cannot be read, which then have nothing in them. None: the first one raises.
        """
        held = Held(self.label, self._budget, start)
        try:
            return (self._read_text if self.kind == "txt" else self._read_objects)(start, stop, faults, held)
        finally:
            held.release()

    def _read_text(self, start: int, stop: int, faults: RowFaults | None, held: Held) -> Any:
        import pyarrow as pa

        row, begin, end = self.index.span(start, stop)
        columns = []
        for piece in self._pieces(begin, end, held):
            ends = _line_ends(piece.data)
            first, last = max(start - row, 0), min(stop - row, len(ends))
            if first < last:
                nbytes = int(ends[last - 1]) - (int(ends[first - 1]) if first else 0) + OFFSET * (last - first)
                held.add(nbytes, COPIES * len(piece.data), row + last - 1)
                columns.append(self._column(piece, ends, first, last, row, faults))
            row += len(ends)
            if row >= stop:
                break
            del piece  # before the next one is there
        self._require_rows(row, stop)
        return pa.table({self.column: pa.chunked_array(columns, pa.large_string())})

    def _read_objects(self, start: int, stop: int, faults: RowFaults | None, held: Held) -> Objects:
        row, begin, end = self.index.span(start, stop)
        line = self.index.line(row) if start < stop else 0
        held.values = found = Objects()
        for piece in self._pieces(begin, end, held):
            lines = piece.data.split(b"\n")
            filled = [number for number, text in enumerate(lines) if text and not text.isspace()]
            if wanted := filled[max(start - row, 0) : stop - row]:
                place = _Place(piece, lines, filled, row, line)
                found += self._objects(place, wanted, faults, held)
                del place
            row += len(filled)
            line += len(lines) - 1
            if row >= stop:
                break
            del piece, lines  # before the next one is there
        self._require_rows(row, stop)
        return found.count_as(held.kept())

    def close(self) -> None:
        """Idempotent."""
        forget(self)
        self.source.close()

    def rest(self) -> None:
        """Keep no file open until the next read."""
        if isinstance(self.source, PlainFile):
            self._is_resting = True
            self.source.close()

    def wake(self) -> None:
        if self._is_resting and isinstance(self.source, PlainFile):
            source = self.source
            self.source = PlainFile(source.path, label=source.label, signature=source.signature)
            self._is_resting = False

    def _require(self, signature: Signature | None) -> None:
        if signature is not None:
            require_same(self.label, signature, self.source.signature)
        sizes = self.source.signature.size, self.source.size
        if sizes != (self.index.size, self.index.bytes):
            raise Changed(
                f"{self.label} changed since its rows were counted: it has {sizes[1]} bytes and had "
                f"{self.index.bytes}; put the old file back, or start anew with the new one"
            )

    def _require_rows(self, row: int, stop: int) -> None:
        if row < stop:
            raise Changed(
                f"{self.label} changed since its rows were counted: it ends at row {row}, not at {self.index.rows}, "
                f"though its size is the same; start anew with the new file"
            )

    def _pieces(self, begin: int, end: int, held: Held) -> Iterator[_Piece]:
        """The bytes [begin, end) in pieces of whole lines."""
        parts: list[bytes] = []
        size = min(PIECE, max(self._budget.nbytes // PIECES, 1))
        for at in range(begin, end, size):
            with in_use(self):
                block = self.source.read_bytes(at, min(at + size, end))
            cut = len(block) if at + size >= end else block.rfind(b"\n") + 1
            if cut:
                # Nothing of a piece is kept here while it is read: a line may be all that memory allows.
                piece, parts = [_Piece(begin, b"".join([*parts, block[:cut]]))], [block[cut:]]
                begin = at + cut
                del block
                yield piece.pop()
            else:
                parts.append(block)
                held.check_line(at + len(block) - begin, begin)

    def _column(
        self, piece: _Piece, ends: NDArray[np.intp], first: int, last: int, row: int, faults: RowFaults | None
    ) -> Any:
        """Lines [first, last) of a piece, as one Arrow array over one copy of their bytes."""
        import numpy as np
        import pyarrow as pa

        begin = int(ends[first - 1]) + 1 if first else 0
        data = piece.data[begin : int(ends[last - 1]) + 1]
        ends = ends[first:last] - begin
        lengths = np.diff(ends, prepend=-1) - 1
        if b"\r" in data:  # not "\r\n": a search for one byte is seventy times as fast
            before = np.frombuffer(data, np.uint8)[ends - 1]
            closed = ends < len(data)
            lengths -= (before == 13) & closed & (lengths > 0)
            data = data.replace(b"\r\n", b"")
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        text = data.replace(b"\n", b"")
        column = pa.Array.from_buffers(pa.large_string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            bad = self._bad_texts(piece.data[begin : begin + int(ends[-1])], piece.at + begin, row + first)
            if faults is None:
                raise next(iter(bad.values())) from None
            faults.update(bad)
            numbers = range(row + first, row + last)
            texts = zip(numbers, column.cast(pa.large_binary()).to_pylist(), strict=True)
            column = pa.array([None if n in bad else line.decode() for n, line in texts], pa.large_string())
        return column

    def _bad_texts(self, data: bytes, at: int, row: int) -> RowFaults:
        found: RowFaults = {}
        for number, line in enumerate(data.split(b"\n"), row):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found[number] = DataError(
                    f"{self.label}: row {number} (line {number + 1}, byte {at + error.start}) {_not_utf8(line, error)}"
                )
            at += len(line) + 1
        assert found, f"{self.label}: arrow refused rows that are UTF-8"
        return found

    def _objects(self, place: _Place, wanted: list[int], faults: RowFaults | None, held: Held) -> list[dict[str, Any]]:
        block = _joined(place.lines, wanted)
        held.add_json(block.data, block.stops, place.row_of(wanted[-1]))
        try:
            return parse_objects(place.lines, wanted, block)
        except _BadLine as bad:
            if faults is None:
                raise self._bad_object(bad, place) from None
            return self._one_by_one(wanted, place, faults)

    def _one_by_one(self, wanted: list[int], place: _Place, faults: RowFaults) -> list[dict[str, Any]]:
        """The objects on these lines. One that cannot be read is an empty object, and its row a fault."""
        found: list[dict[str, Any]] = []
        for number in wanted:
            try:
                found += parse_objects(place.lines, [number])
            except _BadLine as bad:
                found.append({})
                faults[place.row_of(bad.number)] = self._bad_object(bad, place)
        return found

    def _bad_object(self, bad: _BadLine, place: _Place) -> DataError:
        at = place.piece.at + sum(len(text) + 1 for text in place.lines[: bad.number]) + bad.offset
        row, line = place.row_of(bad.number), place.line + bad.number
        return DataError(f"{self.label}: row {row} (line {line}, byte {at}) {bad.why}")


def _measured(objects: ref[Objects], most: int) -> int:
    return json_bytes(objects() or (), most)


class _Piece(NamedTuple):
    at: int
    data: bytes


class _Place(NamedTuple):
    """Some lines of a file, and where they are."""

    piece: _Piece
    lines: list[bytes]
    filled: list[int]
    """Those of them that hold a row."""
    row: int
    """The number of the first of these rows."""
    line: int
    """The number of the first line."""

    def row_of(self, number: int) -> int:
        return self.row + self.filled.index(number)


def _line_ends(data: bytes) -> NDArray[np.intp]:
    """Where each line ends: its newline, or the end of the file."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    return ends if data.endswith(b"\n") or not data else np.append(ends, len(data))


class _BadLine(Exception):
    def __init__(self, number: int, offset: int, why: str) -> None:
        super().__init__(why)
        self.number, self.offset, self.why = number, offset, why


class _Block(NamedTuple):
    """Some lines, one after another."""

    data: bytes
    stops: NDArray[np.int64]
    """Where the line after each of them begins."""


def _joined(lines: list[bytes], wanted: list[int]) -> _Block:
    import numpy as np

    data = b"\n".join([lines[number] for number in wanted])
    return _Block(data, np.cumsum([len(lines[number]) + 1 for number in wanted]))


def parse_objects(lines: list[bytes], wanted: list[int], block: _Block | None = None) -> list[dict[str, Any]]:
    """The JSON objects on some of the lines, strictly: one object a line, real UTF-8, no NaN, no key twice.

    To see a key twice the parser would have to hand each object over as pairs, which costs half as much again. So the
    fast parser counts the keys it kept, and only a line with more places that can be a key's colon is parsed as pairs.
    """
    keys = 0

    def count(found: dict[str, Any]) -> dict[str, Any]:
        nonlocal keys
        keys += len(found)
        return found

    decode = json.JSONDecoder(object_hook=count, parse_constant=_refuse_constant).raw_decode
    objects, kept = [], []
    number = 0
    try:
        for number in wanted:
            text = lines[number].decode()
            value, end = decode(text) if text[0] == "{" else _decode_slowly(decode, text)
            if end != len(text) and text[end:].strip(" \t\r"):
                raise json.JSONDecodeError("something follows the object", text, end)
            objects.append(value)
            kept.append(keys)
    except (ValueError, RecursionError) as error:
        raise _explain(number, lines[number], error) from None
    _refuse_keys_twice(lines, wanted, kept, block or _joined(lines, wanted))
    return objects


class _Refused(ValueError):
    """JSON for Python's parser, but not for us."""

    def __init__(self, why: str, offset: int = 0) -> None:
        super().__init__(why)
        self.offset = offset


def _refuse_constant(name: str) -> NoReturn:
    raise _Refused(f"has {name}, which is not JSON; write null, or leave the key out")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise _Twice("has a key twice in one object, the second time here; keep one of them")


class _Twice(_Refused):
    """A key that comes again."""


def _second_key(text: str) -> int:
    """The character at which the first key begins that its object has already. The text up to there is JSON."""
    string = json.JSONDecoder().raw_decode
    open_keys: list[set[str]] = []
    at = 0
    while found := _MARK.search(text, at):
        mark, at = found[0], found.end()
        if mark == '"':
            key, at = string(text, found.start())
            if _COLON.match(text, at):
                if key in open_keys[-1]:
                    return found.start()
                open_keys[-1].add(key)
        elif mark in "{[":
            open_keys.append(set())
        else:
            open_keys.pop()
    return 0


_KINDS = {str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
"""No message quotes a line: the file may be a link to one that has nothing to do with the data."""


def _decode_slowly(decode: Any, text: str) -> tuple[Any, int]:
    """For a line that does not begin with a brace."""
    begin = len(text) - len(text.lstrip(" \t\r"))
    if text.startswith("[", begin):
        raise _Refused(
            "is an array; one object per line; this looks like a JSON array: convert it with jq -c '.[]'", begin
        )
    if text.startswith("\ufeff", begin):
        raise _Refused("begins with a byte order mark, which only the start of a file may have; remove it", begin)
    value, end = decode(text, begin)
    if not isinstance(value, dict):
        raise _Refused(f'is {_KINDS[type(value)]}, not an object; one object per line, such as {{"text": ...}}', begin)
    return value, end


def _explain(number: int, line: bytes, error: Exception) -> _BadLine:
    if isinstance(error, _Refused):
        return _BadLine(number, error.offset, str(error))
    if isinstance(error, UnicodeDecodeError):
        return _BadLine(number, error.start, _not_utf8(line, error))
    if isinstance(error, RecursionError):
        return _BadLine(number, 0, "is nested too deeply to be read; flatten it")
    if not isinstance(error, json.JSONDecodeError):
        return _BadLine(number, 0, f"has a number that cannot be read ({error}); write it as a string")
    text, at = error.doc, error.pos
    if at >= len(text.rstrip()):
        why = "the line ends inside the object; one object per line: a pretty-printed file becomes that with jq -c ."
    else:
        why = (
            f"{error.msg.partition(':')[0]}, in a line of {len(text)} characters; correct the line, or put another "
            f"object in its place: a state of a run on this file needs as many lines"
        )
    return _BadLine(number, len(text[:at].encode()), f"is not JSON, column {at + 1}: {why}")


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return (
        f"is not UTF-8: {error.reason} at byte {error.start + 1} of its {len(line)}; convert the file, for example "
        f"with iconv -f latin1 -t UTF-8"
    )


def _refuse_keys_twice(lines: list[bytes], wanted: list[int], kept: list[int], block: _Block) -> None:
    """`kept`: keys in the parsed objects up to and with each wanted line."""
    import numpy as np

    colons = _key_colons(np.frombuffer(block.data, np.uint8))
    if len(colons) == kept[-1]:
        return
    possible = np.diff(np.searchsorted(colons, block.stops), prepend=0)
    for suspect in np.flatnonzero(possible != np.diff(kept, prepend=0)):
        number = wanted[suspect]
        try:
            json.loads(lines[number].decode(), object_pairs_hook=_refuse_twice)
        except (ValueError, RecursionError) as error:
            if isinstance(error, _Twice):
                text = lines[number].decode()
                error.offset = len(text[: _second_key(text)].encode())
            raise _explain(number, lines[number], error) from None


def _key_colons(data: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Each colon that ends a key, and the few inside strings that look alike: never too few."""
    import numpy as np

    quote, backslash = 34, 92
    colons = np.flatnonzero(data == 58)
    # The colon of a key has at least `{""` before it, so an index that wraps around is never one of them.
    before, second = data[colons - 1], data[colons - 2]
    escaped = (second == backslash) & (data[colons - 3] != backslash)
    found = (before == quote) & ~escaped
    spaced = (before <= 32) & ((second <= 32) | (second == quote))
    keys: NDArray[np.intp] = colons[found | spaced]
    return keys
