"""What `make cost` measured, as a part of the pages."""

import json
from typing import Any

from docs import facts
from docs.markdown import table

FILE = facts.ROOT / "docs" / "encodings.cost.json"


def shown(say: dict[str, Any], names: list[str]) -> list[str]:
    """How it was measured, the table, and what is not measured yet.

    Args:
        say: the words of one language, from phrases.yaml.
        names: the encodings, in order.
    """
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"encodings": {}}
    rows = {name: known["encodings"][name] for name in names if name in known["encodings"]}
    missing = [f"`{name}`" for name in names if name not in rows]
    late = [say["unmeasured"].format(names=", ".join(missing))] if missing else []
    if not rows:
        return late
    lengths = list(known["batches"])
    header = [say["columns"][0]]
    header += [column.format(length=n) for n in lengths for column in say["cost_columns"]]
    cells = []
    for name, costs in rows.items():
        cells.append([f"[`{name}`](#{name})"])
        for at in (costs[length] for length in lengths):
            cells[-1] += [f"{at['parameters']:,}", f"{at['time']:.2f}", f"{at['memory']:.2f}"]
    measured = sorted({(costs["date"], costs["commit"]) for costs in rows.values()})
    machine, cfg = known["machine"], facts.small_model()
    text = say["cost_text"].format(
        layers=cfg.n_layers,
        heads=cfg.n_heads,
        width=cfg.d_model,
        measured=", ".join(f"{date} ({commit})" for date, commit in measured),
        cpu=machine["cpu"],
        capability=machine["cpu_capability"],
        threads=machine["threads"],
        torch=machine["torch"],
        batches=" / ".join(f"{n} ({length})" for length, n in known["batches"].items()),
        baseline=known["baseline"],
        baseline_ms=" / ".join(_middle(rows, length, "baseline_ms", 0) for length in lengths),
        baseline_mib=" / ".join(_middle(rows, length, "baseline_mib", 1) for length in lengths),
    )
    return [text, table(header, cells), *late]


def _middle(rows: dict[str, Any], length: str, key: str, digits: int) -> str:
    values = sorted(costs[length][key] for costs in rows.values())
    return f"{values[len(values) // 2]:.{digits}f}"
