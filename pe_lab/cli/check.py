"""``pe-lab check``: tests the contract of an encoding, a task or a model, with numbers.

    pe-lab check pe=cope                         each point: pass, fail or not claimed
    pe-lab check pe=cope pe.gates=values         with other keys
    pe-lab check --config-dir mine pe=decay      your own
    pe-lab check pe=rope,cope,fox                a line for each encoding
    pe-lab check task=copy task.max_letters=8    a task; model=gru: a model
    pe-lab check                                 all encodings; with --config-dir FOLDER all in it
    pe-lab check pe=decay d_model=64 n_heads=4   in a larger model
    pe-lab check hf=config.json                  the rotation of a released model, with transformers

An encoding is checked in a small transformer in float64, with its keys as they are and with each
other choice of one key (``pairing=half``). ``not claimed`` means that a point does not apply. A
check takes seconds and writes nothing. The exit status is 1 if something fails. The tests of this
repository call the same functions (pe_lab/check/).
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from rich.table import Table
from rich.text import Text

from pe_lab.cli.train import checked
from pe_lab.config.choices import choices
from pe_lab.core.console import busy, console
from pe_lab.core.errors import RunError, UsageError
from pe_lab.core.options import (
    AtLeastOne,
    CommaSeparated,
    Options,
    parse,
    without_config_dir,
)
from pe_lab.core.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pe_lab.check.base import Outcome

STYLES = {"pass": "green", "fail": "bold red", "not claimed": "dim"}
Even = Annotated[int, Field(ge=2, multiple_of=2, description="an even number of at least 2")]


GROUPS = {"pe": "encoding", "task": "task", "model": "model"}
"""The groups of yamls that are checked, and what is in them."""
Names = CommaSeparated[str]


class CheckOptions(Options, extra="allow"):
    """Arguments of ``pe-lab check``; ``pe.KEY=VALUE``, .. are keys of what is checked."""

    command = "check"

    pe: Names | None = None
    task: Names | None = None
    model: Names | None = None
    d_model: Even | None = None
    n_heads: AtLeastOne | None = None
    hf: str | None = None


def show(words: Sequence[str]) -> None:
    """Print the outcomes.

    Raises:
        UsageError: a wrong option, key or name.
        RunError: something fails.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(CheckOptions, rest)
    if options.hf is not None:
        if len(rest) > 1:
            raise UsageError(f"check hf={options.hf} is checked by itself: leave the rest out")
        _show_rotation(options.hf)
        return
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    chosen = {group: names for group in GROUPS if (names := getattr(options, group)) is not None}
    every = chosen or _all(config_dir)
    pairs = [(group, name) for group, names in every.items() for name in names]
    keys = _keys(options, pairs)
    sizes = {
        key: size for key in ("d_model", "n_heads") if (size := getattr(options, key)) is not None
    }
    if sizes and "pe" not in every:
        raise UsageError(f"check {next(iter(sizes))}: only the check of an encoding has that key")
    sections = {
        f"{group}={name}": (group, _section(group, name, [*flags, *keys])) for group, name in pairs
    }
    # Imported here: torch takes a second.
    from pe_lab.check.suite import check_encoding, check_model, check_task

    checks: dict[str, Callable[..., Iterator[Outcome]]]
    checks = {"pe": partial(check_encoding, **sizes), "task": check_task, "model": check_model}
    found: dict[str, list[Outcome]] = {}
    for title, (group, section) in sections.items():
        with busy(f"checking {title}"):
            found[title] = list(checks[group](section))
        if len(sections) > 1:
            console().print(_line(title, found[title]))
    if len(sections) == 1:
        ((title, outcomes),) = found.items()
        console().print(_table(" ".join(["pe-lab check", title, *keys]), outcomes))
    _raise_failures(found)


def _show_rotation(file: str) -> None:
    from pe_lab.check.rotation import check_rotation

    outcomes = list(check_rotation(file))
    console().print(_table(f"pe-lab check hf={file}", outcomes))
    _raise_failures({f"hf={file}": outcomes})


def _keys(options: CheckOptions, pairs: list[tuple[str, str]]) -> list[str]:
    """``pe.KEY=VALUE``, .. for the one encoding, task or model that is checked.

    Raises:
        UsageError: a key of something else, or several things are checked.
    """
    for key, value in options.others.items():
        group = key.partition(".")[0]
        remedy = f"give {group}=NAME and its keys, {group}.KEY=VALUE"
        if group not in GROUPS or "." not in key:
            known = did_you_mean(key, CheckOptions.model_fields)
            raise UsageError(f"check {key}={value}: {known}; or give pe=NAME and pe.KEY=VALUE")
        if len(pairs) != 1:
            raise UsageError(f"check {key}={value}: a key belongs to one {GROUPS[group]}, {remedy}")
        if pairs[0][0] != group:
            raise UsageError(f"check {key}={value}: {pairs[0][0]} is checked, {remedy}")
    return [f"{key}={value}" for key, value in options.others.items()]


def _section(group: str, name: str, words: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = getattr(checked([f"{group}={name}", *words]), group)
    return section


def _all(config_dir: str | None) -> dict[str, list[str]]:
    """All encodings of conf/; with a folder of yamls its encodings, tasks and models."""
    if config_dir is None:
        return {"pe": list(choices("pe"))}
    found = {
        group: sorted(path.stem for path in (Path(config_dir) / group).glob("*.yaml"))
        for group in GROUPS
    }
    if not any(found.values()):
        raise UsageError(
            f"--config-dir {config_dir} holds no pe/NAME.yaml, task/NAME.yaml or model/NAME.yaml: "
            "write one (pe-lab new), or give pe=NAME"
        )
    return found


def _line(title: str, outcomes: list["Outcome"]) -> Text:
    """One of several: counts of points; each failure on a line below."""
    counts = Counter(one.state for one in outcomes)
    failed = [one for one in outcomes if one.state == "fail"]
    text = Text(f"{title:22}", "bold")
    text.append(f"{counts['pass']:3} pass", STYLES["pass"])
    text.append(f"{counts['fail']:3} fail", STYLES["fail"] if failed else STYLES["not claimed"])
    text.append(f"{counts['not claimed']:3} not claimed", STYLES["not claimed"])
    for one in failed:
        text.append(f"\n    fail: {one.name}: {one.sentence}", STYLES["fail"])
    return text


def _table(title: str, outcomes: list["Outcome"]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("", "check", "finding"):
        table.add_column(column, no_wrap=column != "finding")
    for one in outcomes:
        style = STYLES[one.state]
        table.add_row(Text(one.state, style), one.name, one.sentence)
    return table


def _raise_failures(found: dict[str, list["Outcome"]]) -> None:
    failed = {
        title: [one.name for one in outcomes if one.state == "fail"]
        for title, outcomes in found.items()
    }
    listed = [f"{title} ({', '.join(points)})" for title, points in failed.items() if points]
    if listed:
        raise RunError(f"check: {'; '.join(listed)} failed, see above what was found")
