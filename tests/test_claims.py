"""What the pages of the leaderboard say in words is what the shipped files have."""

import claims_v1
import claims_v2
import pytest
from claims_data import found, k, on_splits
from written_claims import unchecked, written

from docs import leaderboard

OF_SUITE = {"v2": claims_v2.CLAIMS, "v1": claims_v1.CLAIMS}


@pytest.mark.parametrize(
    ("suite", "claim"), [(suite, claim) for suite, claims in OF_SUITE.items() for claim in claims]
)
def test_what_is_said_is_what_ships(suite: str, claim: str) -> None:
    assert claim in written(suite)
    assert OF_SUITE[suite][claim]()


@pytest.mark.parametrize("suite", OF_SUITE)
def test_every_number_of_seeds_is_checked(suite: str) -> None:
    assert unchecked(suite, OF_SUITE[suite]) == []


def test_the_readme_has_what_ships() -> None:
    said = " ".join(leaderboard.README.read_text("utf-8").split())
    assert leaderboard.first_table() in leaderboard.README.read_text("utf-8"), "make leaderboard"
    assert "ALiBi, T5 and FIRE copy at three times the length in 8 of 8 seeds, alone in 0" in said
    for entry in ("alibi", "t5", "fire"):
        columns = [on_splits(f"{entry}{conv}", "copy_unique") for conv in ("", "+conv")]
        assert [of["long_x3"] for of in columns] == [(0, 8), (8, 8)]
    assert "It generalises to every split of each in 0 of 8 seeds" in said
    assert all(k("rope", task) == [0, 0] for task in ("copy_unique", "recall", "flipflop"))
    assert "how many of 8 seeds err at most 1 % in domain and 2 % elsewhere" in said
    flipflop = found().suite.tasks["flipflop"]
    assert flipflop.fits == 0.01
    assert {*flipflop.generalises.values()} == {0.02}
