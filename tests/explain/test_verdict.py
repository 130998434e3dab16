"""The rule of the verdict on made-up diagnoses."""

from pathlib import Path

import pytest

from pe_lab.explain.cells import Cell, Diagnosed
from pe_lab.explain.record import Diagnosis, Row
from pe_lab.explain.verdict import judge


def diagnosis(plain=0.3, in_domain=0.0, restored=None, **rows):
    """A diagnosis whose interventions restore these shares; ``rows``: name -> (value, in domain),
    underscores for blanks."""
    shares = {"oracle": 1.0, "far keys masked": 0.0, "fewer keys": 0.0, "logits scaled": 0.0}
    shares |= restored or {}
    made = [Row("plain", "error", plain, in_domain)]
    made += [Row(n, "intervention", 0.0, in_domain, share) for n, share in shares.items()]
    controls = {"source masked": (0.5, 0.5), "follows a wrong token": (1.0, 1.0)}
    attention = {"log_odds": (-2.0, 4.0), "count": (-5.0, -3.4), "gap": (-3.0, -7.4)}
    names = {**controls, **attention}
    names |= {name if name in names else name.replace("_", " "): v for name, v in rows.items()}
    made = [row for row in made if row.name not in names]
    for name, (value, near) in names.items():
        share = shares.get(name)
        made.append(Row(name, "control" if share is None else "intervention", value, near, share))
    return Diagnosis("0", 1, "long", 0.5, 0.5, 100, [(1, 0)], made)


CASES = {
    "not learned": [diagnosis(in_domain=0.2)],
    "generalises": [diagnosis(plain=0.02)],
    "not retrieval": [diagnosis(restored={"oracle": 0.4, "far keys masked": 0.9})],
    "far competitors": [diagnosis(restored={"far keys masked": 0.9, "fewer keys": 0.4})],
    "number of keys": [diagnosis(restored={"far keys masked": 0.7, "fewer keys": 0.65})],
    "temperature": [diagnosis(restored={"logits scaled": 0.9, "fewer keys": 0.5})],
    "unseen distances": [diagnosis(restored={"distances clamped": 0.8, "far keys masked": 0.8})],
    "unseen positions": [diagnosis(restored={"positions clamped": 0.6, "oracle": 0.2})],
    "its own penalty on distance": [
        diagnosis(restored={"usual penalty": 0.95, "distances clamped": 1.0})
    ],
    "mixed": [diagnosis(restored={"far keys masked": 0.49, "fewer keys": 0.4})],
}


@pytest.mark.parametrize("cause", CASES)
def test_one_seed(cause):
    assert judge(CASES[cause]).cause == cause


def test_positions_that_break_more_than_attention_are_unseen_positions():
    """The oracle restores with clamped positions alone: the layers after attention need them."""
    shares = {"oracle": 0.1, "positions clamped": 0.0, "positions clamped and oracle": 0.9}
    assert judge([diagnosis(restored=shares)]).cause == "unseen positions"
    assert judge([diagnosis(restored=shares | {"oracle": 0.9})]).cause == "mixed"
    lost = shares | {"positions clamped and oracle": 0.4}
    assert judge([diagnosis(restored=lost)]).cause == "not retrieval"
    harmed = diagnosis(restored=shares, positions_clamped_and_oracle=(0.1, 0.2))
    assert judge([harmed]).cause == "not retrieval"


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
    lost = diagnosis(restored={"oracle": 0.2})
    assert judge([far, other, lost]).cause == "mixed"


def test_a_cell_averages_what_is_restored_over_the_seeds_that_fail():
    far = CASES["far competitors"][0]
    fine = diagnosis(plain=0.002, restored={"far keys masked": -40.0})
    seeds = [
        Diagnosed(Path(), "recall", "rope", "rope", n, one) for n, one in enumerate([far, fine])
    ]
    cell = Cell("recall", "rope", "long", seeds)
    assert cell.mean("far keys masked", "restored") == 0.9
    assert cell.mean("plain", "value") == pytest.approx(0.151)
    assert Cell("recall", "rope", "long", seeds[1:]).mean("oracle", "restored") is None
