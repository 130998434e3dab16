"""``model.logn=learned``: logits times s_h log n, for every encoding (scalable softmax)."""

import math
from typing import Any

import pytest
import torch
from fast import accelerated, plain
from program import Here, assert_refused, tiny

from docs import facts
from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain as as_mapping
from pe_lab.evaluation.contract import tiny as tiny_models
from pe_lab.evaluation.contract.equal_paths import cache_gap
from pe_lab.models.base import Vocabulary
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import AttentionInputs
from pe_lab.store.run_id import identity
from pe_lab.training.plan import build_encodings

pytestmark = pytest.mark.usefixtures("float64")
KEYS: dict[str, Any] = {
    "n_layers": 2, "d_model": 16, "n_heads": 2, "d_ff": 16, "activation": "gelu", "dropout": 0.2,
    "norm": "layernorm", "norm_position": "pre", "tied_embeddings": False, "logn": "learned",
}  # fmt: skip
TOKENS, POS = torch.arange(22).view(2, 11) % 7, torch.arange(11)[None]
NAMES = ["none", "rope", "pope", "alibi", "t5", "cope", "fox", "shaw", "learned"]


def built(pe: str, **changes: Any) -> Transformer:
    cfg = TransformerConfig(**{**KEYS, **changes})
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(pe), cfg.dims(7, 11, 11))
    model = accelerated(cfg.build(Vocabulary(7), encodings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pe", ["none", "rope", "alibi", "cope"])
def test_weights_in_loops(pe: str, window: int | None) -> None:
    """The logits without the factor, scaled number by number, in a softmax by hand."""
    attention: Any = plain(built(pe, window=window)).layers[0].attention
    x = torch.randn(2, 11, 16)
    inputs: AttentionInputs = attention.inputs(x, POS, None)
    q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    _, weights = attention.weights(q, k, inputs)
    s, attention.logn = attention.logn.detach(), None
    logits, _ = attention.weights(q, k, inputs)
    for b, h, i in [(0, 0, 0), (1, 1, 3), (0, 1, 10), (1, 0, 7)]:
        first = 0 if window is None else max(0, i + 1 - window)
        n = i + 1 - first
        exps = [
            math.exp(float(s[h]) * math.log(n) * float(logits[b, h, i, j].detach()))
            for j in range(first, i + 1)
        ]
        expected = torch.tensor([e / sum(exps) for e in exps])
        torch.testing.assert_close(weights[b, h, i, first : i + 1], expected)
        assert not weights[b, h, i, :first].any()


@pytest.mark.parametrize("pe", NAMES)
def test_fast_equals_plain_and_cached_equals_whole(pe: str) -> None:
    model = built(pe)
    tiny_models.fast_equals_plain(model, plain(model), TOKENS, [POS], loose=10)
    for layer in model.layers:
        (gradient,) = torch.autograd.grad(
            tiny_models.loss(model(TOKENS, POS)), [layer.attention.logn]
        )
        assert gradient.abs().min() > 1e-8
    cache_gap(model, TOKENS, POS, 5, 1, 5)


def test_runs_made_before_keep_their_identity() -> None:
    (job,) = checked_jobs(tiny("pe=rope"))
    now = as_mapping(job)
    before = {**now, "model": {k: v for k, v in now["model"].items() if k != "logn"}}
    (learned,) = checked_jobs(tiny("pe=rope", "model.logn=learned"))
    assert identity(now) == identity(before) != identity(as_mapping(learned))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("pe=stick_breaking",), ["pe=stick_breaking replaces softmax", "model.logn=null", "rope"]),
        (("pe=rope", "pe.logn=train"), ["pe=rope with logn=train scales logits", "pe.logn=none"]),
        (("model=gau", "model.attention=relu2", "pe=none"), ["attention=relu2", "logn=null"]),
        (("model=linear_attention", "pe=none"), ["model.logn"]),
    ],
)
def test_refused(here: Here, words: tuple[str, ...], parts: list[str]) -> None:
    changed = [word for word in tiny(*words, "model.logn=learned") if "n_heads" not in word]
    if words[0] == "model=linear_attention":
        changed = [word.replace("model.logn", "+model.logn") for word in changed]
    assert_refused(here(*changed), *parts)
