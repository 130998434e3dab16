"""The page of findings: its tables are those of the runs that are kept, and these are not lost."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from made import made

from docs import findings
from docs.findings import ADDED, FILE, keep, kept
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.suite.suite import load_suite

PAGE = findings.earlier()
SOURCE = yaml.safe_load(findings.SOURCE.read_text("utf-8"))
WRITTEN, WRITTEN_HEAD = SOURCE["findings"], SOURCE["head"]
ON_PAGE = [name for name, one in WRITTEN.items() if one["title"] in PAGE]


@pytest.mark.parametrize("name", ON_PAGE)
def test_a_section_has_the_numbers_of_the_file(name: str) -> None:
    there = PAGE[WRITTEN[name]["title"]]
    section = findings.section(name, WRITTEN[name])
    # Not `assert a == b`, which would print the difference of two long sections.
    same = section == there
    assert same, f"run python -m docs.findings {name} --tables"
    assert ("| in\\_domain |" in section) == (WRITTEN[name].get("rows", 4) > 0)
    command = f"pe-lab results file=findings {WRITTEN[name]['results']}"
    assert f"{len(findings.runs_of(WRITTEN[name], kept()))} runs: `{command}`" in section


def test_a_small_table_has_the_highest_success_rates_first() -> None:
    def row(pe: str, split: str, k: int | None, median: float) -> dict[str, Any]:
        rate = None if k is None else k / 2
        names = {"task": "a", "pe": pe, "setting": "0", "differs": "", "split": split}
        return {**names, "n": 2, "k": k, "p_generalises": rate, "median": median, "mean": median}

    rows = [
        *(row(pe, "in_domain", 2, 0.0) for pe in ("rope", "t5", "cope")),
        row("rope", "far", 0, 0.25), row("t5", "far", 0, 0.125), row("cope", "far", 1, 0.5),
        *(row(pe, "ood", None, 0.0) for pe in ("rope", "t5", "cope")),
    ]  # fmt: skip
    assert findings.small_table(rows, 2).splitlines() == [
        "| 2 of 3 | in\\_domain | far |",
        "| --- | --- | --- |",
        "| cope | 2/2 (0.0) | 1/2 (50.0) |",
        "| t5 | 2/2 (0.0) | 0/2 (12.5) |",
    ]
    unmeasured = [{**row("rope", "far", None, 0.0), "n": 0, "mean": None}]
    assert findings.small_table(unmeasured, 2).splitlines()[2] == "| rope |  |"


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
    assert len(findings.PAGE.read_text("utf-8").splitlines()) <= 500


def test_no_kept_run_is_without_a_section() -> None:
    shown = pl.concat([findings.runs_of(WRITTEN[name], kept())["path"] for name in ON_PAGE])
    assert set(kept()["path"]) == set(shown)
    assert FILE.stat().st_size < 1_000_000


def test_the_file_has_no_path_of_the_machine() -> None:
    runs = kept()
    words = pl.concat(
        [runs[name].cast(pl.String) for name, kind in runs.schema.items() if kind == pl.String]
    )
    assert not words.str.contains("(^|[^:/])/(home|tmp|root|work|Users|mnt)/").any()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "kept.parquet"


def every(runs: pl.DataFrame) -> list[str]:
    return runs["path"].to_list()


def errors(file: Path) -> dict[tuple[str, int], float]:
    rows = kept(file).select("pe", "seed", "ood/sparse/error").iter_rows()
    return {(pe, seed): error for pe, seed, error in rows}


def test_runs_are_added_and_measured_again_and_never_lost(file: Path) -> None:
    assert kept(file).is_empty()
    made("rope", 0, errors={"in_domain": 0, "sparse": 0.5}, runs_dir="first")
    made("cope", 0, errors={"in_domain": 0, "sparse": 0.25}, runs_dir="first", **{"pe.npos": 16})
    keep(Path("first"), every, file)
    assert errors(file) == {("cope", 0): 0.25, ("rope", 0): 0.5}
    content = file.read_bytes()
    keep(Path("first"), every, file)
    assert file.read_bytes() == content, "the same runs are the same file"
    for run in Path("first").glob("flipflop/*/*"):
        start = {"time": 1.0, "versions": {"torch": "2.13.0"}, "processor": "another"}
        (run / "environment.json").write_text(json.dumps([start]))
    keep(Path("first"), every, file)
    assert file.read_bytes() == content, "what was noted when they were added is kept"
    made("rope", 0, errors={"in_domain": 0, "sparse": 0.125}, runs_dir="second")
    made("t5", 1, errors={"in_domain": 0, "sparse": 1.0}, runs_dir="second", **{"pe.max": "many"})
    keep(Path("second"), every, file)
    assert errors(file) == {("cope", 0): 0.25, ("rope", 0): 0.125, ("t5", 1): 1.0}
    of = {row["pe"]: row for row in kept(file).iter_rows(named=True)}
    assert (of["cope"]["pe.npos"], of["t5"]["pe.npos"], of["t5"]["pe.max"]) == (16, None, "many")
    assert of["rope"]["path"].startswith("flipflop/rope/seed0-"), "wherever the runs were"
    assert "runs_dir" not in of["rope"]
    assert set(ADDED) <= of["rope"].keys()
    whole = [name for name in kept(file).columns if name.endswith("/n")]
    assert whole
    assert set(kept(file).select(whole).dtypes) == {pl.Int64}, "as in the folders"


def test_a_run_is_the_same_whatever_the_type_of_its_numbers(file: Path) -> None:
    made("rope", 0, errors={"in_domain": 0.0, "sparse": 0.5}, runs_dir="first")
    keep(Path("first"), every, file)
    whole = kept(file).with_columns(pl.col("in_domain/error").cast(pl.Int64), python=pl.lit("3.9"))
    whole.write_parquet(file)
    keep(Path("first"), every, file)
    assert kept(file)["python"].to_list() == ["3.9"]


def test_runs_that_are_not_finished_are_not_kept(file: Path) -> None:
    made("rope", 0, runs_dir="first")
    (made("cope", 0, runs_dir="first").path / "summary.json").unlink()
    keep(Path("first"), every, file)
    assert list(errors(file)) == [("rope", 0)]
    made("t5", 0, errors={"in_domain": 0, "far": 0.5}, runs_dir="first")
    keep(Path("first"), lambda runs: runs.filter(pe="rope")["path"].to_list(), file)
    assert list(errors(file)) == [("rope", 0)], "a run that no section shows"
    assert "ood/far/error" not in kept(file).columns, "nor what was measured of it"


def test_every_heading_of_the_page_is_a_finding() -> None:
    first = "Published claims, and whether they hold here"
    assert PAGE.keys() - {first} <= {finding["title"] for finding in WRITTEN.values()}
    # One paragraph, and a table at most.
    assert not any(re.search(r"\n\n[^|]", finding["text"]) for finding in WRITTEN.values())


def test_the_counts_of_what_helps_path() -> None:
    runs = findings.runs_of(WRITTEN["path_parts"], kept())
    said = " ".join(WRITTEN["path_parts"]["text"].split())
    suite = load_suite("v2")
    entries = {
        "path": pl.col("pe.conv") == 3,
        "path without its convolution": pl.col("pe.conv") == 1,
        "conv": pl.col("pe") == "conv",
        "conv with rope": pl.col("pe") == "combined",
    }
    tasks = {"flip-flop": "flipflop", "recall": "recall", "unique copy": "copy_unique"}
    tasks["parity"] = "group_word"

    def of(name: str, entry: str, *splits: str, rate: float | None = None) -> int:
        """The runs that have learned the task or, of splits, generalise to all of them."""
        limits = suite.tasks["parity" if name == "parity" else tasks[name]].thresholds
        chosen = runs.filter(entries[entry], task=tasks[name])
        assert len(chosen) == 12
        if rate is not None:
            chosen = chosen.filter(pl.col("train.lr") == rate)
        reached = [pl.col(metric_name(split, "error")) <= limits[split] for split in splits]
        return len(chosen.filter(*reached))

    greatest = dict(zip(tasks, ["long_x4", "long_x4", "long_x3", "long_x8"], strict=True))
    assert f"| task, greatest length | {' | '.join(entries)} |" in said
    for name, split in greatest.items():
        both = [f"{of(name, entry, IN_DOMAIN)} / {of(name, entry, split)}" for entry in entries]
        assert f"| {name}, {split} | {' | '.join(both)} |" in said
    assert (
        "0.012 on flip-flop and 0.006 on recall, PaTH generalises to all splits in 3 of 3" in said
    )
    shown = [
        [of(name, entry, *suite.tasks[tasks[name]].generalises, rate=rate) for entry in entries][:2]
        for name, rate in (("flip-flop", 0.012), ("recall", 0.006))
    ]
    assert shown == [[3, 1], [3, 0]]
    parameters = runs.filter(pl.col("pe.conv").is_null() | (pl.col("pe.conv") == 3))
    sizes = dict(parameters.group_by("pe").agg(pl.col("params/encoding").unique()).iter_rows())
    assert sizes == {"path": [9096], "conv": [256], "combined": [256]}
    assert "`conv` has 256 parameters, `path` 9096" in said


@pytest.mark.extended
def test_a_section_is_made_when_all_its_runs_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = findings.unfinished(WRITTEN["majority"], [])
    assert len(runs) == 24
    assert findings.unfinished(WRITTEN["majority"], {*kept()["path"]} - {runs[0]}) == runs[:1]
    before = FILE.read_bytes(), findings.PAGE.read_bytes()
    monkeypatch.setattr(findings, "RUNS", "runs/nowhere")
    more = [line.replace("seed=0,1,2", "seed=0,1,2,3") for line in WRITTEN["recall"]["runs"]]
    longer = {**WRITTEN, "recall": {**WRITTEN["recall"], "runs": more}}
    source = tmp_path / "findings.yaml"
    source.write_text(yaml.safe_dump({"head": WRITTEN_HEAD, "findings": longer}), "utf-8")
    monkeypatch.setattr(findings, "SOURCE", source)
    monkeypatch.setattr("sys.argv", ["findings", "majority", "recall", "--tables"])
    with pytest.raises(SystemExit, match=r"^recall: 8 runs not finished, recall/none/seed3-"):
        findings.main()
    assert (FILE.read_bytes(), findings.PAGE.read_bytes()) == before


@pytest.mark.slow
def test_no_table_of_the_file_lacks_a_run() -> None:
    """Two minutes: all runs of the page are composed."""
    runs = kept()["path"].to_list()
    assert len(ON_PAGE) > 30
    for name in ON_PAGE:
        assert not findings.unfinished(WRITTEN[name], runs), name
