"""The encoder-decoder transformer: the formula in loops, what it must not see, and its cache."""

import math
import re
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
from pe_lab.common.errors import UsageError
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Vocabulary
from pe_lab.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from pe_lab.models.encoder_decoder_layers import FullAttention
from pe_lab.models.input_output import Parts
from pe_lab.pe.none import NoPE
from pe_lab.training.encodings import build_encodings, refused
from pe_lab.training.generate import generate
from pe_lab.training.plan import build_task

WIDTH, HEADS, LAYERS = 12, 3, 2
pytestmark = pytest.mark.usefixtures("float64")
PLAIN: dict[str, Any] = {
    "n_layers": LAYERS, "n_heads": HEADS, "d_model": WIDTH, "d_ff": 10, "dropout": 0.0,
    "norm": "layernorm", "norm_position": "pre", "activation": "relu", "tied_embeddings": False,
}  # fmt: skip


def section(pe: str) -> dict[str, Any]:
    """Of floater the form that acts in every layer."""
    return facts.section(pe) | ({"blocks": "all"} if pe == "floater" else {})


def config(**changes: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(**{**PLAIN, **changes})


def built(pe: str = "none", fast: bool = True, **changes: Any) -> EncoderDecoder:
    """The model, every parameter moved: what starts at zero or one hides."""
    cfg = config(**changes)
    torch.manual_seed(0)
    encodings = build_encodings(section(pe), cfg.dims(VOCAB, 12, MAX_LEN))
    assert [cfg.refuses(encoding) for encoding in encodings] == [None] * 2 * cfg.n_layers
    model = accelerated(cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings), fast)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


# One vector at a time, from the formula.


def normed(x: Tensor, norm: torch.nn.Module, kind: str) -> Tensor:
    if kind == "rmsnorm":
        return norm.weight * x / ((x**2).mean() + torch.finfo(x.dtype).eps) ** 0.5
    x = x - x.mean()
    return norm.weight * x / ((x**2).mean() + 1e-5) ** 0.5 + norm.bias


