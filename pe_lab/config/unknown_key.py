"""A key that the configuration does not have: which one may be meant."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pe_lab.common.suggest import closest, did_you_mean

MOST = 3
"""Suggestions shown at once."""


def unknown_key(word: str, key: str, config: Mapping[str, Any], siblings: Sequence[str]) -> str:
    """The message for an override of an unknown key.

    Args:
        word: the override as written.
        config: the configuration without it.
        siblings: the keys that the key's parent has.
    """
    parent, _, last = key.rpartition(".")
    within = parent if parent.partition(".")[0] in config else ""
    refused = f"{word} is not a key of {within or 'the configuration'}"
    similar = similar_keys(key, config, siblings)
    if not similar:
        return f"{refused}: {did_you_mean(last, siblings)}"
    choices = f" (choices: {', '.join(sorted(siblings))})" if siblings else ""
    return f"{refused}: did you mean {' or '.join(similar)}?{choices}"


def similar_keys(key: str, config: Mapping[str, Any], siblings: Sequence[str]) -> list[str]:
    """The keys that ``key`` may stand for: those that end in it (``steps``: ``train.steps``), else
    in its last part (``trian.steps``), else with that word (``heads``: ``model.n_heads``), those of
    its group before others; else the one with the most similar spelling. In a task without a key
    ``length``, the keys that its longer splits change.
    """
    keys = [name for name in _leaves(config) if name != key]
    parent, _, last = key.rpartition(".")
    if last == "length" and parent in ("", "task") and (found := _of_length(config)):
        return found
    whole, word = re.escape(key), re.escape(last)
    ends = [rf"(^|\.){whole}$", rf"(^|\.){word}$", rf"(^|[._]){word}(_[a-z_]+)?$"]
    group = [name for name in keys if parent and name.startswith(f"{parent}.")]
    for among, end in [(group, end) for end in ends] + [(keys, end) for end in ends]:
        if found := [name for name in among if re.search(end, name, re.IGNORECASE)]:
            depth = min(name.count(".") for name in found)
            return [name for name in found if name.count(".") == depth][:MOST]
    if near := closest(last, siblings):
        return [near]
    words = {name.rpartition(".")[2]: name for name in reversed(keys)}
    if near := closest(key, keys, 0.75) or closest(last, words, 0.75):
        return [words.get(near, near)]
    return []


def _of_length(config: Mapping[str, Any]) -> list[str]:
    """The keys that set the length of a task without a key ``length``: those that its splits
    long_x2, .. change."""
    task = config.get("task") or {}
    if "length" in task:
        return []
    longer = [task["splits"][name] for name in task.get("splits") or {} if name.startswith("long_")]
    return list(dict.fromkeys(f"task.{key}" for changes in longer for key in changes))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys of all values but mappings."""
    found = []
    for name, value in config.items():
        if name in ("hydra", "_target_"):
            continue
        key = f"{prefix}{name}"
        found += _leaves(value, f"{key}.") if isinstance(value, Mapping) else [key]
    return found
