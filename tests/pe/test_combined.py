"""Encodings combined: equal to what each part computes, clashes refused before training."""

from typing import Any

import pytest
import torch
from agreement import attend_by_hooks
from torch import Tensor
from variants import (
    MAX_LEN,
    SECTIONS,
    accepted,
    dims,
    in_pieces,
    model,
    move_parameters,
    scattered,
    tokens,
)

from pe_lab.check.base import parts
from pe_lab.core.errors import UsageError
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.train.encodings import build_encodings


def built(*given: Any, **sizes: int) -> list[PositionalEncoding]:
    torch.manual_seed(3)
    return build_encodings({**SECTIONS["combined"], "parts": parts(*given)}, dims(**sizes))


def inputs(heads: int = 2, width: int = 4, length: int = 7) -> tuple[Tensor, ...]:
    q, k, v = torch.randn(3, 2, heads, length, width).unbind(0)
    return q, k, v, torch.randn(2, length, heads * width), scattered(2, length, MAX_LEN)


def test_inputs_in_the_order_of_the_list() -> None:
    learned, sinusoidal = (built(n, d_model=8)[0] for n in ("learned", "sinusoidal"))
    both = built("learned", "sinusoidal", d_model=8)[0]
    both.parts["0"].load_state_dict(learned.parts["0"].state_dict())  # type: ignore[union-attr, index, operator]
    x, pos = torch.randn(2, 7, 8), scattered(2, 7, MAX_LEN)
    seen = tokens(2, 7)
    expected = sinusoidal.embed(learned.embed(x, seen, pos), seen, pos)
    assert torch.equal(both.embed(x, seen, pos), expected)


def test_layers_of_a_part() -> None:
    encodings = built({"pe": "rope", "layers": [0, 2]}, {"pe": "t5", "layers": [1, 2]}, n_layers=4)
    assert [{*one.hooks()} for one in encodings] == [
        {"rotate"},
        {"bias"},
        {"bias", "rotate"},
        set(),
    ]
    # Both layers of T5 share one table, though layer 0 has none.
    tables = [dict(encoding.named_parameters()) for encoding in encodings]
    assert tables[1]["parts.1.table"] is tables[2]["parts.1.table"]
    rope = build_encodings(SECTIONS["rope"], dims(n_layers=4))[0]
    given = inputs(width=8)
    assert torch.equal(attend_by_hooks(encodings[0], *given), attend_by_hooks(rope, *given))


def test_content_is_replaced_where_a_part_replaces_it() -> None:
    assert [built(name, "alibi")[0].replaces_content for name in ("path", "rope")] == [True, False]


def test_as_long_as_the_shortest_part() -> None:
    assert built({"pe": "learned", "max_len": 9}, {"pe": "relative", "max_len": 7})[0].max_len == 7
    assert built("rope", "alibi")[0].max_len is None


def composed(parts: list[PositionalEncoding], given: tuple[Tensor, ...]) -> Tensor:
    """What the docstring says of parts at one layer, written out."""
    q, k, v, x, pos = given
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    seen = AttentionInputs(x, q, k, v, pos, pos)
    rotated_q, rotated_k = q, k
    for part in parts:
        rotated_q, rotated_k = part.rotate(rotated_q, rotated_k, seen)
    logits = rotated_q @ rotated_k.mT / rotated_q.shape[-1] ** 0.5
    weighing = None
    for part in parts:
        read = (rotated_q, rotated_k) if "rotate" in part.hooks() else (q, k)
        before = read[0] @ read[1].mT / read[0].shape[-1] ** 0.5
        logits = logits - before + part.logits(before, *read, seen)
        bias = part.bias(pos, pos)
        logits = logits if bias is None else logits + bias
        weighing = part if "normalize" in part.hooks() else weighing
    softmax = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = softmax if weighing is None else weighing.normalize(logits, mask)
    out = weights @ v
    for part in parts:
        added = part.values(weights, seen)
        out = out if added is None else out + added
    return out


def assert_composed(layer: PositionalEncoding) -> None:
    given = inputs()
    expected = composed(list(layer.parts.values()), given)  # type: ignore[arg-type, union-attr, operator]
    got = attend_by_hooks(layer, *given)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


BARE = {"pe": "shaw", "values": False, "clip": 3}


@pytest.mark.parametrize(
    "given", [("shaw", "t5", "relative", "alibi"), ("shaw", BARE), (BARE, "shaw")], ids=str
)
def test_terms_and_biases_are_added(given: tuple[Any, ...]) -> None:
    """Shaw without its value table takes nothing from what the other part adds to the values."""
    layer = built(*given, d_model=8, n_layers=1)[0]
    move_parameters(layer)
    assert_composed(layer)


