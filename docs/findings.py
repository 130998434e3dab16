"""``make findings``: run every sweep of findings.yaml and write docs/findings.md.

The sweeps run in runs/findings, as many runs at once as there are cores; finished runs are kept, so
an interrupted command goes on. Then the runs are added to pe_lab/results/findings.parquet, and the
tables, those of ``pe-lab results``, are made from that file. README.md's first table has the run of
``make run``; ``pe-lab extrapolate`` fills in docs/extrapolation.md.

    python -m docs.findings [NAME ..] [--tables]     some findings; only write what has been run

With --tables and without names, the sections that the page has are made again. A section that is
named is made when all runs of its sweeps are finished, no earlier. Runs of other sections are not
added: a part of a sweep would be in no table.
"""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from docs import facts
from docs.leaderboard import write_first_run
from docs.markdown import insert, table
from pe_lab.cli.results import ResultsOptions
from pe_lab.cli.results import show as show_results
from pe_lab.cli.train import checked_jobs
from pe_lab.core.console import percent
from pe_lab.core.files import replace_file
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.output import counted
from pe_lab.experiment.run import folder_of
from pe_lab.results.format import in_markdown
from pe_lab.results.table import (
    FACTS,
    FINDINGS,
    GROUPS,
    filtered,
    read_file_of_runs,
    read_runs,
)
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import ROUNDING, excluded
from pe_lab.suite.rows import ORIGIN, read_origin
from pe_lab.train.plan import plan

FILE = facts.ROOT / "pe_lab" / "results" / "findings.parquet"
ADDED = ("date", *ORIGIN)


def kept(file: Path = FILE) -> pl.DataFrame:
    """The runs of the file; none where there is no file."""
    return read_file_of_runs(file) if file.exists() else pl.DataFrame(schema=FACTS)


def keep(folder: Path, shown: Callable[[pl.DataFrame], Iterable[str]], file: Path = FILE) -> None:
    """Add the finished runs of the folder that a section shows. A run of the file that was made
    again is replaced; all others stay, with the machine that was noted when they were added.

    Args:
        shown: the paths of those of some runs that are in a table.
    """
    found = read_runs(folder, where="state=finished")
    here = _described(found.filter(pl.col("path").is_in(list(shown(found)))), folder)
    there = kept(file)
    # Times and errors of a run made again differ. The last digit of a mean over splits, ood/error,
    # depends on their order.
    measured = [
        name
        for name in here.columns
        if "/" in name and name in there.columns and not re.fullmatch("ood/[^/]*", name)
    ]
    numbers = [pl.col("path"), pl.col(measured).cast(pl.Float64)]
    again = here.select(numbers).join(
        there.select(numbers), on=["path", *measured], how="anti", nulls_equal=True
    )
    here = here.join(again, on="path", how="semi")
    stays = there.join(here, on="path", how="anti")
    # A column without any value has no type of its own.
    parts = [
        part.with_columns(pl.lit(None).alias(c.name) for c in part if c.null_count() == len(c))
        for part in (stays, here)
    ]
    both = pl.concat([pl.DataFrame(schema=FACTS), *parts], how="diagonal_relaxed").sort("path")
    # Errors that none of these runs has are those of other runs in the folder.
    both = both.drop(c.name for c in both if c.dtype == pl.Null and "/" in c.name)
    both = both.with_columns(pl.col(pl.Null).cast(pl.String))
    added = [name for name in both.columns if name not in FACTS]
    content = io.BytesIO()
    both.select(*FACTS, *sorted(added)).write_parquet(
        content, compression="zstd", compression_level=19, statistics=False
    )
    replace_file(file, content.getvalue())


def finished_in(folder: Path) -> list[str]:
    """The paths of the finished runs of a folder, below it."""
    if not folder.is_dir():
        return []
    paths = map(Path, read_runs(folder, where="state=finished")["path"])
    return [path.relative_to(folder).as_posix() for path in paths]


