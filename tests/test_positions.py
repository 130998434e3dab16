"""Sources of positions: what each draws, its limit, what it refuses.

What follows from tokens or tasks is in test_task_positions.py.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from program import Here, assert_refused, succeeded, tiny
from scipy.stats import chisquare

from pe_lab.core.rng import generator
from pe_lab.core.task import Ints
from pe_lab.pe.positions import ByLength, Drawn, Offset, Pose, Randomized, Sequential

DRAWN = {"randomized": Randomized, "pose": Pose, "offset": Offset}
drawn = pytest.mark.parametrize("kind", DRAWN.values(), ids=DRAWN)


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


@drawn
@pytest.mark.parametrize("length", [1, 2, 7, 20])
def test_increasing_and_within_limits(kind: type[Drawn], length: int) -> None:
    source = kind(20, False)
    rows = sample(source, 2000, length)
    assert rows.shape == (2000, length)
    assert rows.dtype == np.int64
    assert (np.diff(rows, axis=1) > 0).all()
    assert rows.min() == 0
    # The end is reached where there is anything to move: one chunk alone starts at 0.
    assert rows.max() == (0 if (kind, length) == (Pose, 1) else 19)
    assert source.limit(length, training=True) == 20


@drawn
def test_rows_differ_and_follow_the_stream(kind: type[Drawn]) -> None:
    source = kind(100, False)
    rows = sample(source, 50, 10)
    assert len(np.unique(rows, axis=0)) > 25
    np.testing.assert_array_equal(rows, sample(source, 50, 10))
    assert not np.array_equal(rows, source.sample(generator(1, "test"), 50, 10, training=True))


@drawn
def test_exactly_fitting(kind: type[Drawn]) -> None:
    np.testing.assert_array_equal(sample(kind(9, False), 3, 9), np.tile(np.arange(9), (3, 1)))


@drawn
def test_evaluation(kind: type[Drawn]) -> None:
    plain, random = kind(20, False), kind(20, True)
    # Without: any length, one row for all.
    np.testing.assert_array_equal(sample(plain, 5, 30, training=False), np.arange(30)[None])
    assert plain.limit(30, training=False) == 30
    # With: as in training.
    np.testing.assert_array_equal(sample(random, 5, 7, training=False), sample(random, 5, 7))
    assert random.limit(7, training=False) == 20


@drawn
def test_too_long(kind: type[Drawn]) -> None:
    message = "21 tokens cannot have 20 different positions: set positions.max to 21 or more"
    for source, training in ((kind(20, False), True), (kind(20, True), False)):
        with pytest.raises(ValueError, match=message):
            source.limit(21, training=training)
        with pytest.raises(ValueError, match=message):
            sample(source, 2, 21, training=training)


def test_sequential() -> None:
    for training in (True, False):
        np.testing.assert_array_equal(sample(Sequential(), 5, 4, training), [[0, 1, 2, 3]])
        assert Sequential().limit(4, training=training) == 4


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


@pytest.mark.parametrize("name", DRAWN)
def test_refused_by_the_command_line(here: Here, name: str) -> None:
    for words, parts in (
        (
            ["positions.max=8", "positions.evaluation=false"],
            ["15 tokens", "8 different", "set positions.max to 15"],
        ),
        (["positions.max=0"], ["positions.max=0", "greater than 0"]),
        (["positions.evaluation=maybe"], ["positions.evaluation=maybe", "true or false"]),
        (
            ["positions.max=20", "positions.evaluation=true"],
            ["63 tokens", "20 different", "set positions.max to 63"],
        ),
    ):
        assert_refused(here(*tiny(f"positions={name}", *words)), *parts)


@pytest.mark.parametrize("name", ["pose", "offset"])
def test_a_run_to_the_end(here: Here, tmp_path: Path, name: str) -> None:
    """A table of positions.max rows, in training and in a fixed draw at evaluation."""
    words = ["pe=learned", f"positions={name}", "positions.max=80", "train.steps=3"]
    for flag in ("false", "true"):
        succeeded(here(*tiny(*words, f"positions.evaluation={flag}")))
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2