SHORTER = {
    "cope+rope": {"pe": "cope", "combine": "rope"},
    "cope+relative": {"pe": "cope", "combine": "relative"},
    "floater all": {"pe": "floater", "blocks": "all"},
}
KINDS: list[Any] = [n for n in SECTIONS if n not in ("none", "combined")] + list(SHORTER.values())


@pytest.mark.extended
@pytest.mark.parametrize("first", KINDS, ids=str)
def test_every_pair_is_refused_or_what_its_rules_say(first: Any) -> None:
    """With each encoding after it in the list; in one layer, and in a model of two."""
    built_pairs = 0
    for second in KINDS[KINDS.index(first) :]:
        section = {**SECTIONS["combined"], "parts": parts(first, second)}
        if not accepted(section, dims(d_model=8, n_layers=2)):
            continue
        built_pairs += 1
        torch.manual_seed(3)
        # The only layer, or the first of two for what one is too few for.
        alone = accepted(section, dims(d_model=8, n_layers=1))
        layer = build_encodings(section, dims(d_model=8, n_layers=1 if alone else 2))[0]
        move_parameters(layer)
        if layer.hooks() - {"embed", "block_input"}:
            assert_composed(layer)
        transformer = model(section, d_model=8, n_layers=2)
        seen, pos = tokens(2, 6), scattered(2, 6, MAX_LEN)
        whole = transformer(seen, pos)
        whole.sin().sum().backward()
        for name, parameter in transformer.named_parameters():
            assert name.startswith("head") or parameter.grad is not None, (second, name)
        # Equal to what it says with fewer tokens: no future leaks.
        if not any(encoding.whole_sequence for encoding in transformer.encodings):
            steps = in_pieces(transformer, seen, pos, 4)
            torch.testing.assert_close(steps, whole, rtol=1e-9, atol=1e-9)
    assert built_pairs or isinstance(first, dict)


@pytest.mark.parametrize(
    "name",
    [
        "rope",
        "alibi",
        "t5",
        "shaw",
        "cope",
        "learned",
        "tape",
        "floater all",
        "deberta",
        "transformer_xl",
        "dape",
        "stick_breaking",
        "path",
        "fire",
    ],
)
def test_a_whole_model_with_one_part_is_that_encoding(name: str) -> None:
    given = SHORTER.get(name, {"pe": name})
    (section,) = parts(given)
    alone = model({key: value for key, value in section.items() if key != "pe"}, seed=1)
    combined = model({**SECTIONS["combined"], "parts": parts(given)}, seed=1)
    assert len(combined.state_dict()) == len(alone.state_dict())
    combined.load_state_dict(
        {
            key.replace(".encoding.", ".encoding.parts.0."): value
            for key, value in alone.state_dict().items()
        }
    )
    seen, pos = tokens(2, 9), scattered(2, 9, MAX_LEN)
    assert torch.equal(combined(seen, pos), alone(seen, pos))
    shared = [len({id(p) for p in m.parameters()}) for m in (alone, combined)]
    assert shared[0] == shared[1]


@pytest.mark.parametrize(
    "given",
    [
        [{"pe": "tape", "layers": [0, 2]}, {"pe": "rope", "layers": [1]}],
        [{"pe": "tape", "layers": [0, 2]}, {"pe": "cope", "layers": [1]}],
        [{"pe": "tape", "layers": [1, 3]}],
        [{"pe": "deberta", "layers": [0, 1]}, {"pe": "stick_breaking", "layers": [3]}],
        [{"pe": "cope", "every": 2, "layers": [0, 3]}, {"pe": "t5", "layers": [1, 2]}],
    ],
    ids=str,
)
def test_layers_trained_and_decoded(given: list[Any]) -> None:
    transformer = model({**SECTIONS["combined"], "parts": parts(*given)}, n_layers=4)
    seen, pos = tokens(2, 8), scattered(2, 8, MAX_LEN)
    whole = transformer(seen, pos)
    whole.sin().sum().backward()
    for name, parameter in transformer.named_parameters():
        if ".encoding." in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    steps = in_pieces(transformer, seen, pos, 3)
    torch.testing.assert_close(steps, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], r"parts=\[\]"),
        (["rope", {"pe": "cope", "combine": "rope"}], "rope and cope"),
        ([{"pe": "rope", "layers": [1]}, {"pe": "rope", "layers": [0, 1]}], "layer 1"),
        ([{"pe": "rope", "layers": [3]}], "0 to 2"),
        (["stick_breaking", "stick_breaking"], "softmax"),
        (["tape", "tape"], "carry"),
        (["path", "dape"], "content term"),
    ],
    ids=str,
)
def test_refused(given: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        built(*given)
