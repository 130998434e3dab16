"""Which runs are one run: what of a configuration can change its numbers, and the hash of that.

Apart from config.py so that tables of runs are made without pydantic.
"""

import hashlib
import json
from typing import Any

# What does not change a run's numbers: two runs that differ only here are one run.
OPERATIONAL = {
    "": ("tracker", "runs_dir", "device", "threads", "deterministic", "force", "debug", "names"),
    "train": ("checkpoint_every", "log_every", "fast"),
    "eval": ("batch_tokens",),
}
# What changes none either while train.stop_below is null.
STOPPING = {"train": ("patience",), "eval": ("every",)}


def comparable(resolved: dict[str, Any]) -> dict[str, Any]:
    """The resolved configuration less what changes no number."""
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