def activated(x: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return x.clamp(min=0)
    if activation == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    gate, value = x[: len(x) // 2], x[len(x) // 2 :]
    return gate / (1 + (-gate).exp()) * value


def turned(x: Tensor, position: int) -> Tensor:
    """Neighbours turned by i 10000^(-2m/D)."""
    out = [x[0]] * len(x)
    for m in range(0, len(x), 2):
        angle = position * 10000 ** (-m / len(x))
        out[m] = x[m] * math.cos(angle) - x[m + 1] * math.sin(angle)
        out[m + 1] = x[m] * math.sin(angle) + x[m + 1] * math.cos(angle)
    return torch.stack(out)


SLOPES = [2**-4, 2**-8, 2**-2]


def attended(
    q: list[Tensor],
    k: list[Tensor],
    v: list[Tensor],
    pos: list[int] | None,
    pe: str,
    causal: bool,
) -> list[Tensor]:
    out, d = [], WIDTH // HEADS
    for i, q_i in enumerate(q):
        mixed = []
        for h in range(HEADS):
            own = slice(h * d, (h + 1) * d)
            weights = []
            for j, k_j in enumerate(k[: i + 1] if causal else k):
                a, b = q_i[own], k_j[own]
                if pe == "rope" and pos:
                    a, b = turned(a, pos[i]), turned(b, pos[j])
                logit = a @ b / math.sqrt(d)
                if pe == "alibi" and pos:
                    logit = logit - SLOPES[h] * abs(pos[i] - pos[j])
                weights.append(logit.exp())
            mixed.append(sum(w * v[j][own] for j, w in enumerate(weights)) / sum(weights))
        out.append(torch.cat(mixed))
    return out


class Naive:
    """The states of the output part of one row, (U, E)."""

    def __init__(self, model: EncoderDecoder, cfg: EncoderDecoderConfig, pe: str) -> None:
        self.model, self.cfg, self.pe = model, cfg, pe

    def __call__(self, tokens: list[int], pos: list[int]) -> Tensor:
        n = tokens.index(SEPARATOR)
        read, known = pos[: n + 1], self.embedded(tokens[: n + 1], pos)
        for layer in self.model.encoder:
            known = self.entered(known, layer.encoding, read)
            known = self.attention(known, layer.attended, layer.attention, read, False)
            known = self.fed(known, layer)
        known = self.end(known, self.model.encoded)
        count = [p - pos[n] + pos[0] for p in pos[n:]]
        y = self.embedded(tokens[n:], count)
        for layer in self.model.decoder:
            y = self.entered(y, layer.attention.encoding, count)
            y = self.attention(y, layer.attended, layer.attention, count, True)
            y = self.attention(y, layer.crossed, layer.cross, None, False, known)
            y = self.fed(y, layer)
        return torch.stack(self.end(y, self.model.decoded))

    def embedded(self, tokens: list[int], pos: list[int]) -> list[Tensor]:
        out = []
        for token, position in zip(tokens, pos, strict=False):
            x = self.model.tokens.weight[token]
            if self.cfg.tied_embeddings:
                x = x * math.sqrt(WIDTH)
            if self.pe == "sinusoidal":
                waves = [position / 10000 ** ((e - e % 2) / WIDTH) for e in range(WIDTH)]
                x = x + torch.tensor([(math.sin, math.cos)[e % 2](w) for e, w in enumerate(waves)])
            if self.pe == "learned":
                x = x + self.model.encodings[0].table[position]
            out.append(x)
        return out

    def entered(self, x: list[Tensor], encoding: Any, pos: list[int]) -> list[Tensor]:
        if self.pe != "floater":
            return x
        path = [
            encoding.block_input(torch.zeros(1, 1, WIDTH), torch.tensor([[p]]))[0, 0] for p in pos
        ]
        return [a + b for a, b in zip(x, path, strict=True)]

    def branch(self, x: list[Tensor], residual: Any, make: Any) -> list[Tensor]:
        norm, kind = residual.norm, self.cfg.norm
        if self.cfg.norm_position == "pre":
            made = make([normed(x_i, norm, kind) for x_i in x])
            return [a + b for a, b in zip(x, made, strict=True)]
        return [normed(a + b, norm, kind) for a, b in zip(x, make(x), strict=True)]

    def attention(
        self,
        x: list[Tensor],
        residual: Any,
        own: Any,
        pos: list[int] | None,
        causal: bool,
        known: list[Tensor] | None = None,
    ) -> list[Tensor]:
        if hasattr(own, "qkv"):
            weight, bias = own.qkv.weight, own.qkv.bias
        else:
            weight = torch.cat([own.q.weight, own.kv.weight])
            bias = torch.cat([own.q.bias, own.kv.bias])

        def part(x: list[Tensor], n: int) -> list[Tensor]:
            rows = slice(n * WIDTH, (n + 1) * WIDTH)
            return [weight[rows] @ x_i + bias[rows] for x_i in x]

        def make(x: list[Tensor]) -> list[Tensor]:
            of = x if known is None else known
            mixed = attended(part(x, 0), part(of, 1), part(of, 2), pos, self.pe, causal)
            return [own.out.weight @ m + own.out.bias for m in mixed]

        return self.branch(x, residual, make)

    def fed(self, x: list[Tensor], layer: Any) -> list[Tensor]:
        def make(x: list[Tensor]) -> list[Tensor]:
            up, out = layer.ff.up, layer.ff.out
            hidden = [activated(up.weight @ x_i + up.bias, self.cfg.activation) for x_i in x]
            return [out.weight @ h + out.bias for h in hidden]

        return self.branch(x, layer.fed, make)

    def end(self, x: list[Tensor], norm: Any) -> list[Tensor]:
        if self.cfg.norm_position == "post":
            return x
        return [normed(x_i, norm, self.cfg.norm) for x_i in x]


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("none", {"tied_embeddings": True, "activation": "gelu"}),
    ("sinusoidal", {"norm_position": "post", "n_layers": 1}),
    ("learned", {"norm": "rmsnorm", "activation": "swiglu", "n_layers": 1}),
    ("rope", {"norm": "rmsnorm", "norm_position": "post", "n_layers": 1}),
    ("alibi", {}),
    ("floater", {"n_layers": 1}),
]


@pytest.mark.parametrize(("pe", "changes"), FORMS, ids=[pe for pe, _ in FORMS])
@pytest.mark.parametrize("places", [[3, 1, 3], [2, 2]], ids=["apart", "in line"])
def test_is_the_formula(places: list[int], pe: str, changes: dict[str, Any]) -> None:
    def naive(model: EncoderDecoder) -> Naive:
        return Naive(model, config(**changes), pe)

    assert_is_the_formula(lambda fast: built(pe, fast, **changes), naive, places, 1e-9)


def fitting() -> list[str]:
    """Every encoding in conf/pe that the model takes, as its own sentence lists them."""
    cope = build_encodings(facts.section("cope"), config().dims(VOCAB, 12, MAX_LEN))[0]
    told = refused(config(), cope)
    assert told is not None
    return told.partition("(")[2].rstrip(")").split(", ")


def whole(pe: str) -> bool:
    encodings = build_encodings(facts.section(pe), config().dims(VOCAB, 12, MAX_LEN))
    return any(encoding.whole_sequence for encoding in encodings)


@pytest.mark.parametrize("pe", fitting())
def test_nothing_is_seen_ahead(pe: str) -> None:
    assert_sees_nothing_ahead(built(pe))


def test_the_encoder_sees_what_comes_later() -> None:
    layer, (_, pos) = built("rope").encoder[0], sequences([5], 6)
    x = torch.randn(1, 6, WIDTH)
    changed = x.clone()
    changed[:, 4] = torch.randn(WIDTH)
    first, second = (layer(given, pos, None, None) for given in (x, changed))
    assert not torch.isclose(first[:, 0], second[:, 0]).any()


@pytest.mark.parametrize("pe", fitting())
def test_a_cache_changes_nothing(pe: str) -> None:
    model = built(pe)
    if whole(pe):
        with pytest.raises(ValueError, match="cannot serve"):
            model.empty_cache()
        return
    assert_cache_changes_nothing(model)


def test_writes_what_it_would_read() -> None:
    """Token by token, a second separator among them too: the first one counts."""
    model = built("sinusoidal")
    with torch.no_grad():
        model.head.weight[SEPARATOR] *= 5
    tokens, _ = sequences([4] * 16, 5)
    answers = generate(model, tokens, torch.arange(12)[None], 8)
    assert (answers == SEPARATOR).any()
    assert len(answers.unique()) > 2
    read = torch.cat([tokens, answers[:, :-1]], 1)
    likeliest = model.unembed(model(read, torch.arange(12)[None])[:, 4:]).argmax(-1)
    assert torch.equal(likeliest, answers)


@pytest.mark.parametrize(("pe", "dropout"), [("rope", 0.0), ("rope", 0.4), ("dynamic_ntk", 0.0)])
def test_wanted_places(pe: str, dropout: float) -> None:
    assert_wanted_places_are_those_of_all(built(pe, dropout=dropout))


def test_dropout_follows_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = built("rope", dropout=0.3), built("rope", fast=False, dropout=0.3)
    assert_dropout_follows_its_key(model, plain, built("rope"))
    # Both inputs, three places in each layer of the encoder and five in each of the decoder, none
    # with the mask of another.
    keys: list[Any] = []
    kept = Drop.kept_of
    monkeypatch.setattr(Drop, "kept_of", lambda d, *given: keys.append(d.key) or kept(d, *given))
    plain(*sequences([4, 2, 3], 9), key=5)
    assert len(keys) == len(set(keys)) == 2 + 8 * LAYERS


def test_the_place_where_it_begins_changes_nothing() -> None:
    model = built("rope")
    tokens, pos = sequences([4, 2, 3], 9)
    torch.testing.assert_close(model(tokens, pos + 7), model(tokens, pos), rtol=1e-9, atol=1e-9)
    model = built("sinusoidal")
    assert not torch.allclose(model(tokens, pos + 7), model(tokens, pos))


def test_parts_of_rows_with_separators_apart() -> None:
    s, pos = SEPARATOR, torch.tensor([[2, 3, 5, 9, 11, 12], [0, 4, 5, 6, 7, 20]])
    tokens = torch.tensor([[1, s, 2, 3, s, 4], [1, 2, 3, s, 5, 6]])
    parts = Parts.of(tokens, pos, s)
    assert parts.input_BP.tolist() == [[1, s, s, s], [1, 2, 3, s]]
    assert parts.pos_input_BP.tolist() == [[2, 3, 3, 3], [0, 4, 5, 6]]
    assert parts.seen_BP is not None
    assert parts.seen_BP.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert parts.output_BU.tolist() == [[s, 2, 3, s, 4], [s, 5, 6, 6, 6]]
    assert parts.pos_output_BU.tolist() == [[2, 4, 8, 10, 11], [0, 1, 14, 14, 14]]


def test_sequences_that_it_cannot_read() -> None:
    assert_refuses_what_it_cannot_read(built())


REFUSED = {
    "all": (("task.loss_on=all",), ["task=copy", "task.loss_on=scored"]),
    "heads": (("model.n_heads=3",), ["d_model=16", "n_heads=3"]),
    "window": (("+model.window=3",), ["model.window"]),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(here: Here, words: tuple[str, ...], told: list[str]) -> None:
    outcome = here(*tiny("model=encoder_decoder", "task=copy", *words))
    assert outcome.status == 2, outcome.out
    assert len(outcome.err.strip().splitlines()) == 1
    for word in told:
        assert word in outcome.err


def test_tasks_without_two_parts_are_refused() -> None:
    def told(name: str) -> str | None:
        return config().refuses_task(build_task({**facts.section(name, "task"), "splits": {}}))

    refused = told("flipflop")
    assert refused is not None
    (listed,) = re.findall(r"\((.*)\)", refused)
    assert {"copy", "reverse", "selective_copy"} <= {*listed.split(", ")}
    for name in ("brackets", "counting", "flipflop"):
        assert name not in listed
        assert told(name) == refused
    for name in listed.split(", "):
        assert told(name) is None


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights(tied: bool) -> None:
    cfg = config(d_model=48, d_ff=64, tied_embeddings=tied)
    torch.manual_seed(0)
    encodings = [NoPE(cfg.dims(VOCAB, 12, MAX_LEN)) for _ in range(2 * LAYERS)]
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings)

    def starts(linear: Any, branches: int) -> None:
        bound = (linear.in_features * branches) ** -0.5
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()

    for layers, branches in ((model.readers, 2), (model.writers, 3)):
        for layer in layers:
            attending = [
                m for m in layer.modules() if isinstance(m, FullAttention | MultiHeadAttention)
            ]
            assert len(attending) == branches - 1
            for branch in (*attending, layer.ff):
                for name, linear in branch.named_children():
                    if isinstance(linear, torch.nn.Linear):
                        starts(linear, branches * LAYERS if name == "out" else 1)
    assert model.tokens.weight.std().item() == pytest.approx(48**-0.5 if tied else 1, rel=0.1)
    assert (model.head.weight is model.tokens.weight) == tied
    assert tied or model.head.weight.abs().max() <= 48**-0.5


def test_which_encodings_fit() -> None:
    def takes(name: str, **changes: Any) -> bool:
        section = {**facts.section(name), **changes}
        made = build_encodings(section, config().dims(VOCAB, 12, MAX_LEN))
        return all(config().refuses(encoding) is None for encoding in made)

    def takes_together(*parts: Any) -> bool:
        return takes("combined", parts=facts.parts(*parts))

    assert takes("rope")
    assert takes("floater", blocks="all")
    for name in ("xpos", "selective_rope", "tupe", "t5", "fire", "hfwa", "tape", "fox", "shaw"):
        assert not takes(name)
    for name in ("rope", "yarn", "dynamic_ntk"):
        assert not takes(name, logn="test")
    narrow = NoPE(config().dims(VOCAB, 12, MAX_LEN))
    assert config().refuses(narrow) is None
    narrow.window = 3
    assert config().refuses(narrow) is not None
    assert takes_together("learned", "rope")
    assert takes_together({"pe": "rope", "layers": [0, 1]}, {"pe": "alibi", "layers": [2, 3]})
    assert not takes_together("rope", "t5")
    assert not takes_together("learned", {"pe": "cope", "layers": [3]})
    with pytest.raises(UsageError):
        takes_together({"pe": "rope", "layers": [4]})


def test_a_run_that_writes_its_answers(here: Here) -> None:
    words = tiny("model=encoder_decoder", "task=reverse", "pe=rope", "eval.generate=true")
    outcome = here(*words, "task.max_letters=4", "model.dropout=0.1", "train.precision=bfloat16")
    assert outcome.status == 0, outcome.err
    metrics = summary(the_run(Path("runs")))["metrics"]
    assert 0 < metrics["ood/long_x2/error_generated"] <= 1
