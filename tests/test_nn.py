"""``pe_lab.nn``: the encodings and the attention in other people's models."""

import copy
import io
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program import ENCODINGS
from torch import Tensor, nn

from docs import facts
from pe_lab.check.base import move_parameters
from pe_lab.core.errors import UsageError
from pe_lab.models.encoder_decoder import both_ways
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.nn import MultiHeadAttention, encoding, encodings
from pe_lab.pe.alibi import ALiBi
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


class Stack(nn.Module):
    """Two layers with an encoding, moved from its start, and dropout."""

    def __init__(self, name: str, causal: bool = True) -> None:
        super().__init__()
        sizes = {"train_len": LENGTH, "max_len": LENGTH + 4, "vocab_size": facts.VOCAB, **SIZES}
        made = encodings(name, 2, **sizes)
        self.tokens, self.causal = nn.Embedding(facts.VOCAB, 32), causal
        self.layers: Any = nn.ModuleList(
            MultiHeadAttention(32, 4, pe=one, causal=causal, dropout=0.1) for one in made
        )

    def forward(self, ids: Tensor, pos: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        places = torch.arange(ids.shape[1])[None] if pos is None else pos
        x = self.layers[0].encoding.embed(self.tokens(ids), ids, places)
        for layer in self.layers:
            x = layer.encoding.block_input(x, places)
            x = x + layer(x, pos, key_padding_mask=mask)
        return x


NAMES = [name for name in ENCODINGS if name != "tape"]
BOTH_WAYS = [
    n
    for n in NAMES
    if all(map(both_ways, encodings(n, 2, train_len=LENGTH, **SIZES, vocab_size=2)))
]
IDS = torch.randint(facts.VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
each = pytest.mark.parametrize("name", NAMES)
# They take a step for each position, up to one that a tensor holds.
GROW = {"floater", "recurrent"}
COMPILED = ["alibi", "cope", "floater", "rope"]


def stack(name: str, causal: bool = True) -> Stack:
    torch.manual_seed(0)
    made = Stack(name, causal)
    move_parameters(made)
    return made.eval()


def emptied(module: nn.Module) -> nn.Module:
    """As after ``to_empty``, in memory that holds anything."""
    return module._apply(
        lambda x: torch.full_like(x, torch.nan if x.is_floating_point() else 7, device="cpu")
    )


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@each
@torch.no_grad()
def test_casts_moves_and_copies_change_nothing_but_weights(name: str) -> None:
    model = stack(name)
    expected, weights = model(IDS), copy.deepcopy(model.state_dict())
    with torch.device("meta"):
        hollow = Stack(name).eval()
    changes: list[Callable[[], Any]] = [
        lambda: emptied(hollow),
        lambda: pickle.loads(pickle.dumps(model)),
        lambda: saved(model),
        lambda: model.bfloat16().float(),
        lambda: model.half().float(),
        lambda: model.double().float(),
        lambda: emptied(model.to("meta")),
    ]
    for change in changes:
        changed = change()
        changed.load_state_dict(weights)
        assert torch.equal(changed(IDS), expected)


@each
@torch.inference_mode()
def test_positions_may_change_in_place(name: str) -> None:
    model, pos = stack(name), torch.arange(LENGTH)[None].clone()
    before = model(IDS, pos)
    pos[:, 6:] += 3
    changed = model(IDS, pos)
    assert torch.equal(changed, model(IDS, pos.clone()))
    if model.layers[0].encoding.reads_positions:
        assert not torch.equal(changed, before)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_both_directions_know_positions_alone_and_padding(name: str) -> None:
    model, order = stack(name, causal=False).double(), torch.randperm(LENGTH)
    if model.layers[0].encoding.reads_positions:
        pos = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 15])
        expected, permuted = model(IDS, pos)[:, order], model(IDS[:, order], pos[order])
        torch.testing.assert_close(permuted, expected, rtol=1e-6, atol=1e-6)
    padding = torch.tensor([[False], [True]]).expand(2, LENGTH)
    model.train()(IDS, mask=padding)[0].sin().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@each
def test_nothing_and_negative_positions(name: str) -> None:
    for causal in (True, False) if name in BOTH_WAYS else (True,):
        model = stack(name, causal)
        for shape in ((0, LENGTH), (2, 0)):
            out = model.train()(IDS.new_zeros(shape))
            out.sum().backward()
            assert out.shape == (*shape, 32)
    model, pos = stack(name).double(), torch.arange(LENGTH)
    if all(layer.encoding.shift_invariant for layer in model.layers):
        torch.testing.assert_close(model(IDS, pos - 5), model(IDS))
    else:
        with pytest.raises((UsageError, IndexError), match=r"position.* this encoding has"):
            model(IDS, pos - 5)


