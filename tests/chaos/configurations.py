"""Random configurations, valid and not: they train, or one sentence says why not."""

from typing import Any

import yaml

from tests.chaos.case import Case, Records, Violation, small
from tests.program import ROOT

ODD = ["0", "-1", "1", "2", "3", "7", "1.5", "1e9", "1e400", "9" * 40, "nan", "inf", "null", "true",
       "abc", "''", "[]", "{}", "[1,2]", "{a: 1}", "'[/b]'", "${seed}", "${no.key}"]  # fmt: skip
GROUPS = ("pe", "task", "positions", "model")
TRAIN = ("lr", "warmup", "clip", "batch_size", "accumulate", "betas", "schedule", "precision",
         "optimizer", "weight_decay", "stop_below", "log_every", "length", "fast")  # fmt: skip
TOP = ("eval.every", "eval.batch_tokens", "eval.generate", "eval.skip_too_long", "seed", "threads",
       "device", "deterministic", "runs_dir")  # fmt: skip


def _yaml(group: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "conf" / group / f"{name}.yaml").read_text())
    return content


def _names(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def _near(value: Any, case: Case) -> str:
    """A value of the same kind as the default."""
    if isinstance(value, bool):
        return "false" if value else "true"
    if isinstance(value, int):
        return str(case.rng.choice([1, 2, 3, 4, 8, value + 1, max(1, value // 2)]))
    if isinstance(value, float):
        return str(value * case.rng.choice([0.5, 2, 1.1]))
    return case.rng.choice(ODD)


def configuration(case: Case, records: Records) -> None:
    """A choice in every group, and up to three keys changed."""
    rng = case.rng
    words = {"task.splits": "{}"}
    keys: list[tuple[str, Any]] = [(f"train.{key}", None) for key in TRAIN]
    keys += [(key, None) for key in TOP]
    for group in GROUPS:
        if rng.random() < (0.8 if group == "pe" else 0.4):
            name = rng.choice(_names(group))
            words[group] = name
            keys += [(f"{group}.{key}", value) for key, value in _yaml(group, name).items()] * 3
    for key, default in rng.sample(keys, rng.randint(0, 3)):
        if not key.endswith("_target_"):
            words[key] = _near(default, case) if rng.random() < 0.6 else rng.choice(ODD)
    line = small(*(f"{key}={value}" for key, value in words.items()), "train.steps=2")
    case.counts["configurations"] += 1
    ended = case.run(*line, memory=12 << 30)
    told = [text for text in ended.output.splitlines() if text.startswith("pe-lab: ")]
    if ended.status and len(told) != 1:
        raise Violation(f"{len(told)} sentences: {ended.output.strip()[-200:]}")


CASES = [(configuration, 1)]
