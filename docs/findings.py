"""``make findings``: run every sweep of findings.yaml and write docs/findings.md.

    python -m docs.findings                 write the page
    python -m docs.findings NAME ..         run some findings before it; all: every one

The sweeps run in runs/findings, and finished runs are kept, so an interrupted command goes on. The
runs that a finding shows are added to pe_lab/results/findings.parquet, from which ``pe-lab results
file=findings`` prints its table.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from docs import facts
from docs.markdown import table, write
from pe_lab.cli import results
from pe_lab.core.errors import check_known, counted
from pe_lab.results.table import (
    FINDINGS,
    GROUPS,
    SHIPPED_FINDINGS,
    filtered,
    read_file_of_runs,
    read_runs,
)
from pe_lab.store.run_id import ROUNDING, is_excluded

PAGE = facts.ROOT / "docs" / "findings.md"
WRITTEN = yaml.safe_load(PAGE.with_suffix(".yaml").read_text("utf-8"))
RUNS = facts.ROOT / "runs" / "findings"


def runs_of(finding: Mapping[str, Any], runs: pl.DataFrame) -> pl.DataFrame:
    """Return those of these runs that the table of a finding shows."""
    words = dict(word.split("=", 1) for word in shlex.split(finding["results"]))
    keys = {key: words[key] for key in words.keys() - (results.show.__kwdefaults__ or {}).keys()}
    return filtered(runs, None, keys) if keys.keys() <= set(runs.columns) else runs.clear()


def keep(folder: Path, findings: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Add the finished runs of the folder that these findings show; all others stay."""
    runs = read_runs(folder, where="state=finished")
    left_out = {name for name in runs.columns if is_excluded(name)} - {*GROUPS, *ROUNDING}
    shown = [runs_of(finding, runs) for finding in findings]
    runs = pl.concat(shown).unique("path", maintain_order=True).drop(left_out)
    runs = runs.with_columns(pl.col("path").str.strip_prefix(f"{folder}/"))
    # A column without values has the type of words, which the file's numbers would take on.
    runs = runs[[column.name for column in runs if column.null_count() < len(column)]]
    kept = read_file_of_runs(file).join(runs, on="path", how="anti")
    both = pl.concat([kept, runs], how="diagonal_relaxed").sort("path")
    both.write_parquet(file, compression="zstd", compression_level=19, statistics=False)


def section(name: str, finding: Mapping[str, Any], runs: pl.DataFrame) -> str:
    """Return the conclusion of a finding, and the command that prints its table."""
    command = f"`pe-lab results file={FINDINGS} {finding['results']}` (`{name}`)"
    shown = f"{counted(len(runs_of(finding, runs)), 'run')}: {command}"
    return "\n\n".join([f"## {finding['title']}", finding["text"].strip(), shown])


def reproductions(findings: Iterable[Mapping[str, Any]]) -> str:
    """Return what others published beside what came out here: a row for each claim."""
    link = "[{}](#{})".format
    rows = [
        [claim["claim"], claim["size"], link(claim["verdict"], anchor), claim.get("found", "")]
        for finding in findings
        if (claim := finding.get("reproduces"))
        for anchor in [re.sub(r"[^\w -]", "", finding["title"].lower()).replace(" ", "-")]
    ]
    return table(["published", "size", "verdict", "here"], rows)


def page() -> str:
    """Return the whole page."""
    runs, findings = read_file_of_runs(FINDINGS), WRITTEN["findings"]
    head = WRITTEN["head"].replace("REPRODUCTIONS", reproductions(findings.values()))
    sections = [section(name, finding, runs) for name, finding in findings.items()]
    return "\n\n".join([head.strip(), *sections]) + "\n"


def run(names: Sequence[str]) -> None:
    """Run the sweeps of these findings, and keep their runs."""
    findings = {name: WRITTEN["findings"][name] for name in names}
    for line in [line for finding in findings.values() for line in finding["runs"]]:
        words = ["-m", *shlex.split(line), f"runs_dir={RUNS}"]
        command = [sys.executable, "-m", "pe_lab", *words, "tracker.wandb.mode=disabled"]
        subprocess.run(command, cwd=facts.ROOT, check=True)
    keep(RUNS, findings.values(), SHIPPED_FINDINGS)


if __name__ == "__main__":
    if names := sys.argv[1:]:
        check_known("unknown finding {}", {*names} - {"all"}, WRITTEN["findings"])
        run([*WRITTEN["findings"]] if names == ["all"] else names)
    write(PAGE, page())
