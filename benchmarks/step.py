"""A training step of ours against x-transformers' of equal size, and what its data costs.

Both sides do the same work on the same tokens: forward, cross-entropy at every position,
backward, clipping, fused AdamW; one thread, no dropout, x-transformers' eager attention. Blocks
of steps alternate, ours, theirs, ours, .., in one process. Ratios are of the medians of
processor time, which a busy neighbour disturbs less than the clock on the wall. Every row is
measured twice, in processes of their own: with the allocator as glibc ships it, and with freed
memory kept, as our runs have it. Denormals are flushed on both sides, as in our runs.

x-transformers' linear layers of attention and its norms have no biases, and ours have: the
matrices are checked to hold equally many numbers, the encoding's own apart.
"""

import argparse
import importlib.resources
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

from benchmarks.cpu import cpu_name
from pe_lab.build import build_encodings, plan
from pe_lab.config import Config, ModelConfig, TrainConfig, register_resolvers
from pe_lab.console import console
from pe_lab.data import BATCHES_A_DRAW, TrainData
from pe_lab.machine import environment, keep_freed_memory
from pe_lab.model import Transformer
from pe_lab.parts import fill_parts
from pe_lab.pe.base import Dims
from pe_lab.schema import check
from pe_lab.task import Batch, Bools
from pe_lab.train import make_optimizer, summed_loss

ROOT = Path(__file__).resolve().parent.parent
VOCAB = 32
DATA_LIMIT = 0.02
ALLOCATORS = {"shipped": "the allocator as shipped", "tuned": "freed memory kept"}
SMALL = ("model.n_layers=2", "model.n_heads=4", "model.d_model=64")
LARGE = ("model.n_layers=4", "model.n_heads=4", "model.d_model=256")
# Name, overrides of the model, length, batch.
SIZES = [
    ("small", SMALL, 64, 32),
    ("small", SMALL, 128, 32),
    ("small", SMALL, 256, 32),
    ("small", SMALL, 512, 8),
    ("large", LARGE, 128, 4),
    ("large", LARGE, 512, 4),
]
# Encoding -> what x-transformers' Decoder calls it, for a head width and a number of heads.
THEIRS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "none": lambda width, heads: {},
    "alibi": lambda width, heads: {"alibi_pos_bias": True, "alibi_num_heads": heads},
    "rope": lambda width, heads: {"rotary_pos_emb": True, "rotary_emb_dim": width},
    "t5": lambda width, heads: {"rel_pos_bias": True},
}


def composed(*overrides: str) -> Config:
    """The configuration that pe-lab would run with these overrides."""
    register_resolvers()
    with initialize_config_module("pe_lab.conf", version_base="1.3"):
        cfg = compose("config", list(overrides), return_hydra_config=True)
        sources = cfg.hydra.runtime.config_sources
        ours = {str(k): v for k, v in cfg.items_ex(resolve=False) if k != "hydra"}
        resolved = OmegaConf.to_container(fill_parts(OmegaConf.create(ours), sources), resolve=True)
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, {})


def peer(cfg: ModelConfig, encoding: str, length: int) -> nn.Module:
    """x-transformers' model of our size."""
    width = cfg.d_model // cfg.n_heads
    decoder = Decoder(
        dim=cfg.d_model,
        depth=cfg.n_layers,
        heads=cfg.n_heads,
        attn_dim_head=width,
        attn_flash=False,
        ff_mult=cfg.ff_width / cfg.d_model,
        ff_glu=cfg.activation == "swiglu",
        ff_swish=cfg.activation == "swiglu",
        ff_custom_activation=nn.ReLU() if cfg.activation == "relu" else None,
        pre_norm=cfg.norm_position == "pre",
        use_rmsnorm=cfg.norm == "rmsnorm",
        verbose=False,
        **THEIRS[encoding](width, cfg.n_heads),
    )
    made = TransformerWrapper(
        num_tokens=VOCAB,
        max_seq_len=length,
        attn_layers=decoder,
        use_abs_pos_emb=False,
        tie_embedding=cfg.tied_embeddings,
    )
    assert isinstance(made, nn.Module)
    return made


