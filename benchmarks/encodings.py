"""``make cost``: parameters, time and memory of a training step with each encoding, over RoPE's.

The default model (2 layers, 4 heads, d 64) on random tokens, float32, one thread: forward,
cross-entropy at every position, backward, clipping, AdamW; lengths 64, 128 and 512 in batches of
64, 32 and 8.

- time: blocks of steps alternate with blocks of the same model with RoPE, each round in the
  reverse order. A round gives one ratio of processor times, so that a drifting clock cancels;
  reported are the median and the quartiles of these ratios.
- memory: peak bytes of tensors during a step, beyond those that exist before it (weights, the
  optimizer's state, the batch), as PyTorch's profiler counts every allocation.
- parameters: counted.

The result goes to docs/encodings.cost.json, which the page shows. With names, ``python -m
benchmarks.encodings pope repo``, these are measured anew and the others kept, if they were measured
on this machine.
"""

import argparse
import json
import statistics
import subprocess
from datetime import date
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.gauges import Step, clocks, peak
from benchmarks.ours import composed, training_step
from docs import facts
from docs.generate import COSTS as FILE
from pe_lab.config.schema import TrainConfig
from pe_lab.core.console import console
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.task import Batch
from pe_lab.experiment.environment import environment, keep_freed_memory
from pe_lab.kernels.apply import accelerate
from pe_lab.models.config import Vocabulary
from pe_lab.train.encodings import build_encodings

BASELINE = "rope"
BATCHES = {64: 64, 128: 32, 512: 8}
BLOCK_MS, ROUNDS = 150, 11


def step_of(name: str, length: int, cfg: TrainConfig) -> tuple[Step, int]:
    """A training step with an encoding, and the parameters that the encoding adds."""
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(name), facts.dims(length))
    model = facts.small_model().build(Vocabulary(facts.VOCAB), encodings)
    accelerate(model)
    batch = BATCHES[length]
    drawn = np.random.default_rng(0).integers(facts.VOCAB, size=(batch, length + 1))
    data = Batch(drawn[:, :-1], drawn[:, 1:], np.ones((batch, length), dtype=bool))
    step = training_step(cfg, model)
    return lambda: step(data, data.scored), facts.parameters(encodings)


def ratios(step: Step, baseline: Step, rounds: int) -> tuple[list[float], float]:
    """One ratio of processor times a round, and the median milliseconds of a step of RoPE's."""
    sides = (step, baseline)
    takes = [min(clocks([side])[0] for _ in range(2)) for side in sides]
    counts = [max(1, round(BLOCK_MS / take)) for take in takes]
    found, plain = [], []
    for n in range(rounds):
        spent = [0.0, 0.0]
        for side in (0, 1) if n % 2 else (1, 0):
            spent[side] = clocks([sides[side]] * counts[side])[0]
        found.append(spent[0] / spent[1])
        plain.append(spent[1])
    return found, statistics.median(plain)


def measure(name: str, length: int, cfg: TrainConfig, rounds: int) -> dict[str, Any]:
    step, parameters = step_of(name, length, cfg)
    baseline, _ = step_of(BASELINE, length, cfg)
    for side in (step, baseline):
        clocks([side] * 2)
    most, plain = peak(step), peak(baseline)
    found, plain_ms = ratios(step, baseline, rounds)
    low, middle, high = statistics.quantiles(found, n=4)
    return {
        "parameters": parameters,
        "time": round(middle, 3),
        "time_quartiles": [round(low, 3), round(high, 3)],
        "memory": round(most / plain, 3),
        "baseline_ms": round(plain_ms, 2),
        "baseline_mib": round(plain / 2**20, 2),
    }


def commit() -> str:
    """The commit of the measured code; + if files have changed since."""
    words = ["git", "-C", str(facts.ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, Any]:
    """The machine; results of two machines are not mixed in one table."""
    known = environment(1, "cpu")
    kept = {key: known[key] for key in ("python", "cpu_capability", "threads")}
    return {"cpu": known["processor"], "torch": known["versions"]["torch"], **kept}


def earlier(chosen: list[str]) -> dict[str, Any]:
    """The rows of the other encodings from the last measurement on this machine."""
    if set(chosen) >= set(facts.names()) or not FILE.exists():
        return {}
    found = json.loads(FILE.read_text("utf-8"))
    how = {
        "machine": machine(),
        "baseline": BASELINE,
        "batches": {str(n): b for n, b in BATCHES.items()},
    }
    for key, here in how.items():
        if found.get(key) != here:
            raise SystemExit(
                f"{FILE.name} was measured with {key} {found.get(key)}, not {here}: "
                "give no names to measure all of them"
            )
    kept = set(facts.names()) - set(chosen)
    return {name: row for name, row in found["encodings"].items() if name in kept}


def write(rows: dict[str, Any]) -> None:
    """One line for each encoding, so that a diff shows which was measured again."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    head = f'{{\n "machine": {json.dumps(machine())},\n "baseline": {json.dumps(BASELINE)},\n'
    head += f' "batches": {json.dumps(BATCHES)},\n'
    FILE.write_text(f'{head} "encodings": {{\n{lines}\n }}\n}}\n', "utf-8")


def table(rows: dict[str, Any]) -> Table:
    shown = Table(
        "encoding", title=f"relative to {BASELINE}; quartiles of the time's rounds behind it"
    )
    for length in BATCHES:
        for header in (f"params {length}", "time", "", "memory"):
            shown.add_column(header, justify="right")
    for name, row in rows.items():
        cells = [name]
        for cost in (row[str(length)] for length in BATCHES):
            low, high = cost["time_quartiles"]
            cells += [str(cost["parameters"]), f"{cost['time']:.2f}", f"{low:.2f}-{high:.2f}"]
            cells.append(f"{cost['memory']:.2f}")
        shown.add_row(*cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encodings", description=__doc__)
    parser.add_argument("encodings", nargs="*", metavar="NAME", help="encodings; none: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="blocks of each side")
    args = parser.parse_args()
    for name in set(args.encodings) - set(facts.names()):
        parser.error(f"unknown encoding {name}: {did_you_mean(name, facts.names())}")
    chosen = args.encodings or facts.names()
    rows = earlier(chosen)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)
    cfg = composed("pe=none").train
    todo = [(name, length) for name in chosen for length in BATCHES]
    for name, length in track(todo, "measuring", console=Console(stderr=True), transient=True):
        row = rows.setdefault(name, {"date": date.today().isoformat(), "commit": commit()})
        row[str(length)] = measure(name, length, cfg, args.rounds)
    rows = {name: rows[name] for name in sorted(rows)}
    write(rows)
    out = console()
    out.print(table(rows))
    out.print(f"written to  {FILE}; make docs puts it into the pages", soft_wrap=True)


if __name__ == "__main__":
    main()
