"""A day of mixed use: what ``results`` shows of it at first sight."""

import re
from pathlib import Path

import pytest
from day_of_use import shared_day
from program import Here

from pe_lab.core.console import console
from pe_lab.results.frame import read_runs


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_day(tmp_path_factory)


def rates(row: str) -> float | None:
    """The mean of k/n over the splits out of domain; None of one seed."""
    found = [int(k) / int(n) for k, n in re.findall(r" (\d)/(\d)\b", row)[1:]]
    return sum(found) / len(found) if found else None


def test_the_fixture_is_a_day_of_mixed_runs(day: Path) -> None:
    runs = read_runs(day)
    assert (len(runs), runs["setting"].n_unique(), runs["task"].n_unique()) == (64, 35, 3)
    states = dict(runs["state"].value_counts().rows())
    assert states == {"finished": 61, "failed": 1, "interrupted": 1, "killed": 1}
    assert len(list(day.glob("*/*/*/evaluations.jsonl"))) == 12


def test_results_of_a_day_fit_60_lines_of_120_columns(
    day: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console(), "_width", 120)
    out = here("results", f"runs_dir={day}").out
    lines = out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120 + len(str(day))
    assert "continued" not in out
    titles = [n for n, line in enumerate(lines) if "error in %" in line]
    for title, task in zip(titles, ("counting", "flipflop", "selective_copy"), strict=True):
        assert lines[title].startswith(task)
        assert re.match(r"encoding +setting +n +in_domain .* OOD mean$", lines[title + 1])
        rows = lines[title + 3 : lines.index(next(x for x in lines[title:] if "(guess" in x))]
        means = [(row, re.search(r" (\d+\.\d+)(?: ?± ?[\d.]+)?[‡ *]*$", row)) for row in rows]
        shown = [(rates(row), float(mean[1])) for row, mean in means if mean]
        several = [(-rate, mean) for rate, mean in shown if rate is not None]
        assert len(several) > 1
        assert several == sorted(several), "the highest rates are first, then the lowest mean"
        assert all("±" in row for row in rows if re.search(r" [23]  ", row))
    assert "window=null" not in out
    assert "positions=sequential" not in out
    assert "[1] parts=[cope,relative] parts.0.every=2 steps=1000" in lines
    for state in ("failed", "killed", "interrupted"):
        assert f"  {state} at step" in out


def test_conditions_find_what_generalises(day: Path) -> None:
    good = read_runs(day, "ood<0.05 and task=flipflop")
    assert set(good.filter(state="finished")["pe"]) == {"fire"}
    assert good.filter(state="finished")["ood/error"].max() < 0.05
    sparse = read_runs(day, "sparse<0.12 and steps=400 and task=flipflop and state=finished")
    assert set(sparse["pe"]) == {"cope", "fire", "t5"}
    assert sparse["ood/sparse/error"].max() < 0.12
