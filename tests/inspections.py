"""An inspection made by hand, whose numbers are known."""

from pathlib import Path
from typing import Any

import numpy as np

from pe_lab.inspection.data import Answer, Head, Inspection


def made(text: str, gates: list[float], attended: int, **changes: Any) -> Inspection:
    """One head whose last query sees these gates and attends to one key."""
    n = len(text)
    seen = np.tri(n, dtype=np.float32)
    gate = seen * np.array(gates, dtype=np.float32)
    position = gate[:, ::-1].cumsum(1)[:, ::-1] * seen
    attention = np.zeros((n, n), dtype=np.float32)
    attention[:, attended] = seen[:, attended]
    maps = {
        "attention": attention,
        "position score": -2.5 * seen,
        "gate": gate,
        "position": position.astype(np.float32),
    }
    answer = Answer(n - 1, "b", 0.25, "a", 0.75, False)
    made = {
        "path": Path("runs/x"),
        "task": "selective_copy",
        "pe": "cope",
        "seed": 0,
        "split": "dense",
        "sample": 3,
        "tokens": list(text),
        "answers": [answer],
        "queries": list(range(n)),
        "heads": [Head(1, 0, maps, 0.5)],
        "ranked_by": "gate",
    }
    return Inspection(**{**made, **changes})
