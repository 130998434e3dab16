"""What is done to a trained RoPE, and log n, against their formulas in loops."""

from functools import partial
from typing import Any

import pytest
import torch
from agreement import MAX_LEN, SIZES, TRAIN_LEN, Size, agree, attend_by_hooks, first_layer
from fast import plain
from naive import Sight, attend, plain_value
from rope_by_hand import ANGLES, DISTANCES, logit
from variants import SECTIONS, model, scattered, sequential, tokens

CASES: list[tuple[str, dict[str, Any]]] = [
    ("rope", {"logn": "train", "base": 10}),
    ("rope", {"logn": "train", "logn_clip": True, "pairing": "half"}),
    ("pi", {}),
    ("pi", {"k": 7, "base": 10, "pairing": "half", "logn": "train"}),
    ("ntk_old", {}),
    ("ntk_old", {"variant": 9706, "base": 10}),
    ("ntk_old", {"k": 7, "logn": "train", "logn_clip": True}),
    ("ntk_fixed", {"base": 10}),
    ("ntk_fixed", {"k": 1.5, "pairing": "half", "logn": "train"}),
    ("ntk_mixed", {"base": 10}),
    ("ntk_mixed", {"k": 7, "b": 0.3, "pairing": "half", "logn": "train"}),
    ("yarn", {}),
    ("yarn", {"base": 2, "slow": 0.5, "fast": 0.7}),
    ("yarn", {"base": 3, "slow": 0.3, "fast": 0.9, "temperature": False, "k": 7, "logn": "train"}),
    ("dynamic_ntk", {"base": 10}),
    ("dynamic_ntk", {"base": 10, "factor": 3, "pairing": "half", "logn": "train"}),
    ("dynamic_ntk", {"base": 10, "k": 7}),
    ("rerope", {"base": 10}),
    ("rerope", {"base": 10, "window": 4, "pairing": "half", "logn": "train"}),
    ("rerope", {"window": 1, "logn": "train", "logn_clip": False}),
    ("leaky_rerope", {"base": 10}),
    ("leaky_rerope", {"base": 10, "window": 4, "k": 7, "pairing": "half", "logn": "train"}),
    ("self_extend", {"base": 10}),
    ("self_extend", {"base": 10, "window": 3, "pairing": "half", "logn": "train"}),
    ("self_extend", {"base": 10, "window": 5, "group": 3}),
]


EVERY_SIZE = {"rope", "pi", "dynamic_ntk", *DISTANCES}


@pytest.mark.parametrize(
    ("name", "choice", "size"),
    [
        (name, choice, size)
        for name, choice in CASES
        for size in (SIZES if name in EVERY_SIZE and len(choice) < 2 else SIZES[1:2])
    ],
    ids=str,
)
def test_value_and_gradient(name: str, choice: dict[str, Any], size: Size) -> None:
    naive = partial(attend, logit=partial(logit, name=name), value=plain_value)
    agree(name, choice, size, naive, width=6)


@pytest.mark.parametrize("name", [*ANGLES, *DISTANCES])
@pytest.mark.parametrize("clip", [None, True, False])
@pytest.mark.parametrize("logn", ["train", "test"])
def test_logn_in_training_and_in_evaluation(name: str, logn: str, clip: bool | None) -> None:
    sizes = {"d_model": 6, "n_heads": 1, "train_len": TRAIN_LEN, "max_len": MAX_LEN}
    encoding = first_layer(name, {"logn": logn, "logn_clip": clip}, **sizes)
    q, k, v = torch.randn(3, 1, 1, 9, 6).unbind(0)
    pos, known = scattered(1, 9, MAX_LEN), {**SECTIONS[name], "logn": logn, "logn_clip": clip}
    for training in (True, False):
        by_hand = partial(logit, name=name, training=training)
        slow = attend(Sight(q, k, v, v[:, 0], pos, {}, known), by_hand, plain_value)
        got = attend_by_hooks(encoding.train(training), q, k, v, v[:, 0], pos)
        torch.testing.assert_close(got, slow, rtol=1e-12, atol=1e-12)


