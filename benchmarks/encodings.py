"""``make cost``: time and memory of a training step with each encoding, over RoPE's.

The default model (2 layers, 4 heads, d 64) on random tokens, float32, one thread: forward,
cross-entropy at every position, backward, clipping, AdamW; lengths 64, 128 and 512 in batches of
64, 32 and 8.

- time: blocks of steps alternate with blocks of the same model with RoPE. A round gives one ratio
  of processor times; the median and the quartiles of these ratios are written.
- memory: the most bytes of tensors alive during a step, beyond those that exist before it.

The result goes to docs/encodings.cost.json, which the page shows. With names, ``python -m
benchmarks.encodings pope repo``, these are measured anew and the others kept.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from docs import facts
from pe_lab.experiment.environment import describe_environment, keep_freed_memory
from pe_lab.kernels import use_kernels
from pe_lab.models.config import Vocabulary
from pe_lab.train.encodings import build_encodings

FILE = facts.ROOT / "docs/encodings.cost.json"
BASELINE = "rope"
BATCHES = {64: 64, 128: 32, 512: 8}
BLOCK_S, ROUNDS = 0.15, 11
Step = Callable[[], None]


def step_of(name: str, length: int) -> tuple[Step, int]:
    """A training step with an encoding, and the parameters that the encoding adds."""
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(name), facts.dims(length))
    model = facts.small_model().build(Vocabulary(facts.VOCAB), encodings)
    use_kernels(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(facts.VOCAB, (BATCHES[length], length + 1))
    pos = torch.arange(length)[None]

    def step() -> None:
        logits = model.unembed(model(tokens[:, :-1], pos)).flatten(0, 1)
        F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, facts.count_parameters(encodings)


def seconds(step: Step, steps: int) -> float:
    """Processor time of a step."""
    began = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - began) / steps


def peak(step: Step) -> int:
    """The most bytes of tensors alive during a step, as the profiler counts every allocation."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


def measure(name: str, length: int) -> dict[str, Any]:
    """Costs of an encoding at a length."""
    step, parameters = step_of(name, length)
    baseline, _ = step_of(BASELINE, length)
    counts = {each: max(1, round(BLOCK_S / seconds(each, 3))) for each in (step, baseline)}
    ratios, of_baseline = [], []
    for n in range(ROUNDS):
        order = (step, baseline) if n % 2 else (baseline, step)
        spent = {each: seconds(each, counts[each]) for each in order}
        ratios.append(spent[step] / spent[baseline])
        of_baseline.append(1e3 * spent[baseline])
    low, middle, high = statistics.quantiles(ratios, n=4)
    most, of_rope = peak(step), peak(baseline)
    return {
        "parameters": parameters,
        "time": round(middle, 3),
        "time_quartiles": [round(low, 3), round(high, 3)],
        "memory": round(most / of_rope, 3),
        "baseline_ms": round(statistics.median(of_baseline), 2),
        "baseline_mib": round(of_rope / 2**20, 2),
    }


def main(*chosen: str) -> None:
    """Measure these encodings, or all, and write the file."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    known = describe_environment(1, "cpu")
    machine = {key: known[key] for key in ("python", "cpu_capability", "threads")}
    machine |= {"cpu": known["processor"], "torch": known["versions"]["torch"]}
    rows = json.loads(FILE.read_text("utf-8"))["encodings"] if chosen else {}
    words = ["git", "-C", str(facts.ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    for name in chosen or facts.names():
        rows[name] = {"date": date.today().isoformat(), "commit": commit}
        rows[name] |= {str(length): measure(name, length) for length in BATCHES}
        print(name, *(rows[name][str(length)]["time"] for length in BATCHES), flush=True)
    # One line for each encoding, so that a diff shows which was measured again.
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(rows[n])}" for n in sorted(rows))
    head = {"machine": machine, "baseline": BASELINE, "batches": BATCHES}
    heads = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    FILE.write_text(f'{{\n{heads} "encodings": {{\n{lines}\n }}\n}}\n', "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
