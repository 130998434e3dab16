"""The page of findings: its tables are those of the runs that ship, and these are not lost."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from made import made

from docs import findings
from docs.findings import keep
from pe_lab.results.table import FACTS, SHIPPED_FINDINGS, read_file_of_runs

WRITTEN, WRITTEN_HEAD = findings.WRITTEN["findings"], findings.WRITTEN["head"]


def test_the_page_has_the_numbers_of_the_file() -> None:
    page = findings.PAGE.read_text("utf-8")
    # Not `assert a == b`, which would print the difference of two long pages.
    same = findings.page() == page
    assert same, "run python -m docs.findings"
    assert len(page.splitlines()) <= 500


def test_the_head_counts_the_verdicts() -> None:
    found = Counter(one["reproduces"]["verdict"] for one in WRITTEN.values() if "reproduces" in one)
    assert (
        " ".join(WRITTEN_HEAD.split())
        .partition("# Findings ")[2]
        .startswith(
            f"Of {found.total()} published claims, {found['reproduced']} are reproduced, "
            f"{found['in part']} in part, {found['not reproduced']} is not reproduced, and "
            f"{found['undecided']} are undecided"
        )
    )
    readme = " ".join((findings.facts.ROOT / "README.md").read_text("utf-8").split())
    assert (
        f"{found['reproduced']} of {found.total()} claims are reproduced, {found['in part']} in "
        f"part and {found['not reproduced']} not. The other {found['undecided']} are undecided"
        in readme
    )


def test_no_run_that_ships_is_without_a_section() -> None:
    runs = read_file_of_runs("findings")
    shown = pl.concat([findings.runs_of(one, runs)["path"] for one in WRITTEN.values()])
    assert set(runs["path"]) == set(shown)
    assert SHIPPED_FINDINGS.stat().st_size < 1_000_000
    words = pl.concat([runs[n] for n, kind in runs.schema.items() if kind == pl.String])
    assert not words.str.contains("(^|[^:/])/(home|tmp|root|work|Users|mnt)/").any()


def test_runs_are_added_and_measured_again_and_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("kept.parquet")
    pl.DataFrame(schema=FACTS).write_parquet(file)
    shown = [{"results": "task=flipflop"}]
    made("rope", 0, errors={"in_domain": 0, "sparse": 0.5}, runs_dir="first")
    made("cope", 0, errors={"in_domain": 0, "sparse": 0.25}, runs_dir="first", **{"pe.npos": 16})
    made("fire", 0, task="counting", runs_dir="first")
    keep(Path("first"), shown, file)
    content = file.read_bytes()
    keep(Path("first"), shown, file)
    assert file.read_bytes() == content, "the same runs are the same file"
    made("rope", 0, errors={"in_domain": 0, "sparse": 0.125}, runs_dir="second")
    made(
        "t5",
        1,
        errors={"in_domain": 0, "sparse": 1.0},
        runs_dir="second",
        **{"pe.max": "many", "pe.npos": None},
    )
    (made("t5", 2, runs_dir="second").path / "summary.json").unlink()
    keep(Path("second"), shown, file)
    runs = {row["pe"]: row for row in read_file_of_runs(file).iter_rows(named=True)}
    errors = {pe: (row["seed"], row["ood/sparse/error"]) for pe, row in runs.items()}
    assert errors == {"cope": (0, 0.25), "rope": (0, 0.125), "t5": (1, 1.0)}
    assert (runs["cope"]["pe.npos"], runs["t5"]["pe.npos"], runs["t5"]["pe.max"]) == (
        16, None, "many",
    )  # fmt: skip
    assert runs["rope"]["path"].startswith("flipflop/rope/seed0-"), "wherever the runs were"
    assert "runs_dir" not in runs["rope"]
