"""``pe-lab extrapolate``: train at one length, test at 8 times it, and compare with Su's table.

    pe-lab extrapolate task=text             trains what is missing of experiment=small/text (rope,
                                             rope with logn=train, hfwa; three seeds), measures all
                                             encodings at 8 times the trained length, and compares
                                             numbers and orders with Su's
    pe-lab extrapolate task=needle           the same encodings on variables in filler, at 4, 8 and
                                             16 times the trained length (nothing published)
    pe-lab extrapolate task.file=BOOK.txt    on another text
    pe-lab extrapolate seed=0 train.steps=500    all other options are passed to the training
    pe-lab extrapolate model=gau '~model.n_heads=2'    with Su's model, which has no n_heads
    pe-lab extrapolate format=markdown       table, markdown, latex, csv or json

Su's table is that of Su Jianlin's blog 9708. Finished runs and recorded numbers are kept, so the
same command continues where it was stopped. Tables and numbers are written to
runs_dir/evaluations/. One run is trained on each core; hydra/launcher=basic trains one at a time.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pe_lab.core.errors import UsageError
from pe_lab.core.options import Options, parse
from pe_lab.results.presentation.formats import Format, markdown, print_tables

if TYPE_CHECKING:
    import polars as pl

SETTINGS = {
    "text": ["experiment=small/text"],
    "needle": ["task=needle", "model.n_heads=2"],
}
"""Task -> what is trained. Heads of 32 features: the NTK rules need wide ones."""
TRAINED = {
    "rope": ("pe=rope", "pe.logn=none"),
    "rope + logn": ("pe=rope", "pe.logn=train"),
    "hfwa": ("pe=hfwa",),
}
"""The runs, by the names that published.yaml has for them."""
FIXED = ("pe", "experiment", "task.splits", "task.period", "eval.skip_too_long")
"""Keys, and groups of keys, that cannot be set."""
LINES = (("pe=rope", "pe.logn=none,train"), ("pe=hfwa",))
"""All of them, as options of ``pe-lab -m``."""


class ExtrapolateOptions(Options, extra="allow"):
    """The key of ``pe-lab extrapolate``; every other one goes to the training."""

    command = "extrapolate"

    format: Format = "table"


def show(words: Sequence[str]) -> None:
    """Train what is missing, measure, print and write.

    Raises:
        UsageError: a wrong option; nothing was done.
        PeLabError: a run failed; the same command does what is missing.
        Interrupted: by a signal; the same command resumes.
    """
    options = parse(ExtrapolateOptions, words)
    training, task = _training(options.others), options.others.get("task", "text")
    paths = {name: _folders([*change, *training]) for name, change in TRAINED.items()}
    from pe_lab.cli.train import launch

    for change in LINES:
        launch(["-m", *change, *training])
    evaluated = _measured(task, paths)
    _write(options.format, task, evaluated, Path(options.others.get("runs_dir", "runs")))


def _training(options: dict[str, str]) -> list[str]:
    """The options of the training; UsageError for those that the recipe fixes."""
    if (task := options.get("task", "text")) not in SETTINGS:
        raise UsageError(
            f"extrapolate task={task}: it is for task=text and task=needle; pe-lab eval measures "
            "other runs at any length"
        )
    for key, value in options.items():
        name = key.lstrip("+~")
        if any(name == fixed or name.startswith(f"{fixed}.") for fixed in FIXED):
            raise UsageError(
                f"extrapolate {key}={value}: its encodings and splits are fixed; leave {name} out, "
                "pe-lab eval measures other ones"
            )
    rest = {"seed": "0,1,2", "hydra/launcher": "joblib"} | options
    rest.pop("task", None)
    given = {key.removeprefix("++") for key in rest}
    settings = [word for word in SETTINGS[task] if word.partition("=")[0] not in given]
    return [*settings, *(f"{key}={value}" for key, value in rest.items())]


def _folders(words: Sequence[str]) -> list[Path]:
    """The folders of the runs of a command line; UsageError for options that do not fit."""
    from pe_lab.cli.train import checked_jobs
    from pe_lab.experiment.run import folder_of
    from pe_lab.train.plan import plan

    found, seeds = [], set()
    for config in checked_jobs(["-m", *words]):
        if config.seed in seeds:
            raise UsageError(
                "extrapolate makes a table of one setting over its seeds, and these words have "
                f"several for seed {config.seed}: give every key but seed one value"
            )
        seeds.add(config.seed)
        found.append(folder_of(plan(config)).path)
    return found


def _measured(task: str, paths: dict[str, list[Path]]) -> "pl.DataFrame":
    """The evaluations: one row per row of the table, seed and split."""
    import polars as pl

    from pe_lab.core.console import console
    from pe_lab.evaluate.evaluate import evaluate
    from pe_lab.evaluate.record import TRAINED as AS_TRAINED
    from pe_lab.results.presentation.comparisons import SPLITS
    from pe_lab.results.published import extrapolated

    parts = []
    for name, runs in paths.items():
        made = {row.encoding or AS_TRAINED: row.pe for row in extrapolated() if row.trained == name}
        words = [word for word in made if word != AS_TRAINED]
        console().print(f"measuring {name}, with {len(words)} other encodings")
        frame = evaluate(runs, words, list(SPLITS[task]))
        row = pl.col("encoding").replace_strict(made, return_dtype=pl.String)
        parts.append(frame.with_columns(row.alias("row")))
    return pl.concat(parts)


def _write(form: Format, task: str, evaluated: "pl.DataFrame", runs_dir: Path) -> None:
    from pe_lab.report.page import write_evaluations, write_new
    from pe_lab.results.presentation.comparisons import extrapolation_tables

    accuracies = {
        (row, split): (1 - part.sort("seed")["error"]).to_list()
        for (row, split), part in evaluated.group_by("row", "split", maintain_order=True)
    }
    found = extrapolation_tables(accuracies, task)
    out = runs_dir / "evaluations" / f"extrapolate-{datetime.now():%Y-%m-%dT%H-%M-%S}.csv"
    written = out.with_suffix(".md")
    write_evaluations(evaluated, out, "accuracy")
    write_new(written, "\n".join(map(markdown, found)).encode())
    print_tables(form, found, evaluated, None, [f"written to {written}, {out}"], {})
