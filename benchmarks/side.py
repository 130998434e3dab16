"""The process of one side of a comparison: ``python -m benchmarks.side SETTING``.

It reads requests from stdin, one JSON object a line, and answers on stdout in the same form
(``sides.Side`` starts it). Sides thereby share neither allocator nor environment nor peak memory.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.gauges import clocks, peak, reset_peak, resident
from benchmarks.ours import Built, composed
from pe_lab.experiment.environment import keep_freed_memory, prepare


def answer(request: dict[str, Any], made: list[Built]) -> Any:
    """Answer one request; ``made`` holds what was built so far."""
    match request["do"]:
        case "make":
            module, _, name = request["what"].partition(".")
            made.append(
                getattr(import_module(f"benchmarks.{module}"), name)(**request["arguments"])
            )
            return made[-1].facts
        case "run":
            return clocks([made[request["number"]].step] * request["times"])
        case "peak":
            return peak(made[request["number"]].step)
        case "resident":
            return resident()
        case "reset peak":
            return reset_peak()
        case "clear":
            return made.clear()
        case unknown:
            raise ValueError(f"unknown request {unknown}")


def main(setting: str) -> None:
    """Answer requests until stdin ends."""
    if setting == "ours":
        prepare(composed("device=cpu"))
    elif setting == "tuned":
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made: list[Built] = []
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), made)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
