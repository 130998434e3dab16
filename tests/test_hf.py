"""``pe_lab.hf``: encodings in models of transformers, on random tiny ones."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from program import ENCODINGS, ROOT
from torch import Tensor

from docs import facts
from pe_lab.core.errors import UsageError
from pe_lab.models.transformer import Transformer, TransformerConfig

transformers = pytest.importorskip("transformers", reason="of the extra `hf`")

from pe_lab import hf  # noqa: E402

LENGTH = 14
SIZES: dict[str, Any] = {
    "vocab_size": facts.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # Ten times theirs: what an encoding adds would vanish beside tiny weights.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 5},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 8, "attn_logit_softcapping": None, "sliding_window": 5},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 7},
}

CACHED = [
    "none",
    "learned",
    "rope",
    "alibi",
    "t5",
    "fire",
    "cope",
    "fox",
    "path",
    "combined",
    "tape",
    "shaw",
    "conv",
    "yarn",
]
"""One encoding of each kind; the others are among the extended tests."""


def plain(family: str = "llama", **changes: Any) -> Any:
    """A random model of transformers, its keys in groups of two heads where it can."""
    torch.manual_seed(0)
    keys = {**SIZES, "num_key_value_heads": 2, **OF_FAMILY.get(family, {}), **changes}
    if family == "gpt2":
        keys.pop("num_key_value_heads")
    config = transformers.AutoConfig.for_model(family, **keys)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def encoded(pe: str, family: str = "llama", **changes: Any) -> Any:
    """The same with an encoding, moved from its start."""
    keys = changes.pop("keys", {})
    model = hf.attach(plain(family, **changes), pe, train_len=16, max_len=24, **keys)
    with torch.no_grad():
        facts.add_noise(encodings(model))
    return model


def layers(model: Any) -> list[Any]:
    base = model.base_model
    return [hf.bridge.attention_of(layer).pe_lab for layer in hf.bridge.decoder_layers(base)]


def encodings(model: Any) -> list[Any]:
    return [layer.attention.encoding for layer in layers(model)]


def tokens(b: int = 2, t: int = LENGTH) -> Tensor:
    return torch.randint(1, facts.VOCAB, (b, t), generator=torch.Generator().manual_seed(1))


def whole(model: Any, ids: Tensor, **more: Any) -> Tensor:
    logits: Tensor = model(ids, use_cache=False, **more).logits
    return logits


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pe", ["path", "learned", "tape", "floater"])
@pytest.mark.parametrize("family", [family for family in hf.FAMILIES if family != "llama"])
@torch.no_grad()
def test_every_family(family: str, pe: str) -> None:
    model = encoded(pe, family, keys={"blocks": "all"} if pe == "floater" else {})
    ids = tokens()
    expected, other = whole(model, ids), ids.clone()
    other[:, 9:] = other[:, 9:] % (facts.VOCAB - 1) + 1
    changed = whole(model, other)
    close(changed[:, :9], expected[:, :9])
    assert not torch.allclose(changed[:, 9:], expected[:, 9:], atol=1e-3)
    out = model.generate(ids[:1, :6], max_new_tokens=8, do_sample=False)  # by a key cache
    expected = whole(model, out[:, :-1])[0, 5:].argmax(-1)
    assert out[0, 6:].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "pe",
    [pe if pe in CACHED else pytest.param(pe, marks=pytest.mark.extended) for pe in ENCODINGS],
)
@torch.no_grad()
def test_a_key_cache_changes_no_logit(pe: str) -> None:
    model, ids = encoded(pe), tokens()
    keys = {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
    for more in ({"do_sample": False}, {"num_beams": 3}):
        uncached = model.generate(ids[:, :6], use_cache=False, **keys, **more)
        for use in ({"use_cache": None}, {}):
            cached = model.generate(ids[:, :6], **keys, **more, **use)
            assert torch.equal(cached.sequences, uncached.sequences)
            close(torch.stack(cached.logits), torch.stack(uncached.logits))
    assert (cached.cache is None) == encodings(model)[0].whole_sequence
    if cached.cache:
        first = model(ids[:, :9])
        close(model(ids[:, 9:], cache=first.cache).logits, whole(model, ids)[:, 9:])


@pytest.mark.parametrize("pe", ENCODINGS)
@torch.no_grad()
def test_equals_the_model_of_pe_lab(pe: str) -> None:
    eps = torch.finfo(torch.float32).eps
    model = encoded(pe, num_key_value_heads=4, rms_norm_eps=eps)
    sizes = {"d_model": 32, "n_heads": 4, "d_ff": 48, "norm": "rmsnorm", "activation": "swiglu"}
    cfg = TransformerConfig(**{**vars(facts.small_model()), **sizes})
    own = Transformer(cfg, facts.VOCAB, encodings(model)).eval()
    own.tokens.weight.copy_(model.model.embed_tokens.weight)
    own.norm.weight.copy_(model.model.norm.weight)
    own.head.weight.copy_(model.lm_head.weight)
    for block, layer in zip(own.blocks, model.model.layers, strict=True):
        attention, ff = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        for linear, weights in (
            (block.attention.qkv, projections),
            (block.attention.out, (attention.o_proj,)),
            (block.ff.up, (ff.gate_proj, ff.up_proj)),
            (block.ff.out, (ff.down_proj,)),
        ):
            linear.weight.copy_(torch.cat([one.weight for one in weights]))
            linear.bias.zero_()
        block.norm_attention.weight.copy_(layer.input_layernorm.weight)
        block.norm_ff.weight.copy_(layer.post_attention_layernorm.weight)
    ids = tokens()
    close(whole(model, ids), own.unembed(own(ids, torch.arange(LENGTH)[None])))


@torch.no_grad()
def test_rope_is_theirs_and_none_is_without_position() -> None:
    # The last of smollm3's four layers does not rotate.
    changes = {"smollm3": {"num_hidden_layers": 4}}
    for family in ("llama", "mistral", "qwen3", "gemma", "gemma2", "smollm3"):
        theirs = plain(family, **changes.get(family, {}))
        theta = theirs.config.rope_parameters["rope_theta"]
        model = plain(family, **changes.get(family, {}))
        ours = hf.attach(model, "rope", train_len=16, pairing="half", base=theta)
        close(whole(ours, tokens()), whole(theirs, tokens()))
        nope = hf.attach(plain(family), "none", train_len=16)
        assert not torch.allclose(whole(nope, tokens()), whole(theirs, tokens()), atol=1e-3)
    theirs = plain("gpt2")
    with_table = hf.attach(plain("gpt2"), "learned", train_len=16)
    encodings(with_table)[0].table.copy_(theirs.transformer.wpe.weight[:16])
    close(whole(with_table, tokens()), whole(theirs, tokens()))


@torch.no_grad()
def test_padding_at_the_end_is_not_seen() -> None:
    model, ids = encoded("path"), tokens()
    after = ids.clone()
    after[:, 9:] = 0
    found = whole(model, after, attention_mask=(after != 0).long())
    close(found[:, :9], whole(model, ids)[:, :9])


@pytest.mark.parametrize("pe", ["path", "t5", "deberta", "learned", "combined"])
@torch.no_grad()
def test_saved_and_loaded(pe: str, tmp_path: Path) -> None:
    model = encoded(pe)
    model.save_pretrained(tmp_path)
    loaded = hf.load(tmp_path)
    assert torch.equal(whole(loaded, tokens()), whole(model, tokens()))
    assert loaded.config.pe_lab == model.config.pe_lab
    shared = [len({id(p) for p in one.parameters()}) for one in (model, loaded)]
    assert shared[0] == shared[1]


@torch.no_grad()
def test_a_plain_twin_of_the_same_configuration_stays_plain(tmp_path: Path) -> None:
    first = plain("smollm3", num_hidden_layers=4)
    config, expected = first.config, whole(first, tokens())
    saved = config.to_json_string()
    hf.attach(first, "cope", train_len=16)
    assert config.to_json_string() == saved
    twin = plain("smollm3", num_hidden_layers=4)
    twin = type(twin)(config).eval()
    twin.load_state_dict(first.state_dict(), strict=False)
    twin.save_pretrained(tmp_path)
    for one in (twin, transformers.AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert torch.equal(whole(one, tokens()), expected)
    with pytest.raises(UsageError, match="holds no encoding"):
        hf.load(tmp_path)


@pytest.mark.parametrize("family", hf.FAMILIES)
@torch.no_grad()
def test_half_precision_in_every_family(family: str) -> None:
    for pe in ("conv", "combined", "floater"):
        model = encoded(pe, family)
        expected = whole(model, tokens())
        rounded = whole(model.bfloat16(), tokens()).float()
        assert (rounded - expected).norm() < 0.05 * expected.norm(), pe


@torch.no_grad()
def test_half_precision_and_copies(tmp_path: Path) -> None:
    model = encoded("path")
    expected, copies = whole(model, tokens()), [copy.deepcopy(model), pickle.dumps(model)]
    next(encodings(model)[0].parameters()).zero_()
    assert not torch.allclose(whole(model, tokens()), expected, atol=1e-3)
    for one in (copies[0], pickle.loads(copies[1])):
        assert torch.equal(whole(one, tokens()), expected)
    half = copies[0].bfloat16()
    half.save_pretrained(tmp_path)
    loaded = hf.load(tmp_path, dtype=torch.bfloat16)
    for one in (half, loaded):
        assert one.lm_head.weight.dtype == torch.bfloat16
        assert {p.dtype for layer in layers(one) for p in layer.parameters()} == {torch.float32}
        rounded = whole(one, tokens()).float()
        assert (rounded - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@torch.no_grad()
def test_another_table_of_tokens_keeps_the_encoding(family: str) -> None:
    model, ids = encoded("learned", family), tokens()
    expected = whole(model, ids)
    table = torch.nn.Embedding.from_pretrained(model.get_input_embeddings().weight.clone())
    model.set_input_embeddings(table)
    close(whole(model, ids), expected)
    assert torch.equal(table(ids), table.weight[ids])


@pytest.mark.parametrize("pe", ["path", "learned", "t5"])
def test_gradients_reach_the_encoding(pe: str) -> None:
    found = []
    for checkpointed in (False, True):
        model, ids = encoded(pe).train(), tokens()
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        own = {name: p.grad for name, p in model.named_parameters() if "pe_lab" in name}
        assert own
        assert all(grad is not None and grad.abs().sum() > 0 for grad in own.values())
        found.append(own)
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in own)


@pytest.mark.parametrize(
    "pe", [pe if pe == "tape" else pytest.param(pe, marks=pytest.mark.extended) for pe in ENCODINGS]
)
def test_compiled(pe: str) -> None:
    torch.compiler.reset()
    model, whole_graph = encoded(pe), pe not in ("floater", "recurrent")
    compiled: Any = torch.compile(model, backend="eager", fullgraph=whole_graph)
    close(whole(compiled, tokens()), whole(model, tokens()))
    model.train()
    whole(compiled, tokens()).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec((ROOT / "docs" / "modules.md").read_text().split("```python\n")[-1].split("```")[0], names)
    assert {type(one).__name__ for one in encodings(names["model"])} == {"PaTH"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encoded("coop"), "pe=coop: did you mean cope"),
        (lambda: encoded("cope", keys={"npo": 3}), "did you mean pe.npos?"),
        (lambda: hf.attach(plain(), "rope", train_len="24"), "train_len='24' is not allowed"),
        (lambda: hf.attach(plain(), None, train_len=24), "pe=None is no encoding"),
        (
            lambda: hf.attach(encoded("rope"), "cope", train_len=8),
            "has an encoding already, pe=rope",
        ),
        (lambda: hf.attach(plain().model, "cope", train_len=8), "LlamaModel takes no encoding"),
        (lambda: hf.attach(torch.nn.Linear(1, 1), "cope", train_len=8), "Linear takes no encoding"),
    ],
)
def test_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@torch.no_grad()
def test_what_would_be_another_model_is_refused_when_it_is_used() -> None:
    model, ids = encoded("rope"), tokens()
    capped = encoded("rope", "gemma2", attn_logit_softcapping=50.0)
    pairs = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    for call in (
        lambda: encoded("learned")(tokens(1, 25)),
        lambda: encoded("learned")(inputs_embeds=torch.randn(1, 4, 32)),
        lambda: model(ids, attention_mask=pairs),
        lambda: model(ids, attention_mask=torch.tensor([[0] * 3 + [1] * 11] * 2)),
        lambda: model(ids, position_ids=torch.arange(7).repeat(2)[None]),
        lambda: model(ids[:1], cu_seq_lens_q=torch.tensor([0, 7, LENGTH])),
        lambda: model(ids, cache=plain()(ids).cache),
        lambda: model(ids[0]),
        lambda: model(ids, position_ids=torch.arange(LENGTH)),
        lambda: hf.load("nowhere"),
        lambda: model.model(ids[:, :1], past_key_values=model(ids).cache),
        lambda: model.generate(ids, max_new_tokens=2, cache_implementation="static"),
        lambda: capped(ids),
    ):
        with pytest.raises(UsageError, match=r"^[^\n]+$"):
            call()
    with pytest.raises(ValueError, match="depends on the sequence's length"):
        encoded("dynamic_ntk").generate(ids[:1, :4], use_cache=True)
    model.set_attn_implementation("sdpa")
    with pytest.raises(UsageError, match="leaves the encoding out"):
        model(ids)
