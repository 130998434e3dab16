"""Keys of tasks that do not fit together are refused, with what to do."""

from dataclasses import replace

import pytest

BRACKETS = {"m": 3, "length": 40, "max_gap": None}
RECALL = {"n_pairs": 2, "length": 16, "n_keys": 20, "n_values": 20}
REASSIGNED = {**RECALL, "power": None, "filling": None}
GROUP = {"group": "S3", "min_steps": 5, "max_steps": 5}


@pytest.mark.parametrize(
    ("name", "keys", "complaint"),
    [
        ("addition", {"min_digits": 7}, r"task.min_digits is 7, more than task.max_digits, 6"),
        ("addition", {"hints": 6}, r"task.hints=6 does not .* sums of 7 digits; .* to 7 or"),
        (
            "brackets",
            {"max_gap": 15, "beyond_gap": 15},
            r"task\.beyond_gap is 15.*task\.max_gap=15",
        ),
        ("alternation", {"min_blocks": 6}, r"task.min_blocks is 6, more than task.max_blocks, 5"),
        ("alternation", {"block": 6}, r"task.block is 6, more than task.max_blocks, 5"),
        ("alternation", {"max_blocks": 17}, r"max_blocks is 17, more than task.min_letters, 16"),
        ("brackets", {"max_gap": 16, "beyond_gap": 15}, r"15 with.*nothing is scored; lower it"),
        (
            "brackets",
            {"length": 16, "beyond_gap": 15},
            r"beyond 15 with.*task\.length=16.*task\.max_gap=null",
        ),
        (
            "brackets",
            {"m": 1, "beyond_gap": 1},
            r"no gap is beyond 1 with task\.m=1.*~task\.splits",
        ),
        ("brackets", {"n_back": 4}, r"task\.n_back is 4 in mode close"),
        (
            "brackets",
            {"splits": {"wide_gap": {"max_gap": None, "beyond_gap": None}}},
            r"wide_gap\.beyond_gap is null.*~task\.splits\.wide_gap",
        ),
        ("brackets_sentence", {"beyond_gap": 3}, r"task\.beyond_gap is 3, but mode sentence"),
        ("brackets_sentence", {"n_back": None}, r"n_back is null in mode sentence; .*_sentence"),
        ("copy", {"min_letters": 17}, r"task.min_letters is 17, more than task.max_letters, 16"),
        (
            "copy",
            {"letters": "unique", "n_symbols": 9},
            r"task.max_letters is 16, but task.n_symbols, 9, .* to 16 or more",
        ),
        ("copy", {"letters": "repeat"}, r"task.p is null with task.letters=repeat; give it a numb"),
        ("copy", {"p": 0.5}, r"task.p=0.5 has no effect with task.letters=free"),
        (
            "copy",
            {"letters": "imbalanced", "p": 0.5, "n_symbols": 1},
            r"task.n_symbols=1 .* to 2 or more",
        ),
        ("counting", {"min_ops": 49}, r"task\.min_ops is 49, more than task\.max_ops, 48"),
        (
            "group_word",
            {"group": "A6"},
            r"task\.group=A6 is not a group here: give Z_2 to Z_1000, S",
        ),
        ("group_word", {"group": "Z_1"}, r"task\.group=Z_1 is not a group here"),
        ("group_word", {"group": "Z_1001"}, r"task\.group=Z_1001 is not a group here"),
        (
            "group_word",
            {"group": "A5", "generators": "swaps"},
            r"swaps does not generate task\.group=A5; give",
        ),
        (
            "group_word",
            {"group": "Z_4", "generators": "cycles3"},
            r"cycles3 does not generate task\.group=Z_4",
        ),
        (
            "group_word",
            {"generators": "neighbours"},
            r"neighbours does not generate task\.group=S3",
        ),
        ("group_word", {"min_steps": 6}, r"task\.min_steps is 6, more than task\.max_steps, 5"),
        (
            "group_word",
            {"group": "S2", "splits": {"other": {"group": "S4"}}},
            "split other cannot change group: its model knows S2",
        ),
        (
            "indirect",
            {"max_letters": 200},
            r"max_letters is 200, but task.n_symbols, 64, .* to 200 or more",
        ),
        (
            "indirect",
            {"max_shift": 4},
            r"beyond task.min_letters=4 letters: lower it to 3 .*task.min_letters to 5",
        ),
        ("indirect", {"min_shift": 5}, r"task.min_shift is 5, more than task.max_shift, 3"),
        ("indirect", {"min_letters": 9}, r"task.min_letters is 9, more than task.max_letters, 8"),
        (
            "majority",
            {"min_letters": 6, "max_letters": 9, "interleaved": 5},
            r"is a multiple of task.interleaved=5.* to 10 or more",
        ),
        ("majority", {"n_symbols": 1}, r"task.n_symbols=1 leaves nothing to count"),
        ("missing_duplicate", {"min_length": 1}, r"task\.min_length is 1, too short .* at least 2"),
        (
            "modular",
            {"min_length": 21},
            r"task\.min_length is 21, more than task\.max_length, 20; lo",
        ),
        ("modular", {"operators": "+/"}, r"operators=\+/ is not some of \+-\*: give \+-\*, or \+-"),
        ("modular", {"operators": "++"}, r"task\.operators=\+\+ has an operator twice"),
        (
            "modular",
            {"splits": {"other": {"m": 7}}},
            r"split other cannot change m: the vocabulary is fixed",
        ),
        ("navigation", {"p_empty": 1.0}, r"task\.p_empty is 1\.0, so that .* nothing is scored"),
        (
            "navigation",
            {"splits": {"other": {"dims": 2}}},
            "split other cannot change dims: the vocabulary is",
        ),
        ("induction", {"min_letters": 17}, r"min_letters is 17, more than task.max_letters, 16"),
        (
            "induction",
            {"min_letters": 2, "side": "left", "occurrence": "first"},
            r"min_letters is 2, too few for task.side=left task.occurrence=first; .* least 3",
        ),
        ("khop", {"min_hops": 3}, r"task.min_hops is 3, more than task.max_hops, 2"),
        ("khop", {"max_hops": 7}, r"task.length=32 is too short .*max_hops=7 .* at least 36"),
        ("needle", {"n_variables": 9}, r"task.n_variables is 9, more than task.n_names, 8"),
        ("needle", {"length": 18}, r"task.length=18 is too short .*=4, which take 19 tokens"),
        (
            "recall",
            {"power": None},
            r"task\.power is null with task\.reassigned=null: it is for re",
        ),
        (
            "recall",
            {"n_pairs": 5},
            r"length is 16, too short for task\.n_pairs=5: give at least 20",
        ),
        (
            "recall",
            {"n_keys": 2},
            r"task\.n_keys is 2, too few for task\.n_pairs=2: give at least 3",
        ),
        (
            "recall",
            {"n_values": 1},
            r"n_values is 1, too few for task\.n_pairs=2, whose values diff",
        ),
        (
            "recall",
            {"splits": {"other": {"n_keys": 300}}},
            "split other cannot change n_keys: the vocabulary is",
        ),
        (
            "recall_reassigned",
            {"power": 1.0},
            r"task\.power is 1\.0 .*reassigned=2: .*=recall_reassig",
        ),
        ("recall_reassigned", {"filling": "blank"}, r"filling is blank with task\.reassigned=2"),
        (
            "recall_reassigned",
            {"reassigned": 4},
            r"task\.length is 16, too short for task\.n_pairs=2: give at least 18",
        ),
    ],
)
def test_keys_must_fit(load, name, keys, complaint):
    of_task = {
        "brackets": BRACKETS,
        "group_word": GROUP,
        "recall": RECALL,
        "recall_reassigned": REASSIGNED,
    }
    with pytest.raises(ValueError, match=complaint):
        replace(load(name), **{"splits": {}, **of_task.get(name, {}), **keys})
