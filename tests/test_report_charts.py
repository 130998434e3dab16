"""The charts of the report as files, for a paper."""

import statistics
from pathlib import Path

import pytest
from program import Here
from report_runs import SEEDS, error_of, runs
from scipy import stats

from pe_lab.common.console import percent
from pe_lab.report.pictures import drawn, heat_map
from pe_lab.report.sections import sections
from pe_lab.results.frame import by_split, read_runs

__all__ = ["runs"]


def test_the_heat_map_as_a_picture(runs: Path) -> None:
    """It shows mean, interval and the number of seeds."""
    flipflop = read_runs(runs, task="flipflop", state="finished")
    (section,) = sections(flipflop, by_split(flipflop))
    spec = heat_map(section)
    cells = {(v["setting"], v["split"]): v for v in spec["data"]["values"]}
    values = [error_of(9, seed, 1) for seed in SEEDS]
    cell = cells["enc_9 (n = 3)", section.splits[1]]
    limit = section.thresholds[section.splits[1]]
    k = sum(value <= limit for value in values)
    assert cell["text"] == f"{k}/3 {percent(statistics.median(values))}"
    half = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert cell["below"] == f"{percent(statistics.fmean(values))} ± {percent(half)}"
    assert drawn(spec, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "form", ["svg", *(pytest.param(form, marks=pytest.mark.extended) for form in ("png", "pdf"))]
)
def test_every_chart_as_a_file_for_a_paper(here: Here, runs: Path, form: str) -> None:
    """On white, with caption and number of seeds; the inspection too."""
    words = (f"runs_dir={runs}", "task=selective_copy", f"format={form}", "out=figures")
    ended = here("report", *words)
    assert ended.status == 0, ended.err
    names = {path.stem for path in Path("figures").glob(f"*.{form}")}
    assert {"selective_copy-heat-map", "selective_copy-learning", "selective_copy-cost"} <= names
    assert "selective_copy-cope-seed0-inspection" in names
    for path in Path("figures").glob(f"*.{form}"):
        begin = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
        assert path.read_bytes().startswith(begin)
        if form == "svg":
            image = path.read_text()
            assert 'fill="#fff"' in image.partition("</rect>")[0]
            assert "var(--" not in image
            assert ("n = 1" in image) or "inspection" in path.stem
            assert "selective_copy" in image
    assert here("report", *words).status == 0
    changed = Path("figures", f"selective_copy-cost.{form}")
    changed.write_text("mine")
    refused = here("report", *words)
    assert refused.status == 2
    assert f"{changed} was not written by pe-lab report, or was changed since" in refused.err
    assert changed.read_text() == "mine"