def stepper(cfg: TrainConfig, model: nn.Module, loss: Callable[..., Tensor]) -> Callable[..., None]:
    """A whole training step, as a function of the loss' arguments."""
    optimizer = make_optimizer(cfg, model)
    model.train()

    def step(*given: Any) -> None:
        torch.autograd.backward(loss(*given))
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip or torch.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_stepper(cfg: TrainConfig, model: Transformer) -> Callable[[Batch, Bools], None]:
    def loss(batch: Batch, counted: Bools) -> Tensor:
        pos = torch.arange(batch.tokens.shape[1])[None]
        return summed_loss(model, batch, counted, pos) / int(counted.sum())

    return stepper(cfg, model, loss)


def numbers(model: nn.Module) -> tuple[int, int]:
    """Parameters in all, and those in the trunk's matrices (an encoding's tables left out)."""
    known = dict(model.named_parameters())
    own = ("encoding", "rel_pos")
    trunk = [p for name, p in known.items() if p.dim() >= 2 and not any(o in name for o in own)]
    return sum(p.numel() for p in known.values()), sum(p.numel() for p in trunk)


def clocks(steps: Sequence[Callable[[], None]]) -> tuple[float, float]:
    """Milliseconds a step: of the processor, and on the wall."""
    cpu, wall = time.process_time(), time.perf_counter()
    for step in steps:
        step()
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return 1e3 * spent[0] / len(steps), 1e3 * spent[1] / len(steps)


def compare(
    model: Sequence[str], encoding: str, length: int, batch: int, seconds: float
) -> dict[str, Any]:
    """One row: both sides in turn, for about so many seconds."""
    config = composed(f"pe={encoding}", *model)
    cfg = config.model
    dims = Dims(cfg.d_model, cfg.n_heads, cfg.n_layers, VOCAB, length, length)
    torch.manual_seed(0)
    ours = Transformer(cfg, VOCAB, build_encodings(config.pe, dims))
    theirs = peer(cfg, encoding, length)
    (our_total, our_trunk), (their_total, their_trunk) = numbers(ours), numbers(theirs)
    if our_trunk != their_trunk:
        raise SystemExit(f"{encoding}: matrices of {our_trunk} and {their_trunk} numbers")
    drawn = np.random.default_rng(0).integers(VOCAB, size=(batch, length + 1))
    data = Batch(drawn[:, :-1], drawn[:, 1:], np.ones((batch, length), dtype=bool))

    def their_loss() -> Tensor:
        logits = theirs(torch.from_numpy(data.tokens))
        return F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(data.targets).flatten())

    our_step, their_step = (
        our_stepper(config.train, ours),
        stepper(config.train, theirs, their_loss),
    )
    sides = [lambda: our_step(data, data.scored), their_step]
    for _ in range(3):
        both = sum(clocks([side])[1] for side in sides)
    in_block = max(1, round(100 / both))
    rounds = max(5, round(1e3 * seconds / (in_block * both)))
    taken = [[clocks([side] * in_block) for side in sides] for _ in range(rounds)]
    row: dict[str, Any] = {"encoding": encoding, "length": length, "batch": batch}
    row |= {"rounds": rounds, "params_ours": our_total, "params_theirs": their_total}
    for c, clock in enumerate(("cpu", "wall")):
        for name, of in (("median", statistics.median), ("min", min)):
            mine, other = (of(r[side][c] for r in taken) for side in (0, 1))
            row[f"{clock}_{name}"] = {"ours": mine, "theirs": other, "ratio": other / mine}
    return row


def data_share(task: str, repeats: int) -> dict[str, Any]:
    """Processor time of drawing a batch against a step without an encoding (the cheapest)."""
    planned = plan(composed(f"task={task}", "pe=none"))
    cfg = planned.config.train
    n = 4 * BATCHES_A_DRAW
    draws = []
    for seed in range(1, repeats + 1):
        data = TrainData(planned.task, seed, cfg.batch_size)
        draws.append(clocks([lambda i=i, d=data: d.batch(i) for i in range(n)])[0])  # type: ignore[misc]
    step = our_stepper(cfg, planned.model())
    batches = [data.batch(i) for i in range(n)]
    todo = [lambda b=b: step(b, planned.task.trained(b)) for b in batches]
    clocks(todo[:8])
    a_step = statistics.median(clocks(todo)[0] for _ in range(repeats))
    a_batch = statistics.median(draws)
    row = {"task": task, "tokens": planned.task.n_tokens, "batch": cfg.batch_size}
    return row | {"batch_ms": a_batch, "step_ms": a_step, "share": a_batch / a_step}


