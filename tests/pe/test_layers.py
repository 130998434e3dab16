"""Windows, and what a layer of the transformer has otherwise than the others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fast import plain
from program import Here, assert_refused, succeeded, summary, the_run, tiny
from torch.nn.functional import scaled_dot_product_attention
from variants import SECTIONS, TRAIN_LEN, decoded, model, sequential, tokens

from docs import facts
from pe_lab.core.instantiate import instantiate
from pe_lab.experiment.load_run import load
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.functional import causal_mask
from pe_lab.pe.none import NoPE
from pe_lab.train.encodings import build_encodings

WINDOW = 3
SEEN = ["none", "rope", "alibi", "t5", "cope", "shaw", "fox", "stick_breaking", "path", "fire"]


def config(**keys: Any) -> TransformerConfig:
    section = facts.section("transformer", "model")
    made: TransformerConfig = instantiate({**section, **keys}, "model", TransformerConfig)
    return made


def test_a_query_sees_itself_and_the_window_less_one_before() -> None:
    for t, s in ((5, 5), (2, 7), (1, 4)):
        mask = causal_mask(t, s, torch.device("cpu"), WINDOW)
        for row in range(t):
            query = s - t + row
            told = [key for key in range(s) if mask[row, key]]
            assert told == list(range(max(0, query - WINDOW + 1), query + 1))


@pytest.mark.parametrize("name", [name for name in SEEN if name != "path"])  # it convolves
def test_what_lies_outside_the_window_changes_nothing(name: str) -> None:
    built = model(SECTIONS[name], trunk={"window": WINDOW}, n_layers=2)
    seen = tokens(2, TRAIN_LEN)
    hidden = built(seen, sequential(TRAIN_LEN))
    reach = 2 * (WINDOW - 1)
    for t in range(TRAIN_LEN):
        changed = seen.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        again = built(changed, sequential(TRAIN_LEN))
        # FoX takes differences of sums over all tokens.
        same = (again - hidden).abs().amax((0, 2)) < 1e-12
        assert same[t + reach + 1 :].all()
        assert not same[t : t + reach + 1].any(), "within reach it does"


@pytest.mark.parametrize("name", SEEN)
def test_windowed_fused_equals_eager_and_decoding(name: str) -> None:
    built = model(SECTIONS[name], trunk={"window": WINDOW})
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    fused = built(seen, pos)
    torch.testing.assert_close(decoded(built, seen, pos, TRAIN_LEN // 2), fused, rtol=0, atol=1e-10)
    torch.testing.assert_close(plain(built)(seen, pos), fused, rtol=0, atol=1e-10)


def test_a_windowed_layer_against_attention_with_that_mask() -> None:
    built = model(SECTIONS["none"], trunk={"window": WINDOW}, n_layers=1)
    x = torch.randn(2, TRAIN_LEN, 16, dtype=torch.float64)
    attention = built.blocks[0].attention
    found, _ = attention(x, sequential(TRAIN_LEN))  # type: ignore[operator]
    qkv = attention.qkv(x).view(2, TRAIN_LEN, 3, attention.n_heads, -1)  # type: ignore[operator, union-attr, arg-type]
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    near = torch.tensor([[i - WINDOW < j <= i for j in range(TRAIN_LEN)] for i in range(TRAIN_LEN)])
    mixed = scaled_dot_product_attention(q, k, v, near).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(found, attention.out(mixed), rtol=0, atol=1e-12)  # type: ignore[operator, union-attr]


def test_the_narrower_window_of_model_and_encoding_holds() -> None:
    for ours, theirs, holds in ((5, 2, 2), (2, 5, 2), (None, 4, 4), (None, None, None)):
        cfg = config(window=ours)
        encoding = build_encodings(SECTIONS["none"], cfg.dims(11, 8, 8))[0]
        encoding.window = theirs
        built = Transformer(cfg, 11, [encoding, encoding])
        assert built.blocks[0].attention.window == holds  # type: ignore[union-attr]


def test_each_layer_has_separate_sizes() -> None:
    own = {0: {"window": 4, "d_ff": 24}, 1: {"n_heads": 8, "activation": "swiglu"}}
    cfg = config(layers=own, d_ff=100, window=9)
    encodings = build_encodings(SECTIONS["rope"], cfg.dims(11, 8, 8), cfg.without())
    first, second = Transformer(cfg, 11, encodings).blocks
    assert (first.attention.window, second.attention.window) == (4, 9)  # type: ignore[union-attr]
    assert (first.attention.n_heads, second.attention.n_heads) == (4, 8)  # type: ignore[union-attr]
    assert first.ff.up.out_features == 24  # type: ignore[union-attr]
    assert second.ff.up.out_features == 200, "swiglu has two"  # type: ignore[union-attr]
    assert [len(e.frequencies) for e in encodings] == [8, 4], "head widths 16 and 8"  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("name", ["rope", "cope", "alibi", "fire"])
def test_heads_that_differ(name: str) -> None:
    cfg = config(layers={1: {"n_heads": 2}}, d_model=16)
    encodings = build_encodings(SECTIONS[name], cfg.dims(11, TRAIN_LEN, TRAIN_LEN))
    built = Transformer(cfg, 11, encodings).double()
    assert built(tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)).shape == (2, TRAIN_LEN, 16)


def test_a_layer_without_the_encoding_is_nope() -> None:
    cfg = config(layers={1: {"encoded": False}})
    encodings = build_encodings(SECTIONS["rope"], cfg.dims(11, 8, 8), cfg.without())
    assert [type(e) is NoPE for e in encodings] == [False, True]


def test_shared_by_default_in_a_single_layer_is_not_refused() -> None:
    cfg = config(layers={1: {"encoded": False}})
    encodings = build_encodings(SECTIONS["t5"], cfg.dims(11, 8, 8), cfg.without())
    assert [type(e) is NoPE for e in encodings] == [False, True]


BAD: dict[str, tuple[list[str], list[str]]] = {
    "no such layer": (["model.layers.2.window=4"], ["layers.2", "n_layers=2", "0 to 1"]),
    "no such key": (["model.layers.0.windw=4"], ["model.layers.0.windw=4", "mean window"]),
    "a window of nothing": (["model.layers.0.window=0"], ["model.layers.0.window=0", "than 0"]),
    "true is no number": (
        ["model.layers.0.window=true"],
        ["model.layers.0.window=true is not allowed: set it to a whole number"],
    ),
    "the model's": (["model.window=0"], ["model.window=0", "greater than 0"]),
    "heads": (["model.layers.1.n_heads=3"], ["n_heads=3", "64", "choose a multiple"]),
    "shared": (["pe=t5", "model.layers.1.n_heads=2"], ["n_heads", "leave them null"]),
    "an input": (["pe=learned", "model.layers.1.encoded=false"], ["encoded=false", "leave it"]),
    "no encoding": (
        ["pe=none", "model.layers.1.encoded=false"],
        ["model.layers.1.encoded=false has no effect, pe=none changes nothing", "leave it true"],
    ),
    "no layer left": (
        ["pe=rope", "model.layers={0: {encoded: false}, 1: {encoded: false}}"],
        ["encoded=false leaves no layer with pe=rope: give pe=none"],
    ),
    **{
        f"{pe} shared with none": (
            [f"pe={pe}", "pe.share_layers=true", "model.layers.1.encoded=false"],
            ["pe.share_layers=true has no effect", "layer 0 alone", "pe.share_layers=false"],
        )
        for pe in ("cope", "fire")
    },
    "whole and key": (
        ["model.layers.0.window=3", "model.layers={1: {window: 5}}"],
        ["model.layers.0.window=3 would be lost", "write it into model.layers={..}"],
    ),
    "no mapping": (["model.layers=3"], ["model.layers=3", "a mapping"]),
    "another length": (["train.length=9"], ["train.length=9", "63 tokens", "null"]),
}


@pytest.mark.parametrize(("words", "told"), BAD.values(), ids=BAD.keys())
def test_bad_layers(here: Here, tmp_path: Path, words: list[str], told: list[str]) -> None:
    assert_refused(here("task=flipflop", *words), *told)
    assert not (tmp_path / "runs").exists()


def test_a_run_with_changed_layers_is_another_run_and_loads(here: Here, tmp_path: Path) -> None:
    words = ["pe=rope", "model.n_layers=2", "train.steps=3", "train.warmup=1"]
    own = ["model.layers.0.window=4", "model.layers.1.encoded=false"]
    assert here(*tiny(*words, *own)).status == 0
    run = the_run(tmp_path / "runs")
    assert summary(run)["config"]["model"]["layers"]["0"]["window"] == 4
    assert "model.layers.0.window=4" in (run / "overrides.yaml").read_text()
    again = load(run)
    assert [b.attention.window for b in again.model.blocks] == [4, None]  # type: ignore[union-attr]
    expected = summary(run)["metrics"]["in_domain/loss"]
    assert again.answers("in_domain").measured()["loss"] == pytest.approx(expected, rel=1e-12)
    given = succeeded(here(*tiny(*words, "model.layers={0: {window: 4}, 1: {encoded: false}}")))
    assert "is finished already" in given.out + given.err
