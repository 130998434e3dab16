"""``pe-lab leaderboard``: the runs of a suite in one file, and the tables made of them."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from html_page import Page, texts, values
from leaderboard_runs import COMMAND, NAME, SUITE, everything, rows, run
from made import config, made
from program import Here, assert_has, assert_refused, csv_rows, succeeded

from docs import leaderboard
from pe_lab.config.choices import choices
from pe_lab.core.console import _Console
from pe_lab.core.errors import DamagedError, UsageError
from pe_lab.report.html import light_colours
from pe_lab.report.leaderboard import heat_map, leaderboard_grid
from pe_lab.report.tables import UNLEARNED
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.entries import Place
from pe_lab.results.leaderboard.families import (
    Rate,
    by_family,
    missed,
    most_evidence,
    normalised,
    ordered,
    over_tasks,
    rates_by,
    ties,
)
from pe_lab.results.leaderboard.rows import SCHEMA, Found, suite_rows, suite_runs
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.leaderboard import (
    conclusion,
    overview,
    overview_notes,
    share_text,
    task_table,
)
from pe_lab.results.presentation.leaderboard_details import (
    phases_table,
    provenance,
    tuning_table,
)
from pe_lab.results.presentation.needs import doubts
from pe_lab.results.suite import Suite, load_suite, task_digest
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import digest_of

NONE = pl.DataFrame(schema=SCHEMA)
MISSED = [0.5] * 6
REACHED = [0.0] * 6


def flipflop(entry: str, n: int, k: int, **values: object) -> list[list[dict[str, object]]]:
    """n runs, of which the first k generalise to all splits."""
    return [
        run(entry, "flipflop", seed, [0.0, *(REACHED if seed < k else MISSED)], **values)
        for seed in range(n)
    ]


def scored(*runs: list[dict[str, object]], yours: pl.DataFrame = NONE) -> Scores:
    return scores(SUITE, rows(*runs), yours)


def cell(found: Scores, entry: str, split: str = "sparse") -> dict[str, object]:
    chosen = found.cells.filter((pl.col("entry") == entry) & (pl.col("split") == split))
    (row,) = chosen.iter_rows(named=True)
    return row


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shipped file with three entries on flipflop."""
    path = tmp_path / "shipped.parquet"
    monkeypatch.setattr(file, "shipped", lambda name: path)
    tuning = [
        run(entry, "flipflop", seed, [0.0 if lr == 0.003 else 0.1, *MISSED], lr=lr)
        for entry in ("rope", "cope", "lstm")
        for seed in SUITE.protocol.tuning_seeds
        for lr in SUITE.protocol.rates
    ]
    ran = [*flipflop("rope", 20, 2), *flipflop("cope", 20, 19), *flipflop("lstm", 8, 8)]
    failed = run("alibi", "flipflop", 0, [None] * 7, state="failed", message="the loss is nan")
    file.write(rows(*tuning, *ran, failed), path)
    return path


def test_a_file_read_back_is_what_was_written(tmp_path: Path) -> None:
    found = everything("flipflop", "recall", "text")
    path = tmp_path / "v1.parquet"
    digest = file.write(found, path)
    read, again = file.read(path)
    assert again == digest
    assert read.equals(found.sort(file.ORDER))
    content = path.read_bytes()
    shuffled = found.sample(fraction=1, shuffle=True, seed=1)
    assert file.write(shuffled, path) == digest
    assert path.read_bytes() == content
    checked = subprocess.run(["sha256sum", "-c", f"{path.name}.sha256"], cwd=tmp_path)
    assert checked.returncode == 0
    # Drawn losses and times do not compress, as measured ones do not.
    runs = found["run_id"].n_unique()
    assert len(content) * 10_000 / runs < 2e6


def test_a_file_with_fewer_columns_is_read(tmp_path: Path) -> None:
    """From before starts, processors and versions of Python were recorded."""
    found = rows(*flipflop("rope", 2, 1))
    path = tmp_path / "v1.parquet"
    content = io.BytesIO()
    later = ["started", "processor", "python"]
    found.drop(later).write_parquet(content)
    path.write_bytes(content.getvalue())
    beside = path.with_name(path.name + file.SUFFIX)
    beside.write_text(f"{digest_of(content.getvalue())}  {path.name}\n")
    read, _ = file.read(path)
    assert read.columns == found.columns
    assert {read[name].null_count() for name in later} == {len(read)}
    assert read.drop(later).equals(found.drop(later))
    # The folders of these runs know it.
    merged = file.merged(read, found)
    known = merged.select("started", "processor", "python").unique().rows()
    assert known == [(1_000_000.0, None, None)]
    assert merged.drop(later).equals(found.sort(file.ORDER).drop(later))


def test_the_shipped_runs_without_a_processor_are_those_from_before_it_was_recorded() -> None:
    read, _ = file.read(file.shipped("v1"))
    assert dict(read.schema) == SCHEMA
    runs = read.unique("run_id")
    assert (runs["processor"].is_null() == runs["python"].is_null()).all()
    unknown = runs["processor"].null_count()
    said = " ".join(leaderboard.TEXTS["v1"].read_text("utf-8").split())
    assert f"not recorded for the first {unknown:,} runs".replace(",", " ") in said


def test_of_equal_runs_the_first_start_is_kept() -> None:
    """A run made again after a plan was written is not planned by it."""
    at = {time: flipflop("rope", 1, 1, started=time) for time in (1.0, 2.0)}
    later = flipflop("rope", 1, 1, started=2.0, planned="a" * 64)
    for shipped, others in ((at[1.0], later), (later, at[1.0])):
        found = file.merged(rows(*shipped), rows(*others))
        assert found.select("started", "planned").unique().rows() == [(1.0, None)]
    # Shipped before the plan was in runs_dir/plans.
    found = file.merged(rows(*at[2.0]), rows(*later))
    assert found.select("started", "planned").unique().rows() == [(2.0, "a" * 64)]
    assert len(found) == 7


