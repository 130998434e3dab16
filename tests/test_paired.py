"""Paired tests of two encodings, seed by seed."""

import json
import re
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import errors_of, made
from program import Here, assert_has, assert_refused, csv_rows
from scipy.stats import binomtest

from pe_lab.core.errors import UsageError
from pe_lab.results.paired import paired, seed_by_seed
from pe_lab.results.statistics import holm
from pe_lab.results.table import read_runs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()


A, B = [0.1, 0.2, 0.3], [0.2, 0.4, 0.6]


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 2), min_size=2, max_size=12))
def test_the_sign_test_is_scipys(pairs: list[tuple[int, int]]) -> None:
    found = seed_by_seed([x / 9 for x, _ in pairs], [y / 9 for _, y in pairs])
    lower, higher = sum(x < y for x, y in pairs), sum(x > y for x, y in pairs)
    assert (found["lower_a"], found["lower_b"]) == (lower, higher)
    assert found["difference"] == pytest.approx(median((x - y) / 9 for x, y in pairs))
    theirs = binomtest(lower, lower + higher).pvalue if lower + higher else 1
    assert found["p"] == pytest.approx(theirs)
    assert found["p_least"] == 2 / 2 ** len(pairs)


def test_holm() -> None:
    # By hand: sorted 0.01, 0.03, 0.04 times 3, 2, 1, made to rise.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_paired_over_the_shared_seeds() -> None:
    errors_of("cope", [*A, 0.9])
    errors_of("rope", B)
    made("rope", 7)
    tests = paired(read_runs(), "cope", "rope")
    assert tests["split"].to_list() == ["in_domain", "sparse"]
    flat, sparse = tests.rows(named=True)
    assert (sparse["n"], sparse["seeds"]) == (3, [0, 1, 2])
    names = ("lower_a", "lower_b", "p", "p_holm")
    assert [sparse[name] for name in names] == [3, 0, 0.25, 0.5]
    # No difference at any seed.
    assert (flat["difference"], flat["lower_a"], flat["p"], flat["p_holm"]) == (0, 0, 1, 1)
    swapped = paired(read_runs(), "rope", "cope").rows(named=True)[1]
    assert swapped["difference"] == pytest.approx(-sparse["difference"])


def test_a_split_that_one_of_them_lacks_is_reported(here: Here) -> None:
    for seed in range(3):
        long, dense = None if seed else 0.1, 0.2 + seed / 10
        made("cope", seed, errors={"in_domain": 0.1, "dense": dense, "long": long})
        made("rope", seed, errors={"in_domain": 0.2, "dense": None, "long": 0.3})
    tests = {row["split"]: row for row in paired(read_runs(), "cope", "rope").rows(named=True)}
    assert (tests["dense"]["n"], tests["dense"]["seeds"], tests["dense"]["p"]) == (0, [], None)
    assert (tests["long"]["n"], tests["long"]["seeds"]) == (1, [0])
    assert tests["long"]["difference"] == pytest.approx(-0.2)
    # With one test left, there is nothing to correct.
    assert tests["in_domain"]["p"] == tests["in_domain"]["p_holm"] == 0.25
    out = here("compare", "a=cope", "b=rope").out
    assert re.search(r"dense +n/a +n/a +n/a", out)
    assert_has(out, "long n=1", "Seeds 0,1,2")


def test_the_encodings_own_rate_is_no_difference() -> None:
    errors_of("cope", A)
    errors_of("t5", B, **{"train.lr": 6e-3})  # conf/preset/rate/flipflop_t5.yaml
    assert len(paired(read_runs(), "cope", "t5")) == 2
    errors_of("alibi", B, **{"train.lr": 6e-3})
    with pytest.raises(UsageError, match=r"differ in train\.lr \(preset; 0\.006\)"):
        paired(read_runs(), "cope", "alibi")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({}, "no finished run of pe=cope"),
        ({"cope": {}}, "no finished run of pe=rope"),
        ({"cope": {}, "rope": {"train.steps": 9}}, "the nearest differ in train.steps (400; 9)"),
        (
            {"cope": {}, "rope": {f"model.k{n}": n for n in range(7)}},
            ", ".join(f"model.k{n} (null; {n})" for n in range(7)),
        ),
        ({"cope": {}, "rope": {"seed": 3}}, "share no seed in equal settings: cope has 0, "),
    ],
)
def test_what_cannot_be_paired_is_one_sentence(
    here: Here, runs: dict[str, dict[str, int]], message: str
) -> None:
    for pe, changes in runs.items():
        made(pe, **{"seed": 0, **changes})
    assert_refused(here("compare", "a=cope", "b=rope"), message)


