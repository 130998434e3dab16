"""Sizes and choices of tasks that do not fit together are refused."""

from dataclasses import replace

import pytest

# Where the yaml's own keys would hide it.
KEYS = {
    "brackets": {"m": 3, "length": 40, "max_gap": None},
    "group_word": {"group": "S3", "min_steps": 5, "max_steps": 5},
    "recall": {"n_pairs": 2, "length": 16, "n_keys": 20, "n_values": 20},
    "recall_reassigned": {"n_pairs": 2, "length": 16, "power": None, "filling": None},
}


@pytest.mark.parametrize(
    ("name", "keys", "complaint"),
    [
        ("addition", {"min_digits": 7}, "min_digits is 7, more than task.max_digits, 6"),
        ("addition", {"hints": 6}, "hints=6 .* to 7"),
        ("alternation", {"block": 6}, "block is 6, more than task.max_blocks, 5"),
        ("alternation", {"max_blocks": 17}, "max_blocks is 17, more than task.min_letters, 16"),
        ("brackets", {"max_gap": 15, "beyond_gap": 15}, "beyond_gap is 15.*max_gap=15"),
        ("brackets", {"max_gap": 16, "beyond_gap": 15}, "15 with.*nothing is scored"),
        ("brackets", {"m": 1, "beyond_gap": 1}, "no gap is beyond 1 with task.m=1"),
        ("brackets", {"n_back": 4}, "n_back is 4 in mode close"),
        ("copy", {"letters": "unique", "n_symbols": 9}, "16, but task.n_symbols, 9"),
        ("copy", {"letters": "repeat"}, "p is null with task.letters=repeat"),
        ("copy", {"letters": "imbalanced", "p": 0.5, "n_symbols": 1}, "n_symbols=1"),
        ("counting", {"min_ops": 49}, "min_ops is 49, more than task.max_ops, 48"),
        ("flipflop", {"length": 63}, "length is 63, .* even length"),
        ("group_word", {"group": "A6"}, "group=A6"),
        ("group_word", {"group": "Z_1001"}, "group=Z_1001"),
        ("group_word", {"group": "A5", "generators": "swaps"}, "swaps does not generate"),
        ("group_word", {"group": "Z_4", "generators": "cycles3"}, "cycles3 does not generate"),
        ("group_word", {"generators": "neighbours"}, "neighbours does not generate"),
        ("indirect", {"max_letters": 200}, "max_letters is 200, but task.n_symbols, 64"),
        ("indirect", {"max_shift": 4}, "beyond task.min_letters=4"),
        ("majority", {"min_letters": 6, "max_letters": 9, "interleaved": 5}, "10 or more"),
        ("missing_duplicate", {"min_length": 1}, "min_length is 1"),
        ("modular", {"operators": "+/"}, "operators"),
        ("navigation", {"p_empty": 1.0}, "nothing is scored"),
        ("induction", {"min_letters": 2, "side": "left", "occurrence": "first"}, "at least 3"),
        ("khop", {"max_hops": 7}, "length=32 is too short .* at least 36"),
        ("needle", {"n_variables": 9}, "n_variables is 9, more than task.n_names, 8"),
        ("needle", {"length": 18}, "length=18 is too short .* 19 tokens"),
        ("recall", {"n_pairs": 5}, "length is 16, too short .* at least 20"),
        ("recall", {"n_keys": 2}, "n_keys is 2, too few .* at least 3"),
        ("recall", {"n_values": 1}, "n_values is 1, too few"),
        ("recall_reassigned", {"reassigned": 4}, "length is 16, too short .* at least 18"),
    ],
)
def test_keys_must_fit(load, name, keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(load(name), **{"splits": {}, **KEYS.get(name, {}), **keys})