@pytest.mark.parametrize("part", [0, 0.3, 0.6, 1])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, part: float) -> None:
    path = tmp_path / "v1.parquet"
    file.write(rows(*flipflop("rope", 4, 2)), path)
    content = bytearray(path.read_bytes())
    content[int(part * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"v1.parquet does not fit its digest in v1.parquet.sha"):
        file.read(path)


def test_the_rate_is_chosen_in_domain_on_tuning_seeds_alone() -> None:
    """A rate that is better out of domain, or on the scored seeds, is not chosen."""
    tuning = [
        one
        for seed in SUITE.protocol.tuning_seeds
        for one in (
            run("rope", "flipflop", seed, [0.10, *REACHED], lr=0.012),
            run("rope", "flipflop", seed, [0.01, *MISSED], lr=0.003, loss=0.2),
            run("rope", "flipflop", seed, [0.01, *MISSED], lr=0.006, loss=0.1),
            run("rope", "flipflop", seed, [None] * 7, lr=0.001, state="failed"),
        )
    ]
    ran = flipflop("rope", 8, 1, lr=0.006)
    others = flipflop("rope", 8, 8, lr=0.012)
    found = scored(*tuning, *ran, *others)
    row = cell(found, "rope")
    assert (row["lr"], row["rates"], row["n"], row["k"]) == (0.006, 4, 8, 1)
    said = "8 runs of flipflop excluded: the rate was not the tuned one"
    assert said in provenance(found, ["flipflop"], None)
    assert said not in provenance(found, ["sort"], None)


def test_failed_runs_and_lengths_not_reached_count_as_not_generalised() -> None:
    failed = run("rope", "flipflop", 2, [None] * 7, state="failed", message="out of memory")
    short = run("rope", "flipflop", 3, [0.0, 0.0, 0.0, *[None] * 4])
    found = scored(*flipflop("rope", 2, 2), failed, short)
    row, long = cell(found, "rope"), cell(found, "rope", "long_x4")
    assert (row["k"], row["n"], row["measured"], row["failed"]) == (3, 4, 3, 1)
    assert (long["k"], long["n"], long["measured"], long["mean"]) == (2, 4, 2, 0)
    assert cell(found, "rope", "in_domain")["k"] == 3


def test_flips_are_of_runs_that_began_again() -> None:
    """Of three seeds that generalise one does not the second time, one is the same run, read from
    its folder, and one failed. Third results do not count."""
    began = {"started": 2_000_000.0}
    first = flipflop("rope", 4, 3)
    later = [
        run("rope", "flipflop", 0, [0.0, 0.5, *REACHED[1:]], **began),
        run("rope", "flipflop", 1, [0.0, *MISSED]),
        run("rope", "flipflop", 2, [None] * 7, state="failed", **began),
        run("rope", "flipflop", 3, [0.0, *MISSED], **began),
        run("rope", "flipflop", 0, [0.0] * 7, started=3_000_000.0),
    ]
    elsewhere = run("rope", "majority", 0, [0.0, 0.0, 0.0])
    elsewhere_later = run("rope", "majority", 0, [0.0, 0.9, 0.9], **began)
    second = rows(*later, elsewhere_later)
    same = rows(*first).filter(pl.col("seed") != 1).with_columns(started=4_000_000.0)
    for given in (
        {"yours": second},
        {"yours": NONE, "again": second},
        {"yours": second, "again": same},
    ):
        found = scores(SUITE, rows(*first, elsewhere), **given)
        counted = [cell(found, "rope", split) for split in ("sparse", "dense")]
        assert [(row["k"], row["n"]) for row in counted] == [(3, 4)] * 2
        assert [(row["flips"], row["again"]) for row in counted] == [(2, 3), (1, 3)]
        table = task_table(found, "flipflop")
        assert "3/4 0.0‡ (2 of 3 flips)" in [text.text for text in table.rows[0]]
        assert table.caption.endswith("the other side of the threshold.")
        assert "8 of 21 results on a split flip" in doubts(found, ["flipflop"])[-1]
    plain = scored(*first)
    assert "flip" not in f"{task_table(plain, 'flipflop')}{doubts(plain, ['flipflop'])}".replace(
        "flipflop", ""
    )


def test_the_second_results_that_ship_are_of_shipped_runs() -> None:
    suite = load_suite("v2")
    first, again = file.shipped_rows(suite)[0], file.shipped_again(suite)
    key = ["run_id", "split", "task", "entry", "phase", "lr", "seed", "steps", "n"]
    both = again.join(first, on=key, how="inner", suffix="_first")
    assert len(both) == len(again) > 1000
    assert (both["started"] != both["started_first"]).all()
    assert both["processor"].ne_missing(both["processor_first"]).all()


def test_a_run_counts_once() -> None:
    first = run("rope", "flipflop", 0, [0.0, *MISSED])
    same = run("rope", "flipflop", 0, [0.0, *MISSED], train_s=99.0)
    other = run("rope", "flipflop", 0, [0.0, *REACHED], machine="Darwin arm64")
    assert cell(scored(first, yours=rows(same)), "rope")["n"] == 1
    found = scored(first, yours=rows(other))
    row = cell(found, "rope")
    assert (row["n"], row["k"], row["yours"]) == (1, 0, 0)
    (note,) = found.notes
    assert "1 run with two results, of which the shipped one counts: flipflop-rope-seed0" in note
    # A run that failed elsewhere and was made again.
    failed = run("rope", "flipflop", 0, [None] * 7, state="failed")
    found = scored(failed, yours=rows(first))
    assert (cell(found, "rope")["n"], cell(found, "rope")["failed"]) == (1, 0)


def on_recall(entry: str, n: int, k: int) -> list[list[dict[str, object]]]:
    """n runs of recall, of which the first k generalise to all of its three splits."""
    return [run(entry, "recall", seed, [0.0, *[0.5 * (seed >= k)] * 3]) for seed in range(n)]


def test_tasks_of_a_family_weigh_the_same() -> None:
    """Flipflop has six splits, recall three; and here twenty runs and eight."""
    found = scored(*flipflop("rope", 20, 20), *on_recall("rope", 8, 0))
    rate = rates_by(found, "generalises", {"recall": ["flipflop", "recall"]})["rope"]["recall"]
    assert (rate.share, rate.runs, rate.tasks, rate.of) == (0.5, 28, 2, 2)
    # Wilson: 20 of 20 from 0.839, 0 of 8 up to 0.324; each of weight 1/2.
    assert (rate.low, rate.high) == pytest.approx((0.5 - 0.161 / 2, 0.5 + 0.324 / 2), abs=1e-3)
    # Splits of a task too: half of the seeds at one of three.
    one = [run("cope", "recall", seed, [0.0, 0.0, 0.5, 0.5]) for seed in range(4)]
    mixed = scored(*one, *(run("cope", "recall", seed, [0.0] + [0.5] * 3) for seed in range(4, 8)))
    share = rates_by(mixed, "generalises", {"recall": ["recall"]})["cope"]["recall"].share
    assert share == pytest.approx(1 / 6)


def test_a_task_that_most_seeds_do_not_learn_is_marked() -> None:
    """Half of them fitting it is enough; of a family one such task is."""
    learned = [run("rope", "recall", seed, [0.1 * (seed >= 4), *[0.5] * 3]) for seed in range(8)]
    others = [run("cope", "recall", seed, [0.1 * (seed >= 3), *[0.5] * 3]) for seed in range(8)]
    found = scored(*learned, *others, *flipflop("cope", 8, 8))
    table = overview(found, by_family(SUITE, SUITE.tasks), "all")
    cells = {row[0].text.partition(" ")[0]: row[3].text for row in table.rows}
    assert cells == {**cells, "rope": "0 1/2", "cope": "50°"}
    assert "°: fewer than half of the seeds learn a task" in table.caption
    table = overview(found, {name: [name] for name in ("flipflop", "recall")}, "recall")
    (row,) = (row for row in table.rows if row[0].text.startswith("cope"))
    assert [cell.whole for cell in row[3:5]] == ["100 [68, 100]", "0° [0, 32]"]


def test_entries_of_other_tasks_do_not_look_better() -> None:
    """cope has both tasks of the family, path the easier one alone, none of them other families."""
    ran = [*flipflop("cope", 8, 8), *on_recall("cope", 8, 4), *flipflop("path", 8, 8)]
    found = scored(*ran, *flipflop("rope", 8, 0), *on_recall("rope", 8, 0))
    table = overview(found, by_family(SUITE, SUITE.tasks), "all")
    assert table.columns == ["entry", "tasks", "fits", "recall", "time"]
    lines = [[cell.whole for cell in row[1:4]] for row in table.rows[:3]]
    assert [row[0].text.partition(" ")[0] for row in table.rows[:3]] == ["cope", "rope", "path"]
    assert lines == [
        ["2/12", "100 [77, 100]", "75 [53, 89]"],
        ["2/12", "100 [77, 100]", "0 [0, 23]"],
        ["1/12", "100 [68, 100]", "100 1/2 [68, 100]"],
    ]
    assert overview_notes(found, by_family(SUITE, SUITE.tasks)) == [
        "not run: count, state, copy and address, arithmetic, text"
    ]
    both, one = over_tasks(found, ["flipflop", "recall"])
    assert (both[0], [*both[1]]) == (("flipflop", "recall"), ["cope", "rope"])
    assert (one[0], {*one[1]}) == (("flipflop",), {"cope", "path", "rope"})
    assert [one[1]["rope"].lower_than, one[1]["rope"].higher_than] == [set(), {"cope", "path"}]
    assert [one[1]["cope"].lower_than, one[1]["cope"].higher_than] == [{"rope"}, set()]


def test_where_no_difference_is_significant_that_is_said() -> None:
    """With eight seeds a side p is at least 2 / C(16, 8), times the pairs of entries."""
    names = [name for name in SUITE.encodings if name != "none"][:30]
    found = scored(*(one for n, name in enumerate(names) for one in flipflop(name, 8, 8 * (n > 9))))
    (note,) = (n for n in overview_notes(found, {"recall": ["flipflop"]}) if " p " in n)
    assert note.startswith("recall: no encoding differs significantly from the highest; the smal")
    assert ties(found, ["flipflop"], names).least_p == pytest.approx(30 * 29 / 2 * 2 / 12870)


def test_the_order_of_entries() -> None:
    """The most tasks, then the weakest column, then the next; ties as in the suite."""

    def of(**shares: float) -> dict[str, Rate]:
        return {name: Rate(share, 0.0, 1.0, 8, 1, 2, 0) for name, share in shares.items()}

    rates = {
        "one": of(count=1.0), "even": of(count=0.5, recall=0.5), "best": of(count=0.5, recall=0.6),
        "high": of(count=1.0, recall=0.4), "same": of(count=0.5, recall=0.5),
    }  # fmt: skip
    names = [*rates, "none"]
    assert ordered(names, rates) == ["best", "even", "same", "high", "one", "none"]
    assert ordered(names, rates, "count") == ["one", "high", "even", "best", "same", "none"]
    assert ordered(names, rates, "suite") == names


def test_sorted_by_a_column(here: Here, shipped: Path) -> None:
    def first(*words: str) -> list[str]:
        ended = succeeded(here(*COMMAND, *words, "all=true", "format=markdown"))
        rows = [
            line.split("|")[1].split()[0].strip("*")
            for line in ended.out.splitlines()
            if "|" in line
        ]
        return [name for name in rows if name in ("rope", "cope", "learned")]

    assert first() == first("sort=recall") == first("family=recall", "sort=flipflop")
    assert first() == ["cope", "rope", "learned"]
    assert first("sort=suite") == ["learned", "rope", "cope"]
    assert first("task=flipflop") == first("task=flipflop", "sort=long_x4")
    assert first("task=flipflop")[0] == "cope"
    assert first("task=flipflop", "sort=suite") == ["rope", "cope"]


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0"), (0.001, "<1"), (0.692, "69"), (0.998, ">99"), (1, "100")]
)
def test_none_and_all_are_not_rounded_to(share: float, text: str) -> None:
    assert share_text(share) == text


