"""Decoding with a key cache, and facts shared by layers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from variants import (
    MAX_LEN,
    SECTIONS,
    TRAIN_LEN,
    VARIANTS,
    Section,
    model,
    scattered,
    sequential,
    tokens,
    writes,
)

from pe_lab.check import encodings
from pe_lab.models.config import LayerConfig
from pe_lab.pe import path
from pe_lab.pe.functional import consecutive, span

WRITING = {name: section for name, section in VARIANTS.items() if writes(section)}
CHOSEN = [name for name in SECTIONS if name in WRITING]


@pytest.mark.parametrize("name", CHOSEN)
def test_with_a_window_in_one_layer(name: str) -> None:
    built = model(SECTIONS[name], trunk={"layers": {1: LayerConfig(window=5)}}).eval()
    assert built.blocks[1].attention.window == 5  # type: ignore[union-attr]
    n = TRAIN_LEN + 8
    encodings.cache_gap(built, tokens(2, n), scattered(2, n, MAX_LEN), 3, 12)


@pytest.mark.parametrize("length", [path.CHUNK, path.CHUNK + 1, 2 * path.CHUNK + 3])
@pytest.mark.parametrize("name", ["path", "path-forget=True"])
def test_path_over_several_chunks(name: str, length: int) -> None:
    built = model(VARIANTS[name], train_len=length, max_len=length).eval()
    encodings.cache_gap(built, tokens(2, length), sequential(length), length - 20, 17)


def test_rotated_keys_belong_to_their_sequence() -> None:
    """Two sequences decoded in turn, one a token ahead, by layers that rotate differently."""
    built = model(SECTIONS["rope"]).eval()
    other = model({**SECTIONS["rope"], "base": 50.0})
    built.blocks[1].attention.encoding = other.encodings[1]  # type: ignore[union-attr]
    seen = tokens(2, TRAIN_LEN)
    places = [sequential(TRAIN_LEN), sequential(TRAIN_LEN, 5)]
    whole = [built(seen, pos) for pos in places]
    caches = [built.empty_cache(), built.empty_cache()]
    built(seen[:, :1], places[1][:, :1], caches[1])
    for t in range(TRAIN_LEN - 1):
        for ahead, pos, cache, expected in zip((0, 1), places, caches, whole, strict=True):
            at = slice(t + ahead, t + ahead + 1)
            step = built(seen[:, at], pos[:, : at.stop], cache)
            torch.testing.assert_close(step, expected[:, at], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rope", "none", "cope", "combined"])
def test_a_cache_belongs_to_one_batch_from_its_first_token(name: str) -> None:
    built, seen = model(VARIANTS[name]).eval(), tokens(2, 8)
    # Begun again, one left out, another batch.
    for more, n in ((seen, 8), (seen[:, :1], 10), (seen[:1, :1], 9)):
        cache = built.empty_cache()
        built(seen, sequential(8), cache)
        with pytest.raises(ValueError, match="begin another sequence with an empty cache"):
            built(more, sequential(n), cache)


class Turns(TorchDispatchMode):
    """Counts the pairs whose sines and cosines are made."""

    pairs = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        self.pairs += out.numel() if op is torch.ops.aten.polar.default else 0
        return out


@pytest.mark.parametrize(
    ("name", "layers"),
    [("rope", 3), ("yarn", 3), ("hfwa", 2), ("cope-combine=rope", 3), ("combined", 3)],
)
def test_a_key_is_rotated_once(name: str, layers: int) -> None:
    built, seen, pos = model(VARIANTS[name]).eval(), tokens(1, 12), sequential(12)
    cache = built.empty_cache()
    built(seen[:, :-1], pos[:, :-1], cache)
    with Turns() as turns:
        built(seen[:, -1:], pos, cache)
    # Heads of width 8; queries rotate as keys.
    assert turns.pairs == 4 * layers


class Made(TorchDispatchMode):
    """Counts the numbers that operations make, and the floating-point operations of products."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.flops = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        count = flop_registry.get(op._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        outs = out if isinstance(out, (tuple, list)) else [out]
        for made, returned in zip(outs, op._schema.returns, strict=False):
            # Views make nothing.
            if isinstance(made, Tensor) and returned.alias_info is None:
                self.numbers += made.numel()
        return out


def cost(section: Section, context: int) -> tuple[int, int]:
    """Of the next token after so many, in a model trained at that length."""
    built = model(section, train_len=context, max_len=257).eval()
    seen, pos, cache = tokens(1, context + 1), sequential(context + 1), built.empty_cache()
    with torch.no_grad():
        built(seen[:, :-1], pos[:, :-1], cache)
        with Made() as made:
            built(seen[:, -1:], pos, cache)
    return made.numbers, made.flops


@pytest.mark.parametrize("name", CHOSEN)
def test_a_token_costs_in_proportion_to_the_context(name: str) -> None:
    """What is added from 128 to 256 tokens of context is twice what is added from 64 to 128; of a
    cost that is quadratic, four times."""
    costs = [cost(SECTIONS[name], context) for context in (64, 128, 256)]
    for short, middle, long in zip(*costs, strict=True):
        assert long - middle <= 2.2 * (middle - short)


class Reads(TorchDispatchMode):
    """Counts numbers that are taken out of a tensor: on a GPU each waits for all work before it."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "facts"), [("alibi", 1), ("t5", 1), ("transformer_xl", 2)])
def test_positions_are_read_once_for_all_layers(name: str, facts: int) -> None:
    """Once for each fact: without a kernel, transformer_xl needs the farthest distance too."""
    built, seen = model(SECTIONS[name], n_layers=3), tokens(2, TRAIN_LEN)
    for pos, n in ((sequential(TRAIN_LEN), 1), (scattered(2, TRAIN_LEN, MAX_LEN), facts)):
        # The first time kernels are proved.
        built(seen, pos)
        again = pos.clone()
        other = again + 1
        with Reads() as reads:
            # Two models, or two threads, in turn.
            for given in (again, other, again, other):
                built(seen, given)
        assert reads.count == 2 * n


@pytest.mark.parametrize("inference", [False, True])
def test_facts_are_those_of_the_positions(inference: bool) -> None:
    with torch.inference_mode(inference):
        close, apart = torch.tensor([[0, 1, 2], [4, 5, 6]]), torch.tensor([[0, 1, 2], [4, 6, 9]])
        for _ in range(2):
            assert (consecutive(close), span(close)) == (True, 2)
            assert (consecutive(apart), span(apart)) == (False, 5)
            assert consecutive(close[:, :1])
    apart = apart.clone()
    assert span(apart) == 5
    apart[1, 2] = 20
    assert span(apart) == 16
