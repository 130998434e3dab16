"""Encodings that change a trained one at test time: what is said when they train from scratch."""

from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object
from made import errors_of
from program import ROOT, Here, succeeded, tiny

from docs import facts
from pe_lab.core.test_time import TEST_TIME
from pe_lab.report.data import sections
from pe_lab.report.tables import overview, table
from pe_lab.results.table import by_split, read_runs

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))


def test_the_names_are_those_of_the_classes() -> None:
    classes = {name: get_object(facts.section(name)["_target_"]) for name in ENCODINGS}
    assert {name for name, cls in classes.items() if cls.at_test_time} == TEST_TIME
    pages = yaml.safe_load((ROOT / "docs" / "encodings.yaml").read_text())
    assert {name for name, page in pages.items() if page["family"] == "retuned"} == TEST_TIME


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["pe=yarn"], True),
        (["pe=combined", "pe.parts=[learned, pi]"], True),
        (["pe=rope"], False),
    ],
)
def test_training_one_from_scratch_is_warned_of(here: Here, words: list[str], warned: bool) -> None:
    ended = succeeded(here(*tiny(*words, "train.steps=1", "train.warmup=0")))
    said = " ".join(ended.out.split())
    assert ("is made for a trained rope at test time and trained from scratch" in said) == warned


def test_a_stretch_of_nothing_is_warned_of(here: Here) -> None:
    """Positions between 0 and the trained length leave nothing to stretch."""
    words = tiny("pe=pi", "positions=floats", "train.steps=1", "train.warmup=0")
    for changed, warned in (["pe.k=null"], True), (["pe.k=4"], False):
        said = " ".join(succeeded(here(*words, *changed)).out.split())
        assert ("pe.k=null of pe=pi is 1 here, which stretches nothing" in said) == warned


def test_results_mark_them_and_say_why(here: Here) -> None:
    errors_of("rope", [0.1, 0.2])
    errors_of("pi", [0.3, 0.4])
    out = here("results").out
    assert "pi †" in out
    assert "rope †" not in out
    legend = "† made for a trained rope at test time, trained from scratch here"
    assert legend in " ".join(out.split())
    assert legend not in " ".join(here("results", "pe=rope").out.split())


@pytest.mark.extended
def test_the_report_marks_them_and_says_why(here: Here) -> None:
    """In its table, the names of its charts, and the charts for a paper."""
    errors_of("rope", [0.1, 0.2])
    errors_of("pi", [0.3, 0.4])
    legend = "† made for a trained rope at test time, trained from scratch here"
    assert here("report", "inspect=none").status == 0
    page = Path("runs/report/index.html").read_text()
    assert '"pi † (n = 2)"' in page
    assert page.count(f"{legend}.</p>") == 2  # below the overview and the table
    runs = read_runs("runs")
    (section,) = sections(runs, by_split(runs))
    for grid in (table(section), overview([section])):
        assert {row.name for row in grid.rows} == {"rope", "pi †"}
        assert grid.caption.endswith(f"{legend}.")
    assert here("report", "inspect=none", "pe=rope").status == 0
    assert legend not in Path("runs/report/index.html").read_text()
