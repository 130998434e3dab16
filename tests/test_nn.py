"""``pe_lab.nn``: the encodings and the attention in other people's models."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program import ENCODINGS
from torch import Tensor

from docs import facts
from pe_lab.check.base import move_parameters
from pe_lab.core.errors import UsageError
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.nn import MultiHeadAttention, encodings
from pe_lab.train.encodings import build_encodings

SIZES = {"d_model": 32, "n_heads": 4}
LENGTH = 12
CFG = TransformerConfig(**{**vars(facts.small_model()), **SIZES})


def theirs(name: str) -> Transformer:
    """The transformer of pe-lab, on the plain code, its encoding moved from its start."""
    torch.manual_seed(0)
    dims = CFG.dims(facts.VOCAB, LENGTH, LENGTH)
    made = Transformer(CFG, facts.VOCAB, build_encodings(facts.section(name), dims))
    for one in dict.fromkeys(made.encodings):
        move_parameters(one)
    return made.eval()


class Own:
    """A model of somebody else, of the same weights but with the layers of ``pe_lab.nn``."""

    def __init__(self, model: Transformer, layers: list[MultiHeadAttention]) -> None:
        self.model, self.layers = model, [layer.eval() for layer in layers]

    def __call__(self, tokens: Tensor, caches: list[Any] | None = None, seen: int = 0) -> Tensor:
        pos = torch.arange(tokens.shape[1])[None]
        x = self.layers[0].encoding.embed(self.model.tokens(tokens), tokens, pos)[:, seen:]
        for i, layer in enumerate(self.layers):
            block: Any = self.model.blocks[i]
            x = layer.encoding.block_input(x, pos[:, seen:])
            cache = caches[i] if caches else None
            x = x + layer(block.norm_attention(x), cache=cache)
            x = x + block.ff(block.norm_ff(x))
        return self.model.head(self.model.norm(x))


def own(name: str, model: Transformer) -> Own:
    made = encodings(
        name, CFG.n_layers, train_len=LENGTH, vocab_size=facts.VOCAB, **SIZES
    )  # fmt: skip
    return Own(model, [MultiHeadAttention(32, 4, pe=one) for one in made])


def exchange(model: Transformer, layers: list[MultiHeadAttention], into_layers: bool) -> None:
    for block, layer in zip(model.blocks, layers, strict=True):
        ours, here = block.attention, layer.attention
        (here if into_layers else ours).load_state_dict(
            (ours if into_layers else here).state_dict()
        )


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "tape"])
@torch.no_grad()
def test_equals_the_model_of_pe_lab_both_ways(name: str) -> None:
    model = theirs(name)
    mine, tokens = own(name, model), torch.randint(facts.VOCAB, (2, LENGTH))
    positions = torch.arange(LENGTH)[None]
    with pytest.raises(AssertionError):
        torch.testing.assert_close(mine(tokens), model.unembed(model(tokens, positions)))
    for into_layers in (True, False):
        exchange(model, mine.layers, into_layers)
        expected = model.unembed(model(tokens, positions))
        torch.testing.assert_close(mine(tokens), expected, rtol=1e-4, atol=1e-4)
        for parameter in (p for layer in mine.layers for p in layer.attention.qkv.parameters()):
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "tape"])
@torch.no_grad()
def test_cached_equals_whole(name: str) -> None:
    mine, tokens = own(name, theirs(name)), torch.randint(facts.VOCAB, (2, LENGTH))
    if any(layer.encoding.whole_sequence for layer in mine.layers):
        return
    caches = [layer.empty_cache() for layer in mine.layers]
    edges = [0, 5, 6, 7, LENGTH]
    pieces = [mine(tokens[:, :b], caches, seen=a) for a, b in pairwise(edges)]
    torch.testing.assert_close(torch.cat(pieces, 1), mine(tokens), rtol=1e-4, atol=1e-5)


def test_both_directions() -> None:
    x = torch.randn(2, 6, 32)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    for name in ("none", "rope", "alibi"):
        layer = MultiHeadAttention(32, 4, pe=name, causal=False)
        whole, short = layer(x, key_padding_mask=padding), layer(x[1:, :4])
        torch.testing.assert_close(whole[1:, :4], short)
        assert not torch.allclose(layer(x)[1, :4], short[0])
        if name == "none":
            a = layer.attention
            q, k, v = (a.heads(part) for part in (a.q(x), *a.kv(x).chunk(2, -1)))
            expected = a.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x), expected)
    with pytest.raises(UsageError, match="set causal=True"):
        layer.empty_cache()
    with pytest.raises(UsageError, match="set causal=True"):
        layer(x, cache=MultiHeadAttention(32, 4, pe="none").empty_cache())


def test_positions_and_dropout() -> None:
    x, layer = torch.randn(2, 6, 32), MultiHeadAttention(32, 4, pe="rope", dropout=0.5)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    apart = torch.tensor([0, 2, 5, 6, 9, 30])
    torch.testing.assert_close(layer(x, apart + 7), layer(x, apart[None]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(layer(x, apart), layer(x), atol=1e-3)
