"""Positions: what each source draws, its limit, what it refuses; ids of tokens and of tasks."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbers_task import Numbers
from program import Here, summary, the_run, tiny
from scipy.stats import chisquare, kstest

from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Ints
from pe_lab.experiment.load_run import load
from pe_lab.pe.positions import (
    ByLength,
    Offset,
    Pose,
    RandomFloats,
    RandomIntegers,
    Randomized,
)
from pe_lab.pe.task_positions import Abacus, Coupled, Rows

DRAWN = {"randomized": Randomized, "pose": Pose, "offset": Offset}
each_drawn = pytest.mark.parametrize("kind", DRAWN.values(), ids=DRAWN)


def sample(source: ByLength, n: int, length: int, training: bool = True) -> Ints:
    return source.sample(generator(0, "test"), n, length, training=training)


def starts(rows: Ints) -> Ints:
    """Where each row's second chunk begins; 0 where there is no skip."""
    jumps = np.diff(rows, axis=1) > 1
    assert (jumps.sum(1) <= 1).all()
    return np.where(jumps.any(1), jumps.argmax(1) + 1, 0)


def is_uniform(values: Ints, low: int, high: int) -> bool:
    """Every whole number of low .. high as often as any other, and no other number."""
    assert values.min() == low
    assert values.max() == high
    return low == high or bool(chisquare(np.bincount(values)[low:]).pvalue > 1e-4)


@each_drawn
@pytest.mark.parametrize("length", [1, 2, 7, 20])
def test_increasing_and_within_limits(kind: type[RandomIntegers], length: int) -> None:
    source = kind(20, False)
    rows = sample(source, 2000, length)
    assert rows.shape == (2000, length)
    assert rows.dtype == np.int64
    assert (np.diff(rows, axis=1) > 0).all()
    assert rows.min() == 0
    # The end is reached where there is anything to move: one chunk alone starts at 0.
    assert rows.max() == (0 if (kind, length) == (Pose, 1) else 19)
    assert source.limit(length, training=True) == 20


@each_drawn
def test_evaluation(kind: type[RandomIntegers]) -> None:
    plain, random = kind(20, False), kind(20, True)
    # Without: any length, one row for all.
    np.testing.assert_array_equal(sample(plain, 5, 30, training=False), np.arange(30)[None])
    assert plain.limit(30, training=False) == 30
    # With: as in training.
    np.testing.assert_array_equal(sample(random, 5, 7, training=False), sample(random, 5, 7))
    assert random.limit(7, training=False) == 20


@pytest.mark.parametrize(("length", "longest"), [(2, 1), (7, 4), (8, 4), (15, 8)])
def test_pose_is_two_chunks(length: int, longest: int) -> None:
    """The first holds 1 .. (T + 1) // 2 tokens, as in the published code."""
    most = 30 - length
    rows = sample(Pose(30, False), 20000, length)
    assert (rows[:, 0] == 0).all()
    skips = rows[:, -1] - (length - 1)
    assert is_uniform(skips, 0, most)
    second = starts(rows)
    np.testing.assert_array_equal(second == 0, skips == 0)
    assert is_uniform(second[second > 0], 1, longest)
    # The chunk's length is independent of the skip.
    if longest > 1:
        moved = skips > 0
        correlation = np.corrcoef(second[moved], skips[moved])[0, 1]
        assert abs(correlation) < 4 / math.sqrt(moved.sum())


def test_randomized_is_every_position_equally_often() -> None:
    """But not independently: within a row they differ."""
    rows = sample(Randomized(64, False), 200, 15)
    # 200 * 15 / 64 = 46.9, five deviations.
    assert abs(np.bincount(rows.ravel(), minlength=64) - 46.9).max() < 5 * math.sqrt(46.9)


def test_offset_is_one_chunk() -> None:
    rows = sample(Offset(30, False), 20000, 12)
    assert (np.diff(rows, axis=1) == 1).all()
    assert is_uniform(rows[:, 0], 0, 18)


def floats(scale: float | None = None) -> RandomFloats:
    """Of sequences of 6 tokens in training."""
    return RandomFloats(scale).bind(task())


def test_floats_of_training_are_sorted_uniform_numbers() -> None:
    rows = sample(floats(10.0), 3000, 9)
    assert rows.shape == (3000, 9)
    assert rows.dtype == np.float32
    assert (np.diff(rows, axis=1) >= 0).all()
    assert kstest(rows.ravel() / 10, "uniform").pvalue > 1e-4
    # Each row has 9 independent ones: the smallest is Beta(1, 9), the largest Beta(9, 1).
    assert kstest(rows[:, 0] / 10, "beta", (1, 9)).pvalue > 1e-4
    assert kstest(rows[:, -1] / 10, "beta", (9, 1)).pvalue > 1e-4


@pytest.mark.parametrize("length", [1, 5, 6, 7, 20])
@pytest.mark.parametrize("scale", [None, 1.0, 2.5])
def test_floats_of_evaluation_are_the_published_grid(length: int, scale: float | None) -> None:
    source, most = floats(scale), 6 if scale is None else scale
    expected = [most * (2 * i - 1) / (2 * max(6, length)) for i in range(1, length + 1)]
    grid = sample(source, 5, length, training=False)
    np.testing.assert_allclose(grid, [expected], rtol=1e-6)
    assert 0 <= sample(source, 200, length).min() <= sample(source, 200, length).max() <= most
    assert source.limit(length, training=True) == math.ceil(most)