def child(args: argparse.Namespace) -> None:
    """Measure with one setting of the allocator; the rows go to stdout as JSON."""
    if args.child == "tuned":
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_flush_denormal(True)
    sizes = [s for s in SIZES if s[2] in args.lengths and not (args.quick and s[0] == "large")]
    todo = [(size, encoding) for size in sizes for encoding in args.encodings]
    seconds = 1.0 if args.quick else 4.0
    rows = [
        {"size": name} | compare(model, encoding, length, batch, seconds)
        for (name, model, length, batch), encoding in track(
            todo, ALLOCATORS[args.child], console=Console(stderr=True), transient=True
        )
    ]
    tasks = importlib.resources.files("pe_lab.conf").joinpath("task").iterdir()
    names = sorted(t.name.removesuffix(".yaml") for t in tasks if t.name.endswith(".yaml"))
    shares = [data_share(name, 1 if args.quick else 5) for name in names if args.child == "tuned"]
    json.dump({"rows": rows, "data": shares}, sys.stdout)


def measured(setting: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a fresh process measures: mallopt cannot be undone, and torch allocates early."""
    words = ["--child", setting, "--encodings", *args.encodings]
    words += ["--lengths", *map(str, args.lengths), *(["--quick"] if args.quick else [])]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step", *words],
        cwd=ROOT,
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def step_table(setting: str, rows: list[dict[str, Any]]) -> Table:
    title = (
        f"a training step, {ALLOCATORS[setting]}: processor ms, ratio theirs / ours (< 1: slower)"
    )
    names = ["model", "encoding", "length", "batch", "ours", "theirs", "ratio", "of minima"]
    cells = []
    for row in rows:
        first = [row["size"], row["encoding"], str(row["length"]), str(row["batch"])]
        cpu, wall = row["cpu_median"], row["wall_median"]
        ratios = [f"{cpu['ratio']:.2f}", f"{row['cpu_min']['ratio']:.2f}"]
        both = [[f"{clock[side]:.1f}" for side in ("ours", "theirs")] for clock in (cpu, wall)]
        cells.append((cpu["ratio"] < 1, [*first, *both[0], *ratios, *both[1]]))
    return marked(title, [*names, "wall ours", "wall theirs"], cells)


def data_table(rows: list[dict[str, Any]]) -> Table:
    title = f"drawing the data: at most {DATA_LIMIT:.0%} of a step (pe=none), processor ms"
    names = ["task", "tokens", "batch", "ms a batch", "ms a step", "share"]
    cells = []
    for row in rows:
        words = [row["task"], str(row["tokens"]), str(row["batch"])]
        words += [f"{row['batch_ms']:.3f}", f"{row['step_ms']:.2f}", f"{row['share']:.2%}"]
        cells.append((row["share"] > DATA_LIMIT, words))
    return marked(title, names, cells)


def marked(title: str, names: list[str], rows: list[tuple[bool, list[str]]]) -> Table:
    """A table whose missed rows carry a mark, in red where there are colours."""
    table = Table("", *names, title=title)
    for column, cell in zip(table.columns[1:], rows[0][1] if rows else [], strict=False):
        column.justify = "right" if cell[:1].isdigit() else "left"
    for missed, cells in rows:
        table.add_row("!" if missed else "", *cells, style="bold red" if missed else None)
    return table


def write(result: dict[str, Any]) -> Path:
    """The result in a file of its own, named by the date."""
    path = ROOT / "runs" / "bench" / f"step-{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        json.dump(result, file, indent=1)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, small models only")
    parser.add_argument("--encodings", nargs="+", choices=THEIRS, default=list(THEIRS))
    lengths = sorted({size[2] for size in SIZES})
    parser.add_argument("--lengths", nargs="+", type=int, choices=lengths, default=lengths)
    parser.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    facts, _ = environment(1, "cpu")
    facts["versions"]["x-transformers"] = metadata.version("x-transformers")
    by_setting = {setting: measured(setting, args) for setting in ALLOCATORS}
    out = console()
    for setting, result in by_setting.items():
        out.print(step_table(setting, result["rows"]))
    data = by_setting["tuned"]["data"]
    out.print(data_table(data))
    rows = {setting: result["rows"] for setting, result in by_setting.items()}
    path = write({**facts, "cpu": cpu_name(), "quick": args.quick, "step": rows, "data": data})
    out.print(f"written to  {path}", soft_wrap=True)
    return None


if __name__ == "__main__":
    main()
