"""What of a suite is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Args:
        entries: encodings and controls.
        budget_s: seconds after which no run is begun; None: no limit.
        dry: only print what is to be done.
        shipped: runs whose results the package has are not run again.
    """

    tasks: list[str]
    entries: list[str]
    phases: list[str]
    budget_s: float | None = None
    dry: bool = False
    shipped: bool = True