def test_which_entries_are_not_below_the_highest() -> None:
    ran = [*flipflop("rope", 20, 1), *flipflop("cope", 20, 19), *flipflop("path", 20, 17)]
    seen = ties(scored(*ran), ["flipflop"], ["rope", "cope", "path"])
    assert (seen.best, seen.alike) == ({"cope", "path"}, ("cope", "path"))
    # One of few runs is not below, and hides no difference between the others.
    ran += flipflop("fox", 8, 4)
    seen = ties(scored(*ran), ["flipflop"], ["rope", "cope", "path", "fox"])
    assert seen.alike == ("cope", "path", "fox")
    # One that has only the easier of two tasks is not the best of a family.
    harder = [run(e, "recall", n, [0.0] + [0.5] * 3) for e in ("rope", "cope") for n in range(8)]
    easier = [*flipflop("rope", 20, 1), *flipflop("cope", 20, 19), *flipflop("path", 20, 20)]
    seen = ties(scored(*harder, *easier), ["flipflop", "recall"], ["rope", "cope", "path"])
    assert (seen.best, seen.alike) == ({"cope"}, ("cope",))
    # A task that one alone has run, or of which others have begun, is left out.
    for more in (harder[:8], [*harder[:8], harder[8]]):
        seen = ties(scored(*more, *easier), ["flipflop", "recall"], ["rope", "cope", "path"])
        assert (seen.best, seen.compared) == ({"cope", "path"}, 3)
    few = scored(*flipflop("rope", 2, 0), *flipflop("cope", 2, 2))
    assert ties(few, ["flipflop"], ["rope", "cope"]).best == frozenset()


def test_entries_with_too_few_seeds_to_differ_are_not_among_the_best() -> None:
    """Eight seeds a side cannot differ among so many, neither six nor one of 8; nor do 20 count
    against 8."""
    names = [name for name in SUITE.encodings if name not in ("none", "rope", "cope")][:36]
    ran = [*flipflop("rope", 20, 0), *flipflop("cope", 20, 17)]
    ran += (one for n, name in enumerate(names) for one in flipflop(name, 8, (6, 1)[n % 2]))
    seen = ties(scored(*ran), ["flipflop"], [*names, "rope", "cope"])
    assert {*seen.alike} == {"cope", *names}
    assert seen.best == {"cope"}


def test_the_entries_with_the_most_evidence(here: Here, shipped: Path) -> None:
    """And those of the reader; the rest by all=true, some by pe=."""
    ran = [*flipflop("rope", 8, 1), *on_recall("rope", 8, 1), *flipflop("cope", 20, 1)]
    names = [name for name in SUITE.encodings if name not in ("none", "rope", "cope")]
    ran += (one for n, name in enumerate(names) for one in flipflop(name, 1 + n % 8, 0))
    found = scored(*ran, yours=rows(*flipflop("mine", 1, 1)))
    listed = ["rope", "cope", *names, "mine"]
    shown = most_evidence(found, ["flipflop", "recall"], listed, 4)
    assert {"rope", "cope", "mine"} < shown
    assert len(shown) == 5
    assert most_evidence(found, ["recall"], listed, 4) == {"rope"}
    out = here(*COMMAND, "pe=cope").out
    assert "cope" in out
    assert "rope" not in out
    assert "rope" in here(*COMMAND, "all=true").out


def test_what_was_found_is_the_first_line(here: Here, shipped: Path) -> None:
    first = "On recall, cope has the highest success rate of all encodings."
    assert here(*COMMAND, "view=families").out.splitlines()[0] == first
    first = "Works on the most tasks: cope and 1 more (1 of 1 task)."
    assert here(*COMMAND).out.splitlines()[0] == first
    assert json.loads(here(*COMMAND, "format=json").out)["found"] == first
    both = [*on_recall("cope", 20, 0), *on_recall("rope", 20, 0)]
    found = scored(*flipflop("cope", 20, 20), *flipflop("rope", 20, 0), *both)
    alike = scored(*flipflop("cope", 2, 1), *flipflop("rope", 2, 2))
    runs = {"fox": (20, 19), "path": (20, 20), "rope": (0, 0)}
    unlike = scored(
        *(one for e, (a, b) in runs.items() for one in (*flipflop(e, 20, a), *on_recall(e, 20, b)))
    )
    for scores_of, groups, said in (
        (
            found,
            {"a": ["flipflop"], "b": ["recall"]},
            "Of all encodings, cope has the highest success rate, or one not significantly lower, "
            "in 1 of 2 tasks. No encoding generalises on b.",
        ),
        (
            scored(*flipflop("cope", 20, 20), *flipflop("path", 20, 20), *flipflop("rope", 20, 0)),
            {"a": ["flipflop"], "b": ["recall"]},
            "On a, cope and 1 more have the highest success rate of all encodings.",
        ),
        (
            unlike,
            {"a": ["flipflop"], "b": ["recall"]},
            # Later in the suite, above in the table.
            "Of all encodings, path and 1 more have the highest success rate, or one not "
            "significantly lower, in 2 of 2 tasks.",
        ),
        (found, {"c": ["sort"]}, "No run is scored yet."),
        (
            alike,
            {"a": ["flipflop"]},
            "No success rate differs significantly from the highest.",
        ),
    ):
        assert conclusion(scores_of, groups) == said


