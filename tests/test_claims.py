"""What the pages of the leaderboard say in words is what the shipped files have."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import claims_v1
import polars as pl
import pytest
from written_claims import unchecked, written

from docs import leaderboard
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.diagnosis.cells import cells_of
from pe_lab.results import verdicts
from pe_lab.results.leaderboard.claims import NOT_SUPPORTED, Decided
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.leaderboard.scores import cells_of as cells_of_phase
from pe_lab.results.presentation.needs import needs
from pe_lab.results.suite import TUNING

TEN = ["none", "learned", "sinusoidal", "rope", "alibi", "t5", "fire", "cope", "fox", "path"]
CONTROLS = ["conv", "lstm", "linear_attention"]


@cache
def found() -> Scores:
    return leaderboard.shipped()


@cache
def decided() -> dict[str, Decided]:
    return {one.name: one for one in leaderboard.claims()}


@cache
def of_phase(phase: str) -> Scores:
    """What a phase has, at the chosen rate, in place of the score."""
    counts = (pl.col("phase") == phase) & (pl.col("lr") == pl.col("chosen"))
    rows = found().rows.with_columns(counts=counts)
    return replace(found(), rows=rows, cells=cells_of_phase(found(), phase))


@cache
def at_twice_the_threshold() -> Scores:
    rows = found().rows.with_columns(threshold=2 * pl.col("threshold"))
    return replace(found(), rows=rows)


def on_all(entry: str, task: str, of: Scores | None = None) -> list[tuple[int, int] | None]:
    """k of n seeds that generalise to every split, alone and with the convolution."""
    (need,) = needs(of or found(), [task])
    return [counts.get(entry) for counts in need.counts.values()]


def k(entry: str, task: str, of: Scores | None = None) -> list[int]:
    """Of eight seeds those that generalise to every split, alone and with the convolution."""
    counts = on_all(entry, task, of)
    assert all(one is not None and one[1] == 8 for one in counts), (entry, task, counts)
    return [one[0] for one in counts if one is not None]


def generalising(task: str) -> dict[str, list[int]]:
    """The entries of the suite's first part of which a seed generalises to every split -> how many
    of eight do, in each of their columns."""
    counts = {entry: k(entry, task) for entry in [*TEN, *CONTROLS]}
    published = on_all("path_published", task)[0]
    assert published is not None
    assert published[1] == 8
    return {e: ks for e, ks in (counts | {"path_published": [published[0]]}).items() if any(ks)}


def on_splits(entry: str, task: str, of: Scores | None = None) -> dict[str, tuple[int, int]]:
    """Split -> k of n seeds that generalise; the entry has its column's name."""
    cells = (of or found()).cells.filter(entry=entry, task=task)
    return {split: (k, n) for split, k, n in cells.select("split", "k", "n").iter_rows()}


def in_both(entries: Sequence[str], task: str, split: str) -> list[list[int]]:
    """Of eight seeds of each entry those that generalise to a split, alone and with the
    convolution."""
    counts = [[on_splits(f"{e}{column}", task)[split] for column in ("", "+conv")] for e in entries]
    assert {n for both in counts for _, n in both} == {8}
    return [[k for k, _ in both] for both in counts]


def median(entry: str, task: str, split: str) -> float:
    """In %, as printed."""
    (error,) = found().cells.filter(entry=entry, task=task, split=split)["median"]
    return round(100 * float(error), 1)


def why(entry: str, task: str) -> dict[str, Any]:
    """The verdict on an entry, of the diagnoses that ship."""
    several = cells_of(verdicts.diagnosed(verdicts.shipped_diagnoses(found().suite)))
    (cell,) = (one for one in several if (one.pe, one.task) == (entry, task))
    return cell.facts()


def restored(entry: str, task: str, intervention: str) -> int:
    """The share in % of the added error."""
    return round(100 * why(entry, task)["shares"][intervention])


