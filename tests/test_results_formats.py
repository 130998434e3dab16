"""pe-lab results in formats for programs."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import errors_of, unfinished
from program import Here, succeeded

from pe_lab.cli.main import main
from pe_lab.results.aggregate import grouped
from pe_lab.results.frame import read_runs

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


SHARES = st.integers(0, 1013).map(lambda wrong: wrong / 1013)


def test_machine_formats_are_clean(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.3, 0.4], **{"train.steps": 9})
    unfinished("failed", "b")
    for form in ("csv", "markdown", "latex"):
        done = succeeded(here("results", f"format={form}", "by=pe"))
        assert "failed" not in done.out
        assert "pools" not in done.out
        assert "failed at step 3 of 9: what went wrong" in done.err
        assert "by=pe pools" in done.err
    done = here("results", "format=json", "by=pe")
    assert done.err == ""
    content = json.loads(done.out)
    assert [run["state"] for run in content["unfinished"]] == ["failed"]
    assert content["unfinished"][0]["message"] == "what went wrong"
    assert "train.steps" in content["notes"][0]
    assert {row["split"] for row in content["rows"]} == {"ood", "in_domain", "sparse"}


@settings(quick, max_examples=20)
@given(st.lists(st.lists(SHARES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_csv_and_json_hold_the_very_numbers(values: list[list[float]]) -> None:
    with tempfile.TemporaryDirectory() as runs:
        for number, errors in enumerate(values):
            errors_of(f"e{number}", errors, runs_dir=runs)
        want = grouped(read_runs(runs))
        read = {}
        for form in ("csv", "json"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                main(["results", f"runs_dir={runs}", f"format={form}"])
            read[form] = out.getvalue()
    kinds = ["mean", "sd", "low", "high"]
    rows = pl.read_csv(io.StringIO(read["csv"]), schema_overrides=dict.fromkeys(kinds, pl.Float64))
    assert rows.select(kinds).rows() == want.select(kinds).rows()
    numbers = [tuple(row[kind] for kind in kinds) for row in json.loads(read["json"])["rows"]]
    assert numbers == want.select(kinds).rows()


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown", "latex"])
def test_nothing_to_show(here: Here, form: str) -> None:
    Path("runs").mkdir()
    message = "no runs in runs: pe-lab task=flipflop pe=cope makes one"
    done = here("results", f"format={form}")
    assert (done.status, message in done.out + done.err) == (0, True)
    unfinished("failed", "b")
    done = succeeded(here("results", f"format={form}"))
    assert "what went wrong" in done.out + done.err
    done = here("results", f"format={form}", "pe=alibi")
    assert "no runs in runs pe=alibi: leave out a filter" in done.out + done.err
    if form in ("csv", "markdown", "latex"):
        assert done.out == ""
