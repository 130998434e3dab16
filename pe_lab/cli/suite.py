"""``pe-lab suite``: tunes and scores all encodings alike on a fixed list of tasks.

    pe-lab suite v2 dry=true                     what is missing, and what it costs
    pe-lab suite v2                              runs it, the cheapest task first
    pe-lab suite v2 tasks=flipflop,parity pe=rope,cope,lstm    some tasks, some entries
    pe-lab suite v2 part=1 columns=conv          one part of the work, one column
    pe-lab suite v2 budget=2h                    starts no run after two hours
    pe-lab suite v2 --config-dir mine pe=mine    your encoding, like all others
    pe-lab suite v2 model=outside model.factory=mine:decoder    your model (docs/extending.md)
    pe-lab suite quick --config-dir mine pe=mine    the same in ten minutes, beside four references
    pe-lab suite v2 phases=tuning,score,more_seeds,longer    beside the default phases
    pe-lab suite v2 shipped=false tasks=flipflop pe=rope       runs whose results are shipped, too
    pe-lab suite v2 hydra.launcher.n_jobs=4 runs_dir=runs      also threads=, device=, tracker=

For each task and entry, learning rates are trained on the tuning seeds (tuning). The one with the
lowest in-domain error is trained on fresh seeds (score). Phases on request: more_seeds (up to seed
19), longer (more steps) and again (a tenth of the shipped cells a second time, in a runs_dir of
their own). As many runs are trained at once as there are cores (hydra/launcher=basic:
one; slurm: docs/clusters.md). Finished runs are kept: the same command does what is missing.
docs/suite.md has the protocol.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.suggest import check_known, did_you_mean
from pe_lab.results.suite import Suite, load_suite
from pe_lab.store.run_id import excluded

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
NOT_HERE = ("force", "debug")
"""Keys outside of a run's identity that a suite does not take."""


def _seconds(text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", text)
    if number is None or not float(number[1]):
        raise ValueError("give a number above 0 with its unit, like 90m, 2h or 1d")
    return float(number[1]) * UNITS[number[2]]


class SuiteOptions(Options, extra="allow"):
    """The keys of ``pe-lab suite``; the others are passed to its runs."""

    command = "suite"

    pe: CommaSeparated[str] | None = None
    tasks: CommaSeparated[str] | None = None
    phases: CommaSeparated[str] | None = None
    columns: CommaSeparated[str] | None = None
    part: CommaSeparated[int] | None = None
    budget: Annotated[float, BeforeValidator(_seconds)] | None = None
    dry: Flag = False
    shipped: Flag = True


def show(words: Sequence[str]) -> None:
    """Do what is missing of a suite.

    Raises:
        UsageError: a wrong option; nothing was done.
        PeLabError: a run failed; the same command does what is missing.
        Interrupted: by a signal; the same command continues.
    """
    config_dir, rest = without_config_dir(words)
    names = [word for word in rest if "=" not in word]
    if not names:
        raise UsageError(f"suite needs the name of a suite: pe-lab suite {min(choices('suite'))}")
    options = parse(SuiteOptions, [word for word in rest if word != names[0]])
    model = {k: v for k, v in options.others.items() if k == "model" or k.startswith("model.")}
    passed = _passed({k: v for k, v in options.others.items() if k not in model})

    suite = load_suite(names[0], None if config_dir is None else Path(config_dir))
    if model:
        suite, label = _with_model(suite, [f"{k}={v}" for k, v in model.items()], config_dir)
        options = options.model_copy(update={"pe": [*(options.pe or []), label]})
    from pe_lab.cli.train import arguments
    from pe_lab.config.schema import register_resolvers
    from pe_lab.suite.runner import Request, run_suite
    from pe_lab.suite.work import NAMES, Wanted, work
    from pe_lab.sweeps.launchers import register_choices

    check_known("phases={}", options.phases, NAMES)
    wanted = Wanted(
        options.tasks or [],
        options.pe or [],
        options.columns or [],
        [phase for phase in NAMES if phase in (options.phases or [])],
        options.part or [],
    )
    register_resolvers()
    register_choices()
    folder = [] if config_dir is None else ["--config-dir", config_dir]
    request = Request(work(suite, wanted), options.budget, options.dry, options.shipped)
    run_suite(arguments(["-m", *folder, *passed]), suite, request)


def _with_model(suite: Suite, words: list[str], config_dir: str | None) -> tuple[Suite, str]:
    """The suite with a model from outside, and its label."""
    from pe_lab.cli.train import checked
    from pe_lab.core.instantiate import instantiate
    from pe_lab.models.config import ModelConfig

    flags = [] if config_dir is None else ["--config-dir", config_dir]
    words = [*words, "pe=none"]
    label = instantiate(checked([*flags, *words]).model, "model", ModelConfig).entry()
    if label is None:
        raise UsageError(
            f"suite {words[0]}: a suite compares encodings in its own model, and models from "
            "outside: give model=outside model.factory=package.module:function"
        )
    if label in suite.all_entries:
        raise UsageError(
            f"suite {suite.name}: {label} is one of its entries: give model.label another name"
        )
    return replace(suite, models={label: tuple(words)}), label  # type: ignore[type-var]


def _passed(others: dict[str, str]) -> list[str]:
    """The words for the launcher and for all runs; UsageError for those that change a run."""
    for key, value in others.items():
        if not key.startswith("hydra") and (not excluded(key) or key in NOT_HERE):
            known = [*SuiteOptions.model_fields, "runs_dir", "threads", "device", "tracker"]
            raise UsageError(
                f"suite {key}={value}: {did_you_mean(key, known)}; a suite fixes what it trains: "
                "train other runs with pe-lab -m"
            )
        if key.startswith(("hydra/sweeper", "hydra.sweeper")):
            raise UsageError(f"suite {key}={value}: it has no effect here, leave it out")
    words = {"hydra/launcher": "joblib", "tracker": "none"} | others
    return [f"{key}={value}" for key, value in words.items()]
