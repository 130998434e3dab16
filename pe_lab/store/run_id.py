"""The identity of a run: a hash of its configuration, without ``EXCLUDED``.

Of these keys those of ``ROUNDING`` still change numbers: training amplifies the last digits of a
step, so that errors far out of domain differ like those of another seed. A run keeps its identity
on every machine. This module does not import torch.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pe_lab.core.validation import RECORDED

ROUNDING = ("device", "threads", "deterministic", "eval.batch_tokens")
"""Excluded keys on which the last digits depend, as rounding differs with the order of sums."""

EXCLUDED = frozenset(
    {
        *ROUNDING,
        *("tracker", "runs_dir", "keep_checkpoint", "force", "debug", "names"),
        *("train.checkpoint_every", "train.log_every"),
    }
)
"""Keys, or groups of keys, that are not part of a run's identity."""

ONLY_EARLY_STOPPING = frozenset({"train.patience", "eval.every"})
"""Keys that are excluded too while ``train.stop_below`` is null."""

_FILES: dict[str, Any] = {"files": {}}
_COPY = {"letters": "free", "p": None, "bos_eos": False, **_FILES}
_CONV = {"conv": None, "conv_at": "qkv"}
_MIXERS: dict[str, Any] = {
    "pattern": [],
    "mixers": {
        **{"head_width": None, "expansion": None, "state_width": 32, "short_conv": 4},
        "negative_eigenvalues": False,
    },
}
ADDED: dict[str, dict[str, Any]] = {
    "pe_lab.tasks.addition.Addition": {"units_id": "largest"},
    "pe_lab.tasks.brackets.Brackets": _FILES,
    "pe_lab.tasks.copy.Copy": _COPY,
    "pe_lab.tasks.counting.Counting": _FILES,
    "pe_lab.tasks.even_pairs.EvenPairs": _FILES,
    "pe_lab.tasks.group_word.GroupWord": _FILES,
    "pe_lab.tasks.majority.Majority": _FILES,
    "pe_lab.tasks.missing_duplicate.MissingDuplicate": _FILES,
    "pe_lab.tasks.modular.Modular": _FILES,
    "pe_lab.tasks.navigation.Navigation": _FILES,
    "pe_lab.tasks.recall.Recall": _FILES,
    "pe_lab.tasks.reverse.Reverse": _COPY,
    "pe_lab.models.encoder_decoder.EncoderDecoderConfig": _CONV,
    "pe_lab.models.gau.GAUConfig": {"logn": None, **_CONV},
    "pe_lab.models.linear_attention.LinearAttentionConfig": {**_CONV, **_MIXERS},
    "pe_lab.models.recurrent.GRUConfig": {"conv": None},
    "pe_lab.models.recurrent.LSTMConfig": {"conv": None},
    "pe_lab.models.seq2seq.Seq2SeqConfig": {"conv": None},
    "pe_lab.models.transformer.TransformerConfig": {
        **{"logn": None, "sink": False, "output_gate": False, "qk_norm": False},
        "normalizer": None,
        **_CONV,
        **_MIXERS,
    },
    "pe_lab.pe.fope.FoPE": {"fourier_norm": True},
    "pe_lab.pe.grape_m.GRAPEM": {"contextual": False},
    "pe_lab.pe.pi.PI": {"fraction": 1, "drop": None},
    "pe_lab.pe.rope.RoPE": {"fraction": 1, "drop": None, "clip": None, "learned": False},
    "pe_lab.tasks.selective_copy.SelectiveCopy": _FILES,
    "pe_lab.tasks.sort.Sort": _FILES,
    "pe_lab.tasks.text.Text": _FILES,
}
"""Class -> keys added after runs of it were recorded, with the value that those runs had. With
this value they are not part of the identity, so that those runs are found again."""


def add_new_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration with the keys that its groups have today."""
    return {
        key: {**find_added(value), **rename_target(value)} if isinstance(value, dict) else value
        for key, value in config.items()
    }


def rename_target(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section whose class has the name that the first runs of it recorded."""
    renamed = dict(section)
    if (target := str(section.get("_target_"))) in RECORDED:
        renamed["_target_"] = RECORDED[target]
    return renamed


def find_added(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of ``ADDED`` of a section's class."""
    return ADDED.get(str(rename_target(section).get("_target_")), {})


def is_excluded(key: str) -> bool:
    """Return whether a dotted key is outside of every run's identity."""
    return key in EXCLUDED or key.partition(".")[0] in EXCLUDED


def identity(config: dict[str, Any], contents: dict[str, str] | None = None) -> str:
    """Return eight hex digits that identify a run.

    Args:
        config: resolved (``Plan.resolved``).
        contents: digests of the files that the task reads.
    """
    # train.length only sets keys of the task, which are hashed.
    without = EXCLUDED | {"train.length"}
    if config["train"]["stop_below"] is None:
        without |= ONLY_EARLY_STOPPING
    hashed = {"contents": contents} if contents else {}
    text = json.dumps(hashed | _select_hashed(config, without), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _select_hashed(value: Any, without: frozenset[str], prefix: str = "") -> Any:
    """Return a configuration, or a part of it, without what changes no number: the dotted keys in
    ``without``, and the keys of ``ADDED`` with their old values."""
    if isinstance(value, list):
        return [_select_hashed(one, without, prefix) for one in value]
    if not isinstance(value, dict):
        return value
    # The sections of layers name no class.
    added = {"mixer": None} if prefix.startswith("model.layers.") else find_added(value)
    return {
        name: _select_hashed(one, without, f"{prefix}{name}.")
        for name, one in rename_target(value).items()
        if f"{prefix}{name}" not in without and (name not in added or one != added[name])
    }


def drop_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with what all its seeds have in common: a seed of the weights that is
    not that of the data belongs to the setting. So does the run that it began with, unless that has
    the same seed."""
    seed = config["seed"]
    data = seed["data"] if isinstance(seed, Mapping) else seed
    shared = {**config, "seed": {"init": seed["init"]} if isinstance(seed, Mapping) else 0}
    if origin := config["train"].get("from"):
        origin = re.sub(rf"/seed{data}-[0-9a-f]{{8}}@", "@", origin)
        shared["train"] = {**config["train"], "from": origin}
    return shared


def is_operational(word: str) -> bool:
    """Return whether an override changes no run's numbers, only where and how it runs."""
    key = word.lstrip("+~").partition("=")[0]
    return key.partition("/")[0].partition(".")[0] == "hydra" or is_excluded(key)
