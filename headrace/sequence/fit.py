"""Which pieces share a sequence. Pure: lengths in, indices out; an index is a piece's place in the order of drawing."""

from __future__ import annotations

from collections.abc import Sequence


def fill(
    lengths: Sequence[int], capacity: int, most: int, oldest_first: bool = False
) -> tuple[list[list[int]], list[int]]:
    """Up to `most` bins, and the pieces that are left; both in draw order.

    Each bin takes the longest piece there is (ties: the older), which is the hardest to place, and those of the others
    that together leave the least room; where several do, the older pieces go. With `oldest_first` the first bin takes
    the oldest piece instead, so that none waits for ever.
    """
    left = list(range(len(lengths)))
    bins: list[list[int]] = []
    while left and len(bins) < most:
        first = 0 if oldest_first and not bins else max(left, key=lengths.__getitem__)
        left.remove(first)
        with_it = best_subset([lengths[i] for i in left], capacity - lengths[first])
        chosen = [left[k] for k in with_it]
        bins.append(sorted([first, *chosen]))
        taken = set(chosen)
        left = [i for i in left if i not in taken]
    return bins, left


def best_subset(sizes: Sequence[int], space: int) -> list[int]:
    """Indices of the sizes whose sum comes nearest to `space` from below; the earlier ones where there is a choice.

    A number serves as the set of sums that the first k sizes can make: bit s is set where s is one of them. Adding a
    size is a shift, on all sums at once. The first set that holds the best sum is where the last size came in.
    """
    reach, goal, mask = 1, 1 << space, (2 << space) - 1
    sets = [reach]
    for size in sizes:
        if reach & goal:
            break
        if size <= space:
            reach |= reach << size & mask
        sets.append(reach)
    total = reach.bit_length() - 1
    found = []
    for k in range(len(sets) - 1, 0, -1):
        if total and not sets[k - 1] >> total & 1:
            found.append(k - 1)
            total -= sizes[k - 1]
    return found[::-1]
