"""Mixers against code by others, with the same weights, in value and gradient: transformers 5.24,
of the extra hf, and fla-core 0.6 where it is installed."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from docs import facts
from pe_lab.check.base import model_config
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.mixers import LOWER_BOUND, MIXERS, MixerKeys, scan
from pe_lab.train.encodings import build_encodings

E, HEADS, LENGTH = 16, 2, 37


def ours(name: str, **keys: Any) -> Any:
    torch.manual_seed(0)
    mixer = MIXERS[name](E, HEADS, MixerKeys(**keys))
    with torch.no_grad():
        for p in mixer.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return mixer


def assert_equal(one: Any, other: Any) -> None:
    """Outputs, and the gradients by the input."""
    x = torch.randn(2, LENGTH, E, requires_grad=True)
    outs = [one.mix(x, None), other(x)]
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(outs[0])
    grads = [torch.autograd.grad(out, x, direction)[0] for out in outs]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def load(module: nn.Module, **weights: Tensor) -> None:
    """Its parameters, each with the weights named, a dot written as two underscores."""
    named = {name.replace("__", "."): tensor.detach() for name, tensor in weights.items()}
    module.load_state_dict(named)


def test_gated_deltanet_as_qwen3_next() -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    mine = ours("gated_deltanet")
    config = qwen.Qwen3NextConfig(
        hidden_size=E, linear_num_key_heads=HEADS, linear_num_value_heads=HEADS, rms_norm_eps=1e-5,
        linear_key_head_dim=mine.d, linear_value_head_dim=mine.w, layer_types=["linear_attention"],
        num_hidden_layers=1,
    )  # fmt: skip
    theirs = qwen.Qwen3NextGatedDeltaNet(config, 0)
    # Theirs are grouped by head: its query, key, value and gate, and its beta and decay.
    heads = [part.chunk(HEADS) for part in (*mine.qkv.weight.split(mine.widths), mine.gate.weight)]
    load(
        theirs,
        in_proj_qkvz__weight=torch.cat(
            [part for head in zip(*heads, strict=True) for part in head]
        ),
        in_proj_ba__weight=mine.beta_decay.weight.unflatten(0, (2, HEADS))
        .transpose(0, 1)
        .flatten(0, 1),
        conv1d__weight=mine.conv.taps.T[:, None],
        dt_bias=mine.decay.dt_bias,
        A_log=mine.decay.a_log,
        norm__weight=mine.norm.weight,
        out_proj__weight=mine.out.weight,
    )
    assert_equal(mine, theirs)


@pytest.mark.parametrize("name", ["mamba2", "nemotron_h"])
def test_mamba2_as_transformers(name: str) -> None:
    theirs = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    mine = ours("mamba2", state_width=6)
    width, shared = 2 * E // mine.n_heads, {"n_groups": 1, "chunk_size": 8, "hidden_size": E}
    if name == "mamba2":
        config = theirs.Mamba2Config(
            **shared, num_heads=mine.n_heads, head_dim=width, state_size=6, num_hidden_layers=1
        )
        theirs = theirs.Mamba2Mixer(config, 0)
    else:
        config = theirs.NemotronHConfig(
            **shared, mamba_num_heads=mine.n_heads, mamba_head_dim=width, ssm_state_size=6
        )
        theirs = theirs.NemotronHMamba2Mixer(config, 0)
        theirs.time_step_limit = (0.0, torch.inf)  # where it is not 0, dt is at least 0.001
    load(
        theirs,
        in_proj__weight=torch.cat((mine.gate.weight, mine.xbc.weight, mine.dt.weight)),
        conv1d__weight=mine.conv.taps.T[:, None],
        conv1d__bias=mine.conv.bias,
        dt_bias=mine.decay.dt_bias,
        A_log=mine.decay.a_log,
        D=mine.skip,
        norm__weight=mine.norm.weight,
        out_proj__weight=mine.out.weight,
    )
    assert_equal(mine, theirs)


def test_conv_as_lfm2() -> None:
    lfm2 = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    mine = ours("conv", short_conv=3)
    config = lfm2.Lfm2Config(
        hidden_size=E, conv_L_cache=3, conv_bias=False, num_hidden_layers=1, layer_types=["conv"]
    )
    theirs = lfm2.Lfm2ShortConv(config, 0)
    load(
        theirs,
        in_proj__weight=mine.bcu.weight,
        conv__weight=mine.taps.T[:, None],
        out_proj__weight=mine.out.weight,
    )
    assert_equal(mine, theirs)


def of_fla(file: str, name: str) -> Any:
    """A function of fla's plain code, in float64. Its package needs a GPU's compiler."""
    spec = find_spec("fla")
    if spec is None or spec.origin is None:
        pytest.skip("fla-core is not installed")
    text = (
        (Path(spec.origin).parent / file)
        .read_text("utf-8")
        .replace("torch.float)", "q.dtype)")
        .replace(".float()", "")
        .replace("torch.float32", "torch.float64")
    )
    (function,) = [n for n in ast.parse(text).body if getattr(n, "name", "") == name]
    names: dict[str, Any] = {"torch": torch, "F": nn.functional}
    exec(compile(ast.Module([function], []), file, "exec"), names)
    return names[name]


def test_kda_as_fla(float64: None) -> None:
    """The recurrence, and the decay with its lower bound."""
    recurrence = of_fla("ops/kda/naive.py", "naive_recurrent_kda")
    bounded = of_fla("ops/kda/gate.py", "naive_kda_lowerbound_gate")
    q, k, g = torch.randn(3, 2, LENGTH, HEADS, 5)
    v, a_log, bias = torch.randn(2, LENGTH, HEADS, 7), torch.randn(HEADS), torch.randn(HEADS * 5)
    beta, leaves = torch.rand(2, LENGTH, HEADS), [q, k, v, g, a_log, bias]
    for leaf in leaves:
        leaf.requires_grad_()
    decay = bounded(g, a_log, bias, LOWER_BOUND, torch.float64)
    rate = (g + bias.view(HEADS, 5)).transpose(1, 2)
    log_decay = LOWER_BOUND * (a_log.exp()[:, None, None] * rate).sigmoid()
    heads = [part.transpose(1, 2) for part in (q * 5**-0.5, k, v)]
    mine = scan(*heads, log_decay, beta.transpose(1, 2)).transpose(1, 2)
    outs = [mine, recurrence(q, k, v, decay, beta)[0]]
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(mine)
    grads = [torch.autograd.grad(out, leaves, direction, retain_graph=True) for out in outs]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


def test_kda_as_glm5_next() -> None:
    """The whole layer, whose decay is bounded as Kimi K3's. Its output gate has the rank of a head;
    that of Kimi Linear in transformers has no bound."""
    glm = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
    mine = ours("kda")
    config = glm.Glm5NextTextConfig(
        hidden_size=E, linear_num_heads=HEADS, linear_head_dim=mine.d, rms_norm_eps=1e-5,
        linear_lower_bound=LOWER_BOUND, num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    theirs = glm.Glm5NextTextLinearAttention(config, 0)
    factors = torch.randn(mine.w, E) * 0.5, torch.randn(E, mine.w) * 0.5
    with torch.no_grad():
        mine.gate.weight.copy_(factors[1] @ factors[0])
    q, k, v = mine.qkv.weight.split(mine.widths)
    load(
        theirs,
        q_proj__weight=q,
        k_proj__weight=k,
        v_proj__weight=v,
        conv1d__weight=mine.conv.taps.T[:, None],
        forget_gate__f_a_proj__weight=mine.decay[0].weight,
        forget_gate__f_b_proj__weight=mine.decay[1].weight,
        forget_gate__dt_bias=mine.dt_bias,
        forget_gate__A_log=mine.a_log,
        b_proj__weight=mine.beta.weight,
        g_a_proj__weight=factors[0],
        g_b_proj__weight=factors[1],
        o_norm__weight=mine.norm.weight,
        o_proj__weight=mine.out.weight,
    )
    assert_equal(mine, theirs)


def test_attention_as_qwen3_next() -> None:
    """A gate of the output, normalised queries and keys, and a quarter of each head rotated."""
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    keys = {"n_layers": 1, "d_model": 32, "n_heads": 2, "output_gate": True, "qk_norm": True}
    cfg: Any = model_config(facts.section("transformer", "model"), **keys)
    rope = {**facts.section("rope"), "pairing": "half", "fraction": 0.25}
    mine = MultiHeadAttention(cfg, build_encodings(rope, cfg.dims(5, LENGTH, LENGTH))[0])
    with torch.no_grad():
        for p in mine.parameters():
            p.add_(torch.randn_like(p) * 0.3)
        mine.qkv.bias.zero_()
        mine.out.bias.zero_()
    config = qwen.Qwen3NextConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        attn_implementation="eager", num_hidden_layers=1, layer_types=["full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    theirs, angles = qwen.Qwen3NextAttention(config, 0), qwen.Qwen3NextRotaryEmbedding(config)
    # Ours pairs features m and m + 8 of a head, theirs m and m + 2 of its first four.
    order = [0, 1, 8, 9, *range(2, 8), *range(10, 16)]
    q, k, v = (part.unflatten(0, (2, 16)) for part in mine.qkv.weight.chunk(3))
    assert mine.gate is not None
    assert mine.norms is not None
    gated = torch.cat((q[:, order], mine.gate.weight.unflatten(0, (2, 16))), 1)
    load(
        theirs,
        q_proj__weight=gated.flatten(0, 1),
        k_proj__weight=k[:, order].flatten(0, 1),
        v_proj__weight=v.flatten(0, 1),
        o_proj__weight=mine.out.weight,
        q_norm__weight=mine.norms[0].weight[order] - 1,
        k_norm__weight=mine.norms[1].weight[order] - 1,
    )
    x, pos = torch.randn(2, LENGTH, 32, requires_grad=True), torch.arange(LENGTH)[None]
    mask = torch.full((1, 1, LENGTH, LENGTH), -torch.inf).triu(1)
    outs = [mine(x, pos)[0], theirs(x, angles(x, pos), mask)[0]]
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(out.sin().sum(), x)[0] for out in outs]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