def task(**keys: object) -> Numbers:
    return Numbers(splits={}, **keys)  # type: ignore[arg-type]


def ids_of(source: Abacus | Coupled, data: Batch, training: bool = True, seed: int = 0) -> Ints:
    return source.of_batch(generator(seed, "test"), data, training=training)


@given(rows=st.lists(st.lists(st.integers(0, 10), min_size=9, max_size=9), min_size=1, max_size=4))
def test_abacus_counts_the_digits_of_each_number(rows: list[list[int]]) -> None:
    ids = Abacus(99).bind(task()).of_tokens(np.array(rows))
    for row, found in zip(rows, ids.tolist(), strict=True):
        count, expected = 0, []
        for token in row:
            count = count + 1 if token < 10 else 0
            expected.append(count)
        assert found == expected


def test_abacus_shifts_digits_by_one_k_in_training_only() -> None:
    source, data = Abacus(3).bind(task()), task().sample(generator(1), 50)
    plain = ids_of(source, data, training=False)
    np.testing.assert_array_equal(plain, np.tile([1, 2, 3, 0, 1, 2], (50, 1)))
    shifts = set()
    for seed in range(60):
        ids = ids_of(source, data, seed=seed)
        (k,) = np.unique(ids[ids > 0] - plain[plain > 0])
        np.testing.assert_array_equal(ids == 0, plain == 0)
        shifts.add(int(k))
    assert shifts == {0, 1, 2, 3}
    assert source.limit_for(task(), training=True) > 3 + plain.max()


def test_coupled_gives_the_ids_of_the_task_from_a_random_start() -> None:
    source, data = Coupled(9).bind(task()), task().sample(generator(1), 400)
    assert source.axes == ()
    plain = ids_of(source, data, training=False)
    np.testing.assert_array_equal(plain, np.tile([1, 2, 3, 0, 1, 2], (400, 1)))
    ids = ids_of(source, data)
    shift = (ids - plain).max(1, keepdims=True)
    np.testing.assert_array_equal(ids, np.where(plain > 0, plain + shift, 0))
    # Ids 1 .. 3 start at 1 .. 6, as all stay below 9.
    assert set(np.unique(shift)) == set(range(6))
    assert source.limit_for(task(), training=True) == 9
    assert source.limit_for(task(length=20), training=False) == 21


@given(rows=st.lists(st.lists(st.integers(8, 10), min_size=9, max_size=9), min_size=1, max_size=4))
def test_rows_begin_at_a_separator(rows: list[list[int]]) -> None:
    ids = Rows(None).bind(task()).of_tokens(np.array(rows))
    for tokens, found in zip(rows, ids.tolist(), strict=True):
        row, column, expected = 0, -1, []
        for token in tokens:
            row, column = (row + 1, 0) if token == 10 else (row, column + 1)
            expected.append([row, column])
        assert found == expected
    assert Rows("9").bind(task()).of_tokens(np.array([[9, 9]])).tolist() == [[[1, 0], [2, 0]]]


def test_axes_are_shifted_apart() -> None:
    both = task(axes="both")
    source, data = Coupled(9).bind(both), both.sample(generator(1), 200)
    assert source.axes == ("place", "copy")
    plain, ids = (ids_of(source, data, training=t) for t in (False, True))
    assert ids.shape == (200, 6, 2)
    np.testing.assert_array_equal(plain[0].T, [[1, 2, 3, 0, 1, 2], [1, 1, 1, 0, 2, 2]])
    place, copy = (ids - plain).max(1).T
    assert (set(place), set(copy)) == (set(range(6)), set(range(7)))
    assert abs(np.corrcoef(place, copy)[0, 1]) < 4 / np.sqrt(200)


@pytest.mark.parametrize(
    "source", ["abacus", "coupled", "rows", pytest.param("floats", marks=pytest.mark.extended)]
)
def test_a_run_with_ids_to_the_end(here: Here, tmp_path: Path, source: str) -> None:
    """Trained, generated from, evaluated at another length and with another encoding."""
    pe = {"rows": "rope_2d", "floats": "rope"}.get(source, "learned")
    Path("mine/task").mkdir(parents=True)
    Path("mine/task/numbers.yaml").write_text(
        "_target_: numbers_task.Numbers\naxes: place\nlength: 3\nsplits: {longer: {length: 5}}\n"
    )
    keys = ("task=numbers", "eval.generate=true", f"positions={source}", f"pe={pe}")
    assert here("--config-dir", "mine", *tiny(*keys, "train.steps=3")).status == 0
    folder = the_run(tmp_path / "runs")
    assert 0 <= summary(folder)["metrics"]["ood/longer/error_generated"] <= 1
    _, pos = load(folder).sequences("longer")
    if source == "rows":
        columns = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
        np.testing.assert_array_equal(pos[0].T, [[0] * 5 + [1] * 5, columns])
    elif source == "floats":  # 10 tokens in the range of 6
        np.testing.assert_allclose(pos[0], 0.6 * (np.arange(10) + 0.5), rtol=1e-6)
    else:
        np.testing.assert_array_equal(pos[0], [1, 2, 3, 4, 5, 0, 1, 2, 3, 4])
    assert here("eval", f"run={folder}", "lengths=8", "--config-dir", "mine").status == 0