@pytest.mark.parametrize("suite", ["v1", "v2"])
def test_it_is_short(here: Here, monkeypatch: pytest.MonkeyPatch, suite: str) -> None:
    """At most 25 lines of 100 columns; with details where the runs come from."""
    out = io.StringIO()
    narrow = _Console(file=out, width=100, markup=False)
    monkeypatch.setattr("pe_lab.results.presentation.formats.console", lambda: narrow)
    assert here("leaderboard", f"suite={suite}").status == 0
    lines = out.getvalue().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    assert "revision" not in out.getvalue()
    assert here("leaderboard", f"suite={suite}", "details=true").status == 0
    assert "revision: " in out.getvalue()


def test_of_equal_means_the_entry_with_more_runs_is_the_highest() -> None:
    """4 of 20 differ from 20 of 20; their first eight seeds do not from 8 of 8."""
    seeds = {"cope": (8, 8), "rope": (20, 20), "fox": (20, 4), "t5": (20, 4)}
    found = scored(*(one for name, n in seeds.items() for one in flipflop(name, *n)))
    for listed in ([*seeds], [*seeds][::-1]):
        assert ties(found, ["flipflop"], listed).best == {"rope", "cope"}


def test_cost_is_of_the_same_machine_and_marked_where_from_another_time() -> None:
    """Of rope's time with the same seed, within an hour if there are such runs."""
    ran = [
        *flipflop("rope", 4, 1, train_s=10.0),
        *flipflop("cope", 4, 1, train_s=15.0)[:2],
        *flipflop("cope", 4, 1, train_s=30.0, started=1_010_000.0)[2:],
        *flipflop("path", 4, 1, train_s=20.0, started=1_010_000.0),
        *flipflop("fox", 4, 1, train_s=40.0, started=None),
        *flipflop("t5", 4, 1, train_s=2.0, machine="another"),
        # More seeds of rope, made later on an idle machine, change no entry's cost.
        *flipflop("rope", 20, 1, train_s=5.0)[8:],
    ]
    found = scored(*ran)
    for table in (task_table(found, "flipflop"), overview(found, {"all": ["flipflop"]}, "")):
        times = {row[0].text.partition(" ")[0]: row[-1].text for row in table.rows}
        assert [times[e] for e in ("rope", "cope", "path", "fox", "t5")] == [
            "1.00", "1.50", "~2.00", "~4.00", "",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "end"),
    [(2, ""), (3, " (the first of 2 kinds, to=FILE.parquet has all)")],
)
def test_failures_of_several_kinds_are_named(failures: int, end: str) -> None:
    messages = (
        "not finite at step 3 (train.lr=0.01): the checkpoint is kept, runs/a/b.pt",
        "not finite at step 12 (train.lr=0.01): the checkpoint is kept, runs/a/c.pt",
        "no such table",
    )[:failures]
    failed = [
        run("rope", "flipflop", seed, [None] * 7, state="failed", message=message)
        for seed, message in enumerate(messages)
    ]
    found = scored(*flipflop("rope", 8, 8)[failures:], *failed)
    said = f"failed: rope on flipflop, {failures} runs (score): {messages[0]}{end}"
    assert said in provenance(found, ["flipflop"], None)


def test_answers_and_guessing_are_those_of_the_score() -> None:
    """A run of the phase capacity is measured on another split as in_domain."""
    other = run("rope", "flipflop", 0, [0.0, *MISSED], phase="capacity:long_x4", n=7, guess=0.9)
    found = scored(*flipflop("rope", 8, 8), yours=rows(other))
    guessing, answers = task_table(found, "flipflop").closing[-2:]
    assert [cell.text for cell in guessing][3:5] == ["50.0", "50.0"]
    assert [cell.text for cell in answers][3:5] == ["1000", "1000"]


def test_where_every_tuning_run_failed_nothing_is_scored() -> None:
    failed = [
        run("rope", "flipflop", 1000, [None] * 7, lr=rate, state="failed")
        for rate in SUITE.protocol.rates
    ]
    tuned = [run("cope", "flipflop", 1000, [0.0, *MISSED])]
    found = scored(*failed, *flipflop("rope", 8, 8), *tuned)
    assert found.cells.is_empty()
    table = task_table(found, "flipflop")
    states = {row[0].text: row[2].text for row in table.rows}
    assert (states["rope"], states["cope"]) == ("failed", "not scored")
    assert "path" not in states


def failing(run: RunFolder, by_machine: bool) -> None:
    """Make of a finished run of ``made`` one that failed."""
    summary = json.loads((run.path / "summary.json").read_text())
    recorded = {**summary["config"], "names": summary["names"]}
    run.write_text("config.yaml", yaml.safe_dump(recorded))
    (run.path / "summary.json").unlink()
    run.set_status("failed", 10, 400, "it stopped", by_machine)


def suite_of_made(digest: str | None = None) -> Suite:
    """A suite whose only task is that of the runs of ``made``, or that with this digest."""
    task = replace(
        SUITE.tasks["flipflop"],
        digest=digest or task_digest(config(), None),
        generalises={"sparse": 0.02, "dense": 0.02},
    )
    return replace(SUITE, tasks={"flipflop": task})


def test_run_folders_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = suite_of_made()
    errors = {"in_domain": 0.0, "sparse": 0.25, "dense": None}
    steps, at_dense = {"train.steps": 800}, {"task.p_ignore": 0.1, "task.splits": {}}
    for seed, changes in (
        (0, {}), (1000, {"train.lr": 0.012}), (0, steps), (0, {"train.steps": 500}),
        # Seeds that are not the protocol's could be those that came out well.
        (500, {}), (1000, steps), (1, {"pe.base": 500}), (0, {"task.length": 32}),
    ):  # fmt: skip
        made("rope", seed, errors=errors, **changes)
    for changes in (at_dense, {**at_dense, **steps}):
        made("rope", 0, errors={"in_domain": 0.125}, **changes)
    for width in (4, 8):
        made("mine", 0, errors=errors, **{"pe.width": width, "pe.base": 10})
    found = suite_rows(tmp_path / "runs", suite)
    assert dict(found.schema) == SCHEMA
    runs = found.unique("run_id").sort("phase", "entry", "seed", "steps")
    runs = runs.select("entry", "phase", "seed", "lr")
    assert runs.rows() == [
        ("rope", "capacity:dense", 0, 0.003),
        ("rope", "other", 0, 0.003),
        ("rope", "other", 0, 0.003),
        ("rope", "other", 1000, 0.003),
        ("rope", "other_seeds", 500, 0.003),
        # An encoding of the user's is compared among its runs.
        ("mine width=4", "score", 0, 0.003),
        ("mine width=8", "score", 0, 0.003),
        ("rope", "score", 0, 0.003),
        ("rope base=500", "score", 1, 0.003),
        ("rope", "steps_x2", 0, 0.003),
        ("rope", "tuning", 1000, 0.012),
    ]
    one = found.filter(phase="score", entry="rope")
    assert one.select("split", "error", "n", "guess", "task", "suite").rows() == [
        ("dense", None, None, None, "flipflop", NAME),
        ("in_domain", 0.0, 100, 0.5, "flipflop", NAME),
        ("sparse", 0.25, 100, 0.5, "flipflop", NAME),
    ]
    assert one["run_id"].str.contains(r"flipflop-rope-seed0-[0-9a-f]{8}").all()


