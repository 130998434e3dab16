"""``pe-lab compare``: published numbers beside ours, and paired tests over shared seeds."""

import doctest
import re
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import errors_of, made, unfinished
from program import Here, assert_has, assert_refused, csv_rows
from scipy.stats import binomtest

from docs import leaderboard
from pe_lab.core.errors import UsageError
from pe_lab.results import statistics
from pe_lab.results.paired import paired
from pe_lab.results.published import compared, published
from pe_lab.results.statistics import holm, sign_test
from pe_lab.results.table import read_runs
from pe_lab.suite.suite import load_suite

THEIRS: dict[str, Any] = {
    "source": "S", "where": "table 1", "task": "flipflop", "pe": "rope", "size": "",
    "protocol": {"task.length": 64}, "split": "sparse", "metric": "error",
    "theirs": 0.2, "theirs_low": 0.1995, "theirs_high": 0.2005, "theirs_printed": "20.0",
    "theirs_seeds": 3, "reading": None, "recipe": "flipflop",
}  # fmt: skip
A, B = [0.1, 0.2, 0.3], [0.2, 0.4, 0.6]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()


def test_the_published_numbers_are_shares_and_state_their_protocol() -> None:
    """The numbers themselves are in tests/golden."""
    numbers = published()
    assert all(0 <= n["theirs_low"] <= n["theirs"] <= n["theirs_high"] <= 1 for n in numbers)
    rambaud = "selective copy, 128 letters and 128 blanks, appendix B.2"
    stated = next(n["protocol"] for n in numbers if (n["where"], n["pe"]) == (rambaud, "rope"))
    assert {"train.lr": 2e-4, "task.train_sequences": 100000}.items() <= stated.items()


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.19, 0.2, 0.22], "within ours"),
        ([0.24, 0.25, 0.26], "ours higher"),
        ([0.14, 0.15, 0.16], "ours lower"),
        ([0.2], "one seed: no verdict"),
        # No spread over seeds: the Wilson interval, here the error +- 0.01, decides.
        ([0.209, 0.209], "within ours"),
        ([0.2106, 0.2106], "ours higher"),
        # As rounded: 20.0 may be 20.05.
        ([0.2104, 0.2104], "within ours"),
        ([0.1894, 0.1894], "ours lower"),
        # Between seeds on both sides of the threshold, at one of them, and beyond all.
        ([0.0, 0.0, 0.6], "some seeds generalise: no verdict"),
        ([0.2, 0.2, 0.6], "within ours"),
        ([0.3, 0.3, 0.9], "ours higher"),
        ([0.0, 0.0, 0.1], "ours lower"),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    errors_of("rope", values)
    (row,) = compared(read_runs(), [THEIRS]).rows(named=True)
    assert (row["verdict"], row["n"], row["differs"]) == (verdict, len(values), "")
    assert row["ours"] == pytest.approx(mean(values))
    assert (row["median"], row["values"]) == (median(values), sorted(values))
    assert row["k"] == sum(value <= row["threshold"] for value in values)
    assert row["range_low"] == pytest.approx(max(0, min(values) - 0.01))
    assert row["range_high"] == pytest.approx(max(values) + 0.01)


def test_what_differs_is_computed_and_named() -> None:
    errors_of("rope", [0.2, 0.2], **{"task.length": 32, "train.lr": 3e-4})
    protocol = {"task.length": 64, "train.lr": 0.0003, "task.block": 5}
    protocol |= {"train.schedule": "linear", "model.tied_embeddings": True}
    (row,) = compared(read_runs(), [{**THEIRS, "protocol": protocol}]).rows(named=True)
    assert row["differs"] == (
        "task.length 32 for 64, task.block null for 5, train.schedule cosine for linear, "
        "model.tied_embeddings false for true"
    )
    assert row["verdict"] == "other protocol, within ours"


def test_the_nearest_setting_stands_beside_the_nearest_size() -> None:
    sizes = [{"model.d_model": w, "model.n_layers": n} for w, n in ((256, 4), (128, 2), (128, 4))]
    numbers = [{**THEIRS, "protocol": {"task.length": 64, **size}} for size in sizes]
    errors_of("rope", [0.1, 0.1])  # d 64, 2 layers: nearest to 128, 2
    errors_of("rope", [0.3], **{"model.d_model": 100})  # nearer to it
    errors_of("rope", [0.4], **{"model.d_model": 128, "model.n_layers": 4, "task.length": 9})
    rows = compared(read_runs(), numbers).select("ours", "differs", "verdict").rows()
    assert rows[0] == (None, "", "not run")
    assert rows[1][:2] == (0.3, "model.d_model 100 for 128")
    assert rows[2][:2] == (0.4, "task.length 9 for 64")


@pytest.mark.parametrize(("error", "verdict"), [(0.5, "within ours"), (0.52, "ours lower")])
def test_whole_sequences_have_the_interval_of_their_number(error: float, verdict: str) -> None:
    """2 of 10 sequences with an error: 0.057 to 0.510."""
    errors_of("rope", [0.1, 0.1])
    changes = {"metric": "error_seq", "theirs": error, "theirs_low": error, "theirs_high": error}
    (row,) = compared(read_runs(), [{**THEIRS, **changes}]).rows(named=True)
    assert row["verdict"] == verdict
    assert (row["range_low"], row["range_high"]) == pytest.approx((0.0567, 0.5098), abs=1e-4)
    # No threshold is of whole sequences.
    assert (row["k"], row["p_low"], row["values"]) == (None, None, [0.2, 0.2])


