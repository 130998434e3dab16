"""A quarter of a minute of ``make test-chaos``."""

from pathlib import Path

import pytest
from chaos import campaign


@pytest.mark.extended
def test_killed_commands_end_with_the_undisturbed_numbers(tmp_path: Path) -> None:
    cases, kills = campaign(0.25, 1, tmp_path)
    assert kills >= cases >= 1