def test_rows_say_what_a_run_was_made_with(here: Here) -> None:
    start = {
        "git_revision": "0123456789abcdef", "python": "3.11.7", "versions": {"torch": "2.13.0"},
        "platform": "Linux-6.1-x86_64-with-glibc2.36", "cpu_capability": "AVX512", "threads": 1,
    }  # fmt: skip
    machine = ("0123456789ab", "2.13.0", "Linux x86_64 AVX512")
    starts: dict[int, Any] = {
        0: [{**start, "processor": "AMD EPYC"}],
        1: [{**start, "processor": None}],
        2: [start],
        3: [{**start, "processor": 7}],
    }
    for seed, recorded in starts.items():
        made("rope", seed).write_json("environment.json", recorded)
    found = suite_rows(Path("runs"), suite_of_made()).unique("run_id").sort("seed")
    assert found.select("revision", "torch", "machine", "processor", "python").rows() == [
        (*machine, "AMD EPYC", "3.11.7"),
        (*machine, None, "3.11.7"),
        (*machine, None, "3.11.7"),
        (None,) * 5,
    ]


def test_a_run_that_lacked_memory_or_room_is_not_counted(here: Here) -> None:
    for seed, by_machine in ((0, None), (1, True), (2, False)):
        run = made("rope", seed)
        if by_machine is not None:
            failing(run, by_machine)
    found = suite_runs(Path("runs"), suite_of_made())
    over = found.rows.unique("run_id").sort("seed")
    assert over.select("seed", "state").rows() == [(0, "finished"), (2, "failed")]
    (run_id,) = found.lacking
    assert run_id.startswith("flipflop-rope-seed1-")
    # Made again, with more room.
    made("rope", 1)
    found = suite_runs(Path("runs"), suite_of_made())
    assert (sorted(found.rows["seed"].unique()), found.lacking) == ([0, 1, 2], {})


def test_a_failed_run_of_a_task_with_files_is_found(here: Here) -> None:
    """It has recorded the digests of these files."""
    text = {"text": "0" * 64}
    suite = suite_of_made(task_digest(config(), text))
    for pe, by_machine in (("alibi", False), ("cope", True)):
        run = made(pe, contents=text)
        failing(run, by_machine)
        run.write_json("environment.json", [{"contents": text}])
    made("rope", contents=text)
    found = suite_runs(Path("runs"), suite)
    assert found.rows.unique("run_id").sort("pe").select("entry", "state").rows() == [
        ("alibi", "failed"),
        ("rope", "finished"),
    ]
    assert [run_id.partition("-seed")[0] for run_id in found.lacking] == ["flipflop-cope"]


def test_runs_that_cannot_be_read_are_named(here: Here, shipped: Path) -> None:
    run = made("rope", 0)
    (run.path / "summary.json").write_text("{")
    for words in (["details=true"], ["to=all.parquet"]):
        ended = succeeded(here(*COMMAND, *words))
        assert f"not counted: {run.path}/summary.json" in ended.err + ended.out
    assert "1 run not counted; " in here(*COMMAND, "format=markdown").err
    assert "not counted" not in here(*COMMAND, "runs_dir=.", "format=markdown").err


