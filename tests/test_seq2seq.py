"""GRUs that write with attention: the formula in loops, what they must not see, and the cache."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fast import accelerated
from input_output import (
    MAX_LEN,
    SEPARATOR,
    VOCAB,
    assert_cache_changes_nothing,
    assert_dropout_follows_its_key,
    assert_is_the_formula,
    assert_refuses_what_it_cannot_read,
    assert_sees_nothing_ahead,
    assert_wanted_places_are_those_of_all,
    sequences,
)
from program import Here, summary, the_run, tiny
from torch import Tensor

from docs import facts
from pe_lab.common.dropout import Drop
from pe_lab.models.base import Vocabulary
from pe_lab.models.seq2seq import Seq2Seq, Seq2SeqConfig
from pe_lab.training.encodings import build_encodings
from pe_lab.training.generate import generate

WIDTH = 6
pytestmark = pytest.mark.usefixtures("float64")
AT_INPUT = (
    "binary", "complex_order", "conv", "floater", "hierarchical", "integer", "learned",
    "multiplicative", "none", "normalized", "recurrent", "sinusoidal",
)  # fmt: skip


def config(**changes: Any) -> Seq2SeqConfig:
    return Seq2SeqConfig(**{"n_layers": 1, "d_model": WIDTH, "dropout": 0.0, **changes})


def built(pe: str = "none", fast: bool = True, **changes: Any) -> Seq2Seq:
    cfg = config(**changes)
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(pe), cfg.dims(VOCAB, 12, MAX_LEN))
    assert cfg.refuses(encodings[0]) is None
    model = accelerated(cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings), fast)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return model


# One vector at a time, from the formula.


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def gru(x: Tensor, h: Tensor, weights: list[Tensor]) -> Tensor:
    w, u, b, c = weights
    e = len(h)
    r = sigmoid(w[:e] @ x + b[:e] + u[:e] @ h + c[:e])
    z = sigmoid(w[e : 2 * e] @ x + b[e : 2 * e] + u[e : 2 * e] @ h + c[e : 2 * e])
    n = (w[2 * e :] @ x + b[2 * e :] + r * (u[2 * e :] @ h + c[2 * e :])).tanh()
    return (1 - z) * n + z * h


KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def naive(model: Seq2Seq, tokens: list[int], pos: list[int]) -> Tensor:
    """The states of the output part of one row, (U, E)."""
    place = tokens.index(SEPARATOR)
    h = embedded(model, tokens[: place + 1], pos)
    for reader in model.readers:
        ways = []
        for suffix, order in (("_l0", 1), ("_l0_reverse", -1)):
            state, states = torch.zeros(WIDTH), []
            for x in h[::order]:
                state = gru(x, state, [getattr(reader.cells, kind + suffix) for kind in KINDS])
                states.append(state)
            ways.append(states[::order])
        h = [torch.cat(both) for both in zip(*ways, strict=True)]
    begin = (model.start.weight @ h[0][WIDTH:]).tanh()
    s = [begin[n * WIDTH : (n + 1) * WIDTH] for n in range(len(model.writers))]
    out = []
    for y in embedded(model, tokens[place:], [p - pos[place] + pos[0] for p in pos[place:]]):
        e = [
            model.scored.weight[0]
            @ (model.asking.weight @ s[-1] + model.compared.weight @ h_j).tanh()
            for h_j in h
        ]
        total = sum(e_j.exp() for e_j in e)
        c = sum(e_j.exp() / total * h_j for e_j, h_j in zip(e, h, strict=True))
        x = torch.cat([y, c])
        for n, writer in enumerate(model.writers):
            x = s[n] = gru(x, s[n], [getattr(writer.cell, kind) for kind in KINDS])
        t = model.read_out.weight @ torch.cat([s[-1], y, c]) + model.read_out.bias
        out.append(torch.stack([max(t[2 * m], t[2 * m + 1]) for m in range(WIDTH)]))
    return torch.stack(out)


def embedded(model: Seq2Seq, tokens: list[int], pos: list[int]) -> list[Tensor]:
    table = getattr(model.encoding, "table", torch.zeros(MAX_LEN, WIDTH))
    return [model.tokens.weight[t] + table[p] for t, p in zip(tokens, pos, strict=False)]


@pytest.mark.parametrize(("pe", "n_layers"), [("none", 1), ("learned", 2)])
@pytest.mark.parametrize("places", [[3, 1, 3], [2, 2], [0, 1]], ids=["apart", "in line", "empty"])
def test_is_the_formula(places: list[int], pe: str, n_layers: int) -> None:
    assert_is_the_formula(
        lambda fast: built(pe, fast, n_layers=n_layers),
        lambda model: partial(naive, model),
        places,
        1e-10,
    )


@pytest.mark.parametrize("pe", AT_INPUT)
def test_nothing_is_seen_ahead(pe: str) -> None:
    assert_sees_nothing_ahead(built(pe))


@pytest.mark.parametrize("pe", AT_INPUT)
def test_a_cache_changes_nothing(pe: str) -> None:
    assert_cache_changes_nothing(built(pe, n_layers=2))


def test_writes_what_it_would_read() -> None:
    model, (tokens, _) = built(), sequences([4] * 8, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    answers = generate(model, tokens, torch.arange(10)[None], 6)
    assert len(answers.unique()) > 2
    read = torch.cat([tokens, answers[:, :-1]], 1)
    likeliest = model.unembed(model(read, torch.arange(10)[None])[:, 4:]).argmax(-1)
    assert torch.equal(likeliest, answers)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_wanted_places(dropout: float) -> None:
    assert_wanted_places_are_those_of_all(built(n_layers=2, dropout=dropout))


def test_dropout_follows_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = (built(fast=fast, n_layers=2, dropout=0.3) for fast in (True, False))
    assert_dropout_follows_its_key(model, plain, built(n_layers=2))
    # The inputs of each layer and what is written; between the layers that write for every token.
    masks: list[Tensor] = []
    keys: list[Any] = []
    kept = Drop.kept

    def recorded(drop: Drop, *given: Tensor) -> Tensor:
        keys.append(drop.key)
        masks.append(kept(drop, *given))
        return masks[-1]

    monkeypatch.setattr(Drop, "kept", recorded)
    plain(*sequences([4, 2, 3], 9), key=5)
    assert len(masks) == 2 + 1 + 7 + 1
    assert len(set(keys)) == 2 + 1 + 1 + 1
    shown = {bytes(mask.numpy()) for mask in masks}
    assert len(shown) == len(masks)


def test_sequences_that_it_cannot_read() -> None:
    assert_refuses_what_it_cannot_read(built())


def small(*words: str) -> list[str]:
    """A run of a second; there are no heads."""
    given = tiny("model=seq2seq", "task=copy", "task.max_letters=4", *words)
    return [word for word in given if not word.startswith("model.n_heads")]


def test_an_encoding_inside_layers_is_refused(here: Here) -> None:
    outcome = here(*small("pe=floater", "pe.blocks=all"))
    assert outcome.status == 2
    assert len(outcome.err.strip().splitlines()) == 1
    assert "pe=floater acts inside" in outcome.err
    assert f"({', '.join(AT_INPUT)})" in outcome.err


def test_a_run_that_writes_its_answers(here: Here) -> None:
    words = small("eval.generate=true", "model.dropout=0.1")
    outcome = here(*words, "train.precision=bfloat16")
    assert outcome.status == 0, outcome.err
    metrics = summary(the_run(Path("runs")))["metrics"]
    assert 0 < metrics["ood/long_x2/error_generated"] <= 1
