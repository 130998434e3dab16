"""The rule that turns a diagnosis into a verdict; docs/why.md states it for readers.

``judge_seed`` tries the rules on one seed, and ``judge`` asks for two thirds of the seeds that
fail. A cause needs an intervention that restores at least half of the added error beyond its
placebos, and no other row of the table may contradict it: then the verdict is ``mixed``, with the
row as the reason. The seeds of a task, an encoding and a split, with their verdict, are a
``DiagnosedCell``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN, threshold
from pe_lab.explain.record import HALF, Diagnosis, Row

FEWEST = 30
"""Answers that are wrong on the split and would be right in domain: fewer say nothing."""
HARM = 0.05
"""The in-domain error that the intervention of a cause may add."""
SEEDS = 2 / 3
"""The least share of the failing seeds that are diagnosed, and that agree on a cause."""
TIE = 0.3
"""Masking far keys also removes what a narrower intervention corrects, so it restores more."""
BREAKS = 0.1
"""The error that forcing attention onto the right tokens may add in domain."""
GUESSES = 2 / 3
"""The least share of guessing's error that is left without the tokens that hold the answer."""
KEPT = 0.8
"""The share of the in-domain weight on the right tokens that a split keeps if it is ``not
retrieval``."""

CAUSES = {
    "number of keys": "fewer keys",
    "temperature": "logits scaled",
    "its own penalty on distance": "usual penalty",
    "unseen positions": "positions clamped",
    "unseen distances": "distances clamped",
    "far competitors": "far keys masked",
}
"""Cause -> its intervention; those that explain more narrowly come first."""
PLACEBOS = {
    "fewer keys": ("fewer keys: strongest others masked", "fewer keys: wrong token kept"),
    "usual penalty": ("usual penalty: wrong token",),
    "far keys masked": ("fewer keys",),
}
"""The interventions that are told which tokens hold the answer, and their placebos of equal dose.
The others act in every layer, so the oracle, which acts in few heads, cannot contradict them."""
MOVED = "positions clamped and oracle"
"""Where the oracle restores only with this, positions break what reads attention's result."""
BECAUSE = {
    "its own penalty on distance": "its encoding lowers the logit of the right token",
    "unseen positions": "it has not seen the positions",
    "unseen distances": "its heads pick other keys at distances it has not seen",
    "number of keys": "its heads spread over more keys than in training",
    "temperature": "its heads spread over other keys, and larger logits would do",
    "far competitors": "its heads pick keys further away than any in training",
    "not retrieval": "what follows attention fails, or the algorithm does",
}

COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("path", "task", "pe"), pl.String),
    "seed": pl.Int64,
    **dict.fromkeys(("split", "name", "kind"), pl.String),
    **dict.fromkeys(("value", "in_domain", "restored"), pl.Float64),
}