def _described(runs: pl.DataFrame, folder: Path) -> pl.DataFrame:
    """Where and when each was made, and of its path what is below the folder."""
    dropped = {name for name in runs.columns if excluded(name) and name not in (*GROUPS, *ROUNDING)}
    rows = []
    for path in map(Path, runs["path"]):
        day = date.fromtimestamp(RunFolder(path).status()["time"]).isoformat()
        origin = read_origin(path)
        rows.append((day, *(origin.get(name) for name in ORIGIN)))
    made = pl.DataFrame(rows, dict.fromkeys(ADDED, pl.String), orient="row")
    paths = [Path(path).relative_to(folder).as_posix() for path in runs["path"]]
    return (
        runs.drop(dropped).with_columns(made).with_columns(path=pl.Series(paths, dtype=pl.String))
    )


EXTRAPOLATION = facts.ROOT / "docs" / "extrapolation.md"
PAGE, SOURCE = (facts.ROOT / "docs" / f"findings.{end}" for end in ("md", "yaml"))
RUNS = "runs/findings"
OOD_MEAN = "ood"
"""The row of the mean over the OOD splits."""
ROWS = 4
"""Rows of a small table."""


def pe_lab(*words: str, capture: bool = False) -> str:
    """Run ``pe-lab`` with these words in the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "pe_lab", *words], cwd=facts.ROOT, check=True, text=True,
        stdout=subprocess.PIPE if capture else None,
    )  # fmt: skip
    return done.stdout or ""


def runs_of(finding: dict[str, Any], runs: pl.DataFrame) -> pl.DataFrame:
    """Those of these runs that the table of a finding shows."""
    words = dict(word.split("=", 1) for word in shlex.split(finding["results"]))
    keys = {key: word for key, word in words.items() if key not in ResultsOptions.model_fields}
    return filtered(runs, None, keys) if keys.keys() <= set(runs.columns) else runs.clear()


def unfinished(finding: dict[str, Any], finished: Container[str]) -> list[str]:
    """The runs of a finding's sweeps that are not among these, as paths below runs/findings."""
    jobs = (job for line in finding["runs"]
            for job in checked_jobs(["-m", *shlex.split(line), f"runs_dir={RUNS}"]))  # fmt: skip
    paths = (folder_of(plan(job)).path.relative_to(RUNS).as_posix() for job in jobs)
    return [path for path in paths if path not in finished]


def section(name: str, finding: dict[str, Any]) -> str:
    """The conclusion of a finding, a small table of its runs in findings.parquet, and commands."""
    shown = StringIO()
    with redirect_stdout(shown), redirect_stderr(StringIO()):
        show_results([f"file={FINDINGS}", "format=json", *shlex.split(finding["results"])])
    command = f"pe-lab results file={FINDINGS} {finding['results']}"
    runs = runs_of(finding, kept())
    parts = [f"## {finding['title']}", finding["text"].strip()]
    if rows := finding.get("rows", ROWS):
        parts.append(small_table(json.loads(shown.getvalue())["rows"], rows))
    parts.append(
        f"{counted(len(runs), 'run')}: `{command}`; again: `python -m docs.findings {name}`."
    )
    return "\n\n".join(parts)


def small_table(rows: list[dict[str, Any]], most: int) -> str:
    """The rows of ``pe-lab results`` with the highest success rates, one line each.

    Args:
        most: lines; the others are left out, and the last column says how many.
    """
    names = list(rows[0])
    by = [name for name in names[: names.index("split")] if name not in ("task", "setting")]
    lines: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(tuple(str(row[name]) for name in by), {})[row["split"]] = row
    order = sorted(lines, key=lambda line: _rank(lines[line]))
    splits = [split for split in dict.fromkeys(row["split"] for row in rows) if split != OOD_MEAN]
    body = [
        [in_markdown(" ".join(filter(None, line))), *(_cell(lines[line].get(s)) for s in splits)]
        for line in order[:most]
    ]
    head = ["encoding" if most >= len(order) else f"{most} of {len(order)}"]
    return table([*head, *map(in_markdown, splits)], body)


