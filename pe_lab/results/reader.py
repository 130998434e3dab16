"""Run folders as records, and the defaults of their configurations."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pe_lab.core.errors import PeLabError, sentence
from pe_lab.results.table import flat
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