def chosen(entry: str, task: str) -> float:
    """The learning rate of the score."""
    (rate,) = {*found().cells.filter(entry=entry, task=task)["lr"].drop_nulls()}
    return float(rate)


def tuning_errors(entry: str, task: str, split: str, lr: float) -> list[float]:
    """Of each tuning run at a rate, both seeds of which were trained."""
    rows = found().rows.filter(entry=entry, task=task, split=split, phase=TUNING, lr=lr)
    assert len(rows) == len(found().suite.protocol.tuning_seeds)
    return rows["error"].to_list()


def half(entry: str, task: str, of: Scores) -> tuple[bool, bool]:
    """Whether at least half of the seeds fit, and whether half generalise to every split."""
    every = on_all(entry, task, of)[0]
    assert every is not None
    fit, n = on_splits(entry, task, of)[IN_DOMAIN]
    assert n == every[1]
    return 2 * fit >= n, 2 * every[0] >= n


@cache
def changed_by_twice_the_steps() -> list[dict[tuple[str, str], bool]]:
    """Whether half fit, and whether half generalise, with twice the steps, where it changes."""
    twice = of_phase("steps_x2")
    assert {*twice.cells["n"]} == {3}
    tasks = {*twice.cells["task"]}
    cells = {
        (entry, task): (half(entry, task, found()), half(entry, task, twice))
        for entry in ("rope", "alibi", "cope", "fox", "path")
        for task in tasks
    }
    assert len(cells) == 35
    return [{cell: b[at] for cell, (a, b) in cells.items() if a[at] != b[at]} for at in (0, 1)]


def steps_of(entry: str, task: str, of: Scores) -> int:
    (steps,) = {*of.rows.filter("counts", entry=entry, task=task)["steps"]}
    return int(steps)


