"""Windows, and what a layer of the transformer has otherwise than the others."""

from typing import Any

import pytest
from variants import SECTIONS, TRAIN_LEN, model, sequential, tokens

from docs import facts
from pe_lab.core.validation import instantiate
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.train.encodings import build_encodings

WINDOW = 3
# Without path, which convolves.
SEEN = ["none", "rope", "alibi", "t5", "cope", "shaw", "fox", "stick_breaking", "fire"]


def config(**keys: Any) -> TransformerConfig:
    section = facts.section("transformer", "model")
    made: TransformerConfig = instantiate({**section, **keys}, "model", TransformerConfig)
    return made


@pytest.mark.parametrize("name", SEEN)
def test_what_lies_outside_the_window_changes_nothing(name: str) -> None:
    built = model(SECTIONS[name], window=WINDOW, n_layers=2)
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
    encodings = build_encodings(SECTIONS["rope"], cfg.dims(11, 8, 8), cfg.layers_without_encoding())
    first, second = Transformer(cfg, 11, encodings).blocks
    assert (first.attention.window, second.attention.window) == (4, 9)  # type: ignore[union-attr]
    assert (first.attention.n_heads, second.attention.n_heads) == (4, 8)  # type: ignore[union-attr]
    assert first.ff.up.out_features == 24  # type: ignore[union-attr]
    assert second.ff.up.out_features == 200, "swiglu has two"  # type: ignore[union-attr]
    assert [len(e.frequencies) for e in encodings] == [8, 4], "head widths 16 and 8"  # type: ignore[attr-defined, arg-type]
