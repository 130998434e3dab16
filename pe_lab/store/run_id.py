"""Which runs are one run: what of a configuration can change its numbers, and the hash of that.

Apart from config.py so that tables of runs are made without pydantic.
"""

import hashlib
import json
from copy import deepcopy
from typing import Any

# What does not change a run's numbers: two runs that differ only here are one run.
OPERATIONAL = {
    "": ("tracker", "runs_dir", "device", "threads", "deterministic", "force", "debug", "names"),
    "train": ("checkpoint_every", "log_every", "fast"),
    "eval": ("batch_tokens",),
}
# What changes none either while train.stop_below is null.
STOPPING = {"train": ("patience",), "eval": ("every",)}


# Keys that came after runs had been made, with what held before: such a run is the same run.
ADDED: dict[str, dict[str, Any]] = {
    "train": {"length": None},
    "model": {
        "_target_": "pe_lab.models.transformer.TransformerConfig",
        "window": None,
        "layers": {},
    },
}
ADDED_TO_ENCODINGS: dict[str, dict[str, Any]] = {
    "pe_lab.pe.rope.RoPE": {"logn": "none", "logn_clip": None},
}


def _sections(config: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The parts of a configuration that have such keys, each with those."""
    encodings = [config.get("pe", {})]
    encodings += [p for p in encodings[0].get("parts") or [] if isinstance(p, dict)]
    groups = [(config[group], added) for group, added in ADDED.items() if group in config]
    # Models that came after the keys have had them from the start, or have none such.
    return [
        (section, added)
        for section, added in groups
        if section.get("_target_", added.get("_target_")) == added.get("_target_")
    ] + [
        (section, ADDED_TO_ENCODINGS[section["_target_"]])
        for section in encodings
        if section.get("_target_") in ADDED_TO_ENCODINGS
    ]


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run with the keys that came after it was made."""
    whole = deepcopy(config)
    for section, added in _sections(whole):
        section.update({key: value for key, value in added.items() if key not in section})
    return whole


def _as_before(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without those of them that have no effect."""
    bare = deepcopy(config)
    for section, added in _sections(bare):
        for key, value in added.items():
            if key in section and section[key] == value:
                del section[key]
    return bare


def comparable(resolved: dict[str, Any]) -> dict[str, Any]:
    """The resolved configuration less what changes no number."""
    resolved = _as_before(resolved)
    kept = {key: value for key, value in resolved.items() if key not in OPERATIONAL[""]}
    for group, keys in OPERATIONAL.items():
        if group:
            if resolved["train"]["stop_below"] is None:
                keys += STOPPING[group]
            kept[group] = {k: v for k, v in kept[group].items() if k not in keys}
    return kept


def identity(resolved: dict[str, Any], contents: dict[str, str] | None = None) -> str:
    """Eight hex digits of what is comparable in a configuration, and of what its files hold."""
    named = {**comparable(resolved), **({"contents": contents} if contents else {})}
    text = json.dumps(named, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