def test_the_tables_and_what_is_not_run(here: Here) -> None:
    errors_of("cope", [0.0, 0.22, 0.01])
    unfinished("failed", "rope")
    out = here("compare", "task=flipflop", "pe=cope,rope,path").out
    assert_has(out, "2/3 1.00: 0.0 1.00 22.0", "task.length 64 for 512", "not run")
    assert "counting" not in out
    assert "not run" not in here("compare").out, "a line, unless selected"
    rows = csv_rows(here("compare", "format=csv").out)
    assert len(rows) == len(published())
    assert {row["pe"] for row in rows if row["ours"]} == {"cope"}


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_sign_test_is_scipys(lower: int, higher: int) -> None:
    theirs = binomtest(lower, lower + higher).pvalue if lower + higher else 1
    assert sign_test(lower, higher) == pytest.approx(theirs)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(statistics)
    assert (failed, tried > 0) == (0, True)


def test_holm() -> None:
    # By hand: sorted 0.01, 0.03, 0.04 times 3, 2, 1, made to rise.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_paired_over_the_shared_seeds(here: Here) -> None:
    errors_of("cope", [*A, 0.9])
    errors_of("rope", B)
    made("rope", 7)
    flat, sparse = paired(read_runs(), "cope", "rope").rows(named=True)
    assert (flat["split"], sparse["split"]) == ("in_domain", "sparse")
    assert (sparse["n"], sparse["seeds"]) == (3, [0, 1, 2])
    assert [sparse[name] for name in ("lower_a", "lower_b", "p", "p_holm")] == [3, 0, 0.25, 0.5]
    # No difference at any seed.
    assert (flat["difference"], flat["lower_a"], flat["p"], flat["p_holm"]) == (0, 0, 1, 1)
    swapped = paired(read_runs(), "rope", "cope").rows(named=True)[1]
    assert swapped["difference"] == pytest.approx(-sparse["difference"])
    rows = csv_rows(here("compare", "a=cope", "b=rope", "format=csv").out)
    assert [rows[1][f"errors_{side}"] for side in "ab"] == ["0.1 0.2 0.3", "0.2 0.4 0.6"]


def test_splits_that_one_side_lacks_and_single_seeds(here: Here) -> None:
    for seed in range(3):
        long, dense = None if seed else 0.1, 0.2 + seed / 10
        made("cope", seed, errors={"in_domain": 0.1, "dense": dense, "long": long})
        made("rope", seed, errors={"in_domain": 0.2, "dense": None, "long": 0.3})
    tests = {row["split"]: row for row in paired(read_runs(), "cope", "rope").rows(named=True)}
    assert (tests["dense"]["n"], tests["dense"]["seeds"], tests["dense"]["p"]) == (0, [], None)
    assert (tests["long"]["n"], tests["long"]["p"], tests["long"]["p_holm"]) == (1, None, None)
    assert tests["long"]["difference"] == pytest.approx(-0.2)
    # With one test left, there is nothing to correct.
    assert tests["in_domain"]["p"] == tests["in_domain"]["p_holm"] == 0.25


def test_two_entries_without_runs_of_ones_own_are_those_that_ship(here: Here) -> None:
    words = ("compare", "a=cope", "b=rope", "task=counting")
    scored = leaderboard.shipped().rows.filter("counts", task="counting", split="longer")
    cope, rope = (scored.filter(entry=pe).sort("seed")["error"] for pe in ("cope", "rope"))
    for runs_dir in ("runs", "nowhere"):
        rows = csv_rows(here(*words, f"runs_dir={runs_dir}", "format=csv").out)
        row = next(row for row in rows if row["split"] == "longer")
        assert (int(row["lower_a"]), int(row["n"])) == ((cope < rope).sum(), len(cope))
        assert float(row["threshold"]) == load_suite().tasks["counting"].generalises["longer"]
    assert "runs of suite v2_1 that ship" in here(*words).out
    assert "ship" not in here(*words, "train.lr=0.003").out, "theirs is not filtered by it"
    errors_of("cope", A)
    assert_refused(here("compare", "a=cope", "b=rope"), "no finished run of pe=rope")


def test_settings_that_are_paired(here: Here, recwarn: pytest.WarningsRecorder) -> None:
    errors_of("cope", A)
    errors_of("t5", B, **{"train.lr": 6e-3})  # conf/preset/rate/flipflop_t5.yaml
    assert len(paired(read_runs(), "cope", "t5")) == 2
    # Raised within polars, where no filter of warnings makes it an error.
    assert not [one for one in recwarn if "deprecated" in str(one.message)]
    errors_of("alibi", B, **{"train.lr": 6e-3})
    with pytest.raises(UsageError, match="share no seed in settings that are otherwise equal"):
        paired(read_runs(), "cope", "alibi")
    for pe, errors in {"cope": A, "rope": B}.items():
        errors_of(pe, errors, **{"train.lr": 0.01})
    errors_of("rope", B)
    # Several settings of one encoding want a choice.
    errors_of("cope", A, **{"pe.npos": 8})
    done = here("compare", "a=cope", "b=rope")
    assert (done.status, "pe=cope has 2 settings here that differ in pe.npos" in done.err) == (2, 1)
    (where,) = re.findall(r"where='(.*)'", done.err)
    assert here("compare", "a=cope", "b=rope", f"where={where}").status == 0
