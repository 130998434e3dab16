"""``pe-lab check``: tests the contract of an encoding, a task or a model, with numbers.

    pe-lab check pe=cope                         each point: pass, fail or not claimed
    pe-lab check pe=cope pe.gates=values         with other keys
    pe-lab check --config-dir mine pe=decay      your own
    pe-lab check pe=rope,cope,fox                a line for each encoding
    pe-lab check task=copy task.max_letters=8    a task; model=gru: a model
    pe-lab check                                 all encodings; with --config-dir FOLDER all in it
    pe-lab check hf=config.json pe=yarn pe.k=4   with the rotation of a released model

An encoding is checked in a small transformer in float64, with its keys as they are and with each
other choice of one key (``pairing=half``). ``not claimed`` means that a point does not apply. A
check takes seconds and writes nothing. The exit status is 1 if something fails. The tests of this
repository call the same functions (pe_lab/check/).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.check import networks, tasks
from pe_lab.check.base import Outcome
from pe_lab.cli.train import checked
from pe_lab.core.config_dir import choices
from pe_lab.core.console import busy, console
from pe_lab.core.errors import RunError, UsageError, check_known
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.results.format import Table, print_tables

CHECKS: dict[str, Callable[[Any], Iterator[Outcome]]] = {
    "pe": networks.check_encoding,
    "task": tasks.check_task,
    "model": networks.check_model,
}
"""What checks a yaml, by its group."""


def show(
    line: Line,
    *,
    pe: CommaSeparated[str] | None = None,
    task: CommaSeparated[str] | None = None,
    model: CommaSeparated[str] | None = None,
    hf: str | None = None,
    **keys: str,
) -> None:
    """Print the outcomes; ``pe.KEY=VALUE``, .. are keys of what is checked.

    Raises:
        UsageError: a wrong option, key or name.
        RunError: something fails.
    """
    checks = _checks(line, {"pe": pe, "task": task, "model": model}, hf, keys)
    outcomes = {}
    for title, run in checks.items():
        with busy(f"checking {title}"):
            outcomes[title] = list(run())
        if len(checks) > 1:
            counts = Counter(one.state for one in outcomes[title])
            console().print(f"{title:22}{counts['pass']:3} pass{counts['fail']:3} fail")
    failed = [(title, one) for title, of in outcomes.items() for one in of if one.state == "fail"]
    shown = [one for of in outcomes.values() for one in of] if len(checks) == 1 else []
    if shown:
        columns = {"": "state", "check": "name", "finding": "sentence"}
        frame = pl.DataFrame({c: [getattr(one, f) for one in shown] for c, f in columns.items()})
        print_tables("table", [Table(frame, title=str(line))])
    if failed:
        found = "; ".join(f"{title} {one.name}: {one.sentence}" for title, one in failed)
        raise RunError(f"check: {len(failed)} failed: {found}")


def _checks(
    line: Line, named: Mapping[str, list[str] | None], hf: str | None, keys: Mapping[str, str]
) -> dict[str, Callable[[], Iterator[Outcome]]]:
    """Title -> what runs the checks of an encoding, a task or a model."""
    chosen = {group: names for group, names in named.items() if names is not None}
    every = chosen or _all(line.config_dir)
    pairs = [(group, name) for group, names in every.items() for name in names]
    for key in keys:
        check_known(f"check {key}: keys of {{}} have no part in it", [key.partition(".")[0]], every)
    words = [*line.flags, *(f"{key}={value}" for key, value in keys.items())]
    sections = [(g, n, getattr(checked([f"{g}={n}", *words]), g)) for g, n in pairs]
    if hf is not None:
        if [group for group, *_ in sections] != ["pe"]:
            raise UsageError(f"check hf={hf} compares one encoding: give pe=NAME")
        from pe_lab.hf.rotation import check_rotation

        ((_, name, encoding),) = sections
        return {f"hf={hf} pe={name}": partial(check_rotation, hf, encoding)}
    return {f"{group}={name}": partial(CHECKS[group], section) for group, name, section in sections}


def _all(config_dir: Path | None) -> dict[str, list[str]]:
    """All encodings of conf/; with a folder of yamls its encodings, tasks and models."""
    if config_dir is None:
        return {"pe": list(choices("pe"))}
    names = {g: sorted(p.stem for p in (config_dir / g).glob("*.yaml")) for g in CHECKS}
    if not any(names.values()):
        raise UsageError(f"--config-dir {config_dir} holds no yaml in pe/, task/ or model/")
    return names
