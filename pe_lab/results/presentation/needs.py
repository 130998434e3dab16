"""The first screen of ``pe-lab leaderboard``: which encoding when, and what to doubt."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from pe_lab.core.metrics import wilson
from pe_lab.core.output import counted, first_of
from pe_lab.results.leaderboard.entries import BASELINE
from pe_lab.results.leaderboard.families import (
    compared_columns,
    entry_order,
    halves,
    missed,
    unlearned,
)
from pe_lab.results.leaderboard.scores import Scores, paired
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.presentation.leaderboard import UNLEARNED
from pe_lab.results.presentation.leaderboard_details import at_ends
from pe_lab.results.suite import Suite

WIDTH = 22
"""Characters of a list of entries in a cell, if it has two or more."""
NEEDS = {
    "addition": "add",
    "brackets": "close brackets",
    "copy_unique": "copy",
    "counting": "count",
    "flipflop": "keep last write",
    "majority": "find majority",
    "navigation": "navigate",
    "needle": "find one line",
    "parity": "track parity",
    "recall": "find a key's value",
    "selective_copy": "select",
    "sort": "sort",
    "text": "predict text",
}
"""What a task needs, in words."""
HALF = 0.5
"""What Wilson's interval of k/n lies above where an entry works, and below where it does not."""
Count = tuple[int, int]
"""k of n seeds."""


def works(count: Count | None) -> bool | None:
    """Whether most seeds generalise; None: not run, or too few seeds to say."""
    if count is None:
        return None
    low, high = wilson(*count)
    return True if low > HALF else False if high < HALF else None


@dataclass(frozen=True)
class Need:
    """What a task shows.

    Args:
        counts: column of the suite -> entry, without its column -> k of n seeds that generalise to
            every scored split.
        unlearned: columns and entries of which fewer than half of the seeds fit in domain.
        yours: columns and entries of which no run ships.
    """

    task: str
    counts: Mapping[str, Mapping[str, Count]]
    unlearned: frozenset[tuple[str, str]]
    yours: frozenset[tuple[str, str]]

    def of(self, column: str, entry: str) -> bool | None:
        """Whether an entry works in a column."""
        return works(self.counts[column].get(entry))

    def text(self, column: str, entry: str) -> str:
        """``7/8``, ``0/8°`` where the task was not learned, ``-`` where it was not run."""
        if entry not in self.counts[column]:
            return "-"
        k, n = self.counts[column][entry]
        return f"{k}/{n}{UNLEARNED if (column, entry) in self.unlearned else ''}"

    def those(self, column: str, verdict: bool | None) -> list[str]:
        """The entries of a column that work, that do not, or (None) whose seeds do not tell."""
        return [entry for entry in self.counts[column] if self.of(column, entry) is verdict]


def needs(found: Scores, tasks: Sequence[str]) -> list[Need]:
    """Those of these tasks that have a score; entries in the order of the suite."""
    suite = found.suite
    ships = found.rows.filter("counts").group_by("entry").agg(pl.col("shipped").any())
    yours = _placed(suite, (entry for entry, shipped in ships.iter_rows() if not shipped))
    few = unlearned(found)
    made = []
    for task in tasks:
        grey = _placed(suite, (entry for entry, of in few if of == task))
        listed, controls = entry_order(found, [task])
        runs = missed(found, [task], [*listed, *controls])
        counts: dict[str, dict[str, Count]] = {column: {} for column in compared_columns(suite)}
        for entry, of in runs.items():
            base, column = halves(suite, entry)
            if column in counts:
                shares = of[task].values()
                counts[column][base] = sum(share == 0 for share in shares), len(shares)
        made += [Need(task, counts, grey, yours)] if runs else []
    return made


