"""The parts of a suite: its tasks and its protocol."""

from typing import Annotated, TypeVar

from pydantic import Field, PositiveFloat, PositiveInt

from pe_lab.common.closed import closed
from pe_lab.core.metrics import IN_DOMAIN

Share = Annotated[float, Field(ge=0, le=1)]
T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@closed
class SuiteTask:
    """A task of a suite.

    Args:
        family: the skill that it needs; tasks of a family are neighbours in tables.
        words: overrides of a run of it, beside those that all tasks share.
        fits: the in-domain error up to which the task counts as learned, a share.
        generalises: of each scored split, the error up to which it counts as generalised to.
        digest: of the task, its training and its measuring as composed (``task_digest``).
    """

    family: str
    words: tuple[str, ...]
    fits: Share
    generalises: dict[str, Share]
    digest: str

    @property
    def thresholds(self) -> dict[str, float]:
        """In domain and of each scored split, the largest error that counts as learned or
        generalised."""
        return {IN_DOMAIN: self.fits, **self.generalises}

    def threshold(self, split: str) -> float | None:
        """That of a split; None: it is not scored."""
        return self.thresholds.get(split)


@closed
class Protocol:
    """How an entry is tuned and scored.

    Args:
        rates: all values of ``train.lr`` that are tried.
        tuning_seeds: seeds of these runs.
        seeds: the entry is scored on seeds 0 to ``seeds`` - 1.
        more_seeds: the same, for the encodings ``more_seeds_for``.
        longer: for the same encodings, how many times the steps are trained too.
    """

    rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=4)]
    tuning_seeds: Several[Seed]
    seeds: PositiveInt
    more_seeds: PositiveInt
    more_seeds_for: tuple[str, ...]
    longer: tuple[Annotated[int, Field(ge=2)], ...]
