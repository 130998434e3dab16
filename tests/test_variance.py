"""The parts of the variance over crossed seeds: initial weights, data, and both together."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made import made
from program import Here, assert_refused, tiny

from pe_lab.results.frame import read_runs
from pe_lab.results.statistics.variance import Parts, variance_parts
from pe_lab.results.variance import variance_over_seeds


def test_each_part_alone() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 1.0]])
    sd = 0.5**0.5
    assert variance_parts(rows) == Parts(1, 0, 0, pytest.approx(sd))
    assert variance_parts(rows.T) == Parts(0, 1, 0, pytest.approx(sd))
    found = variance_parts(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert found == Parts(0, 0, 1, pytest.approx(1))
    assert variance_parts(np.full((3, 4), 0.1)) is None
    with pytest.raises(ValueError, match="1 by 4"):
        variance_parts(np.zeros((1, 4)))


def test_against_the_mean_squares_of_a_textbook_layout() -> None:
    """Both mean squares and the residual of a 3 by 4 layout, by loops over the cells."""
    values = np.random.default_rng(0).normal(size=(3, 4))
    mean = values.mean()
    m_init = 4 * sum((values[i].mean() - mean) ** 2 for i in range(3)) / 2
    m_data = 3 * sum((values[:, d].mean() - mean) ** 2 for d in range(4)) / 3
    m_left = sum(
        (values[i, d] - values[i].mean() - values[:, d].mean() + mean) ** 2
        for i in range(3)
        for d in range(4)
    ) / 6  # fmt: skip
    parts = [max(0.0, (m_init - m_left) / 4), max(0.0, (m_data - m_left) / 3), m_left]
    found = variance_parts(values)
    assert found is not None
    assert [found.init, found.data, found.both] == pytest.approx([p / sum(parts) for p in parts])
    assert found.sd == pytest.approx(sum(parts) ** 0.5)


def test_the_estimate_is_right_on_average() -> None:
    """Variances 4, 1 and 2 are found in the mean over 2 000 layouts of 8 by 8."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(2000):
        init, data = rng.normal(0, 2, (8, 1)), rng.normal(0, 1, (1, 8))
        parts = variance_parts(init + data + rng.normal(0, 2**0.5, (8, 8)))
        assert parts is not None
        found.append(np.array([parts.init, parts.data, parts.both]) * parts.sd**2)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / len(found) ** 0.5
    assert (abs(mean - [4, 1, 2]) < 4 * error).all()


def frame(values: dict[tuple[int, int], float]) -> pl.DataFrame:
    """Finished runs of one setting: seeds of initial weights and data, and the error."""
    return pl.DataFrame(
        [
            {
                "path": f"{init}-{data}", "state": "finished", "task": "flipflop", "pe": "cope",
                "seed": data, "seed.init": None if init == data else init,
                "setting": f"s{init if init != data else ''}", "splits": ["in_domain", "sparse"],
                "train.lr": 0.003, "in_domain/error": 0.0, "ood/sparse/error": error,
            }
            for (init, data), error in values.items()
        ],
        infer_schema_length=None,
    )  # fmt: skip


def test_crossed_runs_of_a_setting_are_one_row_a_split() -> None:
    crossed = {(i, d): 0.1 * i for i in range(3) for d in range(4)}
    in_domain, sparse = variance_over_seeds(frame(crossed)).iter_rows(named=True)
    assert (in_domain["split"], in_domain["sd"], in_domain["init"]) == ("in_domain", 0, None)
    assert (sparse["inits"], sparse["datas"]) == ([0, 1, 2], [0, 1, 2, 3])
    assert (sparse["init"], sparse["data"]) == (pytest.approx(1), pytest.approx(0))
    assert sparse["mean"] == pytest.approx(0.1)


def test_only_a_full_rectangle_counts() -> None:
    crossed = {(i, d): float(d) for i in range(3) for d in range(3)}
    # Runs of seed=3 and 4, and one that is missing.
    others = {(3, 3): 9.0, (4, 4): 9.0}
    (row,) = variance_over_seeds(frame(crossed | others), splits=["sparse"]).to_dicts()
    assert (row["inits"], row["datas"]) == ([0, 1, 2], [0, 1, 2])
    assert row["data"] == pytest.approx(1)
    del crossed[1, 2]
    (row,) = variance_over_seeds(frame(crossed), splits=["sparse"]).to_dicts()
    assert len(row["inits"]) * len(row["datas"]) == 6
    assert variance_over_seeds(frame({(s, s): 0.5 for s in range(4)})).is_empty()


@pytest.mark.extended
def test_crossed_runs_as_they_are_made(here: Here) -> None:
    crossed = tiny("seed.init=0,1", "seed.data=0,1", "train.steps=2", "train.warmup=0")
    assert here("-m", *crossed, "hydra/launcher=basic").status == 0
    rows = json.loads(here("results", "variance=true", "format=json").out)["rows"]
    assert {tuple(row["inits"] + row["datas"]) for row in rows} == {(0, 1, 0, 1)}
    splits = {row["split"] for row in rows}
    assert {"in_domain", "sparse", "long_x4"} <= splits
    assert len(splits) == len(rows)
    out = here("results", "variance=true").out
    assert "seed.init" not in out


def test_without_crossed_runs_the_command_says_how_to_make_them(here: Here) -> None:
    for seed in range(3):
        made(seed=seed)
    assert len(read_runs("runs")) == 3
    done = here("results", "variance=true")
    assert done.status == 0
    assert "seed.init=0,1,2,3 seed.data=0,1,2,3" in done.out
    rows = json.loads(here("results", "variance=true", "format=json").out)["rows"]
    assert rows == []
    assert Path("runs").is_dir()


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("by=pe", ["variance=true", "by"]),
        ("sort=-pe", ["variance=true", "sort"]),
        ("spread=both", ["variance=true", "spread"]),
        ("evaluations=true", ["variance=true", "evaluations"]),
        ("metric=eror", ["metric=eror", "error"]),
        ("splits=spars", ["splits=spars", "sparse"]),
    ],
)
def test_what_has_no_effect_is_refused(here: Here, word: str, parts: list[str]) -> None:
    made(seed=0)
    assert_refused(here("results", "variance=true", word), *parts)
