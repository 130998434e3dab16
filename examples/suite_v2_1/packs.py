"""Packs finished runs into a file with the columns of v2.parquet, beside those it has already.

python examples/suite_v2_1/packs.py runs_v2_1 v2_1.parquet
"""

import sys
from pathlib import Path

import polars as pl

from pe_lab.results.leaderboard.file import write
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.suite import load_suite


def processor() -> str:
    """The processor with family, model and stepping; its name alone says little."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    parts = ", ".join(
        f"{key.split()[-1]} {facts[key]}" for key in ("cpu family", "model", "stepping")
    )
    return f"{facts['model name']} ({parts})"


def main() -> None:
    runs_dir, to = map(Path, sys.argv[1:])
    unused = Path(__file__).with_name("beyond.txt").read_text("utf-8").split()
    rows = suite_rows(runs_dir, load_suite("v2_1")).filter(~pl.col("run_id").is_in(unused))
    rows = rows.with_columns(processor=pl.lit(processor()))
    if to.exists():
        before = pl.read_parquet(to)
        rows = pl.concat([before, rows.join(before, on="run_id", how="anti")])
    write(rows, to)
    one = rows.unique("run_id")
    print(one.group_by("phase", "task").len().sort("phase", "task"))
    print(len(one), "runs,", (one["train_s"] + one["measure_s"]).sum() / 3600, "hours by the clock")


if __name__ == "__main__":
    main()