def test_how_many_lacked_memory_or_room_is_said(
    here: Here, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_shipped = file.read(shipped)[0]["run_id"][0]
    lacking = {one: Place("flipflop", "cope") for one in ("one", "two", is_shipped)}
    lacking |= {"three": Place("recall", "rope")}
    found = Found(pl.DataFrame(schema=SCHEMA), lacking, [])
    monkeypatch.setattr("pe_lab.cli.leaderboard.suite_runs", lambda *_: found)
    said = "not counted, since memory or room was missing: {}; pe-lab suite v1 trains"
    every = said.format("cope on flipflop, 2 runs; rope on recall, 1 run")
    assert "3 runs not counted" in here(*COMMAND, "format=markdown").err
    assert every in here(*COMMAND, "details=true", "format=markdown").err
    of_recall = here(*COMMAND, "task=recall", "details=true", "format=markdown").err
    assert said.format("rope on recall, 1 run") in of_recall
    assert every in here(*COMMAND, "to=all.parquet").out
    assert here(*COMMAND, "to=all.html").status == 0
    assert every in Path("all.html").read_text()


def test_versions_of_a_file_of_yours_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for pe, digests in {"mine": "aab", "yours": "cc", "rope": "de"}.items():
        for seed, digest in enumerate(digests):
            start = {"code": {f"{pe}.Bias": digest}}
            made(pe, seed).write_json("environment.json", [{"code": {}}, start])
    made("mine", 3).write_json("environment.json", [{}])
    (line,) = suite_runs(tmp_path / "runs", suite_of_made()).versions
    assert line.startswith(
        "mine: its runs were made with 2 versions of the file of mine.Bias (2, 1"
    )


def test_families_and_not_run(here: Here, shipped: Path) -> None:
    ended = succeeded(here(*COMMAND, "all=true", "details=true", "format=markdown"))
    lines = {line.split("|")[1].strip(): line for line in ended.out.splitlines() if "|" in line}
    assert "| 10 1/2 [3, 30]" in lines["rope"]
    assert "**95 1/2 [76, 99]**" in lines["cope"]
    assert lines["shaw"].count("not run") == 2
    assert list(lines).index("none") == len(SUITE.encodings) + 1
    assert "| 1/12 | 100 [68, 100] | 100 1/2 [68, 100] |" in lines["lstm"]
    assert "0° 1/2 [0, 79]" in lines["alibi (not tuned)"]
    assert "|  | 0 | 0 |  |" in lines["guessing"]
    assert_has(
        ended.err,
        "not run: count, state, copy and address, arithmetic, text\n",
        "not run, of the columns shown: recall\n",
        "failed: alibi on flipflop, 1 run (score): the loss is nan",
        "exploratory: no claim",
        f"suite {NAME}, shipped results",
    )


def test_a_task_and_a_split(here: Here, shipped: Path) -> None:
    out = here(*COMMAND, "task=flipflop", "format=markdown").out
    assert_has(
        out, "\n| **cope** ", "| 0.003 | 20/20 0.0 [84, 100] | 19/20 0.0‡ [76, 99]", "| guessing |"
    )
    out = here(*COMMAND, "split=long_x4", "task=flipflop", "format=markdown").out
    assert_has(out, "\n| rope | 0.003 | 2/20 50.0‡ [3, 30] | 1.00 |\n", "long\\_x4")
    assert "sparse" not in out


def test_an_entry_is_yours_if_none_of_its_runs_is_shipped() -> None:
    """One of which some are shipped is not: the reader sees how many are added."""
    more = [run("rope", "flipflop", seed, [0.0, *REACHED]) for seed in (2, 3, 4)]
    yours = rows(*flipflop("mine", 2, 1), *more)
    found = scored(*flipflop("rope", 3, 1), *flipflop("cope", 2, 2), yours=yours)
    for table in (task_table(found, "flipflop"), overview(found, {"all": ["flipflop"]}, "")):
        names = [row[0].text.removesuffix(" (not tuned)") for row in table.rows]
        # Seed 2 is shipped, too.
        assert {"rope (+2 yours)", "cope", "mine (yours)"} <= set(names)


def test_numbers_for_programs(here: Here, shipped: Path) -> None:
    ended = here(*COMMAND, "task=flipflop", "format=csv")
    found = {(row["entry"], row["split"]): row for row in csv_rows(ended.out)}
    assert found["cope", "sparse"]["k"] == "19"
    ended = here(*COMMAND, "format=json")
    content = json.loads(ended.out)
    assert content["suite_digest"] == SUITE.digest
    assert content["shipped_digest"] == file.read(shipped)[1]
    assert len(content["rows"]) == 4 * 7


def test_collected_into_a_file(here: Here, shipped: Path, tmp_path: Path) -> None:
    ended = succeeded(here(*COMMAND, "to=all.parquet"))
    assert "73 runs, SHA-256" in ended.out
    found, digest = file.read(tmp_path / "all.parquet")
    assert digest in ended.out
    assert found.equals(file.read(shipped)[0])
    assert here(*COMMAND, "to=all.parquet").status == 0
    # What only that file has is not lost.
    ended = here(*COMMAND, "to=all.parquet", "shipped=false")
    assert_refused(ended, "to=all.parquet has 73 runs that these are without", "another name")
    # Nor what its runs measured.
    found.with_columns(error=pl.col("error") + 0.1).write_parquet("other.parquet")
    with pytest.raises(UsageError, match=r"other\.parquet has 72 runs with other results, and"):
        file.check_kept(Path("other.parquet"), found)
    assert file.read(tmp_path / "all.parquet")[1] == digest


def test_yours_that_are_tuned_only_have_a_row() -> None:
    tuned = [run("mine", "flipflop", 1000, [0.0, *MISSED])]
    table = task_table(scored(*flipflop("rope", 2, 1), yours=rows(*tuned)), "flipflop")
    row = next(row for row in table.rows if row[0].text == "mine (yours)")
    assert [cell.text for cell in row][:3] == ["mine (yours)", "", "not scored"]
    assert table.rows[0][0].text == "rope (not tuned)"
    assert [row[0].text for row in table.closing] == ["none", "lstm", "guessing", "answers"]
    assert [cell.text for cell in table.closing[-1]][3:5] == ["1000", "1000"]


def test_core_hours_are_of_all_threads() -> None:
    """Of 3600 s each, one with four threads."""
    machines = ("Linux x86_64", "Linux x86_64 AVX512 4 threads")
    times = {"train_s": 3500.0, "measure_s": 100.0}
    ran = [
        run("rope", "flipflop", n, [0.0] * 7, machine=m, **times) for n, m in enumerate(machines)
    ]
    assert "2 runs (2 score), 5.0 core-hours" in provenance(scored(*ran), ["flipflop"], None)


def test_other_thresholds(here: Here, shipped: Path) -> None:
    rope = [run("rope", "flipflop", seed, [0.018, *[0.038] * 6]) for seed in range(8)]
    for times, generalise in ((1, 0), (1.8, 0), (1.95, 8)):
        found = scores(SUITE.with_thresholds(times), rows(*rope), rows())
        assert set(found.cells.filter(pl.col("split") != "in_domain")["k"]) == {generalise}
        assert found.suite.title == NAME + (f", thresholds times {times}" if times > 1 else "")
    ended = here(*COMMAND, "thresholds=0.5", "format=json")
    facts = json.loads(ended.out)
    assert (facts["thresholds"], facts["suite_digest"]) == (0.5, SUITE.digest)
    assert f"suite {NAME}, thresholds times 0.5" in here(*COMMAND, "thresholds=0.5").out
    assert here(*COMMAND, "thresholds=0.5", "to=half.svg").status == 0
    assert "thresholds times 0.5" in Path("half.svg").read_text()
    # As decimals: 0.05 times 0.7, of floats, is less than the 0.035 of 140 wrong answers of 4000.
    scaled = SUITE.with_thresholds(0.7).tasks["recall"]
    assert scaled.generalises["long_x2"] == 140 / 4000


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("family=recal", ["family=recal: did you mean recall?"]),
        ("task=flip", ["task=flip", "flipflop"]),
        ("split=long_x5", ["split=long_x5", "long_x4"]),
        ("family=text task=sort", ["no task of suite v1"]),
        ("runs_dir=nowhere", ["runs_dir=nowhere is not a folder"]),
        ("suite=v0", ["unknown suite v0"]),
        ("pe=cop", ["pe=cop: did you mean cope?"]),
        ("sort=recal", ["sort=recal: did you mean recall?"]),
        ("task=flipflop sort=recall", ["sort=recall", "long_x4"]),
        ("family=recall sort=count", ["sort=count", "flipflop"]),
        ("thresholds=0", ["thresholds=0", "greater than 0"]),
        # A run that failed has the error 1, and is never one that generalises.
        (
            "thresholds=3",
            ["thresholds=3 takes that of text, in_domain from 0.35 to 1.05", "less than 2.8571"],
        ),
        ("to=x.txt", ["to=x.txt: give FILE.html"]),
        ("to=no/x.html", ["there is no folder no"]),
        ("to=mine.html", ["mine.html was not written by pe-lab leaderboard"]),
        ("to=mine.svg", ["to=mine.svg is there and is left as it is"]),
        ("to=mine.parquet", ["something else than runs of a suite"]),
        ("to=list.parquet", ["list.parquet.sha256 beside it is not"]),
        ("to=none.html", ["to=none.html is no plain file and is left as it is"]),
        ("to=none.svg", ["to=none.svg is there"]),
        ("to=pipe.parquet", ["to=pipe.parquet is no plain file and is left as it is"]),
        (f"to={'x' * 300}.svg", ["File name too long, choose another"]),
        *(
            (words, [f"{key}= has no effect here, as ", "leave it"])
            for key, words in (
                ("split", "view=across split=long_x4"),
                ("sort", "view=across sort=recall"),
                ("all", "to=a.html all=true"),
                ("pe", "view=needs pe=rope"),
                ("family", "to=a.parquet family=recall"),
                ("view", "view=across format=csv"),
                ("format", "to=a.html format=csv"),
                ("thresholds", "to=a.parquet thresholds=2"),
                ("thresholds", "view=tuning thresholds=2"),
                ("thresholds", "view=across thresholds=2"),
            )
        ),
    ],
)
def test_refused_in_one_sentence(here: Here, shipped: Path, words: str, parts: list[str]) -> None:
    mine = {f"mine.{kind}": b"<p>mine" for kind in ("html", "svg")}
    mine["list.parquet.sha256"] = b"a checksum list of mine"
    for name, content in mine.items():
        Path(name).write_bytes(content)
    pl.DataFrame({"mine": [1]}).write_parquet("mine.parquet")
    for kind in ("html", "svg"):
        Path(f"none.{kind}").symlink_to("nowhere")
    os.mkfifo("pipe.parquet")
    suite = [] if "suite=" in words else [COMMAND[1]]
    assert_refused(here("leaderboard", *suite, *words.split()), *parts)
    assert {name: Path(name).read_bytes() for name in mine} == mine


@pytest.mark.parametrize("suite", leaderboard.TEXTS)
def test_the_page_is_what_the_shipped_file_gives(suite: str) -> None:
    written = leaderboard.page_of(leaderboard.TEXTS[suite]).read_text("utf-8")
    assert written == leaderboard.page(suite), "run `make leaderboard`"
    names = set(re.findall(r"<!-- (\w+) -->", leaderboard.TEXTS[suite].read_text("utf-8")))
    assert {"needs", "claims"} <= names <= leaderboard.MADE.keys()


def test_the_seeds_that_readme_counts() -> None:
    """Those of flip-flop that generalise to every scored split."""
    of = missed(leaderboard.shipped(), ["flipflop"], ["path", "fox", "cope", "rope"])
    n = {entry: len(runs["flipflop"]) for entry, runs in of.items()}
    k = {entry: [*runs["flipflop"].values()].count(0) for entry, runs in of.items()}
    assert set(n.values()) == {8}
    sentence = (
        f"{k['cope']} of 8 seeds generalise to all six OOD splits of flip-flop. PaTH has "
        f"{k['path']}, FoX {k['fox']}, RoPE {k['rope']} "
    )
    assert sentence in " ".join((leaderboard.facts.ROOT / "README.md").read_text("utf-8").split())


def test_the_picture_is_what_the_shipped_file_gives() -> None:
    """Its words: the rest is as the fonts of the machine are."""
    found = texts(leaderboard.PICTURE.read_text("utf-8"))
    assert found == texts(leaderboard.picture()), "run `make leaderboard`"


def test_the_picture_has_the_entries_that_ran_half_of_the_tasks() -> None:
    """Not those alone that have the most: one task more of a few must not hide the others."""
    tasks = ["flipflop", "recall", "text"]
    ran = {"rope": tasks, "cope": tasks[:2], "fox": tasks[:1]}
    found = scored(
        *(
            run(entry, task, 0, [0.0] * (1 + len(SUITE.tasks[task].generalises)))
            for entry, of in ran.items()
            for task in of
        )
    )
    shown = {row["row"].split()[0] for row in values(heat_map(found, tasks, at_least_half=True))}
    assert shown == {"rope", "cope"}


