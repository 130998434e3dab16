"""The charts of the report: their points, and as files for a paper."""

import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from html_page import Page, values
from made import edit_summary, evaluate, made
from program import Here, assert_refused, succeeded, summary, the_run, tiny
from report_runs import ENCODINGS, SEEDS, error_of, runs

from pe_lab.evaluate.record import NAME
from pe_lab.report.charts import MAX_STEPS, Chart, charts
from pe_lab.report.data import Section, evaluated, sections
from pe_lab.report.html import drawn
from pe_lab.report.page import Report, chart_files, evaluation_chart
from pe_lab.report.tables import picture, table
from pe_lab.results.evaluations import recorded
from pe_lab.results.table import by_split, read_runs

__all__ = ["runs"]


def charts_of(runs_dir: Path | str = "runs", task: str = "flipflop") -> dict[str, Chart]:
    """The charts of a task by name."""
    finished = read_runs(runs_dir, task=task, state="finished")
    (section,) = sections(finished, by_split(finished))
    return {chart.name: chart for chart in charts(section)}


@pytest.fixture(scope="module")
def flipflop(runs: Path) -> dict[str, Chart]:
    return charts_of(runs)


def means(chart: Chart, panel: str = "") -> dict[tuple[str, Any], float]:
    """Of each coloured setting and x of a panel."""
    return {
        (row["label"].split()[0], row["x"]): row["y"]
        for row in values(chart.spec)
        if "y" in row and row["panel"] == panel
    }


def test_error_by_split_has_medians_the_range_of_seeds_and_thresholds(
    flipflop: dict[str, Chart],
) -> None:
    rows = values(flipflop["splits"].spec)
    errors = [100 * error_of(7, seed, 2) for seed in SEEDS]
    of = [row for row in rows if row.get("label") == "enc_7 (n = 3)" and row["x"] == "dense"]
    (drawn,) = (row for row in of if "y" in row)
    ends = (statistics.median(errors), min(errors), max(errors))
    assert [drawn[name] for name in ("y", "low", "high")] == pytest.approx(ends, rel=1e-3)
    assert [row["seed"] for row in of if "seed" in row] == pytest.approx(errors, rel=1e-3)
    limits = {row["x"]: row["rule"] for row in rows if "rule" in row}
    assert (limits["in_domain"], limits["dense"]) == (1, 2)
    # Eight of eleven settings are in colour.
    grey = {row["label"].split()[0] for row in rows if "other" in row}
    assert grey == {*ENCODINGS[8:], "cope"}


def test_error_against_what_the_splits_change(flipflop: dict[str, Chart]) -> None:
    def panels(name: str) -> dict[str, set[float]]:
        found: dict[str, set[float]] = {}
        for row in values(flipflop[name].spec):
            if "y" in row:
                found.setdefault(row["panel"], set()).add(row["x"])
        return found

    assert panels("against-length") == {
        "p_ignore = 0.8": {16, 32, 64}, "p_ignore = 0.98": {16, 64}, "p_ignore = 0.1": {16, 64},
    }  # fmt: skip
    assert panels("against-p_ignore") == {
        "length = 16": {0.98, 0.8, 0.1}, "length = 64": {0.98, 0.8, 0.1},
    }  # fmt: skip
    of_long = statistics.median(100 * error_of(7, seed, 4) for seed in SEEDS)
    found = means(flipflop["against-length"], "p_ignore = 0.8")
    assert found["enc_7", 64] == pytest.approx(of_long, rel=1e-3)


def test_learning_curves_end_with_the_closing_measurement(flipflop: dict[str, Chart]) -> None:
    found = means(flipflop["learning"], "dense")
    assert {x for _, x in found} == {10, 20}
    closing = statistics.median(100 * error_of(7, seed, 2) for seed in SEEDS)
    assert found["enc_7", 20] == pytest.approx(closing, rel=1e-3)
    assert {x for _, x in means(flipflop["loss"])}


def test_splits_without_numbers_or_names_have_no_chart(here: Here) -> None:
    """A key that splits set to a word, and a breakdown of a split that the run does not name."""
    run = made("rope", **{"task.splits.sparse": {"kind": "odd"}, "task.splits.dense": {}})
    cell = {"error": 0.5, "loss": 1.0, "n": 4}
    by = {split: {"length": {"1": cell, "2": cell}} for split in ("no", "sparse")}
    edit_summary(run.path, lambda summary: summary.update(by=by))
    found = charts_of()
    assert found.keys() & {"against-kind", "by-length"} == {"by-length"}
    assert {row["panel"] for row in values(found["by-length"].spec)} == {"sparse"}


