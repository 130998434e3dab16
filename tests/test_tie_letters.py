"""The compact letter display says of every pair whether it differs."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pe_lab.results.statistics.letters import compact_letters
from pe_lab.results.statistics.pairs import Pair

ENTRIES = "uvwxyz"
PAIRS = list(combinations(ENTRIES, 2))


@given(st.lists(st.booleans(), min_size=len(PAIRS), max_size=len(PAIRS)))
def test_two_share_no_letter_exactly_where_they_differ(differs: list[bool]) -> None:
    tested = [
        Pair(a, b, 0.01, 0.05 if one else 0.06) for (a, b), one in zip(PAIRS, differs, strict=True)
    ]
    found = compact_letters(ENTRIES, tested)
    if not any(differs):
        assert set(found.values()) == {""}
        return
    for (a, b), one in zip(PAIRS, differs, strict=True):
        assert (not set(found[a]) & set(found[b])) == one
    # No letter stands for entries that another has too.
    names = sorted({name for letters in found.values() for name in letters})
    groups = [{entry for entry in ENTRIES if name in found[entry]} for name in names]
    assert not any(a < b or (a == b and i != j)
                   for i, a in enumerate(groups) for j, b in enumerate(groups))  # fmt: skip
    assert found[ENTRIES[0]].startswith("a")