@each
def test_transforms_of_torch_follow(name: str) -> None:
    model = stack(name).double()
    layer, x, ahead, weight = model.layers[0], *torch.randn(3, 2, LENGTH, 32).double()
    rows = torch.func.vmap(model)(IDS[:, None])[:, 0]
    torch.testing.assert_close(rows, model(IDS))
    _, along = torch.func.jvp(layer, (x,), (ahead,))
    (back,) = torch.autograd.grad(layer(x.requires_grad_()), x, weight)
    torch.testing.assert_close((along * weight).sum(), (back * ahead).sum())


@pytest.mark.parametrize(
    "name", [n if n in COMPILED else pytest.param(n, marks=pytest.mark.extended) for n in NAMES]
)
def test_compiled(name: str) -> None:
    torch.compiler.reset()
    model, whole = stack(name).double(), name not in GROW
    expected = model(IDS)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=whole)
    torch.testing.assert_close(compiled(IDS), expected, rtol=1e-6, atol=1e-6)
    model.train()
    compiled(IDS).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["cope", "alibi", "fox", "path"])
def test_exported(name: str) -> None:
    model = stack(name).double()
    exported = torch.export.export(model, (IDS,)).module()
    torch.testing.assert_close(exported(IDS), model(IDS), rtol=1e-6, atol=1e-6)
    with pytest.raises(UsageError, match=r"torch\.export"):
        torch.export.export(stack("inkling"), (IDS,), strict=False)


@each
def test_half_precision_outside_of_attention(name: str) -> None:
    for made in dict.fromkeys(layer.encoding for layer in stack(name).layers):
        x, pos = torch.randn(2, LENGTH, 32).bfloat16(), torch.arange(LENGTH)[None]
        expected = made.block_input(made.embed(x.float(), IDS, pos), pos)
        for one in (made, copy.deepcopy(made).bfloat16()):
            out = one.block_input(one.embed(x, IDS, pos), pos)
            assert (out - expected).norm() <= 0.05 * expected.norm()


def test_a_class_or_an_instance_of_ones_own() -> None:
    class Steeper(ALiBi):
        def __init__(self, dims: Any, factor: float = 2) -> None:
            super().__init__(dims, learned=False)
            self.slopes = factor * self.slopes

    x, sizes = torch.randn(2, 6, 32), {"d_model": 32, "n_heads": 4}
    plain = MultiHeadAttention(pe="alibi", **sizes)
    made = encoding(Steeper, train_len=6, factor=1.0, **sizes)
    for pe, same in ((Steeper, False), (made, True)):
        layer = MultiHeadAttention(pe=pe, **sizes)
        layer.load_state_dict(plain.state_dict())
        assert torch.allclose(layer(x), plain(x), atol=1e-5) == same
    for wrong in (nn.Linear, 3):
        with pytest.raises(UsageError, match="no encoding"):
            MultiHeadAttention(32, 4, pe=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"pe\.facto=2"):
        MultiHeadAttention(pe=Steeper, facto=2, **sizes)


X, ROPE = torch.randn(2, 6, 32), MultiHeadAttention(32, 4, pe="rope")
OPEN = MultiHeadAttention(32, 4, pe="alibi", causal=False)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda x=x: ROPE(x) for x in (X[0], X[None], X[..., 1:], X.double(), X.to("meta"), None)),
        *(
            lambda pos=pos: ROPE(X, pos)
            for pos in (
                [0, 1, 2, 3, 4, 5],
                torch.tensor(3),
                torch.arange(6).expand(3, 6),
                torch.ones(6, dtype=torch.bool),
                torch.full((6,), torch.nan),
                torch.arange(6, device="meta"),
            )
        ),
        *(
            lambda mask=mask: OPEN(X, key_padding_mask=mask)
            for mask in (torch.zeros(2, 6), torch.zeros(2, 5, dtype=torch.bool), [[False] * 6] * 2)
        ),
        lambda: ROPE(X, cache={}),
        # Its table is too narrow: a kernel would read beyond it.
        lambda: MultiHeadAttention(64, 4, pe=encoding("cope", train_len=6, d_model=32, n_heads=4)),
    ],
)
def test_what_does_not_fit_is_one_sentence(call: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        call()
