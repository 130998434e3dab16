"""``pe-lab suite``: tuning, scoring, what is missing, budget, cost."""

import math

import pytest

from pe_lab.cli.main import main
from pe_lab.common.errors import UsageError
from pe_lab.results.suite import load_suite
from pe_lab.results.tuning import FAILED, chosen_rate
from pe_lab.sweeps.suite.cost import relative_cost


def test_the_rate_with_the_lowest_in_domain_error_is_chosen() -> None:
    assert chosen_rate({0.001: [(0.2, 1.0)], 0.003: [(0.1, 2.0)]}) == 0.003


def test_ties_go_to_the_lower_loss_then_to_the_smaller_rate() -> None:
    assert chosen_rate({0.001: [(0.0, 0.3)], 0.003: [(0.0, 0.2)], 0.006: [(0.0, 0.2)]}) == 0.003


def test_a_rate_is_chosen_by_its_mean_over_tuning_seeds() -> None:
    assert chosen_rate({0.001: [(0.0, 0.1), (0.4, 0.1)], 0.003: [(0.1, 0.1), (0.2, 0.1)]}) == 0.003


def test_failed_tuning_runs_are_last_and_none_is_chosen_of_them_alone() -> None:
    assert chosen_rate({0.001: [FAILED], 0.003: [(0.9, math.inf)]}) == 0.003
    assert chosen_rate({0.001: [FAILED], 0.003: [FAILED]}) is None


def test_every_encoding_of_the_suite_has_a_relative_cost() -> None:
    costs = {entry: relative_cost(entry, 100) for entry in load_suite().encodings}
    assert min(cost for cost in costs.values() if cost is not None) > 0.5
    assert None not in costs.values()
    assert relative_cost("mine", 100) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "suite needs the name of a suite: pe-lab suite v1"),
        (["v0"], "unknown suite v0: choose from v1"),
        (["v1", "tasks=flip"], "tasks=flip: did you mean flipflop?"),
        (["v1", "phases=scores"], "phases=scores: did you mean score?"),
        (["v1", "budget=2"], "budget=2: give a number above 0 with its unit, like 90m, 2h or 1d"),
        (["v1", "train.steps=3"], "suite train.steps=3: "),
        (["v1", "force=true"], "suite force=true: "),
        (["v1", "hydra/sweeper=optuna"], "a suite is no search, leave it out"),
    ],
)
def test_wrong_requests(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", *words]) == UsageError.exit_status
    assert message in capsys.readouterr().err
