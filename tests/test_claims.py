"""Preregistered claims: which runs decide them, and the exact test."""

from math import comb
from pathlib import Path

import polars as pl
import pytest
import yaml
from suite_rows import SUITE, rows, run, tuned

from pe_lab.core.errors import UsageError
from pe_lab.suite.claims import (
    NOT_ENOUGH,
    NOT_SUPPORTED,
    SUPPORTED,
    decide_claims,
    judge_claims,
    read_claims,
)
from pe_lab.suite.rows import read_shipped, shipped_file

CLAIM = {
    "hypothesis": "cope is better than rope",
    "encodings": ["cope", "rope"],
    "tasks": {"flipflop": {"sparse": 0.02}},
    "seeds": [0, 1, 2, 3],
    "written": "2026-11-26T12:00:00+00:00",
}


def decide(path: Path, runs: pl.DataFrame, **changes: object) -> pl.DataFrame:
    file = path / "claims.yaml"
    file.write_text(yaml.safe_dump({"suite": SUITE.version, "claims": {"one": CLAIM | changes}}))
    return decide_claims(read_claims(file, SUITE), SUITE, runs, runs.clear())


def sides(a: int, b: int, seeds: int = 4) -> pl.DataFrame:
    """Return tuned runs of cope and rope of which so many generalise."""
    runs = [
        run(entry, seed, 0.0 if seed < k else 0.5)
        for entry, k in (("cope", a), ("rope", b))
        for seed in range(seeds)
    ]
    return rows(tuned("cope"), tuned("rope"), *runs)


def test_the_test_is_fishers_and_one_sided(tmp_path: Path) -> None:
    (row,) = decide(tmp_path, sides(4, 0)).iter_rows(named=True)
    assert row["p"] == pytest.approx(1 / comb(8, 4))
    assert (row["k_a"], row["n_a"], row["k_b"], row["fits_b"]) == (4, 4, 0, 0)
    assert row["verdict"] == SUPPORTED
    assert decide(tmp_path, sides(0, 4))["verdict"].to_list() == [NOT_SUPPORTED]
    assert decide(tmp_path, sides(3, 0))["verdict"].to_list() == [NOT_SUPPORTED]


def test_three_seeds_a_side_can_support_a_claim(tmp_path: Path) -> None:
    """Their smallest p-value is 0.05, but for rounding."""
    tests = decide(tmp_path, sides(3, 0, seeds=3), seeds=[0, 1, 2])
    assert tests["verdict"].to_list() == [SUPPORTED]


def test_missing_runs_and_rates_are_named(tmp_path: Path) -> None:
    tests = decide(tmp_path, sides(4, 0, seeds=3))
    assert tests["missing"][0].startswith("cope lacks seeds 3 at train.lr=0.003")
    assert judge_claims(tests) == {"one": NOT_ENOUGH}
    untuned = sides(4, 0).filter(pl.col("phase") == "score")
    assert "cope is not tuned" in decide(tmp_path, untuned)["missing"][0]


def test_runs_at_another_rate_or_that_failed_do_not_support_it(tmp_path: Path) -> None:
    other = sides(4, 0).with_columns(
        lr=pl.when(pl.col("phase") == "score").then(0.006).otherwise("lr")
    )
    assert "lacks seeds 0,1,2,3" in decide(tmp_path, other)["missing"][0]
    failed = sides(4, 0).with_columns(error=pl.lit(None, pl.Float64))
    tuned_ = sides(4, 0).filter(pl.col("phase") == "tuning")
    both = pl.concat([tuned_, failed.filter(pl.col("phase") == "score")])
    assert decide(tmp_path, both)["k_a"].to_list() == [0]


def test_every_test_of_a_claim_must_support_it(tmp_path: Path) -> None:
    runs = [sides(4, 0), rows(tuned("fox"), *(run("fox", seed, 0.0) for seed in range(4)))]
    tests = decide(tmp_path, pl.concat(runs), encodings=["cope", "rope", "fox"])
    assert tests["verdict"].to_list() == [SUPPORTED, NOT_SUPPORTED]
    assert judge_claims(tests) == {"one": NOT_SUPPORTED}


def test_a_claim_with_earlier_runs_is_exploratory(tmp_path: Path) -> None:
    assert decide(tmp_path, sides(4, 0))["exploratory"].to_list() == [None]
    tests = decide(tmp_path, sides(4, 0).with_columns(started=pl.lit(1e9)))
    assert "8 of its runs began before" in tests["exploratory"][0]
    assert decide(tmp_path, sides(4, 0), written=None)["exploratory"][0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": {"flipflopp": {"sparse": 0.02}}}, "did you mean flipflop.sparse"),
        ({"tasks": {"flipflop": {"spars": 0.02}}}, "did you mean flipflop.sparse"),
        ({"tasks": {"flipflop": {}}}, "at least 1"),
        ({"written": "2026-11-26T12:00:00"}, "timezone"),
        ({"tasks": {"flipflop": {"sparse": -0.02}}}, "greater than or equal to 0"),
        ({"seeds": [0, 0]}, "at least 2"),
        ({"seed": [1]}, "seed"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        decide(tmp_path, sides(4, 0), **changes)


def test_the_shipped_claims_were_written_before_their_runs() -> None:
    claims, shipped = read_claims(shipped_file("v2.claims.yaml"), SUITE), read_shipped(SUITE)
    tests = decide_claims(claims, SUITE, shipped, shipped.clear())
    assert tests["exploratory"].null_count() == len(tests)
    found = judge_claims(tests)
    assert sorted(found.values()) == sorted([SUPPORTED] * 5 + [NOT_SUPPORTED] * 3 + [NOT_ENOUGH])
    corrected = dict(tests.select("claim", "p_holm").iter_rows())
    assert corrected["conv-large"] == 1
    # Its largest p-value is that of 7 and 2 of 8, the fifth of nine.
    largest = (comb(8, 7) * comb(8, 2) + comb(8, 1)) / comb(16, 9)
    assert corrected["flipflop-encoding"] == pytest.approx(5 * largest)
