"""Settings that have no effect in a run: each is named in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from pe_lab.common.instantiate import as_yaml
from pe_lab.config.schema import Config, plain
from pe_lab.pe.positions import Sequential
from pe_lab.store.run_id import ONLY_EARLY_STOPPING
from pe_lab.training.plan import Plan

OF_THE_LOG = ("train.log_every", "train.checkpoint_every")
"""Keys that change what a run writes, but none of its final numbers."""


def without_effect(plan: Plan, typed: Sequence[str]) -> list[str]:
    """One sentence for each setting that has no effect in this run.

    Args:
        typed: the overrides as the user wrote them.
    """
    config, train, found = plan.config, plan.config.train, []
    pe = config.names.get("pe", "")
    if train.warmup >= train.steps:
        found.append(
            f"train.warmup={train.warmup} does not end before the last step, train.steps="
            f"{train.steps}: the learning rate never reaches train.lr"
        )
    if train.stop_below is None:
        found += [
            f"{word} has no effect with train.stop_below=null: give train.stop_below=ERROR to stop "
            "early, or leave it out"
            for word in typed
            if word.lstrip("+").startswith("train.patience=")
        ]
    elif config.eval.every >= train.steps:
        found.append(
            f"train.stop_below={train.stop_below:g} has no effect with eval.every="
            f"{config.eval.every}: nothing is measured before the last step, train.steps="
            f"{train.steps}; lower eval.every"
        )
    if not plan.reads_positions and not isinstance(plan.positions, Sequential):
        found.append(
            f"positions={config.names.get('positions')} has no effect on pe={pe}, which reads no "
            "positions"
        )
    if plan.at_test_time:
        found.append(
            f"pe={pe} is made for a trained rope at test time and trained from scratch here: to "
            f"measure it as intended, train pe=rope and run pe-lab eval run=.. pe={pe}"
        )
    return found


def unchanged(recorded: Mapping[str, Any], requested: Config) -> str:
    """The requested settings that a finished run ignores, as part of a sentence.

    Args:
        recorded: the configuration of the finished run.

    Returns:
        ``made with train.log_every=50, so train.log_every=10 has no effect``; empty if there is
        none.
    """
    keys = [*OF_THE_LOG]
    if requested.train.stop_below is None:
        keys += sorted(ONLY_EARLY_STOPPING)
    now = plain(requested)
    pairs = [(key, _value(recorded, key), _value(now, key)) for key in keys]
    pairs = [(key, old, new) for key, old, new in pairs if old is not None and old != new]
    if not pairs:
        return ""
    made, asked = (
        ", ".join(f"{pair[0]}={as_yaml(pair[which])}" for pair in pairs) for which in (1, 2)
    )
    return f"made with {made}, so {asked} {'has' if len(pairs) == 1 else 'have'} no effect"


def _value(config: Mapping[str, Any], key: str) -> Any:
    group, _, name = key.partition(".")
    section = config.get(group)
    return section.get(name) if isinstance(section, Mapping) else None