@dataclass(frozen=True)
class Verdict:
    """What the seeds of a cell say.

    Args:
        cause: a key of ``CAUSES``, or ``not learned``, ``generalises``, ``cannot be diagnosed``,
            ``not retrieval`` or ``mixed``.
        why: why it cannot be diagnosed or is mixed; empty otherwise.
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
        oracle = self.shares.get("oracle")
        forced = "" if oracle is None else (
            f"; attention forced onto the right tokens restores {100 * oracle:.0f} %"
        )  # fmt: skip
        all_seeds = f"({self.k} of {self.n} seeds)"
        of_failing = f"({self.k} of {self.failing} seeds that fail, of {self.n})"
        begin, because = f"{pe} fails on {task} at {split}", BECAUSE.get(self.cause)
        others = {
            "not learned": f"{pe} has not learned {task} in domain {all_seeds}: there is nothing "
            "to explain.",
            "generalises": f"{pe} generalises on {task} to {split} {all_seeds}.",
            "cannot be diagnosed": f"{begin}, and cannot be diagnosed {all_seeds}: {self.why}.",
            "mixed": f"{begin}, and no single cause was found {of_failing}: {self.why}.",
        }
        return others.get(self.cause, f"{begin} because {because}{forced} {of_failing}.")


def judge(task: str, split: str, seeds: Sequence[Diagnosis]) -> Verdict:
    """The verdict on the seeds of a cell: a task, an encoding and a split."""
    said = [(one, *judge_seed(task, split, one)) for one in seeds]
    fitting = [one for one in said if one[1] != "not learned"]
    failing = [one for one in fitting if one[1] != "generalises"]
    diagnosed = [one for one in failing if one[1] != "cannot be diagnosed"]
    enough = len(diagnosed) >= SEEDS * len(failing)
    asked = diagnosed if enough else [one for one in failing if one not in diagnosed]
    shares = _shares([one for one, *_ in asked])

    def of(cause: str, k: int, why: str = "") -> Verdict:
        return Verdict(cause, why, k, len(seeds), len(fitting), len(failing), shares)

    if 2 * len(fitting) < len(seeds) or not fitting:
        return of("not learned", len(seeds) - len(fitting))
    if not failing:
        return of("generalises", len(fitting))
    causes = Counter(cause for _, cause, _ in asked)
    cause, k = causes.most_common(1)[0]
    if k < SEEDS * len(asked):
        counts = (f"{cause} {k}" for cause, k in causes.most_common())
        return of("mixed", len(asked), f"its seeds differ: {', '.join(counts)}")
    return of(cause, k, Counter(why for _, of, why in asked if of == cause).most_common(1)[0][0])


def judge_seed(task: str, split: str, one: Diagnosis) -> tuple[str, str]:
    """The verdict on one seed, and why it is mixed or cannot be diagnosed."""
    if one.errors[1] > threshold(task, IN_DOMAIN):
        return "not learned", ""
    if not fails(task, split, one):
        return "generalises", ""
    if failed := _find_failed_control(one):
        return "cannot be diagnosed", failed
    oracle = _find_oracle(one)
    causes = {
        cause: share
        for cause, share in _find_causes(one).items()
        if oracle.helps or CAUSES[cause] not in PLACEBOS
    }
    return (_find_narrowest(one, causes), "") if causes else _judge_without_cause(one, oracle)


def fails(task: str, split: str, one: Diagnosis) -> bool:
    """Whether there is something to explain: the task is learned, and the split is not."""
    far, near = one.errors
    return far > threshold(task, split) and near <= threshold(task, IN_DOMAIN)


def _find_failed_control(one: Diagnosis) -> str:
    """Why the interventions say nothing of this model; empty where they do."""
    plain, masked = one.by_name["plain"], one.by_name["source masked"].in_domain
    off = one.by_name.get("attention off", Row("", "control", None)).in_domain
    follows = one.by_name["follows a wrong token"].in_domain
    added = round(((plain.value or 0.0) - (plain.in_domain or 0.0)) * one.answers)
    controls = {
        "its recurrent layers carry the answer: with attention off it answers in domain": (
            off is not None and off < GUESSES * one.guess_in_domain
        ),
        f"only {added} of {one.answers} answers were lost": added < FEWEST,
        "it answers without the tokens that hold the answer": (
            masked is not None and masked < GUESSES * one.guess_in_domain
        ),
        "attention forced onto the right tokens breaks it in domain": (
            _harms(one, _find_oracle(one), BREAKS)
        ),
        "attention forced onto a wrong token does not change its answer to that token's": (
            follows is not None and follows < HALF
        ),
    }
    return next((why for why, failed in controls.items() if failed), "")


def _find_oracle(one: Diagnosis) -> Row:
    """The oracle; the weighted one where the other breaks the model in domain."""
    plain, weighted = one.by_name["oracle"], one.by_name.get("weighted oracle")
    return weighted if weighted is not None and _harms(one, plain, BREAKS) else plain


def _find_causes(one: Diagnosis) -> dict[str, float]:
    """The causes whose intervention restores at least half beyond its placebos, and how much."""
    found, names = {}, dict(CAUSES)
    if one.restored("oracle") < HALF <= one.restored(MOVED):
        names["unseen positions"] = MOVED
    for cause, name in names.items():
        share = _restored_beyond_placebos(one, name)
        if share >= HALF and not _harms(one, one.by_name[name], HARM):
            found[cause] = share
    if _lost(one, "term") < HALF * _lost(one, "margin"):
        found.pop("its own penalty on distance", None)
    return found


def _restored_beyond_placebos(one: Diagnosis, name: str) -> float:
    """What an intervention restores beyond its placebos; nothing, where a told one has none."""
    # Fewer keys seldom hold a few bad ones, wherever these are: far keys must be half of the rest.
    few = name in ("far keys masked", "distances clamped") and (
        one.restored(PLACEBOS["fewer keys"][0]) >= HALF
    )
    placebos = ("fewer keys",) if few else PLACEBOS.get(name, ())
    shares = [one.restored(placebo) for placebo in placebos if placebo in one.by_name]
    most = max(0.0, *shares) if shares else float(bool(placebos))
    return (one.restored(name) - most) / (1 - most if few and most < 1 else 1)


def _find_narrowest(one: Diagnosis, causes: dict[str, float]) -> str:
    """The narrowest of the causes that restore nearly as much as any. Number of keys and
    temperature are told apart by what took the log odds: the count of keys, or the gap."""
    least = max(causes.values()) - TIE
    near = [cause for cause in CAUSES if causes.get(cause, -1.0) >= least]
    by_gap = _lost(one, "count") < HALF * _lost(one, "log_odds")
    return near[1] if by_gap and near[:2] == ["number of keys", "temperature"] else near[0]


def _judge_without_cause(one: Diagnosis, oracle: Row) -> tuple[str, str]:
    """``not retrieval`` where no row of the table says that attention fails, else ``mixed``."""
    helping = [row.name for row in one.rows if row.helps and row.kind != "placebo"]
    weight, usual = one.by_name["mass"].value or 0.0, one.by_name["mass"].in_domain or 0.0
    reasons = {
        "no cause restores half beyond its placebos": oracle.helps,
        f"{', '.join(helping[:1])} restores more than half": bool(helping),
        f"their weight falls from {usual:.2f} to {weight:.2f}": weight < KEPT * usual,
    }
    why = next((why for why, holds in reasons.items() if holds), None)
    words = (
        "attention forced onto the right tokens restores "
        f"{100 * max(oracle.restored or 0.0, 0.0):.0f} %, but {why}"
    )
    return ("mixed", words) if why else ("not retrieval", "")


def _harms(one: Diagnosis, row: Row, most: float) -> bool:
    """Whether an intervention adds more than this in domain."""
    return (row.in_domain or 0.0) > (one.by_name["plain"].in_domain or 0.0) + most


def _lost(one: Diagnosis, name: str) -> float:
    """How much less a measure of attention is on the split than in domain."""
    row = one.by_name.get(name, Row(name, "attention", None))
    return (row.in_domain or 0.0) - (row.value or 0.0)


def _shares(seeds: Sequence[Diagnosis]) -> dict[str, float]:
    """Intervention -> the mean share that it restores."""
    rows = {"oracle": [_find_oracle(one) for one in seeds]}
    for name in CAUSES.values():
        rows[name] = [one.by_name[name] for one in seeds if name in one.by_name]
    shares = {n: [row.restored for row in of if row.restored is not None] for n, of in rows.items()}
    return {name: sum(of) / len(of) for name, of in shares.items() if of}


@dataclass(frozen=True)
class Diagnosed:
    """The diagnosis of one run.

    Args:
        label: the encoding, with the keys that tell its setting from others of it.
    """

    path: Path
    task: str
    label: str
    seed: int
    diagnosis: Diagnosis


@dataclass(frozen=True)
class DiagnosedCell:
    """The diagnosed seeds of a setting on a split."""

    task: str
    pe: str
    split: str
    seeds: Sequence[Diagnosed]

    @cached_property
    def verdict(self) -> Verdict:
        """What its seeds say."""
        return judge(self.task, self.split, [one.diagnosis for one in self.seeds])

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return self.verdict.sentence(self.pe, self.task, self.split)

    def mean(self, name: str, field: str) -> float | None:
        """The mean over seeds of a row's ``value``, ``in_domain`` or ``restored``, which only the
        seeds that fail have."""
        found = [
            getattr(one.diagnosis.by_name.get(name), field, None)
            for one in self.seeds
            if field != "restored" or fails(self.task, self.split, one.diagnosis)
        ]
        numbers = [value for value in found if value is not None]
        return sum(numbers) / len(numbers) if numbers else None

    def facts(self) -> dict[str, Any]:
        """The verdict as JSON has it."""
        names = {"task": self.task, "pe": self.pe, "split": self.split}
        return {**names, **asdict(self.verdict), "sentence": self.sentence}


def group_cells(found: Iterable[Diagnosed]) -> list[DiagnosedCell]:
    """The cells, in the order of their first run."""
    cells: dict[tuple[str, str, str], list[Diagnosed]] = {}
    for one in found:
        cells.setdefault((one.task, one.label, one.diagnosis.split), []).append(one)
    return [DiagnosedCell(*key, seeds) for key, seeds in cells.items()]


def leading_cells(found: Iterable[Diagnosed]) -> dict[tuple[str, str], DiagnosedCell]:
    """(task, label) -> the cell on the split of the most seeds, of those with the highest error."""
    # The last one of a key stays; of equals, that of the first run.
    cells = sorted(
        group_cells(found),
        key=lambda cell: (len(cell.seeds), cell.mean("plain", "value") or 0.0),
        reverse=True,
    )
    return {(cell.task, cell.pe): cell for cell in reversed(cells)}


def build_frame(found: Iterable[Diagnosed]) -> pl.DataFrame:
    """A row for each number of each run."""
    rows = [
        {"path": str(one.path), "task": one.task, "pe": one.label, "seed": one.seed,
         "split": one.diagnosis.split, **asdict(row)}
        for one in found
        for row in one.diagnosis.rows
    ]  # fmt: skip
    return pl.DataFrame(rows, COLUMNS)
