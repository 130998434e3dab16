"""model.conv: the convolution of the token embeddings, or of queries, keys and values."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import MODELS, config, small, two_parts
from torch import Tensor, nn
from trainers import planned

from docs import facts
from pe_lab.check.base import PLACE, build_model, in_pieces, loss, sequential, tokens
from pe_lab.check.networks import model_checks
from pe_lab.core.errors import UsageError
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.models.conv import AttentionConvKeys
from pe_lab.models.encoder_decoder import EncoderLayer
from pe_lab.models.gau import SharedKeyAttention

PLACES = [
    (name, place)
    for name in MODELS
    for place in ("embedding", "qkv")
    if place == "embedding" or isinstance(config(name), AttentionConvKeys)
] + [("transformer", place) for place in ("q", "k", "v", "kv")]
each_place = pytest.mark.parametrize(("name", "place"), PLACES)
POS = sequential()


def keys(name: str, place: str, kernel: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = {"conv": kernel, "conv_at": place}
    return {key: found[key] for key in found.keys() & small(name).keys()}


def convolved(name: str, place: str, kernel: int = 3, pe: str = "none") -> Model:
    return build_model(small(name), facts.section(pe), **keys(name, place, kernel))


def by_hand(x_BTE: Tensor, filter_NE: Tensor) -> Tensor:
    """The sum of the docstring, token by token."""
    n, t = len(filter_NE), x_BTE.shape[1]
    rows = []
    for row in x_BTE:
        out = []
        for i in range(t):
            total = row[i]
            for back in range(min(n, i + 1)):
                total = total + filter_NE[n - 1 - back] * row[i - back]
            out.append(total)
        rows.append(torch.stack(out))
    return torch.stack(rows)


class ByHand(nn.Module):
    """A module whose output is convolved by hand."""

    def __init__(self, inner: nn.Module, filter_NE: Tensor) -> None:
        super().__init__()
        self.inner, self.filter = inner, filter_NE

    def forward(self, *args: Tensor) -> Tensor:
        return by_hand(self.inner(*args), self.filter)


def reference(model: Model, name: str, place: str) -> Model:
    """The model without the key, with the parameters of ``model``, convolved by hand."""
    made = build_model(small(name), fast=False)
    state = model.state_dict()
    filters = {key: nn.Parameter(state.pop(key)) for key in list(state) if key.endswith(".filter")}
    made.load_state_dict(state)
    if place == "embedding":
        (only,) = filters.values()
        made.tokens = ByHand(made.tokens, only)  # type: ignore[assignment]
    for path, module in list(made.named_modules()):
        of = {key.split(".")[-2]: f for key, f in filters.items() if key.startswith(f"{path}.")}
        if place == "qkv" and isinstance(module, EncoderLayer):
            module.attention.q = ByHand(module.attention.q, of["conv_q"])  # type: ignore[assignment]
            module.attention.kv = ByHand(module.attention.kv, of["conv_kv"])  # type: ignore[assignment]
        elif place != "embedding" and isinstance(module, MultiHeadAttention):
            e = module.qkv.in_features
            around = e * "qkv".index(place), e * (3 - len(place) - "qkv".index(place))
            module.qkv = ByHand(module.qkv, F.pad(of["conv"], around))  # type: ignore[assignment]
        elif place == "qkv" and isinstance(module, SharedKeyAttention):
            module.project = partial(heads_by_hand, module.project, of["conv"])  # type: ignore[method-assign]
    made.filters = nn.ParameterList(filters.values())  # type: ignore[assignment]
    return made


def heads_by_hand(
    project: Callable[..., tuple[Tensor, ...]], filter_NE: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    parts = project(*args)
    columns = filter_NE.split([part.shape[-1] for part in parts], -1)
    return tuple(
        by_hand(part.squeeze(1), column)[:, None]
        for part, column in zip(parts, columns, strict=True)
    )


@each_place
def test_states_and_gradients_in_loops(name: str, place: str, float64: None) -> None:
    model = convolved(name, place).eval()
    expected = reference(model, name, place).eval()
    found, wanted = (m(tokens(), POS) for m in (model, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    torch.autograd.backward([loss(found), loss(wanted)])
    grads = [p.grad for key, p in model.named_parameters() if key.endswith(".filter")]
    for mine, theirs in zip(grads, expected.filters, strict=True):  # type: ignore[arg-type]
        assert theirs.grad.abs().min() > 1e-9
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-8, atol=1e-10)
    others = dict(expected.named_parameters())
    for key, mine in model.named_parameters():
        theirs = others.get(key, others.get(key.replace("tokens.", "tokens.inner.")))
        if theirs is not None and mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-10)


OTHERS = ("state_dict round trip", "every key changes something")
CHECKS = [check for check in model_checks(small("gru")) if check not in OTHERS]


@each_place
@pytest.mark.parametrize("check", CHECKS)
def test_what_pe_lab_check_holds(name: str, place: str, check: str, float64: None) -> None:
    """Causality, gradients, scored positions, half precision, the cache and the kernels."""
    model_checks(small(name) | keys(name, place))[check]()


@each_place
@pytest.mark.parametrize("pe", ["none", "learned"])
def test_decoding_from_the_first_token(name: str, place: str, pe: str, float64: None) -> None:
    """A kernel longer than what is decoded first, and than each later piece."""
    model = convolved(name, place, 6, pe)
    whole = model.eval()(tokens(), POS)
    for pieces in [(PLACE + 1,)] if two_parts(name) else [(1,), (3, 2), (PLACE, 7)]:
        torch.testing.assert_close(
            in_pieces(model, tokens(), POS, *pieces), whole, rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("place", ["q", "kv", "qkv", "embedding"])
def test_filters_start_at_zero_and_draw_nothing(place: str) -> None:
    model = planned("model.conv=3", f"model.conv_at={place}").model().state_dict()
    filters = [model.pop(key) for key in list(model) if key.endswith(".filter")]
    assert not torch.cat(filters, -1).any()
    torch.testing.assert_close(model, planned().model().state_dict(), rtol=0, atol=0)


def test_queries_alone_are_convolved_in_the_transformer_alone() -> None:
    for name in ("gau", "linear_attention", "encoder_decoder"):
        with pytest.raises(UsageError, match="conv_at"):
            planned(f"model={name}", "task=copy", "model.conv=3", "model.conv_at=q")