def _rank(of: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Highest mean success rate over the OOD splits first, then lowest mean error."""
    ood = [row for split, row in of.items() if split not in (IN_DOMAIN, OOD_MEAN) and row["n"]] or [
        *of.values()
    ]
    rate = sum(row["p_generalises"] or 0.0 for row in ood) / len(ood)
    return -rate, sum(1.0 if row["mean"] is None else row["mean"] for row in ood) / len(ood)


def _cell(row: dict[str, Any] | None) -> str:
    return (
        "" if row is None or not row["n"] else f"{row['k']}/{row['n']} ({percent(row['median'])})"
    )


def reproductions(findings: Mapping[str, dict[str, Any]], shown: Iterable[str]) -> str:
    """What others published beside what came out here: a row for each finding that has a claim.

    Args:
        shown: the section of each finding, empty where it was never run.
    """
    rows = []
    for (name, finding), text in zip(findings.items(), shown, strict=True):
        if row := finding.get("reproduces"):
            verdict, found = "not run", f"`python -m docs.findings {name}`"
            if text:
                verdict = f"[{row.get('verdict', 'not judged')}](#{anchor(finding['title'])})"
                found = row.get("found", "")
            rows.append([row["claim"], row["size"], verdict, found])
    return table(["published", "size", "verdict", "here"], rows)


def anchor(title: str) -> str:
    """The address of a section on GitHub."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def earlier() -> dict[str, str]:
    """The sections of the page as it is, by title."""
    found = re.split(r"^(?=## )", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0].removeprefix("## "): text.strip() for text in found}


def extrapolated() -> str:
    """The tables of ``pe-lab extrapolate``; trains and measures what is missing."""
    return pe_lab(
        "extrapolate", "task=text", f"runs_dir={RUNS}", "format=markdown",
        "tracker.wandb.mode=disabled", capture=True,
    ).strip()  # fmt: skip


def main() -> None:
    """Run, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m docs.findings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    args = parser.parse_args()
    written = yaml.safe_load(SOURCE.read_text("utf-8"))
    findings, head = written["findings"], written["head"]
    if unknown := set(args.names) - findings.keys():
        raise SystemExit(f"unknown findings {', '.join(unknown)}: {', '.join(findings)}")
    page = earlier()
    known = {*re.findall("^## (.*)$", head, re.M), *(it["title"] for it in findings.values())}
    if lost := page.keys() - known:
        raise SystemExit(f"no finding of {SOURCE.name} has the title {', '.join(lost)}")
    names = args.names or ([] if args.tables else list(findings))
    for name, finding in findings.items():
        if args.tables or name not in names:
            continue
        for line in finding["runs"]:
            words = shlex.split(line)
            pe_lab("-m", *words, "hydra/launcher=joblib", f"runs_dir={RUNS}",
                   "tracker.wandb.mode=disabled")  # fmt: skip
        print(f"ran {name}")
    made = [name for name, it in findings.items() if name in names or it["title"] in page]
    folder = facts.ROOT / RUNS
    finished = {*kept()["path"], *finished_in(folder)}
    for name in names:
        if left := unfinished(findings[name], finished):
            raise SystemExit(
                f"{name}: {counted(len(left), 'run')} not finished, {left[0]} the first: run "
                f"python -m docs.findings {name} to its end"
            )
    if folder.is_dir():
        shown_by = [findings[name] for name in made]
        keep(folder, lambda runs: [path for f in shown_by for path in runs_of(f, runs)["path"]])
    shown = [section(name, it) if name in made else "" for name, it in findings.items()]
    head = head.replace("REPRODUCTIONS", reproductions(findings, shown))
    PAGE.write_text("\n\n".join([head.strip(), *filter(None, shown)]) + "\n", "utf-8")
    print(f"wrote {PAGE.relative_to(facts.ROOT)}")
    write_first_run()
    if not args.names and not args.tables:
        insert(EXTRAPOLATION, extrapolated(), "make findings")


if __name__ == "__main__":
    main()
