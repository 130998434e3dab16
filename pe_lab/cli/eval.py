"""``pe-lab eval``: finished runs at other lengths and with other encodings, without training.

    pe-lab eval run=FOLDER lengths=128,256,512     a run with its trained encoding at these lengths
    pe-lab eval 'run=runs/flipflop/*/*' lengths=.. several runs: folders or parts of a path with
                                                   * and ?, comma-separated; unfinished ones are
                                                   skipped, damaged ones too, with status 1
    pe-lab eval run=.. pe=pi,rerope:window=64:logn=test    the trained encoding and these; a key
                                                   that both encodings have keeps its trained
                                                   value unless it is set here
    pe-lab eval run=.. pe=yarn k=4                 the scale of these encodings; default: test
                                                   length / trained length, in tokens
    pe-lab eval run=.. splits=in_domain,sparse     default: in_domain; without lengths= each split
                                                   has its usual length
    pe-lab eval run=.. sequences=200               sequences per split; default: eval.sequences of
                                                   the run
    pe-lab eval run=.. generate=true               also let the model generate the answers
    pe-lab eval run=.. metric=loss spread=sd       error, error_seq, accuracy, ..; spread as in
                                                   results
    pe-lab eval run=.. format=csv > FILE.csv       table, csv, json, markdown or latex

Each measurement is recorded at once in evaluations.jsonl of the run's folder and is not repeated
unless force=true, so an interrupted command can be run again. If memory runs out, the batch is
halved. The same command shows what was measured before.
Further: device=auto|cpu|cuda, threads=1, runs_dir=runs; --config-dir FOLDER for your encodings.
"""

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import PositiveFloat, PositiveInt

from pe_lab.cli.arguments import refuse_left_out, split_finished
from pe_lab.core.console import busy
from pe_lab.core.errors import PeLabError
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.results.evaluations import (
    check_metric,
    evaluation_tables,
    scales,
    shown_encoding,
)
from pe_lab.results.format import OutputFormat, print_tables
from pe_lab.results.table import runs_of, unfinished_notes
from pe_lab.results.tables import Spread


def show(
    line: Line,
    *,
    run: str,
    pe: str | None = None,
    splits: CommaSeparated[str] | None = None,
    lengths: CommaSeparated[PositiveInt] | None = None,
    k: PositiveFloat | None = None,
    sequences: PositiveInt | None = None,
    generate: bool = False,
    force: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: PositiveInt = 1,
    runs_dir: Path = Path("runs"),
    format: OutputFormat = "table",
    metric: str = "error",
    spread: Spread = "sd",
) -> None:
    """Evaluate and print the tables.

    Raises:
        UsageError: invalid option, or a run that cannot be evaluated with it; nothing was done.
        RunError: a run cannot be loaded; of several, the others were evaluated.
        Interrupted: stopped by a signal; earlier measurements are recorded.
    """
    paths, unfinished = split_finished(run, runs_dir)
    # Imported here: torch takes a second.
    from pe_lab.evaluate.evaluate import evaluate

    check_metric(metric, generate)
    left_out: list[PeLabError] = []
    with busy("evaluating"):
        evaluated = evaluate(
            paths,
            [] if pe is None else [pe],
            splits or ["in_domain"],
            lengths,
            k=k,
            sequences=sequences,
            generate=generate,
            force=force,
            device=device,
            threads=threads,
            config_dir=None if line.config_dir is None else str(line.config_dir),
            left_out=left_out.append if len(paths) > 1 else None,
        )
    if len(left_out) == len(paths):
        raise left_out[0]
    across = "split" if lengths is None else "length"
    tables = evaluation_tables(evaluated, metric, spread, across)
    runs = runs_of([*evaluated["path"].unique(maintain_order=True), *unfinished])
    lines = [*notes(evaluated), *unfinished_notes(runs)]
    print_tables(format, tables, evaluated, lines, {"metric": metric})
    refuse_left_out(left_out, len(paths), "evaluated")


def notes(evaluated: pl.DataFrame) -> list[str]:
    """Return what the tables do not show: scales, cells without numbers, parameters left out."""
    lines, rows = scales(evaluated), evaluated.with_columns(encoding=shown_encoding())
    empty = rows.filter(pl.col("message").is_not_null())
    for encoding, split, message in (
        empty.select("encoding", "split", "message").unique(maintain_order=True).rows()
    ):
        lines.append(f"{encoding} n/a on {split}: {message}")
    left_out = (
        rows.filter(pl.col("left_out") > 0)
        .select("pe", "left_out", "encoding")
        .unique(maintain_order=True)
    )
    for pe, number, encoding in left_out.rows():
        lines.append(f"{number:,} trained parameters of {pe} are left out under {encoding}")
    if earlier := int(evaluated["earlier"].sum()):
        lines.append(f"{earlier} of {len(evaluated)} numbers were measured before")
    return lines
