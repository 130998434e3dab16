"""``pe-lab eval``: finished runs at other lengths and with other encodings, without training.

    pe-lab eval run=FOLDER lengths=128,256,512     a run, its encoding as trained, at these lengths
    pe-lab eval 'run=runs/flipflop/*/*' lengths=.. any runs: folders, parts of a path, * and ?, by
                                                   commas; those not finished are named and skipped
    pe-lab eval run=.. pe=pi,rerope:window=64:logn=test    encodings in the place of the trained
                                                   one, which always comes first; a key that both
                                                   have keeps its trained value unless it is given
    pe-lab eval run=.. pe=yarn k=4                 their scale, else test length / trained length,
                                                   both in tokens
    pe-lab eval run=.. splits=in_domain,sparse     in_domain without it; each at all lengths, or
                                                   at its own where lengths= is left out
    pe-lab eval run=.. sequences=200               in place of the run's eval.sequences
    pe-lab eval run=.. generate=true               the model also writes the answers itself
    pe-lab eval run=.. metric=loss spread=sd       error, error_seq, accuracy, ..; as in results
    pe-lab eval run=.. format=csv out=FILE.csv     table, csv, json, markdown or latex; the file

Every number is added to evaluations.jsonl in its run's folder as soon as it is measured; what is
there is not measured again (force=true does), so that the same line goes on where it was stopped.
All numbers of a line go into a new file, a row for each run, encoding, split and length:
out=FILE.csv, else runs_dir/evaluations/TIME.csv, with a picture beside it (.svg).
Also device=auto|cpu|cuda, threads=1, runs_dir=runs; --config-dir FOLDER for your own encodings.
"""

import glob
import logging
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt

from pe_lab.common.errors import Interrupted, UsageError
from pe_lab.common.options import AtLeastOne, CommaSeparated, Flag, Options, parse
from pe_lab.results.output import Format, print_tables
from pe_lab.results.tables import Spread
from pe_lab.store.run_folder import RunFolder, is_run, runs_below, runs_called

logger = logging.getLogger("pe_lab")

LINE_EVERY_S = 30.0


class EvalOptions(Options):
    """The keys of ``pe-lab eval``."""

    command = "eval"

    run: str = ""
    pe: str | None = None
    splits: CommaSeparated[str] = Field(["in_domain"])
    lengths: CommaSeparated[PositiveInt] | None = Field(
        None, description="whole numbers, at least 1"
    )
    k: float | None = None
    sequences: AtLeastOne | None = None
    generate: Flag = False
    force: Flag = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: AtLeastOne = 1
    runs_dir: Path = Path("runs")
    format: Format = "table"
    metric: str = "error"
    spread: Spread = "both"
    out: str | None = None


def show(words: Sequence[str]) -> None:
    """Measure what the words ask for, and print it.

    Raises:
        UsageError: a word makes no sense, or a run cannot be evaluated so; nothing was done.
        Interrupted: a signal came; what was measured is recorded.
    """
    config_dir, rest = _config_dir(words)
    options = parse(EvalOptions, rest)
    out = _out(options.out, options.runs_dir)
    paths, unfinished = finished(options.run, options.runs_dir)
    # Only now: torch takes a second.
    from pe_lab.evaluation.evaluate import evaluate
    from pe_lab.report.evaluation_files import write
    from pe_lab.results.columns import frame_of
    from pe_lab.results.evaluation_tables import check_metric, evaluation_tables, notes
    from pe_lab.results.frame import FACTS
    from pe_lab.results.reader import records_of

    metric = check_metric(options.metric, options.generate)
    progress = _Progress()
    try:
        evaluated = evaluate(
            paths,
            [] if options.pe is None else [options.pe],
            options.splits,
            options.lengths,
            k=options.k,
            sequences=options.sequences,
            generate=options.generate,
            force=options.force,
            device=options.device,
            threads=options.threads,
            config_dir=config_dir,
            progress=progress.show,
        )
    except Interrupted:
        logger.warning("stopped by a signal: what was measured is recorded, the same line goes on")
        raise
    finally:
        progress.end()
    across = "split" if options.lengths is None else "length"
    tables = evaluation_tables(evaluated, metric, options.spread, across)
    lines = [*notes(evaluated), f"written to {write(evaluated, out, metric)}"]
    skipped = frame_of(list(records_of(map(RunFolder, unfinished))), FACTS)
    facts = {"metric": metric, "interval": "95 %, Student's t, of the mean over seeds"}
    print_tables(options.format, tables, evaluated, skipped, lines, facts)


