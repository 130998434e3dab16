"""The rule of the verdict on made-up diagnoses."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pe_lab.explain import verdict
from pe_lab.explain.record import Diagnosis, Row
from pe_lab.explain.verdict import Diagnosed, DiagnosedCell

judge = partial(verdict.judge, "toy", "long")
PLACEBOS = [name for names in verdict.PLACEBOS.values() for name in names if ":" in name]


def diagnosis(plain=0.3, in_domain=0.0, restored=None, answers=100, **rows):
    """A diagnosis whose interventions restore these shares; ``rows``: name -> (value, in domain),
    underscores for blanks. Placebos restore nothing."""
    shares = {"oracle": 1.0, "far keys masked": 0.0, "fewer keys": 0.0, "logits scaled": 0.0}
    shares |= dict.fromkeys(PLACEBOS, 0.0) | (restored or {})
    kinds = dict.fromkeys(PLACEBOS, "placebo")
    made = [Row("plain", "error", plain, in_domain)]
    made += [Row(n, kinds.get(n, "intervention"), 0.0, in_domain, x) for n, x in shares.items()]
    controls = {"source masked": (0.5, 0.5), "follows a wrong token": (1.0, 1.0)}
    attention = {"log_odds": (-2.0, 4.0), "count": (-5.0, -3.4), "gap": (-3.0, -7.4)}
    attention |= {"mass": (0.8, 0.9), "margin": (-2.0, 3.0), "term": (-4.0, 0.0)}
    names = {**controls, **attention}
    names |= {name if name in names else name.replace("_", " "): v for name, v in rows.items()}
    made = [row for row in made if row.name not in names]
    for name, (value, near) in names.items():
        share = shares.get(name)
        made.append(Row(name, "control" if share is None else "intervention", value, near, share))
    return Diagnosis("0", 1, "long", 0.5, 0.5, answers, [(1, 0)], made)


CASES = {
    "not learned": [diagnosis(in_domain=0.2)],
    "generalises": [diagnosis(plain=0.02)],
    "not retrieval": [diagnosis(restored={"oracle": 0.4, "far keys masked": 0.4})],
    "far competitors": [diagnosis(restored={"far keys masked": 0.9, "fewer keys": 0.4})],
    "number of keys": [diagnosis(restored={"far keys masked": 0.9, "fewer keys": 0.8})],
    "temperature": [diagnosis(restored={"logits scaled": 0.9, "fewer keys": 0.5})],
    "unseen distances": [diagnosis(restored={"distances clamped": 0.8, "far keys masked": 0.8})],
    "unseen positions": [diagnosis(restored={"positions clamped": 0.6, "oracle": 0.2})],
    "its own penalty on distance": [
        diagnosis(restored={"usual penalty": 0.95, "distances clamped": 1.0})
    ],
    "mixed": [diagnosis(restored={"far keys masked": 0.49, "fewer keys": 0.4})],
    "cannot be diagnosed": [diagnosis(restored={"far keys masked": 0.9}, answers=96)],
}


@pytest.mark.parametrize("cause", CASES)
def test_one_seed(cause):
    assert judge(CASES[cause]).cause == cause


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ({"restored": {"oracle": 0.0, "far keys masked": 1.0}}, "mixed"),
        ({"restored": {"oracle": 0.0, "far keys masked in layer 0": 1.0}}, "mixed"),
        ({"restored": {"oracle": 0.0, "distances clamped": 0.9}}, "unseen distances"),
        ({"restored": {"oracle": 0.2}, "mass": (0.32, 0.77)}, "mixed"),
        ({"restored": {"far keys masked": 0.9, "fewer keys": 0.45}}, "mixed"),
        ({"restored": {"usual penalty": 0.9}, "term": (-2.0, 0.0)}, "mixed"),
        ({"restored": {"usual penalty": 0.9, "usual penalty: wrong token": 0.5}}, "mixed"),
        ({"restored": {"fewer keys": 0.9, "fewer keys: strongest others masked": 0.8}}, "mixed"),
        (
            {
                "restored": {
                    "fewer keys": 0.9,
                    "fewer keys: strongest others masked": 0.8,
                    "far keys masked": 1.0,
                }
            },
            "far competitors",
        ),
        # The best three keys capped at the fourth, as measured: recall none, copy_unique t5.
        *(
            ({"restored": rows | {"fewer keys: strongest others masked": 1.0}}, cause)
            for rows, cause in (
                ({"fewer keys": 0.54, "far keys masked": 0.59}, "mixed"),
                ({"fewer keys": 0.71, "distances clamped": 0.82}, "mixed"),
                ({"fewer keys": 0.75, "distances clamped": 1.0}, "unseen distances"),
            )
        ),
    ],
)
def test_no_row_of_the_table_contradicts_the_verdict(rows, cause):
    assert judge([diagnosis(**rows)]).cause == cause


def test_an_answer_that_recurrent_layers_carry_cannot_be_diagnosed():
    found = judge([diagnosis(answers=50, source_masked=(0.0, 0.0), attention_off=(0.1, 0.1))])
    assert found.cause == "cannot be diagnosed"
    assert found.why.startswith("its recurrent layers carry the answer")
    shares = {"far keys masked": 0.9}
    assert judge([diagnosis(restored=shares, attention_off=(0.5, 0.5))]).cause == "far competitors"


def test_a_told_intervention_without_a_placebo_names_no_cause():
    """As in records of 0.2; fewer keys are the placebo of far keys."""
    for name, cause in (("usual penalty", "mixed"), ("far keys masked", "far competitors")):
        one = diagnosis(restored={name: 1.0})
        old = replace(one, rows=[row for row in one.rows if row.kind != "placebo"])
        assert judge([old]).cause == cause


def test_the_weighted_oracle_counts_where_the_other_breaks_the_model():
    shares = {"oracle": 0.0, "weighted oracle": 0.9, "fewer keys": 0.9}
    found = judge([diagnosis(restored=shares, oracle=(0.5, 0.5))])
    assert (found.cause, found.shares["oracle"]) == ("number of keys", 0.9)
    both_break = {"oracle": (0.5, 0.5), "weighted_oracle": (0.0, 0.5)}
    assert judge([diagnosis(restored=shares, **both_break)]).cause == "cannot be diagnosed"


def test_positions_that_break_more_than_attention_are_unseen_positions():
    """The oracle restores with clamped positions alone: the layers after attention need them."""
    shares = {"oracle": 0.1, "positions clamped": 0.0, "positions clamped and oracle": 0.9}
    assert judge([diagnosis(restored=shares)]).cause == "unseen positions"
    assert judge([diagnosis(restored=shares | {"oracle": 0.9})]).cause == "mixed"
    lost = shares | {"positions clamped and oracle": 0.4}
    assert judge([diagnosis(restored=lost)]).cause == "not retrieval"
    harmed = diagnosis(restored=shares, positions_clamped_and_oracle=(0.1, 0.2))
    assert judge([harmed]).cause == "mixed"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"source_masked": (0.5, 0.3)}, "without the tokens"),
        ({"follows_a_wrong_token": (1.0, 0.4)}, "wrong token"),
        ({"oracle": (0.0, 0.2)}, "breaks it in domain"),
    ],
)
def test_a_control_that_fails_says_why(rows, why):
    found = judge([diagnosis(restored={"far keys masked": 1.0}, **rows)])
    assert found.cause == "cannot be diagnosed"
    assert why in found.why
    assert why in found.sentence("rope", "recall", "long")


@pytest.mark.parametrize(("count", "cause"), [(-6.5, "number of keys"), (-3.5, "temperature")])
def test_both_restore_and_what_took_the_log_odds_decides(count, cause):
    rows = {"log_odds": (-2.0, 4.0), "count": (count, -3.4), "gap": (count + 2, -7.4)}
    both = diagnosis(restored={"fewer keys": 0.9, "logits scaled": 0.95}, **rows)
    assert judge([both]).cause == cause


def test_two_thirds_of_the_seeds_that_fail():
    far, other = CASES["far competitors"][0], CASES["mixed"][0]
    fine, unfit = CASES["generalises"][0], CASES["not learned"][0]
    found = judge([far, far, other, fine, unfit])
    assert (found.cause, found.k, found.n) == ("far competitors", 2, 5)
    assert (found.fitting, found.failing) == (4, 3)
    assert "(2 of 3 seeds that fail, of 5)" in found.sentence("rope", "recall", "long")
    assert judge([far, other]).cause == "mixed"
    assert judge([fine, fine, unfit]).k == 2
    assert judge([unfit, unfit, far]).cause == "not learned"


def test_seeds_whose_control_fails_are_left_out_up_to_a_third():
    far = CASES["far competitors"][0]
    abstains = diagnosis(restored={"oracle": 0.0}, source_masked=(0.0, 0.0))
    assert judge([far, far, abstains]).cause == "far competitors"
    found = judge([far, abstains, abstains])
    assert (found.cause, found.k) == ("cannot be diagnosed", 2)


def test_a_seed_that_is_not_retrieval_names_no_cause():
    far = CASES["far competitors"][0]
    other = diagnosis(restored={"far keys masked": 0.4})
    assert judge([far, other, diagnosis(restored={"oracle": 0.2})]).cause == "mixed"


def test_a_cell_averages_what_is_restored_over_the_seeds_that_fail():
    far = CASES["far competitors"][0]
    fine = diagnosis(plain=0.002, restored={"far keys masked": -40.0})
    seeds = [Diagnosed(Path(), "recall", "rope", n, one) for n, one in enumerate([far, fine])]
    cell = DiagnosedCell("recall", "rope", "long", seeds)
    assert cell.mean("far keys masked", "restored") == 0.9
    assert cell.mean("plain", "value") == pytest.approx(0.151)
    assert DiagnosedCell("recall", "rope", "long", seeds[1:]).mean("oracle", "restored") is None


def test_the_leading_split_has_the_most_seeds_and_of_those_the_highest_error():
    errors = {"one": [0.4], "low": [0.2, 0.2], "high": [0.4, 0.4], "last": [0.4, 0.4]}
    found = [
        Diagnosed(Path(), "toy", "rope", seed, replace(diagnosis(plain=error), split=split))
        for split, of_split in errors.items()
        for seed, error in enumerate(of_split)
    ]
    assert verdict.leading_cells(found)["toy", "rope"].split == "high"
