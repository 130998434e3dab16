"""What docs/leaderboard.text.md says, and whether the shipped file of suite v2 has it."""

from collections import Counter
from collections.abc import Callable

from claims_data import (
    BOTH,
    CONTROLS,
    TEN,
    at_twice_the_threshold,
    changed_by_twice_the_steps,
    chosen,
    decided,
    equal_size_again,
    found,
    generalising,
    in_both,
    k,
    made_again,
    median,
    need,
    of_equal_size,
    of_split,
    on_all,
    on_splits,
    other_encodings,
    parameters,
    restored,
    same_as_in_v1,
    steps_of,
    tasks,
    tuning_errors,
    why,
)

from docs import leaderboard
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import cells_of
from pe_lab.results import verdicts
from pe_lab.results.leaderboard import scores
from pe_lab.results.leaderboard.claims import NOT_SUPPORTED

HARMED = ["fire", "alibi", "rope", "cope"]
CLAIMS: dict[str, Callable[[], bool]] = {
    "ALiBi, T5, FIRE and `none` copy at up to three times the length in 8 of 8 seeds with it. "
    "Alone they do in 0 of 8. ALiBi and T5 find a key's value on every split in 8 of 8 seeds with "
    "it and in 0 alone": lambda: (
        all(k(e, "copy_unique") == [0, 8] for e in ("alibi", "t5", "fire", "none"))
        and k("alibi", "recall") == k("t5", "recall") == [0, 8]
    ),
    "ALiBi fits copying in 4 of 8 seeds and recall in 1. `none` fits neither in any seed": lambda: (
        [
            on_splits(entry, task)[IN_DOMAIN]
            for entry in ("alibi", "none")
            for task in ("copy_unique", "recall")
        ]
        == [(4, 8), (1, 8), (0, 8), (0, 8)]
    ),
    "With a convolution of three tokens, five of ten encodings copy and seven recall at length in "
    "every seed; without it none copies and two recall.** The ten include `none`, a model without "
    "an encoding. On flip-flop and counting PaTH generalises in every seed and RoPE in none, alone "
    "and with it": lambda: (
        all(
            [sum(k(entry, task)[at] == 8 for entry in TEN) for at in (0, 1)] == [alone, conv]
            for task, alone, conv in (("copy_unique", 0, 5), ("recall", 2, 7))
        )
        and all(
            [k(entry, task) for entry in ("path", "rope")] == [[8, 8], [0, 0]]
            for task in ("flipflop", "counting")
        )
    ),
    "shares nine of these twelve tasks": lambda: (
        len(tasks()) == 12 and len({task for task in tasks() if same_as_in_v1(task)}) == 9
    ),
    "All 33 other encodings ran majority, alone, and 13 of them find it at greater lengths in 5 of "
    "5 seeds": lambda: (
        [len(others := other_encodings("majority")), sum(k == 5 for k, _ in others.values())]
        == [33, 13]
    ),
    "Needle is not scored": lambda: {*found().suite.tasks} - tasks() == {"needle"},
    "one cause with it: RoPE's heads pick other keys at distances that they have not seen. "
    "Distances clamped to the trained ones restore 97 % of the added error on recall and 75 % on "
    "copying, in 3 of 3 seeds. Without it they restore 35 % and 24 %": lambda: all(
        [why("rope+conv", task)[key] for key in ("cause", "k", "n")] == ["unseen distances", 3, 3]
        and [restored(e, task, "distances clamped") for e in ("rope+conv", "rope")] == [conv, alone]
        for task, conv, alone in (("recall", 97, 35), ("copy_unique", 75, 24))
    ),
    "ALiBi fails by its own penalty on distance, alone and with it": lambda: all(
        why(entry, "flipflop")["cause"] == "its own penalty on distance"
        for entry in ("alibi", "alibi+conv")
    ),
    "On copying and recall RoPE fails at the greatest length, with the convolution, too.** It "
    "generalises to every split in 0 of 8 seeds, alone and with it": lambda: all(
        k("rope", task) == [0, 0] for task in ("copy_unique", "recall")
    ),
    "RoPE's chosen rate on flip-flop, 0.012, fits both tuning seeds and 4 of 8 fresh ones. At "
    "0.006, suite v1 has 19 of 20": lambda: (
        chosen("rope", "flipflop") == 0.012
        and max(tuning_errors("rope", "flipflop", IN_DOMAIN, 0.012))
        <= found().suite.tasks["flipflop"].fits
        and on_splits("rope", "flipflop")[IN_DOMAIN] == (4, 8)
        and leaderboard.shipped("v1")
        .cells.filter(entry="rope", task="flipflop", split=IN_DOMAIN, lr=0.006)["k", "n"]
        .rows()
        == [(19, 20)]
    ),
    "PaTH and the LSTM generalise to every split in 8 of 8 seeds. FIRE does in 4 alone and in 8 "
    "with it, CoPE in 6 and in 8. Without the convolution FIRE fits in those 4 seeds only. RoPE, "
    "`none` and `conv` generalise in 0": lambda: (
        [k(entry, "flipflop") for entry in ("fire", "cope", "path", "lstm")]
        == [[4, 8], [6, 8], [8, 8], [8, 8]]
        and all(k(entry, "flipflop") == [0, 0] for entry in ("rope", "none", "conv"))
        and on_splits("fire", "flipflop")[IN_DOMAIN] == (4, 8)
    ),
    "FoX, PaTH and the LSTM generalise to every split in 8 of 8 seeds, alone and with it. One "
    "split has twice the operations, and in two others more or fewer of them do nothing. PaTH as "
    "published generalises in 8, CoPE in 6 and in 7, ALiBi in 5 and in 5. No other entry does in "
    "any. At twice the operations RoPE's median error is 16.0 % alone and 17.5 % with it. Five "
    "entries do not learn the task alone: T5, `learned`, `none`, `conv` and linear "
    "attention": lambda: (
        generalising("counting")
        == {entry: [8, 8] for entry in ("fox", "path", "lstm")}
        | {"path_published": [8], "cope": [6, 7], "alibi": [5, 5]}
        and [median(e, "counting", "long_x2") for e in ("rope", "rope+conv")] == [16.0, 17.5]
        and {entry for column, entry in need("counting").unlearned if column == "alone"}
        == {"t5", "learned", "none", "conv", "linear_attention"}
    ),
    "Alone FIRE, PaTH and `none` sort at up to three times the length in 8 of 8 seeds. With it "
    "FIRE does in 6, `none` in 4 and PaTH in 2. The errors are near the threshold: at twice "
    "the threshold all three sort in 8 of 8 seeds, alone and with it. RoPE does not sort at any "
    "greater length": lambda: (
        [k(entry, "sort") for entry in ("fire", "none", "path")] == [[8, 6], [8, 4], [8, 2]]
        and all(
            k(entry, "sort", at_twice_the_threshold()) == [8, 8]
            for entry in ("fire", "none", "path")
        )
        and not any(
            k
            for entry in ("rope", "rope+conv")
            for split, (k, _) in on_splits(entry, "sort").items()
            if split != IN_DOMAIN
        )
    ),
    "ALiBi fails there by its own penalty on distance, too. The usual penalty restores 83 % of the "
    "added error alone and 77 % with it, in 3 of 3 seeds": lambda: (
        [restored(entry, "sort", "usual penalty") for entry in ("alibi", "alibi+conv")] == [83, 77]
        and all(
            [why(entry, "sort")[key] for key in ("cause", "k", "n")]
            == ["its own penalty on distance", 3, 3]
            for entry in ("alibi", "alibi+conv")
        )
    ),
    "PaTH as published generalises to eight times the length in 7 of 8 seeds. With `model.conv=3` "
    "it does in 4 of 8 and fits in 7, and with neither convolution in 1. The LSTM does in 8 of 8. "
    "CoPE fits in 2 of 8 seeds alone and in 8 with the convolution, and generalises to twice "
    "the length in 0 alone and in 1 with it. No other entry fits in any seed": lambda: (
        [
            on_splits(entry, "parity")["long_x8"]
            for entry in ("path_published", "path+conv", "path", "lstm", "lstm+conv")
        ]
        == [(7, 8), (4, 8), (1, 8), (8, 8), (8, 8)]
        and on_splits("path+conv", "parity")[IN_DOMAIN] == (7, 8)
        and in_both(["cope"], "parity", IN_DOMAIN) == [[2, 8]]
        and in_both(["cope"], "parity", "long_x2") == [[0, 1]]
        and not any(
            any(both)
            for both in in_both(
                [*({*TEN, *CONTROLS} - {"path", "cope", "lstm"})], "parity", IN_DOMAIN
            )
        )
    ),
    "the convolution helps three of 13 entries at four times the length and harms seven at wider "
    "gaps**, if more than one seed changes": lambda: (
        [
            sum(sign * (conv - alone) > 1 for alone, conv in in_both(BOTH, "brackets", split))
            for split, sign in (("long_x4", 1), ("wide_gap", -1))
        ]
        == [3, 7]
        and len(BOTH) == 13
    ),
    "At four times the length CoPE generalises in 3 of 8 seeds alone and in 8 with it. Linear "
    "attention does in 1 and in 8, `none` in 6 and in 8": lambda: (
        in_both(["cope", "linear_attention", "none"], "brackets", "long_x4")
        == [[3, 8], [1, 8], [6, 8]]
    ),
    "FIRE generalises there in 8 of 8 seeds alone and in 0 with it. ALiBi does in 7 and in 1, RoPE "
    "and CoPE in 5 and in 0. At twice the threshold FIRE with it has 6, ALiBi 5, RoPE and CoPE "
    "still 0. The two columns of ALiBi, RoPE and CoPE have different learning rates, those of FIRE "
    "the same": lambda: (
        in_both(HARMED, "brackets", "wide_gap") == [[8, 0], [7, 1], [5, 0], [5, 0]]
        and [both[1] for both in in_both(HARMED, "brackets", "wide_gap", at_twice_the_threshold())]
        == [6, 5, 0, 0]
        and [chosen(e, "brackets") == chosen(f"{e}+conv", "brackets") for e in HARMED]
        == [True, False, False, False]
    ),
    "T5's tuning runs err at `wide_gap` by at most 2.4 % at 0.003 and 0.006, but by 24.7 % or "
    "more at the chosen 0.024": lambda: (
        chosen("t5", "brackets") == 0.024
        and [
            round(100 * extreme(tuning_errors("t5", "brackets", "wide_gap", lr)), 1)
            for lr, extreme in ((0.003, max), (0.006, max), (0.024, min))
        ]
        == [2.4, 1.9, 24.7]
    ),
    "An entry passes with at most 10 % wrong digits. No entry does at up to three times the "
    "digits in any seed. At up to twice ALiBi does in 0 of 8 seeds alone and in 5 with the "
    "convolution. `conv` does in 3 and in 4, FIRE in 1 and in 3, PaTH as published in 1. RoPE, "
    "FoX, PaTH, the LSTM and linear attention fit in 0 of 8 seeds, alone and with it. PaTH as "
    "published fits in 3": lambda: (
        {*found().suite.tasks["addition"].generalises.values()} == {0.1}
        and [on_splits("path_published", "addition")[s] for s in (IN_DOMAIN, "long_x2", "long_x3")]
        == [(3, 8), (1, 8), (0, 8)]
        and in_both(BOTH, "addition", "long_x3") == [[0, 0]] * 13
        and in_both(["alibi", "conv", "fire"], "addition", "long_x2") == [[0, 5], [3, 4], [1, 3]]
        and in_both(["rope", "fox", "path", "lstm", "linear_attention"], "addition", IN_DOMAIN)
        == [[0, 0]] * 5
    ),
    "An entry passes with at most 15 % wrong observations. `sparse` has twice the places, objects "
    "at fewer of them, and walks twice as long. There PaTH as published generalises in 5 of 5 "
    "seeds, PaTH in 2 alone and in 4 with the convolution, and no other entry in any. At four "
    "times the length PaTH as published generalises in 1, and no other entry in any. At twice the "
    "threshold all three do in 5, and on `sparse` CoPE with the convolution does. In 18 of 27 "
    "cells most seeds do not learn the task": lambda: (
        {*found().suite.tasks["navigation"].generalises.values()} == {0.15}
        and [
            {entry: k for entry, (k, n) in of_split("navigation", split).items() if k and n == 5}
            for split in ("sparse", "long_x4")
        ]
        == [{"path": 2, "path+conv": 4, "path_published": 5}, {"path_published": 1}]
        and all(
            of_split("navigation", split, at_twice_the_threshold())[entry] == (5, 5)
            for entry in ("path", "path+conv", "path_published", "cope+conv")
            for split in ("sparse", "long_x4")[: 1 if entry == "cope+conv" else 2]
        )
        and len(need("navigation").unlearned) == 18
        and len(of_split("navigation", "sparse")) == 27
    ),
    "On text RoPE fails at four times the length, with the convolution, too.** The next character "
    "is predicted with at most 35 % error at eight times the length by ALiBi, FoX, PaTH and the "
    "LSTM in 3 of 3 seeds, alone and with it. CoPE does so in 0 alone and in 3 with it. RoPE fits "
    "in 3 of 3 seeds, and its median error at eight times is 66.2 % alone and 65.9 % with "
    "it": lambda: (
        [of_split("text", "long_x4")[e] for e in ("rope", "rope+conv")] == [(0, 3)] * 2
        and {*found().suite.tasks["text"].generalises.values()} == {0.35}
        and all(
            of_split("text", "long_x8")[f"{entry}{column}"] == (3, 3)
            for entry in ("alibi", "fox", "path", "lstm")
            for column in ("", "+conv")
        )
        and [of_split("text", "long_x8")[e] for e in ("cope", "cope+conv")] == [(0, 3), (3, 3)]
        and [of_split("text", IN_DOMAIN)[e] for e in ("rope", "rope+conv")] == [(3, 3)] * 2
        and [median(e, "text", "long_x8") for e in ("rope", "rope+conv")] == [66.2, 65.9]
    ),
    "Three seeds are too few for a row above": lambda: "predict text" not in leaderboard.page("v2"),
    "At least two of these three then fit in 3 more of the 35 cells: ALiBi on copying and recall, "
    "FoX on sorting. In 6 more they generalise to every split: FoX and PaTH on majority, ALiBi "
    "and CoPE on counting, ALiBi and FoX on sorting. So FoX's 0 of 8 on majority": lambda: (
        changed_by_twice_the_steps()
        == [
            {("alibi", "copy_unique"): True, ("alibi", "recall"): True, ("fox", "sort"): True},
            {
                ("fox", "majority"): True,
                ("path", "majority"): True,
                ("alibi", "counting"): True,
                ("cope", "counting"): True,
                ("alibi", "sort"): True,
                ("fox", "sort"): True,
            },
        ]
        and k("fox", "majority")[0] == 0
    ),
    "By the times of suite v1 a step of PaTH costs 1.8 times as much as RoPE's. In RoPE's time "
    "PaTH without the convolution generalises to every split in 5 of 5 seeds on flip-flop, 2 on "
    "recall and 1 on copying. With all steps the same seeds do in 5, 5 and 3": lambda: (
        [
            [on_all("path", task, of)[0] for task in ("flipflop", "recall", "copy_unique")]
            for of in scores.paired(found(), "equal_time")
        ]
        == [[(5, 5), (5, 5), (3, 5)], [(5, 5), (2, 5), (1, 5)]]
        and {
            round(steps_of("path", task, all_steps) / steps_of("path", task, fewer), 1)
            for all_steps, fewer in [scores.paired(found(), "equal_time")]
            for task in ("flipflop", "recall", "copy_unique")
        }
        == {1.8}
    ),
    "PaTH has 9 % more parameters than RoPE on flip-flop, and `learned` 16 %": lambda: (
        [
            round(100 * parameters(entry, "flipflop") / parameters("rope", "flipflop") - 100)
            for entry in ("path", "learned")
        ]
        == [9, 16]
    ),
    "The count of generalising seeds, of five, then differs by at most two. FIRE has 2 on "
    "flip-flop and 0 then, but 3 on another processor": lambda: (
        max(abs(own - equal) for own, equal in of_equal_size().values()) == 2
        and of_equal_size()["fire", "flipflop"] == (2, 0)
        and equal_size_again("fire", "flipflop") == 3
    ),
    "Diagnoses ship for flip-flop, recall, copying, `selective_copy` and sorting": lambda: (
        {
            cell.task
            for cell in cells_of(verdicts.diagnosed(verdicts.shipped_diagnoses(found().suite)))
        }
        == {"flipflop", "recall", "copy_unique", "selective_copy", "sort"}
    ),
    "Suite v1 has the same runs of 41 cells, from a processor whose name was not recorded. In 30 "
    "of these cells no seed generalises on either. In the other 11 the number is equal in 6, and "
    "differs by one or two of eight in 5. Of CoPE's eight seeds on flip-flop six switch": lambda: (
        len(made_again()) == 41
        and sum(first == again == 0 for first, again, _ in made_again().values()) == 30
        and Counter(abs(a - b) for a, b, _ in made_again().values() if a or b) == {0: 6, 1: 3, 2: 2}
        and made_again()["cope", "flipflop"][2] == 6
    ),
    "ALiBi generalises to every split in 8 of 8 seeds with it. Alone it does in 5 (one-sided p = "
    "0.1) and fits in 4. FIRE generalises in 2 with it. No other entry does in any seed. With it "
    "PaTH and CoPE generalise to denser and sparser blanks in 8 of 8 seeds, and to twice the "
    "length in none": lambda: (
        generalising("selective_copy") == {"alibi": [5, 8], "fire": [0, 2]}
        and on_splits("alibi", "selective_copy")[IN_DOMAIN] == (4, 8)
        and all(
            [on_splits(entry, "selective_copy")[split] for split in ("dense", "sparse", "long_x2")]
            == [(8, 8), (8, 8), (0, 8)]
            for entry in ("path+conv", "cope+conv")
        )
        and decided()["conv-copy-alibi"].rows["p"].round(1).to_list() == [0.0, 0.1]
    ),
    "Three claims are not supported": lambda: (
        {name for name, one in decided().items() if one.verdict == NOT_SUPPORTED}
        == {"path-copy", "path-recall", "conv-copy-alibi"}
    ),
    "ALiBi copies letters from among blanks without the convolution, too, in 5 of 8 "
    "seeds": lambda: k("alibi", "selective_copy")[0] == 5,
}
"""A part of the text, and whether the shipped file says so."""
