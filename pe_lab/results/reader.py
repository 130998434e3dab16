"""Run folders as records, and the defaults of their configurations."""

import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml

from pe_lab.config.choices import choices
from pe_lab.core.config_dir import conf
from pe_lab.core.errors import PeLabError, sentence
from pe_lab.store.files import REMEDY
from pe_lab.store.run_folder import RunFolder, run_folders
from pe_lab.store.run_id import any_seed, identity, with_added


@dataclass(frozen=True)
class Setting:
    """A resolved configuration without its seed: its hash, its values by dotted key, the keys that
    were null before it was resolved, and as recorded, with the digests of the files read."""

    identity: str
    keys: dict[str, Any]
    null_keys: list[str]
    config: Mapping[str, Any]
    contents: dict[str, str] | None


@dataclass(frozen=True)
class Record:
    """A run: names, path and state, metrics if it is finished, and the setting if its
    configuration can be read."""

    facts: dict[str, Any]
    metrics: dict[str, float | None]
    setting: Setting | None


def read_records(runs_dir: Path) -> list[Record]:
    """Every run below ``runs_dir``, ordered by path; a copy of a run counts as broken."""
    paths: dict[tuple[Any, ...], str] = {}
    records = []
    for record in records_of(run_folders(runs_dir)):
        if record.facts["state"] == "finished" and record.setting is not None:
            run = *(record.facts[key] for key in ("task", "pe", "seed")), record.setting.identity
            first = paths.setdefault(run, record.facts["path"])
            if first != record.facts["path"]:
                message = (
                    f"{record.facts['path']} is {first} again, counted once: remove one of them"
                )
                record = Record({**record.facts, "state": "broken", "message": message}, {}, None)
        records.append(record)
    return records


def records_of(folders: Iterable[RunFolder]) -> Iterator[Record]:
    """The record of each of these folders, copies included."""
    return map(_Reader().record, folders)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key. A list of parts becomes the list of their names, and the keys of each
    part follow under its index: pe.parts, pe.parts.0.base."""
    keys: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        elif value and isinstance(value, list) and all(_is_part(part) for part in value):
            names = ",".join(part.get("pe", part["_target_"]) for part in value)
            keys[prefix + key] = f"[{names}]"
            for number, part in enumerate(value):
                values = {k: v for k, v in part.items() if k not in ("pe", "_target_")}
                keys |= flat(values, f"{prefix}{key}.{number}.")
        else:
            keys[prefix + key] = value
    return keys


def text(value: Any) -> str:
    """A value of a configuration as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


class _Reader:
    def __init__(self) -> None:
        self.settings: dict[bytes, Setting] = {}

    def record(self, folder: RunFolder) -> Record:
        task, pe, name = folder.path.parts[-3:]
        facts: dict[str, Any] = {"path": str(folder.path), "task": task, "pe": pe}
        try:
            facts["seed"] = int(name.removeprefix("seed").partition("-")[0])
            summary = folder.summary()
            if summary is None:
                return self._unfinished(folder, facts)
            return self._finished(summary, facts)
        except PeLabError as error:
            message = str(error)
        except Exception as error:
            # No run, whatever is in it, may hide the others.
            message = f"{folder.path} cannot be read ({sentence(error)}): {REMEDY}"
        return Record({**facts, "state": "broken", "message": message}, {}, None)

    def _finished(self, summary: Mapping[str, Any], facts: dict[str, Any]) -> Record:
        setting = self._setting(summary)
        facts = {
            **facts,
            "state": "finished",
            "step": summary["steps"],
            "steps": setting.keys["train.steps"],
            "run_id": summary["run_id"],
            "splits": list(summary["splits"]),
            **summary["names"],
            "null_keys": setting.null_keys,
            **{key: summary[key] for key in ("task", "pe", "seed")},
        }
        return Record(facts, summary["metrics"], setting)

    def _setting(self, summary: Mapping[str, Any]) -> Setting:
        config, contents = summary["config"], summary.get("contents")
        known = [any_seed(config), contents, summary.get("null_keys")]
        key = orjson.dumps(known, option=orjson.OPT_SORT_KEYS)
        if key not in self.settings:
            self.settings[key] = _setting(summary)
        return self.settings[key]

    def _unfinished(self, folder: RunFolder, facts: dict[str, Any]) -> Record:
        facts["state"] = "not begun"
        if status := folder.status():
            facts |= {key: status[key] for key in ("state", "step", "steps")}
            facts["message"] = status.get("error")
            facts["by_machine"] = status.get("by_machine", False)
        # Finished without a summary: killed between writing the two.
        if facts["state"] == "finished" or folder.killed():
            facts["state"] = "killed"
        config = folder.config()
        if config is None:
            return Record(facts, {}, None)
        names = config.pop("names", {})
        setting = {"config": config, **_start(folder)}
        # Where the folder was moved, its path names another task or encoding.
        facts |= {key: names[key] for key in ("task", "pe") if isinstance(names.get(key), str)}
        return Record({**names, **facts}, {}, self._setting(setting))


def _start(folder: RunFolder) -> dict[str, Any]:
    """What a run without a summary recorded, when it began, of the same as a summary has."""
    with suppress(PeLabError):
        for start in folder.starts():
            return {key: value for key, value in start.items() if key in ("contents", "null_keys")}
    return {}


def _setting(summary: Mapping[str, Any]) -> Setting:
    config, contents = summary["config"], summary.get("contents")
    keys = flat({**with_added(any_seed(config)), "contents": contents or {}})
    for key in ("seed", "seed.data"):
        keys.pop(key, None)
    null_keys = [*summary.get("null_keys", ())]
    null_keys += [key for key, value in keys.items() if value is None]
    return Setting(identity(any_seed(config), contents), keys, null_keys, config, contents)


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value


@contextmanager
def without_collection() -> Iterator[None]:
    """Without garbage collection: searching a million dictionaries for cycles takes a second."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


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
    group, _, last = name.rpartition("/")
    content = (choices(group)[last] if group else conf() / f"{name}.yaml").read_bytes()
    return dict(yaml.load(content, Loader=loader) or {})