def test_the_heat_map_as_a_picture(here: Here, shipped: Path) -> None:
    """A row an entry; one that most seeds have not learned is grey."""
    assert here(*COMMAND, "to=heat.svg", "task=flipflop,recall").status == 0
    found = texts(Path("heat.svg").read_text())
    for text in ("flipflop", "95", "0°", "lstm (control)"):
        assert text in found
    # No run of it.
    assert "none (control)" not in found
    of_shipped = scores(SUITE, file.read(shipped)[0], rows())
    cells = {
        row.name.split()[0]: row.cells[0] for row in leaderboard_grid(of_shipped, ["flipflop"]).rows
    }
    assert [cells[e].kind for e in ("alibi", "cope")] == [UNLEARNED, ""]
    assert [cells[e].share for e in ("alibi", "cope", "shaw")] == [None, 0.95, None]
    drawn = values(heat_map(of_shipped, ["flipflop"], at_least_half=True))
    assert {row["row"] for row in drawn} == {
        "rope", "cope", "alibi (not tuned)", "lstm (control)",
    }  # fmt: skip
    assert Path("heat.svg").read_text().count(light_colours()["--context"]) == found.count("0°") > 0
    assert "Not run yet: recall." in " ".join(found)
    ended = here(*COMMAND, "to=text.svg", "task=text")
    assert (ended.status, ended.err) == (
        1, "pe-lab: no run of text is scored: there is nothing to draw\n",
    )  # fmt: skip
    assert here(*COMMAND, "to=heat.png").status == 0
    assert Path("heat.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_of_chosen_entries(here: Here, shipped: Path) -> None:
    for view in ("families", "curve"):
        assert here(*COMMAND, f"to={view}.svg", f"view={view}", "pe=rope,lstm").status == 0
        found = texts(Path(f"{view}.svg").read_text())
        assert {"rope", "cope", "lstm", "lstm (control)"} & {*found} == {
            "rope", "lstm (control)" if view == "families" else "lstm",
        }  # fmt: skip


def test_a_figure_for_a_paper_has_every_seed(here: Here, shipped: Path) -> None:
    line = [*COMMAND, "view=seeds", "task=flipflop", "pe=rope,cope"]
    ended = here(*line, "split=long_x4", "to=one.svg")
    assert (ended.status, ended.err) == (0, "")
    svg = Path("one.svg").read_text()
    assert {"cope", "19/20", "rope", "2/20", "long_x4"} < {*texts(svg)} - {"in_domain", "undefined"}
    assert svg.count('aria-roledescription="circle"') == 40
    printed = here(*line, "to=all.pdf").out
    width = re.search(r"all.pdf: .*, the errors of 40 runs, (\d\.\d) x \d\.\d inches", printed)
    assert width is not None
    assert 5 <= float(width[1]) <= 5.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task=flipflop",), "view=seeds is a picture: give to=FILE.pdf, .svg or .png"),
        (("task=flipflop", "to=a.html"), "view=seeds is a picture"),
        (("to=a.svg",), "view=seeds shows one task: give task=NAME"),
        (("to=a.svg", "task=flipflop,recall"), "view=seeds shows one task"),
    ],
)
def test_a_figure_needs_a_file_and_a_task(here: Here, words: tuple[str, ...], said: str) -> None:
    assert_refused(here(*COMMAND, "view=seeds", *words), said)


def test_the_page_of_a_shipped_file(shipped: Path) -> None:
    text = leaderboard.page("v1")
    assert "| keep last write (flipflop) | cope 19/20, lstm 8/8 | alibi 0/1° | rope 2/20 |" in text
    # Of the claim's seeds, 8 to 19; in this file they began in 1970.
    assert (
        "| cope-flipflop-74d8 | cope over rope | flipflop: long\\_x4 | 11/12, others ≤ 0/12 "
        "| 1 of 1 | 4.8e-06 | supported, exploratory |" in text
    )


