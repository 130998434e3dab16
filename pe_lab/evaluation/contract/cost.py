"""Time and memory of a training step with an encoding, relative to pe=rope."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from pe_lab.evaluation.contract.outcome import NotClaimedError
from pe_lab.evaluation.contract.tiny import Section
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import Dims
from pe_lab.training.kernels import accelerate
from pe_lab.training.plan import build_encodings

ROPE = {"_target_": "pe_lab.pe.rope.RoPE", "base": 10000, "pairing": "interleaved"}
SIZES: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 64, "vocab_size": 32}
LENGTH, BATCH, ROUNDS = 128, 8, 7


class TrainingStep:
    """Forward, cross-entropy at every position and backward in float32, with the kernels."""

    def __init__(self, section: Section, length: int = LENGTH, batch: int = BATCH) -> None:
        torch.manual_seed(0)
        dims = Dims(**SIZES, train_len=length, max_len=length)
        encodings = build_encodings(section, dims)
        distinct = {id(p): p for e in encodings for p in e.parameters()}
        self.parameters = sum(p.numel() for p in distinct.values())
        cfg = TransformerConfig(
            n_layers=dims.n_layers, n_heads=dims.n_heads, d_model=dims.d_model, d_ff=None,
            dropout=0.0, norm="layernorm", norm_position="pre", activation="gelu",
            tied_embeddings=False,
        )  # fmt: skip
        self.model = Transformer(cfg, dims.vocab_size, encodings).train()
        accelerate(self.model)
        self.tokens = torch.randint(dims.vocab_size, (batch, length))
        self.pos = torch.arange(length)[None]

    def __call__(self) -> float:
        """Do a step and return its processor time in seconds."""
        began = time.process_time()
        logits = self.model.unembed(self.model(self.tokens, self.pos, key=0))
        loss = F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        torch.autograd.backward(loss)
        self.model.zero_grad(set_to_none=True)
        return time.process_time() - began


def beside_rope(section: Section, rounds: int = ROUNDS) -> str:
    """Processor time and peak memory of a training step, divided by those with pe=rope.

    Steps of both alternate, on one thread; the time is the median ratio.
    """
    if section["_target_"] == ROPE["_target_"]:
        raise NotClaimedError("it is rope itself")
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    try:
        mine, rope = TrainingStep(section), TrainingStep(ROPE)
        for step in (mine, rope, mine, rope):
            step()
        taken = [(mine(), rope()) for _ in range(rounds)]
        memory = peak(mine) / peak(rope)
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)
    ratio = statistics.median(one / other for one, other in taken)
    ms = 1e3 * statistics.median(one for one, _ in taken)
    return (
        f"{ratio:.1f} times rope's step ({ms:.0f} ms, d {SIZES['d_model']}, {BATCH} x {LENGTH} "
        f"tokens), {memory:.1f} times its memory, {mine.parameters} parameters"
    )


def peak(step: Callable[[], object]) -> int:
    """The most bytes of tensors alive during a step, beyond those that exist before it.

    PyTorch's profiler counts every allocation.
    """
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    alive = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        alive += change
        most = max(most, alive)
    return most


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the profiler writes to stderr from C++ when it starts and stops."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