AS_TRAINED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*ANGLES, "leaky_rerope", "self_extend")),
    ("ntk_old", {"variant": 9706}),
    ("yarn", {"ramp": "pairs"}),
    ("dynamic_ntk", {"factor": 4}),
    ("rerope", {"window": 24}),
    ("rerope", {"window": 24, "logn": "train"}),
    ("pi", {"logn": "train"}),
]
AT_ANY_LENGTH: list[tuple[str, dict[str, Any]]] = [
    *((name, {"k": 1}) for name in (*ANGLES, "leaky_rerope") if name != "rope"),
    ("ntk_old", {"variant": 9706, "k": 1}),
    ("yarn", {"ramp": "pairs", "k": 1}),
    ("rerope", {"window": 48}),
    ("leaky_rerope", {"window": 48}),
    ("self_extend", {"window": 48}),
    ("self_extend", {"group": 1}),
]


def equal_to_rope(name: str, choice: dict[str, Any], length: int, dtype: torch.dtype) -> None:
    """Hidden states of one model with one and the other, in evaluation as in training."""
    sizes = {"train_len": 24, "max_len": length}
    seen, pos = tokens(2, length), sequential(length)
    logn = {"logn": choice.get("logn", "none")}
    rope = model({**SECTIONS["rope"], **logn}, **sizes).to(dtype)
    other = model({**SECTIONS[name], **choice}, **sizes).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    if dtype == torch.float32:
        # A fused kernel is as far from the hooks.
        rope, other = plain(rope), plain(other)
    for training in (True, False):
        hidden = other.train(training)(seen, pos)
        expected = rope.train(training)(seen, pos)
        torch.testing.assert_close(hidden, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "choice"), AS_TRAINED, ids=str)
def test_at_the_trained_length_it_is_rope(
    name: str, choice: dict[str, Any], dtype: torch.dtype
) -> None:
    equal_to_rope(name, choice, 24, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "choice"), AT_ANY_LENGTH, ids=str)
def test_where_nothing_is_changed_it_is_rope(
    name: str, choice: dict[str, Any], dtype: torch.dtype
) -> None:
    equal_to_rope(name, choice, 48, dtype)


@pytest.mark.parametrize("name", ["rope", "hfwa"])
def test_logn_bears_on_training_itself(name: str) -> None:
    """Where no position passes the trained length, too: else the weights would be those without,
    and what Su's table tells of a model trained with it the same as at test alone."""
    seen, pos = tokens(2, 24), sequential(24)
    sections = [
        {**SECTIONS[name], "logn": logn, "logn_clip": clip}
        for logn, clip in (("train", None), ("none", None), ("test", None), ("train", True))
    ]
    logn, *others = (model(section, train_len=24)(seen, pos) for section in sections)
    for other in others[1:]:
        torch.testing.assert_close(other, others[0], rtol=0, atol=0)
    assert (logn - others[0]).abs().amax() > 1e-3


def test_dynamic_ntk_leaves_short_sequences_alone() -> None:
    sizes = {"train_len": 12, "max_len": 48}
    rope, dynamic, old = (model(SECTIONS[n], **sizes) for n in ("rope", "dynamic_ntk", "ntk_old"))
    for length, same in ((7, rope), (12, rope), (48, old)):
        seen, pos = tokens(2, length), sequential(length)
        torch.testing.assert_close(dynamic(seen, pos), same(seen, pos), rtol=1e-12, atol=1e-12)


def test_the_slowest_pair_rotates_k_times_slower() -> None:
    sizes = {"d_model": 32, "n_heads": 1, "train_len": 64, "max_len": 512}
    rope = first_layer("rope", {}, **sizes).frequencies
    for name in ("pi", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn"):
        ratio = rope / first_layer(name, {}, **sizes).frequencies  # type: ignore[operator]
        assert float(ratio[-1]) == pytest.approx(8, rel=1e-12)
        assert bool((ratio.diff() >= -1e-12).all())