def test_a_long_curve_is_thinned_to_means_over_equal_intervals(here: Here) -> None:
    lines = [json.dumps({"step": step, "train/loss": step % 2}) for step in range(1, 601)]
    (made("rope").path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = means(charts_of()["loss"])
    assert len(found) == MAX_STEPS
    assert found["rope", 10] == 0.5


def test_a_table_as_a_picture_has_every_coloured_cell(runs: Path) -> None:
    finished = read_runs(runs, task="flipflop", state="finished")
    (section,) = sections(finished, by_split(finished))
    grid = table(section)
    cells = {(v["row"], v["column"]): v["text"] for v in values(picture(grid))}
    assert len(cells) == len(grid.rows) * 8
    assert cells["enc_9", "sparse"] == {row.name: row for row in grid.rows}["enc_9"].cells[2].text


def test_cost_is_the_mean_error_over_the_cost(flipflop: dict[str, Chart]) -> None:
    parameters = means(flipflop["cost"], "parameters")
    assert {name for name, _ in parameters} == {*ENCODINGS[:8]}
    (error,) = (y for (name, _), y in parameters.items() if name == "enc_7")
    errors = [100 * error_of(7, seed, split) for seed in SEEDS for split in range(1, 7)]
    assert error == pytest.approx(statistics.fmean(errors), rel=1e-3)


def test_errors_by_depth_are_those_of_the_summary(here: Here) -> None:
    words = ["task=needle", "task.length=24", "task.n_variables=3", "pe=rope", "seed=0"]
    assert here(*tiny(*words)).status == 0
    chart = charts_of(task="needle")["by-depth"]
    by = summary(the_run(Path("runs")))["by"]
    for split, kinds in by.items():
        expected = {int(depth): 100 * cell["error"] for depth, cell in kinds["depth"].items()}
        found = {x: y for (_, x), y in means(chart, split).items()}
        assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "form", ["svg", *(pytest.param(form, marks=pytest.mark.extended) for form in ("png", "pdf"))]
)
def test_every_chart_as_a_file_for_a_paper(here: Here, runs: Path, form: str) -> None:
    words = (f"runs_dir={runs}", "task=selective_copy", f"format={form}", "out=figures")
    succeeded(here("report", *words))
    of_task = {f"selective_copy-{name}" for name in ("table", "splits", "learning", "cost")}
    names = {path.stem for path in Path("figures").glob(f"*.{form}")}
    assert {"overview", *of_task, "selective_copy-cope-seed0-inspection"} <= names
    for path in Path("figures").glob(f"*.{form}"):
        begin = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[form]
        assert path.read_bytes().startswith(begin)
        if form == "svg":
            image = path.read_text()
            assert 'fill="#fff"' in image.partition("</rect>")[0]
            assert "var(--" not in image
            assert "selective_copy" in image
    assert here("report", *words).status == 0
    changed = Path("figures", f"selective_copy-cost.{form}")
    changed.write_text("mine")
    assert_refused(
        here("report", *words), f"{changed} was not written by pe-lab report, or was changed since"
    )
    assert changed.read_text() == "mine"


def test_inspections_of_two_settings_are_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"task": "copy", "pe": "cope", "seed": 0}
    runs = [SimpleNamespace(**facts, path=Path(f"seed0-{digest}")) for digest in ("a1", "b2")]
    monkeypatch.setattr("pe_lab.report.page._inspection", lambda run: {})
    files = chart_files(Report([], [], [], cast(Any, runs), []), "svg")
    assert list(files) == ["copy-cope-seed0-inspection.svg", "copy-cope-seed0-b2-inspection.svg"]


def test_the_chart_of_an_evaluation_has_a_line_for_each_setting(here: Here) -> None:
    for steps, error in ((100, 0.5), (400, 0.125)):
        for seed in range(2):
            evaluate(made("cope", seed, **{"train.steps": steps}), "trained", {64: 0.0, 256: error})
    spec = evaluation_chart(recorded(read_runs("runs"))[0], "accuracy")
    (panel,) = spec["hconcat"]
    rows = [(row["label"], row["x"], row["y"]) for row in values(panel) if "y" in row]
    assert sorted(rows) == [
        ("cope as trained (n = 2)", 64, 100), ("cope as trained (n = 2)", 256, 87.5),
        ("cope as trained steps=100 (n = 2)", 64, 100),
        ("cope as trained steps=100 (n = 2)", 256, 50),
    ]  # fmt: skip
    image = drawn(spec, "svg").decode()
    texts = " ".join(re.findall(r">([^<>]+)</t", image))
    for text in ("cope as trained steps=100 (n = 2)", "lowest to the highest seed", "accuracy (%)"):
        assert text in texts
    assert 'fill="#fff"' in image.partition("<g")[0]


@pytest.fixture
def evaluated_runs(here: Here) -> None:
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


@pytest.mark.usefixtures("evaluated_runs")
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


@pytest.mark.usefixtures("evaluated_runs")
def test_filters_choose_among_them_too() -> None:
    assert [section.title for section in found(pe="learned,none")] == ["flipflop, sparse"]
    for path in Path("runs").rglob(NAME):
        path.unlink()
    assert found() == []


@pytest.mark.usefixtures("evaluated_runs")
def test_they_are_shown_with_their_task_and_a_damaged_record_is_named(here: Here) -> None:
    (path,) = Path("runs").glob(f"flipflop/learned/*/{NAME}")
    path.write_text("[]\n")
    assert here("report").status == 0
    page = Page(Path("runs/report/index.html").read_text())
    assert page.all("h1")[0]["text"] == "Positional encodings on brackets, flipflop"
    title = "Evaluated on in_domain after training, by length"
    assert title in page.inside("task-2")
    assert title not in page.inside("task-1")
    assert "Evaluated on sparse" not in page.inside("main")
    assert f"{path}: line 1 is not as pe-lab writes it" in page.inside("main")
