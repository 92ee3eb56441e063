"""Bytes that were good, changed here and there; and what an error about them may look like."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.errors import HeadraceError

ODD_BYTES = (0, 1, 9, 10, 13, 32, 34, 44, 45, 47, 58, 91, 92, 93, 123, 125, 127, 128, 192, 237, 254, 255)


@st.composite
def spoiled(draw: st.DrawFn, good: list[bytes], from_end: int = 0) -> bytes:
    """One of the good inputs with some bytes changed, cut out, doubled, put in, or taken from another."""
    data = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(0, 4))):
        low = max(0, len(data) - from_end) if from_end else 0
        at = draw(st.integers(low, max(low, len(data) - 1)))
        end = min(len(data), at + draw(st.integers(1, 40)))
        how = draw(st.sampled_from(["set", "set", "flip", "cut", "double", "insert", "splice", "end"]))
        if how == "set" and data:
            data[at % len(data)] = draw(st.sampled_from(ODD_BYTES))
        elif how == "flip" and data:
            data[at % len(data)] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at:end]
        elif how == "double":
            data[at:at] = data[at:end] * draw(st.sampled_from([1, 2, 50]))
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=12))
        elif how == "splice":
            other = draw(st.sampled_from(good))
            data[at:] = other[min(at, len(other)) :]
        elif how == "end":
            del data[at:]
    return bytes(data)


def fit_to_show(error: HeadraceError, where: str = "") -> str:
    """Its message moves no cursor and is no novel, and says where."""
    message = str(error)
    assert all(c.isprintable() or c == "\n" for c in message), repr(message)
    assert where in message
    assert len(message) < 3000
    return "error"
