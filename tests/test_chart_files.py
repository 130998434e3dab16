"""The charts of ``pe-lab report`` as files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pe_lab.report.chart_files import charts


def test_inspections_of_two_settings_are_two_files() -> None:
    facts = {"task": "copy", "pe": "cope", "seed": 0}
    runs = [SimpleNamespace(**facts, path=Path(f"seed0-{digest}")) for digest in ("a1", "b2")]
    drawn = charts([], cast(Any, runs), "svg")
    assert list(drawn) == ["copy-cope-seed0-inspection.svg", "copy-cope-seed0-b2-inspection.svg"]
