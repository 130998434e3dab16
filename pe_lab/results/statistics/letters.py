"""Which entries differ, as letters: the compact letter display."""

from collections.abc import Sequence
from string import ascii_letters

from pe_lab.results.statistics.pairs import Pair


def compact_letters(
    entries: Sequence[str], tested: Sequence[Pair], level: float = 0.05
) -> dict[str, str]:
    """Letters for each entry such that two entries share none exactly where their corrected p is at
    most ``level``: the algorithm insert-and-absorb of Piepho (2004), "An Algorithm for a
    Letter-Based Representation of All-Pairwise Comparisons", doi:10.1198/1061860043515.

    Unlike connected groups, two that differ do so even where a third, of few runs,
    can be told from neither. Letters ascend with the first entry that has them; all are empty where
    nothing differs.

    >>> compact_letters("xyz", [Pair("x", "z", 0.001, 0.001)])
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    differ = [(t.a, t.b) for t in tested if t.p_holm is not None and t.p_holm <= level]
    if not differ:
        return dict.fromkeys(entries, "")
    groups = [frozenset(entries)]
    for a, b in differ:
        split = [part for g in groups for part in ((g - {a}, g - {b}) if {a, b} <= g else (g,))]
        distinct = list(dict.fromkeys(split))
        groups = [g for g in distinct if not any(g < other for other in distinct)]
    rank = {entry: number for number, entry in enumerate(entries)}
    groups.sort(key=lambda group: sorted(rank[entry] for entry in group))
    # Beyond z: A to Z, then the letters of Latin Extended-A.
    names = [*ascii_letters, *map(chr, range(0x100, 0x180))]
    return {
        entry: "".join(name for name, group in zip(names, groups, strict=False) if entry in group)
        for entry in entries
    }
