"""GRUs with attention as loops over vectors, and models of them for the tests."""

from typing import Any

import torch
from fast import accelerated
from formulas import gru
from input_output import MAX_LEN, SEPARATOR, VOCAB
from torch import Tensor

from docs import facts
from pe_lab.models.config import Vocabulary
from pe_lab.models.seq2seq import Seq2Seq, Seq2SeqConfig
from pe_lab.train.encodings import build_encodings

WIDTH = 6


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


def step(x: Tensor, h: Tensor, cells: Any, suffix: str = "") -> Tensor:
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, b, c = (getattr(cells, kind + suffix) for kind in kinds)
    return gru(w @ x + b, u @ h + c, h)


def naive(model: Seq2Seq, tokens: list[int], pos: list[int]) -> Tensor:
    """The states of the output part of one row, (U, E)."""
    place = tokens.index(SEPARATOR)
    h = embedded(model, tokens[: place + 1], pos)
    for reader in model.readers:
        ways = []
        for suffix, order in (("_l0", 1), ("_l0_reverse", -1)):
            state, states = torch.zeros(WIDTH), []
            for x in h[::order]:
                state = step(x, state, reader.cells, suffix)
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
            x = s[n] = step(x, s[n], writer.cell)
        t = model.read_out.weight @ torch.cat([s[-1], y, c]) + model.read_out.bias
        out.append(torch.stack([max(t[2 * m], t[2 * m + 1]) for m in range(WIDTH)]))
    return torch.stack(out)


def embedded(model: Seq2Seq, tokens: list[int], pos: list[int]) -> list[Tensor]:
    table = getattr(model.encoding, "table", torch.zeros(MAX_LEN, WIDTH))
    return [model.tokens.weight[t] + table[p] for t, p in zip(tokens, pos, strict=False)]