def finished(words: str, runs_dir: Path) -> tuple[list[Path], list[Path]]:
    """The runs that ``run=`` names: the finished ones, and the others.

    A folder of a run stays among the first whatever it holds, where it is the only one: that it
    is not finished is told by whoever loads it.

    Raises:
        UsageError: nothing is called so, or nothing of it is finished.
    """
    found: dict[str, Path] = {}
    for word in filter(None, (word.strip() for word in words.split(","))):
        for path in _named(word, runs_dir):
            found.setdefault(str(path.resolve()), path)
    if not found:
        raise UsageError(
            "eval needs a finished run: give run=FOLDER, several by commas, or a part of their "
            "names below runs_dir"
        )
    paths = list(found.values())
    if len(paths) == 1:
        return paths, []
    done = [path for path in paths if RunFolder(path).summary() is not None]
    if not done:
        some = ", ".join(map(str, paths[:3])) + (", .." if len(paths) > 3 else "")
        raise UsageError(
            f"run={words} names {len(paths)} runs, and none is finished ({some}): give their "
            "lines again, they go on"
        )
    return done, [path for path in paths if path not in done]


def _named(word: str, runs_dir: Path) -> list[Path]:
    path = Path(word)
    if path.is_dir():
        return [path] if is_run(path) else runs_below(path) or [path]
    globbed = [Path(name) for name in sorted(glob.glob(word))]  # noqa: PTH207
    found = [run for p in globbed if p.is_dir() for run in ([p] if is_run(p) else runs_below(p))]
    found = found or runs_called(word, runs_dir)
    if not found:
        raise UsageError(
            f"run={word} is no folder, and no run below runs_dir={runs_dir} is called so: see "
            "pe-lab results for what there is"
        )
    return [run for run in found if ".replaced-" not in run.name]


def _config_dir(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The folder of --config-dir, and the other words."""
    rest = list(words)
    for number, word in enumerate(rest):
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            after = rest[number + 1 : number + 2]
            if not equals and not after:
                raise UsageError(f"eval {word} names no folder: give {flag} FOLDER")
            return value if equals else after[0], rest[:number] + rest[number + 2 - bool(equals) :]
    return None, rest


def _out(out: str | None, runs_dir: Path) -> Path:
    """Where the numbers go; nothing is there yet, and it can be written."""
    if out is None:
        # To the microsecond, as several may begin at once.
        path = runs_dir / "evaluations" / f"{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.csv"
    else:
        path = Path(out)
        if path.suffix != ".csv":
            raise UsageError(f"out={out} is not allowed: give a file that ends in .csv")
        for there in (path, path.with_suffix(".svg")):
            if there.exists():
                raise UsageError(f"out={out}: {there} is there already, give another name")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"{path} cannot be written: give out=FILE.csv in another folder")
    return path


class _Progress:
    """How much is measured, on the error output: a line that renews itself, or one now and then."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.at = time.monotonic()
        self.shown = False

    def show(self, done: int, of: int) -> None:
        now = time.monotonic()
        if of and (self.live or now - self.at >= LINE_EVERY_S):
            self.at, self.shown = now, True
            line = f"measured {done} of {of}"
            print(f"\r{line}" if self.live else line, end="" if self.live else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip

    def end(self) -> None:
        if self.live and self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