def test_several_settings_of_one_encoding_want_a_choice(here: Here) -> None:
    for npos in (8, 16):
        errors_of("cope", A, **{"pe.npos": npos})
    errors_of("rope", B)
    done = here("compare", "a=cope", "b=rope")
    assert done.status == 2
    (where,) = re.findall(r"where='(.*)'", done.err)
    assert "pe=cope has 2 settings here that differ in pe.npos" in done.err
    assert here("compare", "a=cope", "b=rope", f"where={where}").status == 0


def test_every_pair_of_settings_has_a_table_titled_by_its_label(here: Here) -> None:
    """The preset's own setting departs in nothing."""
    for changes in ({}, {"train.lr": 0.01}, {"train.lr": 0.02}):
        for pe, errors in {"cope": A, "rope": B}.items():
            errors_of(pe, errors, **changes)
    out = here("compare", "a=cope", "b=rope").out
    titles = [line.strip() for line in out.splitlines() if "against" in line]
    assert [title.partition("cope against rope, ")[2] for title in titles] == [
        "seed by seed", "seed by seed, lr=0.01", "seed by seed, lr=0.02",
    ]  # fmt: skip


def test_a_side_in_two_clusters_is_marked(here: Here) -> None:
    errors_of("cope", [0.0, 0.0, 0.0, 0.6])
    errors_of("rope", [0.0, 0.2, 0.5, 0.5])
    (row,) = paired(read_runs(), "cope", "rope").filter(split="sparse").rows(named=True)
    assert [row[f"clusters_{side}"] for side in "ab"] == [True, True]
    assert [row[f"median_{side}"] for side in "ab"] == [0.0, pytest.approx(0.35)]
    assert row["errors_b"] == [0.0, 0.2, 0.5, 0.5]
    out = here("compare", "a=cope", "b=rope", "format=markdown").out
    # Of the differences 0, -0.2, -0.5 and 0.1 the median is -0.1.
    assert "| sparse | 3/4‡ 0.0 | 1/4‡ 35.0 | -10.00 | 2/4 | 1/4 | 1 | 1 |" in out
    assert "‡: seeds in two clusters." in " ".join(out.split())


def test_the_paired_table(here: Here) -> None:
    errors_of("cope", A)
    errors_of("rope", B)
    out = here("compare", "a=cope", "b=rope").out
    assert "flipflop: error in %, cope against rope, seed by seed" in out
    assert re.search(r"sparse +0/3 20.0 +0/3 40.0 +-20.00 +3/3 +0/3 +0.25 +0.5", out)
    assert re.search(r"in_domain +3/3 0.0 +3/3 0.0 +\+0.00 +0/3 +0/3 +1 +1", out)
    caption = " ".join(out.split())
    assert_has(
        caption,
        "Threshold: 2 % (in_domain: 1 %).",
        "p: sign test, at least 0.25; Holm: over the splits.",
    )
    both = here("compare", "pe=cope,rope").out
    assert "seed by seed" in both
    assert "Golovneva 2024" in both
    rows = csv_rows(here("compare", "a=cope", "b=rope", "format=csv").out)
    assert [row["seeds"] for row in rows] == ["0 1 2", "0 1 2"]
    assert [rows[1][f"errors_{side}"] for side in "ab"] == ["0.1 0.2 0.3", "0.2 0.4 0.6"]
    assert [rows[1][f"median_{side}"] for side in "ab"] == ["0.2", "0.4"]
    content = json.loads(here("compare", "pe=cope,rope", "format=json").out)
    assert content["paired"][1]["p"] == 0.25


def test_one_seed_is_no_test(here: Here) -> None:
    errors_of("cope", [0.1])
    errors_of("rope", [0.3])
    row = paired(read_runs(), "cope", "rope").row(1, named=True)
    assert (row["n"], row["p"], row["p_holm"]) == (1, None, None)
    assert row["difference"] == pytest.approx(-0.2)
    out = here("compare", "a=cope", "b=rope", "format=markdown").out
    assert "One seed: nothing can be tested" in out
    assert "| sparse | 10.0 | 30.0 | -20.00 |" in out, "k/n and a median of one seed say nothing"