CLAIMS: dict[str, Callable[[], bool]] = {
    "With it, ALiBi, T5, FIRE and `none` copy at up to three times the length in 8 of 8 seeds. "
    "Alone they do in 0 of 8. ALiBi and T5 find a key's value on every split in 8 of 8 seeds with "
    "it and in 0 alone": lambda: (
        all(k(e, "copy_unique") == [0, 8] for e in ("alibi", "t5", "fire", "none"))
        and k("alibi", "recall") == k("t5", "recall") == [0, 8]
    ),
    "ALiBi fits copying in 4 of 8 seeds and recall in 1. `none` fits neither in any seed": lambda: (
        [
            on_splits(entry, task)[IN_DOMAIN]
            for entry in ("alibi", "none")
            for task in ("copy_unique", "recall")
        ]
        == [(4, 8), (1, 8), (0, 8), (0, 8)]
    ),
    "With a convolution of three tokens, five of ten encodings copy and seven recall at length in "
    "every seed; alone 0 and 2 do": lambda: all(
        [sum(k(entry, task)[at] == 8 for entry in TEN) for at in (0, 1)] == [alone, conv]
        for task, alone, conv in (("copy_unique", 0, 5), ("recall", 2, 7))
    ),
    "one cause with it: RoPE's heads pick other keys at distances that they have not seen. "
    "Distances clamped to the trained ones restore 97 % of the added error on recall and 75 % on "
    "copying, in 3 of 3 seeds. Without it they restore 35 % and 24 %": lambda: all(
        [why("rope+conv", task)[key] for key in ("cause", "k", "n")] == ["unseen distances", 3, 3]
        and [restored(e, task, "distances clamped") for e in ("rope+conv", "rope")] == [conv, alone]
        for task, conv, alone in (("recall", 97, 35), ("copy_unique", 75, 24))
    ),
    "ALiBi fails by its own penalty on distance, alone and with it": lambda: all(
        why(entry, "flipflop")["cause"] == "its own penalty on distance"
        for entry in ("alibi", "alibi+conv")
    ),
    "On copying and recall it generalises to every split in 0 of 8 seeds, alone and with the "
    "convolution": lambda: all(k("rope", task) == [0, 0] for task in ("copy_unique", "recall")),
    "RoPE's chosen rate on flip-flop, 0.012, fits both tuning seeds and 4 of 8 fresh ones. At "
    "0.006, suite v1 has 19 of 20": lambda: (
        chosen("rope", "flipflop") == 0.012
        and max(tuning_errors("rope", "flipflop", IN_DOMAIN, 0.012))
        <= found().suite.tasks["flipflop"].fits
        and on_splits("rope", "flipflop")[IN_DOMAIN] == (4, 8)
        and leaderboard.shipped("v1")
        .cells.filter(entry="rope", task="flipflop", split=IN_DOMAIN, lr=0.006)["k", "n"]
        .rows()
        == [(19, 20)]
    ),
    "FIRE generalises to every split in 4 of 8 seeds alone and in 8 of 8 with the convolution, "
    "CoPE in 6 and in 8. FIRE alone fits in those 4 only. PaTH and the LSTM generalise in 8 of 8, "
    "alone and with it. RoPE, `none` and `conv` generalise in 0": lambda: (
        [k(entry, "flipflop") for entry in ("fire", "cope", "path", "lstm")]
        == [[4, 8], [6, 8], [8, 8], [8, 8]]
        and all(k(entry, "flipflop") == [0, 0] for entry in ("rope", "none", "conv"))
        and on_splits("fire", "flipflop")[IN_DOMAIN] == (4, 8)
    ),
    "FoX, PaTH and the LSTM generalise to every split in 8 of 8 seeds, alone and with it. The "
    "splits have twice the operations, or more and fewer that do nothing. PaTH as published "
    "generalises in 8, CoPE in 6 and in 7, ALiBi in 5 and in 5, no other entry in any. At twice "
    "the operations RoPE's median error is 16.0 % alone and 17.5 % with it": lambda: (
        generalising("counting")
        == {entry: [8, 8] for entry in ("fox", "path", "lstm")}
        | {"path_published": [8], "cope": [6, 7], "alibi": [5, 5]}
        and [median(e, "counting", "long_x2") for e in ("rope", "rope+conv")] == [16.0, 17.5]
    ),
    "Alone FIRE, PaTH and `none` sort at up to three times the length in 8 of 8 seeds. With it "
    "FIRE does in 6, `none` in 4 and PaTH in 2. The errors are near the threshold: at twice "
    "the threshold all three sort in 8 of 8 seeds, alone and with it. RoPE sorts at no greater "
    "length": lambda: (
        [k(entry, "sort") for entry in ("fire", "none", "path")] == [[8, 6], [8, 4], [8, 2]]
        and all(
            k(entry, "sort", at_twice_the_threshold()) == [8, 8]
            for entry in ("fire", "none", "path")
        )
        and not any(
            k
            for entry in ("rope", "rope+conv")
            for split, (k, _) in on_splits(entry, "sort").items()
            if split != IN_DOMAIN
        )
    ),
    "ALiBi fails there by its own penalty on distance, too. The usual penalty restores 83 % of the "
    "added error alone and 77 % with it, in 3 of 3 seeds": lambda: (
        [restored(entry, "sort", "usual penalty") for entry in ("alibi", "alibi+conv")] == [83, 77]
        and all(
            [why(entry, "sort")[key] for key in ("cause", "k", "n")]
            == ["its own penalty on distance", 3, 3]
            for entry in ("alibi", "alibi+conv")
        )
    ),
    "Wall attention also sorts at up to three times the length in 5 of 5": lambda: (
        on_all("wall", "sort")[0] == (5, 5)
    ),
    "PaTH generalises to eight times the length in 7 of 8 seeds as published and in 4 of 8 with "
    "`model.conv=3`, without either in 1. The LSTM does in 8 of 8. CoPE fits in 2 of 8 seeds alone "
    "and in 8 with the convolution, and follows to twice the length in 0 and in 1. No other entry "
    "fits in any seed": lambda: (
        [
            on_splits(entry, "parity")["long_x8"]
            for entry in ("path_published", "path+conv", "path", "lstm", "lstm+conv")
        ]
        == [(7, 8), (4, 8), (1, 8), (8, 8), (8, 8)]
        and [
            [on_splits(entry, "parity")[split] for split in (IN_DOMAIN, "long_x2")]
            for entry in ("cope", "cope+conv")
        ]
        == [[(2, 8), (0, 8)], [(8, 8), (1, 8)]]
        and not any(
            on_splits(f"{entry}{column}", "parity")[IN_DOMAIN][0]
            for entry in {*TEN, *CONTROLS} - {"path", "cope", "lstm"}
            for column in ("", "+conv")
        )
    ),
    "At four times the length CoPE generalises in 3 of 8 seeds alone and in 8 with it, linear "
    "attention in 1 and in 8": lambda: (
        in_both(["cope", "linear_attention"], "brackets", "long_x4") == [[3, 8], [1, 8]]
    ),
    "FIRE generalises there in 8 of 8 seeds alone and in 0 with it, ALiBi in 7 and in 1, RoPE and "
    "CoPE in 5 and in 0": lambda: (
        in_both(["fire", "alibi", "rope", "cope"], "brackets", "wide_gap")
        == [[8, 0], [7, 1], [5, 0], [5, 0]]
    ),
    "T5's tuning runs err there by at most 2.4 % at 0.003 and 0.006, but by 24.7 % or more at the "
    "chosen 0.024": lambda: (
        chosen("t5", "brackets") == 0.024
        and [
            round(100 * extreme(tuning_errors("t5", "brackets", "wide_gap", lr)), 1)
            for lr, extreme in ((0.003, max), (0.006, max), (0.024, min))
        ]
        == [2.4, 1.9, 24.7]
    ),
    "No entry adds numbers of up to three times the digits in any seed. At up to twice ALiBi "
    "does in 5 of 8 seeds with the convolution and in 0 alone, `conv` in 4 and in 3, FIRE in 3 and "
    "in 1. RoPE, FoX, PaTH and the LSTM fit in 0 of 8 seeds, alone and with it. PaTH as published "
    "fits in 3": lambda: (
        on_splits("path_published", "addition")[IN_DOMAIN] == (3, 8)
        and on_splits("path_published", "addition")["long_x3"] == (0, 8)
        and in_both([*TEN, *CONTROLS], "addition", "long_x3") == [[0, 0]] * 13
        and in_both(["alibi", "conv", "fire"], "addition", "long_x2") == [[0, 5], [3, 4], [1, 3]]
        and in_both(["rope", "fox", "path", "lstm"], "addition", IN_DOMAIN) == [[0, 0]] * 4
    ),
    "In 3 of 35 cells they change whether at least half of the seeds fit: RoPE on flip-flop no "
    "longer does, ALiBi on recall and FoX on sorting do. In 4 cells they change whether at least "
    "half generalise to every split: FoX and PaTH on majority and ALiBi and FoX on sorting then "
    "do": lambda: (
        changed_by_twice_the_steps()
        == [
            {("rope", "flipflop"): False, ("alibi", "recall"): True, ("fox", "sort"): True},
            {
                ("fox", "majority"): True,
                ("path", "majority"): True,
                ("alibi", "sort"): True,
                ("fox", "sort"): True,
            },
        ]
    ),
    "a step of PaTH costs 1.8 times as much as RoPE's. In as many steps as fit in RoPE's time PaTH "
    "alone generalises to every split of flip-flop in 5 of 5 seeds and of copying in 1 of 5. With "
    "all steps it does in 8 of 8 and 5 of 8": lambda: (
        [
            on_all("path", task, of)[0]
            for of in (of_phase("equal_time"), found())
            for task in ("flipflop", "copy_unique")
        ]
        == [(5, 5), (1, 5), (8, 8), (5, 8)]
        and [
            round(
                steps_of("path", task, found()) / steps_of("path", task, of_phase("equal_time")), 1
            )
            for task in ("flipflop", "copy_unique")
        ]
        == [1.8, 1.8]
    ),
    "PaTH copies in 8 of 8 seeds with its own and in 5 without (one-sided p = 0.1). It recalls in "
    "8 of 8 either way, and finds the majority in 8 and in 2": lambda: (
        [on_all(entry, "copy_unique")[0] for entry in ("path_published", "path")]
        == [(8, 8), (5, 8)]
        and [on_all(entry, "recall")[0] for entry in ("path_published", "path")] == [(8, 8)] * 2
        and [on_all(entry, "majority")[0] for entry in ("path_published", "path")]
        == [(8, 8), (2, 8)]
        and decided()["path-copy"].rows["p"].round(1).to_list() == [0.1]
    ),
    "Wall attention and GRAPE-AP, alone, solve every split of flip-flop but `sparse_x4` in at "
    "least 4 of 5 seeds, and `sparse_x4` in none": lambda: all(
        n == 5 and (k == 0 if split == "sparse_x4" else k >= 4)
        for entry in ("wall", "grape_ap")
        for split, (k, n) in on_splits(entry, "flipflop").items()
    ),
    "It generalises to every split in 8 of 8 seeds with the convolution and in 5 alone (one-sided"
    " p = 0.1). FIRE does in 2 with it, no other entry in any. With it PaTH and CoPE generalise "
    "to denser and sparser blanks in 8 of 8 seeds, and to twice the length in none": lambda: (
        generalising("selective_copy") == {"alibi": [5, 8], "fire": [0, 2]}
        and all(
            [on_splits(entry, "selective_copy")[split] for split in ("dense", "sparse", "long_x2")]
            == [(8, 8), (8, 8), (0, 8)]
            for entry in ("path+conv", "cope+conv")
        )
        and decided()["conv-copy-alibi"].rows["p"].round(1).to_list() == [0.0, 0.1]
    ),
    "Three claims are not supported": lambda: (
        {name for name, one in decided().items() if one.verdict == NOT_SUPPORTED}
        == {"path-copy", "path-recall", "conv-copy-alibi"}
    ),
    "ALiBi copies letters from among blanks without the convolution, too, in 5 of 8 "
    "seeds": lambda: k("alibi", "selective_copy")[0] == 5,
}
"""A part of the text, and whether the shipped file says so."""


