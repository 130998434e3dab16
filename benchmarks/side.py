"""One side of a comparison, in a process of its own: ``python -m benchmarks.side SETTING``.

It reads requests from stdin, a JSON object a line, and answers on stdout likewise (see
``alternating.Side``, which starts it). So each side has an allocator, an environment and a peak of
memory of its own, and the parent has them run in turn.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.gauges import clocks, forget_most, peak, resident
from benchmarks.ours import Made, composed
from pe_lab.experiment.machine import keep_freed_memory, prepare


def answer(request: dict[str, Any], made: list[Made]) -> Any:
    """What one request asks for; ``made`` holds what was made so far."""
    match request["do"]:
        case "make":
            module, _, name = request["what"].partition(".")
            made.append(getattr(import_module(f"benchmarks.{module}"), name)(**request["given"]))
            return made[-1].facts
        case "run":
            return clocks([made[request["number"]].step] * request["times"])
        case "peak":
            return peak(made[request["number"]].step)
        case "resident":
            return resident()
        case "forget most":
            return forget_most()
        case "clear":
            return made.clear()
        case unknown:
            raise ValueError(f"no request is called {unknown}")


def main(setting: str) -> None:
    """Serve until stdin ends."""
    if setting == "ours":
        prepare(composed("device=cpu"))
    elif setting == "tuned":
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made: list[Made] = []
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), made)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