def test_it_calls_at_most_25_files_and_imports_nothing_slow(tmp_path: Path) -> None:
    """Of pe_lab; comprehensions run where a module is imported."""
    code = """
import sys
files = set()
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and not code.co_name.startswith("<"):
        files.update({code.co_filename} if "/pe_lab/" in code.co_filename else ())
from pe_lab.cli.main import main
sys.setprofile(note)
status = main(["leaderboard"])
sys.setprofile(None)
print({"torch", "hydra", "scipy", "wandb"} & set(sys.modules) or "fast")
print(status, len(files), *sorted(files))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    *table, slow, line = ended.stdout.splitlines() or [ended.stderr]
    status, count, *files = line.split()
    assert (status, slow) == ("0", "fast"), ended.stderr
    assert 10 < int(count) <= 25, files
    assert "Which encoding when" in "\n".join(table)


@pytest.mark.parametrize(("view", "what"), [("across", "scored"), ("tuning", "tuned")])
def test_a_view_of_tasks_that_are_not_run_says_so(
    here: Here, shipped: Path, view: str, what: str
) -> None:
    words = (f"view={view}", "task=flipflop,sort", "details=true", "format=markdown")
    assert f"not {what} yet: sort\n" in here(*COMMAND, *words).err


def test_over_tasks(here: Here, shipped: Path) -> None:
    ended = succeeded(here(*COMMAND, "view=across", "format=markdown"))
    lines = {line.split("|")[1].strip(): line for line in ended.out.splitlines() if "|" in line}
    # Of the first eight seeds, 2 runs without an error, 6 at that of guessing; 8 for cope.
    assert "| 8 | 1.00 | 0 | 0 |  | 0.25 | 0.25 | 0.25 |" in lines["rope"]
    assert "| 8 | 0.00 | 0 | 0 | 0.88 [" in lines["cope"]
    assert "shaw" not in lines


def test_the_error_in_that_of_guessing() -> None:
    ran = run("rope", "flipflop", 0, [0.0, 0.5, 0.25, 0.0, 0.0, 0.0, 0.75])
    failed = run("rope", "flipflop", 1, [None] * 7, state="failed", guess=None)
    assert normalised(scored(ran, failed), ["flipflop"]) == {
        "rope": {"flipflop": {0: pytest.approx(2.5 / 6), 1: 1.0}}
    }


def test_runs_are_merged_into_a_file() -> None:
    def one(seed: int, run_id: str, **values: Any) -> list[dict[str, object]]:
        errors = (
            [None] * 7 if values.get("state") else [0.0, *[0.5 * ("machine" not in values)] * 6]
        )
        return run("rope", "flipflop", seed, errors, run_id=run_id, **values)

    first, failed = one(0, "one"), one(0, "one", state="failed")
    others = [one(0, "one", revision="other"), one(0, "one", machine="Darwin arm64"), failed]
    new, broken = one(1, "two"), one(2, "three", state="failed")
    found = file.merged(rows(first), rows(*others, new, broken, broken))
    kept = found.filter(split="sparse").select("run_id", "machine", "revision", "error").rows()
    assert kept == [
        ("one", "Linux x86_64", "0123456789ab", 0.5),
        ("two", "Linux x86_64", "0123456789ab", 0.5),
        ("three", "Linux x86_64", "0123456789ab", None),
    ]
    assert found.equals(file.merged(found, rows(first, new, failed)))
    assert len(found) == 3 * 7


def test_the_page_of_the_leaderboard(
    here: Here, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds; the test in a browser has it.
    monkeypatch.setattr("pe_lab.report.html.vega_script", lambda: "/* vega */")
    succeeded(here(*COMMAND, "to=page.html"))
    page = Page((tmp_path / "page.html").read_text())
    titles = [element["text"] for element in page.all("h2")]
    assert titles == ["flipflop", "Failures, and how it was made"]
    cope = next(e for e in page.all("tr") if "cope" in e["text"])
    (shade,) = (e for e in page.all("td") if cope in e["parents"])
    assert shade["attributes"]["style"] == "--v:0.95"
    assert "[76, 99]" in shade["text"]
    _, seeds = page.specs()
    dots = [row for row in values(seeds) if "error" in row]
    assert len([dot for dot in dots if dot["split"] == "sparse"]) == 48  # the failed has no error
    assert any("alibi on flipflop" in e["text"] for e in page.all("li"))
    assert here(*COMMAND, "to=page.html").status == 0


def test_other_phases_stand_beside_the_score() -> None:
    tuned = run("rope", "flipflop", 1000, [0.0, *MISSED], lr=0.006)
    longer = flipflop("rope", 4, 3, phase="steps_x2", lr=0.006)
    other_rate = flipflop("rope", 4, 4, phase="steps_x2", lr=0.001)
    at_sparse = [
        run("rope", "flipflop", seed, [0.01 * seed, *[None] * 6], phase="capacity:sparse", lr=0.006)
        for seed in range(4)
    ]
    found = scored(tuned, *longer, *other_rate, *at_sparse)
    table = phases_table(found, "flipflop")
    assert table is not None
    lines = [[cell.whole for cell in row] for row in table.rows]
    assert [line[:4] for line in lines] == [
        ["rope", "capacity", "", "3/4 1.50 [30, 95]"],
        ["rope", "steps_x2", "4/4 0.0 [51, 100]", "3/4 0.0‡ [30, 95]"],
    ]
    assert phases_table(scored(*flipflop("rope", 2, 1)), "flipflop") is None


def test_runs_of_equal_parameters_are_a_phase_of_their_entry() -> None:
    """At the rate of the entry; a unit of d_ff is 2 (2 x 64 + 1) = 258 parameters."""
    tuned = [
        run("cope", "flipflop", seed, [0.0 if lr == 0.006 else 0.1, *MISSED], lr=lr)
        for seed in SUITE.protocol.tuning_seeds
        for lr in SUITE.protocol.rates
    ]
    ran = [*flipflop("rope", 8, 0), *tuned, *flipflop("cope", 8, 8, lr=0.006)]

    def narrow(width: int, parameters: int, lr: float = 0.006) -> list[list[dict[str, object]]]:
        return flipflop(f"cope model.d_ff={width}", 4, 3, parameters=parameters, lr=lr)

    found = scored(*ran, *narrow(251, 100_129), *narrow(100, 60_000))
    table = phases_table(found, "flipflop")
    assert table is not None
    lines = [[cell.text for cell in row[:4]] for row in table.rows]
    assert lines == [
        ["cope", "score", "8/8 0.0", "8/8 0.0"],
        ["cope", "equal_parameters", "4/4 0.0", "3/4 0.0‡"],
    ]
    names = {row[0].text for row in task_table(found, "flipflop").rows}
    # One that is merely narrower is an entry, which nobody tuned.
    assert {name for name in names if "d_ff" in name} == {"cope model.d_ff=100 (not tuned)"}
    assert cell(found, "cope")["n"] == 8
    # Further than half a unit, and at another rate than the entry's.
    far = scored(*ran, *narrow(251, 100_130))
    assert phases_table(far, "flipflop") is None
    assert phases_table(scored(*ran, *narrow(251, 100_000, lr=0.001)), "flipflop") is None
    # Without rope nothing is known to be equal to it.
    alone = scored(*flipflop("cope", 8, 8), *narrow(251, 100_000))
    assert "cope model.d_ff=251" in set(alone.rows["entry"])


def test_the_shipped_runs() -> None:
    """Small, by the protocol, and without a path of a machine; there may be none yet."""
    path = file.shipped("v1")
    if not path.exists():
        assert file.shipped_rows(SUITE)[1] is None
        return
    assert path.stat().st_size < 2e6
    found, _ = file.shipped_rows(SUITE)
    assert set(found["task"]) <= set(SUITE.tasks)
    assert not found["message"].str.contains("/").any()
    of = scores(SUITE, found, NONE)
    assert set(of.rows["entry"]) <= {*SUITE.encodings, *SUITE.controls}
    assert set(of.cells["lr"]) <= set(SUITE.protocol.rates)
    runs = of.rows.filter("counts").select("task", "entry", "seed", "split")
    assert runs.is_duplicated().sum() == 0


def test_runs_of_another_version_of_the_suite_are_left_out(
    here: Here, shipped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, _ = file.read(shipped)
    older = found.filter(entry="cope").with_columns(suite=pl.lit("v1-00000000"))
    file.write(pl.concat([found.filter(pl.col("entry") != "cope"), older]), shipped)
    ended = here(*COMMAND, "task=flipflop", "format=csv")
    assert {row["entry"] for row in csv_rows(ended.out)} == {
        "rope", "alibi", "lstm",
    }  # fmt: skip
    assert "28 runs of v1-00000000 left out, as the suite is now" in caplog.text


def test_a_suite_of_ones_own(here: Here, tmp_path: Path) -> None:
    (tmp_path / "mine" / "suite").mkdir(parents=True)
    text = choices("suite")["v1"].read_text()
    (tmp_path / "mine" / "suite" / "mine.yaml").write_text(text.replace("fits: 0.01", "fits: 0.02"))
    ended = succeeded(here("leaderboard", "suite=mine", "--config-dir", "mine", "task=flipflop"))
    assert "fits <= 2.00" in " ".join(ended.out.split())
    ended = here("leaderboard", "suite=mine", "--config-dir", "mine", "details=true")
    assert "shipped results none" in ended.out


@pytest.mark.extended
def test_the_page_in_a_browser(here: Here, shipped: Path, tmp_path: Path) -> None:
    from in_browser import CHROMIUM, FLAGS, sync_api

    if CHROMIUM is None:
        pytest.skip("no chromium: make browser installs it")
    assert here(*COMMAND, "to=page.html").status == 0
    messages: list[str] = []
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = opened.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        page.get_by_role("link", name="flipflop").click()
        for name in ("Success rate by threshold", "Every seed"):
            page.get_by_role("figure", name=name).locator("svg.marks").wait_for()
        assert page.evaluate("document.documentElement.scrollHeight") < 6000
        opened.close()
    assert messages == []


def test_the_error_at_each_rate(here: Here, shipped: Path) -> None:
    rates = SUITE.protocol.rates
    tuned = [run("rope", "flipflop", 1000, [0.1 * n, *MISSED], lr=r) for n, r in enumerate(rates)]
    tuned[3] = run("rope", "flipflop", 1000, [None] * 7, lr=rates[3], state="failed")
    table = tuning_table(scored(*tuned), "flipflop")
    assert table is not None
    (row,) = table.rows
    assert [(cell.text, cell.best) for cell in row] == [
        ("rope", False), ("0.0", True), ("10.0", False), ("20.0", False), ("failed", False),
    ]  # fmt: skip
    assert table.caption.startswith("1 of 1 entries have the least or the greatest rate")
    ended = here(*COMMAND, "view=tuning", "format=markdown")
    assert "may lie beyond" not in ended.out
    assert "| cope | 10.0 | **0.0** | 10.0 | 10.0 |" in ended.out


def test_a_shipped_file_that_is_damaged_or_without_its_digest(here: Here, shipped: Path) -> None:
    shipped.write_bytes(b"nothing")
    assert_refused(here(*COMMAND), "does not fit its digest", status=1)
    shipped.with_name(shipped.name + file.SUFFIX).unlink()
    assert_refused(here(*COMMAND), "shipped.parquet.sha256 cannot be read")
