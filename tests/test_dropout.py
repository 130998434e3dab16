"""Masks that are hashed from where an element stands."""

import numpy as np
import pytest
import torch

from pe_lab.core.dropout import Drop, attention_rows, mix, reaches_int32_

LOW = 0xFFFFFFFF


def naive_mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & LOW
    x ^= x >> 15
    x = x * 0x846CA68B & LOW
    return x ^ x >> 16


def naive_kept(drop: Drop, row: int, column: int) -> bool:
    """The formula of dropout.py for one element, in Python's integers."""
    low, high = drop.key & LOW, drop.key >> 32
    of_row = naive_mix((naive_mix((row + low) & LOW) + high) & LOW)
    return naive_mix((of_row + column * 0x9E3779B9) & LOW) >> 8 >= round(drop.p * 2**24)


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32 - 1, 0x0123456789ABCDEF, 2**63 - 1])
def test_kept_is_the_formula(key: int) -> None:
    drop = Drop(0.3, key)
    rows, columns = [0, 1, 2, 77, 2**31, 2**32 - 1], [0, 1, 2, 1023, 2**20]
    found = drop.kept(torch.tensor(rows), torch.tensor(columns))
    assert found.tolist() == [[naive_kept(drop, r, c) for c in columns] for r in rows]
    # What several models trained at once hand over.
    of_tensor = Drop(0.3, torch.tensor(key)).kept(torch.tensor(rows), torch.tensor(columns))
    assert torch.equal(found, of_tensor)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_shares_and_correlations_are_those_of_independent_draws(p: float) -> None:
    n = 1024
    kept = Drop(p, 123456789012345).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    sd = (p * (1 - p)) ** 0.5
    assert abs(float(kept.mean())) < 4 * sd / n
    # Neighbours in a row and in a column, and the other keys and places.
    other = Drop(p, 123456789012346).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    place = Drop(p, 123456789012345).at(1).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    pairs = [(kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept, kept.T), (kept, other),
             (kept, place), (kept[1:, 1:], kept[:-1, :-1])]  # fmt: skip
    for a, b in pairs[:2] + pairs[3:]:
        assert abs(float((a * b).mean())) < 5 * sd**2 / n
    # The share of a row varies as that of independent draws: chi-square of n rows.
    rows = (kept.sum(1) / (sd * n**0.5)).square().sum()
    assert abs(float(rows) - n) < 5 * (2 * n) ** 0.5


def test_every_place_of_a_deep_model_has_another_mask() -> None:
    drop = Drop(0.5, 42)
    places = [drop] + [drop.at(4 * (i + 1)).at(j) for i in range(200) for j in (1, 2, 3)]
    assert len({d.key for d in places}) == len(places)
    assert all(0 <= d.key < 2**63 for d in places)


def test_dropped_scales_what_stays_and_knows_where_rows_stand() -> None:
    drop, x = Drop(0.25, 7), torch.randn(3, 4, 5, requires_grad=True)
    all_of_it = drop(x)
    zero = all_of_it == 0
    assert 0 < int(zero.sum()) < zero.numel()
    assert torch.equal(all_of_it[~zero], (x * (1 / 0.75))[~zero])
    (grad,) = torch.autograd.grad(all_of_it.sum(), x)
    assert torch.equal(grad, torch.where(zero, 0.0, torch.tensor(1 / 0.75)))
    at = torch.tensor([1, 5, 11])
    assert torch.equal(drop(x.flatten(0, 1)[at], at), all_of_it.flatten(0, 1)[at])


def test_rows_of_attention_are_those_of_the_last_queries() -> None:
    b, h, s = 2, 3, 7
    rows = attention_rows(torch.zeros(b, h, s, s))
    assert rows.tolist() == np.arange(b * h * s).reshape(b, h, s).tolist()
    assert torch.equal(attention_rows(torch.zeros(b, h, 2, s)), rows[:, :, -2:])


@pytest.mark.parametrize("threshold", [0, 1, 0x19999A, 0x800000, 0xFFFFFF, 1 << 24])
def test_in_32_bits_the_threshold_is_met_where_the_hash_meets_it(threshold: int) -> None:
    # Hashes on both sides of the threshold, from the numbers that have them: the second product,
    # undone, and the two steps before it.
    bits = torch.arange(max(0, (threshold << 8) - 999), min(2**32, (threshold << 8) + 999))
    x = bits ^ bits >> 16
    for shift, factor in ((15, 0x846CA68B), (16, 0x7FEB352D)):
        x = x * pow(factor, -1, 2**32) % 2**32
        x = x ^ x >> shift ^ x >> 2 * shift
    assert torch.equal(mix(x), bits)
    small = torch.where(x < 2**31, x, x - 2**32).int()
    found = reaches_int32_(small, torch.empty_like(small), threshold)
    assert torch.equal(found == 1, bits >> 8 >= threshold)
