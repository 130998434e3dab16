"""The report's sections of what runs were evaluated on."""

from pathlib import Path

import pytest
from html_page import Page
from made import evaluate, made
from program import Here

from pe_lab.evaluation.record import NAME
from pe_lab.report.data import Section, evaluated
from pe_lab.report.tables import table
from pe_lab.results.frame import read_runs
from pe_lab.store.schema import sealed_lines


@pytest.fixture
def runs(here: Here) -> None:
    """rope with two seeds and learned with one, evaluated at lengths measured in any order."""
    for seed in range(2):
        run = made("rope", seed)
        evaluate(run, "trained", {1024: 0.75 + 0.25 * seed, 64: 0.25})
        evaluate(run, "pi", {64: 0.25}, scale=1.0)
        evaluate(run, "pi", {256: 0.375 + 0.25 * seed}, scale=4.0)
    evaluate(made("learned"), "trained", {64: 0.125}, split="sparse")
    made("none", task="brackets")


def found(**equal: str) -> list[Section]:
    return evaluated(read_runs(**equal))[0]


@pytest.mark.usefixtures("runs")
def test_lines_are_encodings_at_test_time() -> None:
    section, sparse = found()
    assert section.splits == ("64", "256", "1024")
    rows = [(row.name, row.below, [cell.text for cell in row.cells]) for row in table(section).rows]
    assert rows == [
        ("pi", "in place of rope", ["2", "25.0", "50.0", "", "n/a"]),
        ("rope", "as trained", ["2", "25.0", "", "87.5", "n/a"]),
    ]
    assert section.guess["64"] == 0.5
    assert section.note == "Scale k of pi: 1 at 64, 4 at 256."
    (learned,) = sparse.settings
    assert learned.ood is not None
    assert learned.ood.mean == 0.125


@pytest.mark.usefixtures("runs")
def test_filters_choose_among_them_too() -> None:
    assert [section.title for section in found(pe="learned,none")] == ["flipflop, sparse"]
    for path in Path("runs").rglob(NAME):
        path.unlink()
    assert found() == []


@pytest.mark.usefixtures("runs")
def test_they_are_shown_with_their_task_and_a_damaged_record_is_named(here: Here) -> None:
    (path,) = Path("runs").glob(f"flipflop/learned/*/{NAME}")
    path.write_bytes(sealed_lines(b"[]\n"))
    assert here("report").status == 0
    page = Page(Path("runs/report/index.html").read_text())
    assert page.all("h1")[0]["text"] == "Positional encodings on brackets, flipflop"
    title = "Evaluated on in_domain after training, by length"
    assert title in page.inside("task-2")
    assert title not in page.inside("task-1")
    assert "Evaluated on sparse" not in page.inside("main")
    assert f"{path}: line 1 is not as pe-lab writes it" in page.inside("main")
