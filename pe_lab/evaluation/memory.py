"""What measuring a model at a length takes of memory, estimated before any work."""

import os
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pe_lab.common.errors import UsageError
from pe_lab.models.base import Model

PROBE = 256
"""Tokens of the longest sequence that memory is counted for."""
SEQUENCE = 96
"""Bytes a token of the evaluated sequences: tokens, targets, marks, and what draws them."""
HIDDEN = 12
"""Bytes a token and unit of width that any model takes at the least: three hidden states."""


def machine_bytes(device: torch.device) -> int:
    """The memory of the device, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_beyond(what: str, needed: int, about: str, device: torch.device) -> None:
    """UsageError for what needs more bytes than the machine has."""
    if needed > (here := machine_bytes(device)):
        machine = "this GPU" if device.type == "cuda" else "this machine"
        raise UsageError(
            f"{what} is too large: it needs {about} {needed / 2**30:.3g} GiB, {machine} has "
            f"{here / 2**30:.3g}; give shorter lengths or fewer sequences"
        )


def least_bytes(length: int, sequences: int, d_model: int) -> int:
    """A floor, known before a model is built: the sequences, and hidden states of one."""
    return length * (SEQUENCE * sequences + HIDDEN * d_model)


def needed_bytes(
    model: Model,
    length: int,
    sequences: int,
    batch_tokens: int,
    longest: int,
    separator: int | None,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> int:
    """About what it takes to measure ``sequences`` of this length, batch_tokens at once.

    rows (b length + c length^2) + the sequences; b and c are from the peaks of two passes over
    short sequences: c is 0 where fused attention serves, and about 4 bytes a head and kept
    (T, S) tensor where it is eager.

    Args:
        longest: the longest sequence that the encoding takes.
        separator: the token between an input and an output part, where the task has them.
    """
    whole = min(PROBE, longest)
    half = max(1, whole // 2)
    with autocast():
        _peak(model, half, separator)  # kernels prove themselves in their first pass
        p, q = (_peak(model, n, separator) / n for n in (half, whole))
    c = max(0.0, (q - p) / (whole - half)) if whole > half else 0.0
    rows = min(sequences, max(1, batch_tokens // length))
    return int(rows * length * (max(q - c * whole, 0.0) + c * length)) + (
        SEQUENCE * sequences * length
    )


@torch.no_grad()
def _peak(model: Model, length: int, separator: int | None) -> int:
    """The most bytes that tensors made by a pass over one sequence hold at once."""
    tokens = torch.zeros(1, length, dtype=torch.int64, device=model.device)
    if separator is not None:
        tokens[:, length // 2] = separator
    positions = torch.arange(length, device=model.device)[None]
    with _Held() as held:
        model.unembed(model(tokens, positions)).double()
    return int(held.most)


class _Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors made inside that are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.views: Counter[int] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in given:
                self._take(leaf)
        return out

    def _take(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not self.views[key]:
            self.now += size
            self.most = max(self.most, self.now)
        self.views[key] += 1
        weakref.finalize(tensor, self._leave, key, size).atexit = False

    def _leave(self, key: int, size: int) -> None:
        self.views[key] -= 1
        if not self.views[key]:
            self.now -= size
