"""``pe-lab list``: every choice, one line each.

    pe-lab list                    task, pe, positions, model, train/optimizer and experiment
                                   (recipes, with cost)
    pe-lab list pe experiment      these groups only

pe-lab --cfg job task=.. pe=.. shows the keys of a choice; docs/encodings.md describes encodings.
"""

import inspect
import re
from collections.abc import Sequence

import yaml
from hydra.utils import get_object
from rich.table import Table

from pe_lab.config.choices import CHOICES, choices
from pe_lab.core.console import console
from pe_lab.core.errors import sentence
from pe_lab.core.suggest import check_known


def summary_line(text: str) -> str:
    """What a yaml file configures: the first line of its class's docstring, else of its header,
    with the number of jobs and the cost in a recipe's header."""
    target = (yaml.safe_load(text) or {}).get("_target_")
    if target is not None:
        try:
            return (inspect.getdoc(get_object(target)) or "").split("\n")[0]
        # Of an installed package. Its other users shall see the list.
        except Exception as error:
            return f"cannot be imported: {sentence(error)}"
    comments = (line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    title = next((line for line in comments if not line.startswith("@package")), "")
    cost = re.search(r"^# cost: (.+?) for all (.+? jobs)", text, flags=re.MULTILINE)
    return f"{title} ({cost[2]}, {cost[1]})" if cost else title


def show(words: Sequence[str]) -> None:
    """Print the table of these groups, or of all."""
    check_known("list {}: unknown group", words, CHOICES)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("choice", "what it is"):
        table.add_column(header, no_wrap=header == "choice")
    for group in words or CHOICES:
        for name, path in choices(group).items():
            table.add_row(f"{group}={name}", summary_line(path.read_text("utf-8")))
    console().print(table)
