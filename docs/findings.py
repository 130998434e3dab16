"""``make findings``: run every sweep of findings.yaml and write docs/findings.md.

The sweeps run in runs/findings, as many runs at once as there are cores; finished runs are kept, so
an interrupted command goes on. A section whose runs are not there stays as the page has it. Tables
are those of ``pe-lab results``. README.md's first table is made of the same runs; ``pe-lab
extrapolate`` fills in docs/extrapolation.md.

    python -m docs.findings [NAME ..] [--tables]     some findings; only write what has been run

README.md is written where ``seeds`` and ``flipflop`` are among the names.
"""

import argparse
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from docs import facts
from docs.markdown import insert, table
from pe_lab.cli.results import ResultsOptions
from pe_lab.experiment.machine import processor
from pe_lab.results.frame import by_split, read_runs
from pe_lab.store.run_folder import RunFolder

README, EXTRAPOLATION = facts.ROOT / "README.md", facts.ROOT / "docs" / "extrapolation.md"
PAGE, SOURCE = (facts.ROOT / "docs" / f"findings.{end}" for end in ("md", "yaml"))
RUNS = "runs/findings"
FLIPFLOP = "task=flipflop and state=finished and model.n_layers=2 and task.length=64"
"""One layer and length 512 are separate findings."""


def pe_lab(*words: str, capture: bool = False) -> str:
    """Run ``pe-lab`` with these words in the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "pe_lab", *words], cwd=facts.ROOT, check=True, text=True,
        stdout=subprocess.PIPE if capture else None,
    )  # fmt: skip
    return done.stdout or ""


def section(finding: dict[str, Any], anew: bool) -> str:
    """The commands, the table and the text of a finding; as the page has it where its runs are not
    here or ``anew`` is false, and empty where it was never run."""
    results = shlex.split(finding["results"])
    words = dict(word.split("=", 1) for word in results)
    keys = {key: word for key, word in words.items() if key not in ResultsOptions.model_fields}
    folder = facts.ROOT / RUNS
    if not (anew and folder.is_dir() and keys.keys() <= set(read_runs(folder).columns)):
        return earlier().get(finding["title"], "")
    runs = read_runs(folder, where="state=finished", **keys)
    if not len(runs):
        return earlier().get(finding["title"], "")
    shown = pe_lab("results", f"runs_dir={RUNS}", "format=markdown", *results, capture=True)
    lines = [f"pe-lab -m {line} hydra/launcher=joblib" for line in finding["runs"]]
    lines.append(f"pe-lab results {finding['results']}")
    parts = [f"## {finding['title']}", "```sh\n" + "\n".join(lines) + "\n```", shown.strip()]
    return "\n\n".join([*parts, finding["text"].strip(), measured(runs)])


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


def measured(runs: pl.DataFrame) -> str:
    """When, on what and with which code these runs were made, and what they took."""
    folders = [RunFolder(Path(path)) for path in runs["path"]]
    last = date.fromtimestamp(max(folder.status()["time"] for folder in folders))
    made = (folder.starts()[-1] for folder in folders)
    commits = sorted({(one["git_revision"] or "no commit")[:7] for one in made})
    minutes = (runs["time/train_s"] + runs["time/measure_s"]).sum() / 60
    where = processor() or "an unnamed processor"
    return (
        f"Measured {last} on {where} at {', '.join(commits)}: {len(runs)} runs, {minutes:.0f} "
        "minutes of training and measuring by the clock, one thread each, other work beside."
    )


def earlier() -> dict[str, str]:
    """The sections of the page as it is, by title."""
    found = re.split(r"^(?=## )", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0].removeprefix("## "): text.strip() for text in found}


def first_table() -> str:
    """Of each split: the run of ``make run``, then mean and range over the seeds of ``seeds``."""
    splits = by_split(read_runs(facts.ROOT / RUNS, where=f"{FLIPFLOP} and seed<8"))
    rows = []
    for split in splits["split"].unique(maintain_order=True):
        of_split = splits.filter(pl.col("split") == split).sort("seed")
        cope, rope = (of_split.filter(pl.col("pe") == pe)["error"] for pe in ("cope", "rope"))
        shown = f"{100 * cope[0]:.1f}", over_seeds(cope), over_seeds(rope)
        rows.append([f"`{split}`", *shown, f"{100 * of_split['guess'][0]:.1f}"])
    columns = [
        "error in %",
        "`make run`: CoPE, seed 0",
        "CoPE, 8 seeds",
        "RoPE, 8 seeds",
        "guessing",
    ]
    return table(columns, rows)


def over_seeds(errors: pl.Series) -> str:
    """The mean, and the range where there is one."""
    mean, low, high = (100 * f(errors) for f in (statistics.mean, min, max))
    return f"{mean:.1f}" if high - low < 0.05 else f"{mean:.1f} ({low:.1f} to {high:.1f})"


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
    if unknown := set(args.names) - written["findings"].keys():
        raise SystemExit(f"unknown findings {', '.join(unknown)}: {', '.join(written['findings'])}")
    for name, finding in written["findings"].items():
        if args.tables or (args.names and name not in args.names):
            continue
        for line in finding["runs"]:
            words = shlex.split(line)
            pe_lab("-m", *words, "hydra/launcher=joblib", f"runs_dir={RUNS}",
                   "tracker.wandb.mode=disabled")  # fmt: skip
        print(f"ran {name}")
    head = written["head"]
    shown = [
        section(finding, not args.names or name in args.names)
        for name, finding in written["findings"].items()
    ]
    head = head.replace("REPRODUCTIONS", reproductions(written["findings"], shown))
    PAGE.write_text("\n\n".join([head.strip(), *filter(None, shown)]) + "\n", "utf-8")
    print(f"wrote {PAGE.relative_to(facts.ROOT)}")
    if not args.names or {"seeds", "flipflop"} <= set(args.names):
        insert(README, first_table(), "make findings")
    if not args.names:
        insert(EXTRAPOLATION, extrapolated(), "make findings")


if __name__ == "__main__":
    main()
