"""What a trace tells is what the model did, and CoPE's gates and positions are the formula's."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from variants import SECTIONS, VARIANTS, Section, model, sequential, tokens

from pe_lab.check.base import parts
from pe_lab.explain.hook import Intervention, apply_intervention
from pe_lab.explain.inspect import layer_maps
from pe_lab.models.transformer import Transformer
from pe_lab.pe.base import AttentionInputs

NO_SOFTMAX = {"stick_breaking", "tra"}
CAUSAL = torch.ones(12, 12, dtype=torch.bool).tril()


def look(built: Transformer, sequences: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
    traces: list[dict[str, Tensor]] = []

    def read(*layer: Any) -> None:
        traces.append(layer_maps(*layer))

    with torch.inference_mode(), apply_intervention(built, Intervention(), read):
        return built(sequences, sequential(sequences.shape[1])), traces


@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_as_traced_gives_what_the_model_gave(variant: str) -> None:
    built, sequences = model(VARIANTS[variant], fast=False).eval(), tokens(2, 12)
    seen: list[tuple[Any, AttentionInputs, Tensor]] = []

    def note(attention: Any, given: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        seen.append((attention, attention.inputs(*given[:3]), output[0]))

    for block in built.blocks:
        block.attention.register_forward_hook(note)
    with torch.inference_mode():
        plain = built(sequences, sequential(12))
        seen.clear()
    hidden, traces = look(built, sequences)
    assert torch.equal(hidden, plain)
    assert len(traces) == len(seen) == 3
    for trace, (attention, inputs, output) in zip(traces, seen, strict=True):
        pe = attention.encoding
        weights = trace["attention"]
        added = pe.values(weights, inputs)
        mixed = weights @ inputs.v_BHSD + (0 if added is None else added)
        told = attention.out(mixed.transpose(1, 2).flatten(-2))
        torch.testing.assert_close(told, output, rtol=1e-10, atol=1e-10)
        q, k = inputs.q_BHTD, inputs.k_BHSD
        content = (q @ k.mT / math.sqrt(q.shape[-1])).where(inputs.mask_TS, 0)
        again = attention.normalize(content + trace["position score"], inputs)
        torch.testing.assert_close(again, weights, rtol=1e-10, atol=1e-10)
        if variant.partition("-")[0] not in NO_SOFTMAX:
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12))
        for values in trace.values():
            assert values.shape == (2, 2, 12, 12)
            assert bool((values.masked_fill(CAUSAL, 0) == 0).all())


COPES: dict[str, Section] = {
    **{name: VARIANTS[name] for name in ("cope-gates=sep_keys", "cope-gates=values")},
    "npos=3": {**SECTIONS["cope"], "npos": 3},
    "with rope": {**SECTIONS["combined"], "parts": parts("cope", "rope")},
    "before alibi": {**SECTIONS["combined"], "parts": parts("alibi", {"pe": "cope", "npos": 5})},
    "on one layer": {
        **SECTIONS["combined"],
        "parts": parts("rope", {"pe": "cope", "layers": [1], "gates": "sep_keys"}),
    },
}


@pytest.mark.parametrize("name", COPES)
def test_gates_and_positions_of_cope(name: str) -> None:
    """Positions are sums of gates from j to i, at most npos - 1; gates are those of q and k before
    any rotation."""
    built = model(COPES[name], fast=False).eval().requires_grad_(False)
    scenes: list[AttentionInputs] = []
    for block in built.blocks:
        block.attention.register_forward_hook(
            lambda attention, given, _: scenes.append(attention.inputs(*given[:3]))
        )
    _, traces = look(built, tokens(1, 12))
    for encoding, trace, inputs in zip(built.encodings, traces, scenes, strict=True):
        cope = next((m for m in encoding.modules() if getattr(m, "counts", False)), None)
        assert (cope is None) == (set(trace) == {"attention", "position score"})
        if cope is not None:
            keys = {"values": inputs.v_BHSD}.get(cope.gates, inputs.k_BHSD)
            if cope.gates == "sep_keys":
                keys = cope.gate_key(inputs.x_BSE).unflatten(-1, (2, 8)).transpose(1, 2)
            gates = (inputs.q_BHTD @ keys.mT / math.sqrt(8)).sigmoid().where(CAUSAL, 0)
            torch.testing.assert_close(trace["gate"], gates)
            sums = torch.stack([gates[..., j:].sum(-1) for j in range(12)], -1).where(CAUSAL, 0)
            most = float(cope.npos - 1)
            torch.testing.assert_close(trace["position"], sums.clamp(max=most))
    assert sum("gate" in trace for trace in traces) == (1 if name == "on one layer" else 3)
