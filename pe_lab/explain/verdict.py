"""The rule that turns a diagnosis into a verdict; docs/why.md states it for readers.

Of a seed, in this order:

1. ``not learned``: the error in domain is above ``FITS``.
2. ``generalises``: the split adds at most ``LOSS`` to it.
3. ``cannot be diagnosed``: a control fails (``find_failed_control``).
4. ``not retrieval``: attention forced onto the right tokens restores less than half, and so do the
   interventions that are not told these tokens. Those also act in heads that do not read the
   answer, and before them.
5. the causes whose intervention restores at least half, and adds at most ``HARM`` in domain;
   unseen positions also where the oracle restores half with clamped positions alone.

Of several seeds: the verdict that holds in at least two thirds of those that fail, else ``mixed``.
Where several causes do, it is the one that restores most; of those within ``TIE`` of it, the
first in ``CAUSES``. Number of keys and temperature are told apart by what took the log odds: the
count of keys, or the gap.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pe_lab.explain.record import Diagnosis

FITS = 0.1
LOSS = 0.03
HARM = 0.05
HALF = 0.5
SEEDS = 2 / 3
TIE = 0.3
"""Masking far keys also removes what a narrower intervention corrects, so it restores more."""
BREAKS = 0.1
"""The error that forcing attention onto the right tokens may add in domain."""
GUESSES = 2 / 3
"""Of guessing's error, what the error must reach without the tokens that hold the answer."""

CAUSES = {
    "number of keys": "fewer keys",
    "temperature": "logits scaled",
    "its own penalty on distance": "usual penalty",
    "unseen positions": "positions clamped",
    "unseen distances": "distances clamped",
    "far competitors": "far keys masked",
}
"""Cause -> its intervention; those that explain more narrowly come first."""
UNTOLD = {"temperature", "unseen positions", "unseen distances"}
"""Those whose intervention is not told which tokens hold the answer, as the oracle is."""
MOVED = "positions clamped and oracle"
"""Where the oracle restores only with this, positions break what reads attention's result."""
BECAUSE = {
    "its own penalty on distance": "its encoding lowers the logit of the right token",
    "unseen positions": "it has not seen the positions",
    "unseen distances": "its heads pick other keys at distances it has not seen",
    "number of keys": "its heads spread over more keys than in training",
    "temperature": "its heads spread over other keys, and larger logits would do",
    "far competitors": "its heads pick keys further away than any in training",
    "mixed": "no one intervention restores half of it",
    "not retrieval": "what follows attention fails, or the algorithm does",
}


@dataclass(frozen=True)
class Verdict:
    """What the seeds of a cell say.

    Args:
        cause: a key of ``CAUSES``, or ``not learned``, ``generalises``, ``cannot be diagnosed``,
            ``not retrieval`` or ``mixed``.
        why: why it cannot be diagnosed; empty otherwise.
        k, n: the seeds that say so, and those that were asked.
        fitting: of ``n``, those that learned it; ``failing``: those that do not generalise.
        shares: intervention -> the mean share of the added error that it restores.
    """

    cause: str
    why: str
    k: int
    n: int
    fitting: int
    failing: int
    shares: dict[str, float]

    def sentence(self, pe: str, task: str, split: str) -> str:
        """The verdict as a sentence."""
        seeds = f"({self.k} of {self.n} seeds)"
        if self.cause == "not learned":
            return f"{pe} has not learned {task} in domain {seeds}: there is nothing to explain."
        if self.cause == "generalises":
            return f"{pe} generalises on {task} to {split} {seeds}."
        begin = f"{pe} fails on {task} at {split}"
        if self.cause == "cannot be diagnosed":
            return f"{begin}, and cannot be diagnosed {seeds}: {self.why}."
        seeds = f"({self.k} of {self.failing} seeds that fail, of {self.n})"
        oracle = self.shares.get("oracle")
        forced = "" if oracle is None else (
            f"; attention forced onto the right tokens restores {100 * oracle:.0f} %"
        )  # fmt: skip
        return f"{begin} because {BECAUSE[self.cause]}{forced} {seeds}."


def added_error(one: Diagnosis) -> float:
    """The error that the split adds."""
    plain = one.by_name["plain"]
    return (plain.value or 0.0) - (plain.in_domain or 0.0)


def fits(one: Diagnosis) -> bool:
    """Whether the task is learned in domain."""
    return (one.by_name["plain"].in_domain or 0.0) <= FITS


def fails(one: Diagnosis) -> bool:
    """Whether there is something to restore."""
    return fits(one) and added_error(one) > LOSS


