"""``pe-lab check``: whether an encoding keeps what every encoding must, with the numbers.

    pe-lab check pe=cope                         each point: pass, fail or not claimed
    pe-lab check pe=cope pe.gates=values         with other keys
    pe-lab check --config-dir mine pe=decay      your own
    pe-lab check pe=rope,cope,fox                a line for each encoding
    pe-lab check                                 all of them (--config-dir FOLDER: those in it)
    pe-lab check pe=decay d_model=64 n_heads=4   a larger model than 16 and 2, for all but the cost

Each point is held for the keys as they are and for each other choice of a key (``pairing=half``),
alone, in a small transformer in float64, and those of pe_lab/pe/base.py that the class claims. It
takes seconds for one encoding; nothing is written. Exit status 1: something fails. The same
functions are the tests of the encodings in this repository (pe_lab/evaluation/contract/).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.table import Table
from rich.text import Text

from pe_lab.cli.train import checked
from pe_lab.common.console import busy, console
from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.options import (
    AtLeastOne,
    CommaSeparated,
    Options,
    parse,
    without_config_dir,
)
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.choices import choices

if TYPE_CHECKING:
    from pe_lab.evaluation.contract.outcome import Outcome

STYLES = {"pass": "green", "fail": "bold red", "not claimed": "dim", "measured": ""}
Even = Annotated[int, Field(ge=2, multiple_of=2, description="an even number of at least 2")]


class CheckOptions(Options, extra="allow"):
    """The keys of ``pe-lab check``; those that begin with ``pe.`` are the encoding's."""

    command = "check"

    pe: CommaSeparated[str] | None = None
    d_model: Even | None = None
    n_heads: AtLeastOne | None = None


def show(words: Sequence[str]) -> None:
    """Print the outcomes.

    Raises:
        UsageError: a wrong option, key or name.
        RunError: something fails.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(CheckOptions, rest)
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    names = options.pe or _all(config_dir)
    for key in options.others:
        if not key.startswith("pe.") or len(names) != 1:
            raise UsageError(
                f"check {key}={options.others[key]}: {_why_not(key)}, give pe=NAME and keys of it, "
                "pe.KEY=VALUE"
            )
    keys = [f"{key}={value}" for key, value in options.others.items()]
    sections = {name: checked([*flags, f"pe={name}", *keys]).pe for name in names}
    sizes = {
        key: size for key in ("d_model", "n_heads") if (size := getattr(options, key)) is not None
    }
    # Imported here: torch takes a second.
    from pe_lab.evaluation.contract.suite import check_encoding

    found: dict[str, list[Outcome]] = {}
    for name, section in sections.items():
        with busy(f"checking pe={name}"):
            found[name] = list(check_encoding(section, **sizes))
        if len(sections) > 1:
            console().print(_line(f"pe={name}", found[name]))
    if len(sections) == 1:
        ((name, outcomes),) = found.items()
        console().print(_table(" ".join(["pe-lab check", f"pe={name}", *keys]), outcomes))
    _raise_failures(found)


def _all(config_dir: str | None) -> list[str]:
    """The encodings of this folder of yamls; of conf/ without one."""
    if config_dir is None:
        return list(choices("pe"))
    names = sorted(path.stem for path in (Path(config_dir) / "pe").glob("*.yaml"))
    if not names:
        raise UsageError(
            f"--config-dir {config_dir} holds no pe/NAME.yaml: write one, or give pe=NAME"
        )
    return names


def _why_not(key: str) -> str:
    if key.startswith("pe."):
        return "a key belongs to one encoding"
    return did_you_mean(key, CheckOptions.model_fields)


def _line(title: str, outcomes: list["Outcome"]) -> Text:
    """One encoding: how many points pass, and its cost; what fails in lines below."""
    counts = Counter(one.state for one in outcomes)
    failed = [one for one in outcomes if one.state == "fail"]
    text = Text(f"{title:22}", "bold")
    text.append(f"{counts['pass']:3} pass", STYLES["pass"])
    text.append(f"{counts['fail']:3} fail", STYLES["fail"] if failed else STYLES["not claimed"])
    text.append(f"{counts['not claimed']:3} not claimed", STYLES["not claimed"])
    text.append("".join(f"   {one.sentence}" for one in outcomes if one.state == "measured"))
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
        name: [one.name for one in outcomes if one.state == "fail"]
        for name, outcomes in found.items()
    }
    listed = [f"pe={name} ({', '.join(points)})" for name, points in failed.items() if points]
    if listed:
        raise RunError(f"check: {'; '.join(listed)} failed, see above what was found")
