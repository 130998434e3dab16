"""``make findings``: run every sweep of findings.yaml and write docs/findings.md.

    python -m docs.findings [NAME ..] [--tables]     some findings; run nothing

The sweeps run in runs/findings, and finished runs are kept, so an interrupted command goes on. The
runs that a finding shows are added to pe_lab/results/findings.parquet, from which ``pe-lab results
file=findings`` prints its table. README.md's first table has the run of ``make run``.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from docs import facts
from docs.leaderboard import write_first_run
from docs.markdown import table
from pe_lab.cli import results
from pe_lab.core.suggest import counted
from pe_lab.results.table import (
    FINDINGS,
    GROUPS,
    filtered,
    read_file_of_runs,
    read_runs,
    shipped_findings,
)
from pe_lab.store.run_id import ROUNDING, is_excluded

PAGE, SOURCE = (facts.ROOT / "docs" / f"findings.{end}" for end in ("md", "yaml"))
RUNS = "runs/findings"


def runs_of(finding: Mapping[str, Any], runs: pl.DataFrame) -> pl.DataFrame:
    """Return those of these runs that the table of a finding shows."""
    words = dict(word.split("=", 1) for word in shlex.split(finding["results"]))
    keys = {key: words[key] for key in words.keys() - (results.show.__kwdefaults__ or {}).keys()}
    return filtered(runs, None, keys) if keys.keys() <= set(runs.columns) else runs.clear()


def keep(folder: Path, findings: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Add the finished runs of the folder that these findings show; all others stay."""
    runs = read_runs(folder, where="state=finished")
    kept_keys = (*GROUPS, *ROUNDING)
    runs = runs.drop(name for name in runs.columns if is_excluded(name) and name not in kept_keys)
    shown = {path for finding in findings for path in runs_of(finding, runs)["path"]}
    runs = runs.filter(pl.col("path").is_in(shown))
    runs = runs.with_columns(pl.col("path").str.strip_prefix(f"{folder}/"))
    kept = read_file_of_runs(file).join(runs, on="path", how="anti")
    both = pl.concat([kept, runs], how="diagonal_relaxed").sort("path")
    both.write_parquet(file, compression="zstd", compression_level=19, statistics=False)


def section(name: str, finding: Mapping[str, Any], runs: pl.DataFrame) -> str:
    """Return the conclusion of a finding, and the command that prints its table."""
    shown = counted(len(runs_of(finding, runs)), "run")
    command = f"`pe-lab results file={FINDINGS} {finding['results']}` (`{name}`)"
    return f"## {finding['title']}\n\n{finding['text'].strip()}\n\n{shown}: {command}"


def reproductions(findings: Mapping[str, Mapping[str, Any]], made: Iterable[str]) -> str:
    """Return what others published beside what came out here: a row for each claim."""
    rows = []
    for name, finding in findings.items():
        if claim := finding.get("reproduces"):
            verdict, result = "not run", f"`python -m docs.findings {name}`"
            if name in made:
                anchor = re.sub(r"[^\w -]", "", finding["title"].lower()).replace(" ", "-")
                verdict = f"[{claim.get('verdict', 'not judged')}](#{anchor})"
                result = claim.get("found", "")
            rows.append([claim["claim"], claim["size"], verdict, result])
    return table(["published", "size", "verdict", "here"], rows)


def page(findings: Mapping[str, Mapping[str, Any]], head: str, names: Iterable[str]) -> str:
    """Return the page with the sections that it has and those that are named."""
    titles = set(re.findall("^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE))
    made = [name for name, it in findings.items() if name in names or it["title"] in titles]
    head = head.replace("REPRODUCTIONS", reproductions(findings, made))
    runs = read_file_of_runs(FINDINGS)
    sections = [section(name, findings[name], runs) for name in made]
    return "\n\n".join([head.strip(), *sections]) + "\n"


def main() -> None:
    """Run, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m docs.findings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    args = parser.parse_args()
    written = yaml.safe_load(SOURCE.read_text("utf-8"))
    findings = written["findings"]
    if unknown := set(args.names) - findings.keys():
        raise SystemExit(f"unknown findings {', '.join(unknown)}: {', '.join(findings)}")
    names = args.names or ([] if args.tables else list(findings))
    for line in [] if args.tables else [line for name in names for line in findings[name]["runs"]]:
        words = ["-m", *shlex.split(line), "hydra/launcher=joblib", f"runs_dir={RUNS}"]
        command = [sys.executable, "-m", "pe_lab", *words, "tracker.wandb.mode=disabled"]
        subprocess.run(command, cwd=facts.ROOT, check=True)
    if names and (facts.ROOT / RUNS).is_dir():
        keep(facts.ROOT / RUNS, [findings[name] for name in names], shipped_findings())
    PAGE.write_text(page(findings, written["head"], names), "utf-8")
    write_first_run()


if __name__ == "__main__":
    main()