def find_failed_control(one: Diagnosis) -> str:
    """Why the interventions say nothing of this model; empty where they do."""
    rows = one.by_name
    plain = rows["plain"].in_domain or 0.0
    masked = rows["source masked"].in_domain
    if masked is not None and masked < GUESSES * one.guess_in_domain:
        return "it answers without the tokens that hold the answer"
    oracle = rows["oracle"].in_domain
    if oracle is not None and oracle > plain + BREAKS:
        return "attention forced onto the right tokens breaks it in domain"
    follows = rows["follows a wrong token"].in_domain
    if follows is not None and follows < HALF:
        return "attention forced onto a wrong token does not change its answer to that token's"
    return ""


def find_causes(one: Diagnosis) -> dict[str, float]:
    """The causes whose intervention restores at least half, and how much it restores."""
    plain, found, names = one.by_name["plain"].in_domain or 0.0, {}, dict(CAUSES)
    if _restored(one, "oracle") < HALF <= _restored(one, MOVED):
        names["unseen positions"] = MOVED
    for cause, name in names.items():
        row = one.by_name.get(name)
        if row is None or row.restored is None or row.restored < HALF:
            continue
        if (row.in_domain or 0.0) <= plain + HARM:
            found[cause] = row.restored
    return found


def judge(seeds: Sequence[Diagnosis]) -> Verdict:
    """The verdict on the seeds of a cell: a task, an encoding and a split."""
    n = len(seeds)
    fitting = [one for one in seeds if fits(one)]
    failing = [one for one in seeds if fails(one)]
    shares = _shares(failing)

    def of(cause: str, k: int, why: str = "") -> Verdict:
        return Verdict(cause, why, k, n, len(fitting), len(failing), shares)

    if 2 * len(fitting) < n or not fitting:
        return of("not learned", n - len(fitting))
    if not failing:
        return of("generalises", len(fitting))
    reasons = [find_failed_control(one) for one in failing]
    fit_to_say = [one for one, why in zip(failing, reasons, strict=True) if not why]
    if len(fit_to_say) < SEEDS * len(failing):
        why, k = Counter(why for why in reasons if why).most_common(1)[0]
        return of("cannot be diagnosed", k, why)
    shares = _shares(fit_to_say)
    enough = SEEDS * len(fit_to_say)
    lost = [one for one in fit_to_say if not _retrieval(one)]
    if len(lost) >= enough:
        return of("not retrieval", len(lost))
    found = Counter(cause for one in fit_to_say if _retrieval(one) for cause in find_causes(one))
    holding = [cause for cause in CAUSES if found[cause] >= enough]
    if not holding or len(fit_to_say) - len(lost) < enough:
        return of("mixed", len(fit_to_say))
    cause = _most_specific(holding, shares, fit_to_say)
    return of(cause, found[cause])


def _retrieval(one: Diagnosis) -> bool:
    """Whether the fault lies in attention or before it: something done there restores half."""
    return _restored(one, "oracle") >= HALF or bool(UNTOLD & find_causes(one).keys())


def _restored(one: Diagnosis, name: str) -> float:
    row = one.by_name.get(name)
    return 0.0 if row is None or row.restored is None else row.restored


def _shares(seeds: Sequence[Diagnosis]) -> dict[str, float]:
    """Intervention -> the mean share that it restores."""
    found = {}
    for name in (*CAUSES.values(), "oracle"):
        rows = [one.by_name[name] for one in seeds if name in one.by_name]
        restored = [row.restored for row in rows if row.restored is not None]
        if restored:
            found[name] = float(np.mean(restored))
    return found


def _most_specific(
    holding: Sequence[str], shares: dict[str, float], seeds: Sequence[Diagnosis]
) -> str:
    most = max(shares[CAUSES[cause]] for cause in holding)
    near = [cause for cause in holding if shares[CAUSES[cause]] >= most - TIE]
    if {"number of keys", "temperature"} <= set(near) and near[0] == "number of keys":
        return "number of keys" if _count_share(seeds) >= HALF else "temperature"
    return near[0]


def _count_share(seeds: Sequence[Diagnosis]) -> float:
    """Of the log odds that the split takes, the share that the number of keys takes."""
    lost = {
        name: float(np.mean([_lost(one, name) for one in seeds])) for name in ("log_odds", "count")
    }
    return lost["count"] / lost["log_odds"] if lost["log_odds"] > 0 else 1.0


def _lost(one: Diagnosis, name: str) -> float:
    row = one.by_name[name]
    return (row.in_domain or 0.0) - (row.value or 0.0)
