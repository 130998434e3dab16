"""Every pair of several entries, tested over the tasks that both have."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pe_lab.results.statistics import LEVEL, ByTask, exact_test, holm


@dataclass(frozen=True)
class Pair:
    """Two encodings compared over the tasks that both have.

    Args:
        p: None where they share no run.
        p_holm: corrected over all pairs.
    """

    a: str
    b: str
    p: float | None
    p_holm: float | None


def least_p_possible(a: ByTask, b: ByTask) -> float:
    """The smallest p-value that ``exact_test`` can give for so many runs: that of any ``a`` whose
    runs are all below those of ``b``."""
    least = exact_test(
        {task: dict.fromkeys(of, 0.0) for task, of in a.items()},
        {task: dict.fromkeys(of, 1.0) for task, of in b.items()},
    )
    return 1.0 if least is None else least


def pairs(
    entries: Mapping[str, ByTask], test: Callable[[ByTask, ByTask], float | None] = exact_test
) -> list[Pair]:
    """Every pair of these, tested over the tasks that both have, corrected after Holm over all
    pairs. The test of equal samples, which many entries have, is computed once."""
    alike = {
        entry: tuple((task, *sorted(runs.items())) for task, runs in sorted(of.items()))
        for entry, of in entries.items()
    }
    computed: dict[tuple[object, object], float | None] = {}
    found = list(combinations(entries, 2))
    for a, b in found:
        if (alike[a], alike[b]) not in computed:
            p = test(entries[a], entries[b])
            computed[alike[a], alike[b]] = computed[alike[b], alike[a]] = p
    ps = [computed[alike[a], alike[b]] for a, b in found]
    return [Pair(a, b, p, q) for (a, b), p, q in zip(found, ps, holm(ps), strict=True)]


def differing(tested: Sequence[Pair]) -> Mapping[str, set[str]]:
    """entry -> those that differ from it significantly."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pair in tested:
        if pair.p_holm is not None and pair.p_holm <= LEVEL:
            found[pair.a].add(pair.b)
            found[pair.b].add(pair.a)
    return found