OF_SUITE = {"v2": CLAIMS, "v1": claims_v1.CLAIMS}


@pytest.mark.parametrize(
    ("suite", "claim"), [(suite, claim) for suite, claims in OF_SUITE.items() for claim in claims]
)
def test_what_is_said_is_what_ships(suite: str, claim: str) -> None:
    assert claim in written(suite)
    assert OF_SUITE[suite][claim]()


@pytest.mark.parametrize("suite", OF_SUITE)
def test_every_number_of_seeds_is_checked(suite: str) -> None:
    assert unchecked(suite, OF_SUITE[suite]) == []


def test_the_readme_has_what_ships() -> None:
    said = " ".join(leaderboard.README.read_text("utf-8").split())
    assert leaderboard.first_table() in leaderboard.README.read_text("utf-8"), "make leaderboard"
    assert "ALiBi, T5 and FIRE copy at three times the length in 8 of 8 seeds, alone in 0" in said
    for entry in ("alibi", "t5", "fire"):
        columns = [on_splits(f"{entry}{conv}", "copy_unique") for conv in ("", "+conv")]
        assert [of["long_x3"] for of in columns] == [(0, 8), (8, 8)]
    assert "On copying, recall and flip-flop it generalises to every split in 0 of 8 seeds" in said
    assert all(k("rope", task) == [0, 0] for task in ("copy_unique", "recall", "flipflop"))
    assert "how many of 8 seeds err at most 1 % in domain and 2 % elsewhere" in said
    flipflop = found().suite.tasks["flipflop"]
    assert flipflop.fits == 0.01
    assert {*flipflop.generalises.values()} == {0.02}