def _placed(suite: Suite, entries: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Each entry's column, and its name without that."""
    return frozenset((column, base) for base, column in (halves(suite, e) for e in entries))


def needs_table(found: Scores, tasks: Sequence[str]) -> Table:
    """A row a task: what works alone, what the second column adds to these, and what works in
    neither. Of a suite with one column: what works, where the seeds do not tell, and what does
    not. Tasks without any of these are left out, if there are others."""
    first, *second = compared_columns(found.suite)
    heads = [f"works {first}", f"more with {second[0]}", "neither"] if second else [
        "works", "unclear", "does not"
    ]  # fmt: skip
    rows = [[_label(need.task), *_cells(need)] for need in needs(found, tasks)]
    telling = [row for row in rows if {*row[1:]} != {"-"}]
    return Table(
        title=f"Which encoding when: seeds that generalise to every split, suite "
        f"{found.suite.title}",
        columns=["need (task)", *heads],
        words=4,
        rows=[[*map(Cell, row)] for row in telling or rows],
    )


def _label(task: str) -> str:
    words = NEEDS.get(task, task)
    return words if task == words else f"{words} ({task})"


def _cells(need: Need) -> list[str]:
    first, *second = need.counts
    named = partial(_named, need)
    works, unclear, fails = (need.those(first, verdict) for verdict in (True, None, False))
    if not second:
        return [
            named(first, works) or "-",
            named(first, unclear) or "-",
            named(first, fails, failing=True) or "-",
        ]
    (column,) = second
    lost = [entry for entry in works if need.of(column, entry) is False]
    neither = [entry for entry in need.those(column, False) if entry in fails]
    # The reader's runs are shown where the seeds do not tell, too.
    yours, yours_too = (
        named(of, [entry for entry in sorted(entries) if (of, entry) in need.yours])
        for of, entries in ((first, unclear), (column, need.those(column, None)))
    )
    gained = named(column, [entry for entry in need.those(column, True) if entry not in works])
    harmed = named(column, lost, failing=True)
    return [
        _joined({"unclear: ": yours, "": named(first, works)}),
        _joined({"unclear: ": yours_too, "": gained, "not ": harmed}),
        named(column, neither, failing=True) or "-",
    ]


def _joined(parts: Mapping[str, str]) -> str:
    """``none 8/8, +1; not fire 0/8``: those that are not empty, each after its word."""
    return "; ".join(word + part for word, part in parts.items() if part) or "-"


def _named(need: Need, column: str, entries: Sequence[str], failing: bool = False) -> str:
    """``path 20/20, fox 17/20, +2``: as many as there is room for, the reader's first, then those
    with the clearest counts, of failing ones rope."""

    def rank(entry: str) -> tuple[bool, bool, float]:
        low, high = wilson(*need.counts[column][entry])
        return (
            (column, entry) not in need.yours,
            failing and entry != BASELINE,
            high if failing else -low,
        )

    names = [
        f"{e}{' (yours)' if (column, e) in need.yours else ''} {need.text(column, e)}"
        for e in sorted(entries, key=rank)
    ]
    for shown in range(len(names), 0, -1):
        more = [f"+{len(names) - shown}"] if shown < len(names) else []
        text = ", ".join([*names[:shown], *more])
        if len(text) <= WIDTH or shown == 1:
            return text
    return ""


def headline(found: Scores, tasks: Sequence[str]) -> str:
    """What works on the most tasks, in a sentence."""
    made = needs(found, tasks)
    best: list[str] = []
    for at, column in enumerate(made[0].counts if made else ()):
        wins = Counter(e for need in made for e in need.counts[column] if need.of(column, e))
        if wins:
            n = max(wins.values())
            named = first_of([entry for entry in wins if wins[entry] == n])
            of = f"{n} of {counted(len(made), 'task')}"
            best.append(f"{named}{f' with {column}' if at else ''} ({of})")
    if not best:
        return "No run is scored yet." if not made else "No entry works on any task."
    return f"Works on the most tasks: {'; '.join(best)}."


def doubts(found: Scores, tasks: Sequence[str]) -> list[str]:
    """Four sentences: what a row means, and what it does not show; none without scores."""
    if not needs(found, tasks):
        return []
    suite = found.suite
    runs = found.rows.filter("counts", pl.col("task").is_in(tasks)).unique("run_id")
    known = f"{runs['processor'].count()} of {len(runs)} runs have their processor recorded"
    later, flips = (
        found.cells.filter(pl.col("task").is_in(tasks)).select("again", "flips").sum().row(0)
    )
    differ = (
        f"Made again, {flips} of {later} results on a split flip"
        if later
        else "On another processor single seeds differ"
    )
    sizes = dict(word.removeprefix("model.").partition("=")[::2] for word in suite.model)
    size = f"{sizes.get('n_layers', '?')} layers of width {sizes.get('d_model', '?')}"
    least, tuned = at_ends(found, tasks)
    ends = f"{least} of {tuned} rates lie at the grid's end" if least else ""
    beyond = "; ".join(filter(None, [ends, _more_steps(found, tasks)]))
    said = [
        "An entry works if the 95 % interval of k/n lies above 50 %; "
        f"{UNLEARNED}: most seeds do not learn the task.",
        f"The model is small ({size}) and the tasks are synthetic: larger ones may differ.",
        beyond and f"{beyond[0].upper()}{beyond[1:]}.",
        f"{differ}; {known}.",
    ]
    return [*filter(None, said)]


def _more_steps(found: Scores, tasks: Sequence[str]) -> str:
    """``twice the steps change 1 of 9 results (fox on majority)``: the entries and tasks where at
    least half of the seeds that ran twice generalise to every split with one number of steps only;
    empty if none ran twice."""
    for times in found.suite.protocol.longer[:1]:
        before, after = (
            {
                f"{entry} on {need.task}{f' with {column}' if at else ''}": _half(count)
                for need in needs(of, tasks)
                for at, (column, counts) in enumerate(need.counts.items())
                for entry, count in counts.items()
            }
            for of in paired(found, f"steps_x{times}")
        )
        changed = [name for name, half in after.items() if before.get(name, half) != half]
        if after:
            rest = f", +{len(changed) - 1}" if len(changed) > 1 else ""
            named = f" ({changed[0]}{rest})" if changed else ""
            many = "twice" if times == 2 else f"{times} times"
            return (
                f"{many} the steps change {len(changed)} of {counted(len(after), 'result')}{named}"
            )
    return ""


def _half(count: Count) -> bool:
    return 2 * count[0] >= count[1]
