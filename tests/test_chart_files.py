"""The charts of ``pe-lab report`` as files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from program import Here, summary, the_run, tiny

from pe_lab.report.chart_files import charts
from pe_lab.report.pictures import breakdown_map
from pe_lab.report.sections import sections
from pe_lab.report.series import groups
from pe_lab.results.frame import by_split, read_runs


def test_inspections_of_two_settings_are_two_files() -> None:
    facts = {"task": "copy", "pe": "cope", "seed": 0}
    runs = [SimpleNamespace(**facts, path=Path(f"seed0-{digest}")) for digest in ("a1", "b2")]
    drawn = charts([], cast(Any, runs), "svg")
    assert list(drawn) == ["copy-cope-seed0-inspection.svg", "copy-cope-seed0-b2-inspection.svg"]


def test_a_map_of_errors_by_depth_and_length(here: Here) -> None:
    """Each cell is the error that the summary has for that split and tenth of the text."""
    words = ["task=needle", "task.length=24", "task.n_variables=3", "pe=rope", "seed=0"]
    assert here(*tiny(*words)).status == 0
    assert here("report", "format=svg", "out=pictures").status == 0
    assert "depth" in Path("pictures/needle-by-depth-map.svg").read_text()
    runs = read_runs("runs")
    (section,) = sections(runs, by_split(runs))
    (group,) = (group for group in groups(section) if group.name == "by-depth")
    spec = breakdown_map(section, group)
    cells = {(v["split"], int(v["x"])): v["error"] for v in spec["data"]["values"]}
    by = summary(the_run(Path("runs")))["by"]
    assert cells == {
        (split, int(depth)): pytest.approx(cell["error"])
        for split, kinds in by.items()
        for depth, cell in kinds["depth"].items()
    }
    assert {split for split, _ in cells} == {"in_domain", "long_x4", "long_x8", "long_x16"}
    assert {depth for _, depth in cells} >= set(range(8))
