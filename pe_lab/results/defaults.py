"""The defaults of a run, read from conf/ without Hydra, which takes a second to import."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from pe_lab.common.config_dir import conf
from pe_lab.config.choices import choices
from pe_lab.results.reader import flat, text

GROUPS = ("task", "pe", "positions", "model", "preset")


@cache
def defaults(task: str, pe: str, positions: str, model: str) -> Mapping[str, Any]:
    """The keys of a run with these choices and no other word on its command line, with the task's
    preset; a value that follows from other keys is an interpolation, ``${task.length}``.

    A choice that is not in conf/ has no defaults: encodings of ``--config-dir``.
    """
    config = _yaml("config")
    found = {f"eval.{key}": value for key, value in config["eval"].items()}
    found |= {key: value for key, value in config.items() if not isinstance(value, (dict, list))}
    for choice in config["defaults"]:
        found |= choice if isinstance(choice, dict) else {}
    for group, name in {"task": task, "pe": pe, "positions": positions, "model": model}.items():
        if name in choices(group):
            found |= flat(_yaml(f"{group}/{name}"), f"{group}.")
    for part in ("train/optimizer/adamw", "train/default"):
        found |= flat(_yaml(part), "train.")
    for name, group in ((task, "preset"), (f"{task}_{pe}", "preset/rate")):
        if name in choices(group):
            found |= flat(_yaml(f"{group}/{name}"), "")
    return found


def defaults_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``defaults`` of a run, a row of ``frame.read_runs``, with those of the parts of its
    encoding: pe.parts.0.base."""
    found = defaults(*(run.get(group) or "" for group in ("task", "pe", "positions", "model")))
    if run.get("pe.parts") is None:
        return found
    parts = enumerate(text(run["pe.parts"]).strip("[]").split(","))
    keys = {f"pe.parts.{n}": _yaml(f"pe/{name}") for n, name in parts if name in choices("pe")}
    return {**found, **flat(keys)}


def same(value: Any, default: Any) -> bool:
    """Whether a recorded value is the default; numbers are compared as numbers, 3e-3 is 0.003."""
    if value == default:
        return True
    a, b = (re.sub('[ "]', "", text(one)) for one in (value, default))
    try:
        return a == b or float(a) == float(b)
    except ValueError:
        return False


def follows(default: Any) -> bool:
    """Whether a default is computed from other keys."""
    return isinstance(default, str) and "${" in default


@cache
def _yaml(name: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = (conf() / f"{name}.yaml").read_bytes()
    return dict(yaml.load(content, Loader=loader) or {})
