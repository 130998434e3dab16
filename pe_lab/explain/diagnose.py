"""All interventions on one trained model, and measures of its attention: where it goes, and by how
much. In domain and on a split.

Shape letters: n answers, H heads, S keys.

>>> found = diagnose(load("runs/recall/rope/seed0-0123abcd"))
>>> found.by_name["plain"]
Row(name='plain', kind='error', value=0.31, in_domain=0.002, restored=None)
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.task import TRAIN, Bools
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.explain.answers import (
    MakeIntervention,
    Questions,
    find_questions,
    find_wrong,
    mark_wrong,
    predict,
)
from pe_lab.explain.hook import Intervention, LayerAttention, Reading
from pe_lab.explain.inspect import build_plain_model
from pe_lab.explain.interventions import (
    N_KINDS,
    Head,
    NotClampedError,
    clamp_distances,
    clamp_positions,
    clamp_terms,
    compute_term,
    drop_keys,
    force_attention,
    hide_tokens,
    kinds_of_tokens,
    lift_penalty,
    mask_far_keys,
    mask_strongest_others,
    reset_at_answers,
    reset_at_length,
    rows_of_answers,
    scale_by_log_n,
    scale_logits,
    switch_attention_off,
    weigh_as_usual,
)
from pe_lab.explain.record import (
    METHOD,
    WHOLE,
    Diagnosis,
    Row,
    read_diagnoses,
    record_diagnosis,
)
from pe_lab.explain.verdict import fails
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.models.mixers import RecurrentMixer
from pe_lab.store.run_folder import RunFolder

FACTORS = (1.1, 1.25, 1.5, 2.0, 4.0)
DRAWS = 5
READS = 0.3
"""The mean weight on the tokens that hold the answer, in domain, from which a head reads them."""
QUANTITIES = ("mass", "margin", "term", "log_odds", "count", "gap", "entropy", "first")


@dataclass
class AttentionMeasures:
    """Which answers are ``wrong``, and measures of each answer in every head: quantity -> layer ->
    (n, H). ``least term`` and ``largest term`` are the range of the encoding's term for some
    sequences at a time, ``weight at source`` and ``term at source`` are of each token that holds an
    answer. ``by_kind``: layer -> the mean weight of each of ``kinds_of_tokens``, (kinds, H); nan:
    none.

    - ``mass``: the weights on the tokens that hold the answer.
    - ``margin``: their highest logit less the highest of the other keys. ``term``: how much of it
      is the encoding's term.
    - ``log_odds``: log of their share by softmax over that of the N other keys. It is ``count`` -
      ``gap``: ``count`` is -log N, and ``gap`` the log of the others' mean exponential less theirs.
    - ``entropy``: of the weights, in nats. ``first``: the weight on the first token.
    """

    wrong: Bools
    values: dict[str, dict[int, Tensor]]
    by_kind: dict[int, Tensor]

    def of(self, name: str, heads: list[Head]) -> Tensor:
        """A quantity of each answer, averaged over these heads, (n,)."""
        return torch.stack([self.values[name][layer][:, head] for layer, head in heads]).mean(0)

    def reduced(self, name: str, reduce: Callable[..., Tensor]) -> dict[int, Tensor]:
        """A quantity of each head, layer -> (H, 1, 1)."""
        return {layer: reduce(of, 0)[:, None, None] for layer, of in self.values[name].items()}


def diagnose(run: LoadedRun, split: str | None = None, model: Model | None = None) -> Diagnosis:
    """Measure a finished run with each intervention.

    Args:
        split: None: the one with the highest error.
        model: in place of the run's own, a plain one.

    Raises:
        UsageError: no such split, or the model has no attention of each token to those before, or
            the task does not say which tokens hold an answer.
    """
    plain = build_plain_model(run) if model is None else model
    split = run.worst_split() if split is None else split
    summary = _of_summary(run, split)
    measured = _Bench(run, split, plain).measured()
    return measured if model else replace(measured, rows=[summary, *measured.rows])


def _of_summary(run: LoadedRun, split: str) -> Row:
    """The error of all sequences, as the run measured it."""
    errors = {
        name: run.summary["metrics"].get(metric_name(name, "error")) for name in run.plan.splits
    }
    in_domain = errors.pop(IN_DOMAIN)
    if errors.get(split) is None:
        known = ", ".join(name for name, error in errors.items() if error is not None)
        raise UsageError(
            f"split={split} of {run.path} has no error to explain: "
            + (f"choose from {known}" if known else "the task has no split out of domain")
        )
    return Row(WHOLE, "error", errors[split], in_domain)


def read_or_diagnose(path: Path, split: str | None = None, *, force: bool = False) -> Diagnosis:
    """The diagnosis of a finished run, from its folder or measured and recorded now.

    A run that has not learned, or that generalises, has its error alone, which is not recorded.

    Args:
        force: measure again, and such a run too.

    Raises:
        PeLabError: as ``load`` and ``diagnose``, or the folder cannot be written. A model without
            attention is refused whatever its error.
    """
    folder = RunFolder(path)
    known = {} if force else {one.split: one for one in read_diagnoses(folder)}
    if split in known:
        return known[split]
    run = load(path)
    split = run.worst_split() if split is None else split
    if split not in known:
        known[split] = Diagnosis(
            str(run.summary["identity"]), METHOD, split, 0, 0, 0, [],
            [replace(_of_summary(run, split), name="plain")],
        )  # fmt: skip
        if force or fails(run.summary["task"], split, known[split]):
            known[split] = diagnose(run, split)
            record_diagnosis(folder, known[split], force=force)
        else:
            build_plain_model(run)  # Refuses a model without attention, as ``diagnose`` does.
    return known[split]


class _Bench:
    """One model on the answers in domain and on those of a split."""

    def __init__(self, run: LoadedRun, split: str, model: Model) -> None:
        self.run, self.split, self.model = run, split, model
        self.keys = run.plan.dims.train_len
        task = run.plan.task
        self.reach = run.plan.positions.limit_for(task.split(TRAIN), training=True)
        far, near = (
            find_questions(task.split(n), n, *run.sequences(n)) for n in (split, IN_DOMAIN)
        )
        if far is None or near is None:
            raise UsageError(
                f"task={run.summary['task']} does not say which tokens hold an answer: choose "
                "another task, or define holds_answer in its class"
            )
        self.on_split, self.in_domain = far, near
        self.rows: list[Row] = []
        self.seen_on_split, self.seen_in_domain = (
            measure_attention(model, far),
            measure_attention(model, near),
        )
        self.plain = {far: self.seen_on_split.wrong, near: self.seen_in_domain.wrong}
        self.heads = self._readers()

    def measured(self) -> Diagnosis:
        self._row("plain", "error", *map(_mean, self.plain.values()))
        beyond = self.on_split.distance >= self.reach
        self.rows += [
            Row(name, "error", _mean(self.seen_on_split.wrong[chosen]))
            for name, chosen in (("near", ~beyond), ("far", beyond))
        ]
        self._clamped()
        self._interventions()
        self._temperature()
        self._controls()
        far, near = (
            average_measures(of, self.heads) for of in (self.seen_on_split, self.seen_in_domain)
        )
        self.rows += [Row(name, "attention", far[name], near[name]) for name in far]
        metrics = self.run.summary["metrics"]
        guess = [metrics[metric_name(split, "guess")] for split in (self.split, IN_DOMAIN)]
        return Diagnosis(
            str(self.run.summary["identity"]), METHOD, self.split, guess[0], guess[1],
            len(self.on_split), self.heads, self.rows,
        )  # fmt: skip

    def _clamped(self) -> None:
        """Positions, distances or terms of the encoding kept within those of training, where those
        of the split are beyond: random floats are not."""
        encodings, name = self.model.encodings, "distances clamped"
        carried = any({"layer_state", "update_state"} & e.hooks() for e in encodings)
        moves = self.in_domain.positions.ndim == 2 and self.run.plan.positions.whole and not carried
        at_input = {"embed", "block_input"}
        if not any(encoding.reads_positions for encoding in encodings):
            if self._has_term():
                least = self.seen_in_domain.reduced("least term", torch.amin)
                largest = self.seen_in_domain.reduced("largest term", torch.amax)
                self._intervene(name, partial(clamp_terms, least=least, largest=largest))
        elif moves and all(e.shift_invariant or not at_input & e.hooks() for e in encodings):
            with suppress(NotClampedError):
                self._intervene(name, partial(clamp_distances, trained=self.reach))
        elif moves:
            self._in_trained_positions()

    def _in_trained_positions(self) -> None:
        """One answer of each sequence with all positions within those of training, also with the
        oracle. Restored of the added error of these answers, and shown as of all answers."""
        sides = (self.on_split, self.in_domain)
        moved = [clamp_positions(questions, self.reach) for questions in sides]
        stayed = [
            replace(m, positions=questions.positions)
            for m, questions in zip(moved, sides, strict=True)
        ]
        plain, errors = self._errors(stayed), [float(of.mean()) for of in self.plain.values()]
        makes: dict[str, MakeIntervention] = {
            "positions clamped": lambda part: Intervention(),
            "positions clamped and oracle": partial(force_attention, heads=self.heads),
        }
        for name, make in makes.items():
            far, near = np.subtract(self._errors(moved, make), plain).tolist()
            restored = far / (plain[1] - plain[0]) if plain[0] > plain[1] else None
            self.rows.append(Row(name, "intervention", errors[0] + far, errors[1] + near, restored))

    def _errors(self, sides: Sequence[Questions], *make: MakeIntervention) -> list[float]:
        return [float(find_wrong(self.model, questions, *make).mean()) for questions in sides]

    def _interventions(self) -> None:
        """The interventions of every model, and the placebos of those that restore at least half:
        their names begin with that of the intervention and a colon."""
        keys, heads = self.keys, self.heads
        windows = [m.window for m in self.model.modules() if isinstance(m, Attention)]
        more_keys = any(window is None or window > keys for window in windows)
        hybrid = any(isinstance(module, RecurrentMixer) for module in self.model.modules())
        usual = self._lost_terms()
        in_layers = {
            f"far keys masked in layer {n}": partial(mask_far_keys, trained=self.reach, layers=[n])
            for n in (usual if len(usual) > 1 else [])
        }
        draws = [partial(drop_keys, trained=keys, draw=draw) for draw in range(DRAWS)]
        makes: dict[str, MakeIntervention] = {
            "fewer keys": draws[0],
            "fewer keys: strongest others masked": mask_strongest_others,
            "fewer keys: wrong token kept": partial(drop_keys, trained=keys, draw=0, onto="wrong"),
            "usual penalty": partial(lift_penalty, usual=usual),
            "usual penalty: wrong token": partial(lift_penalty, usual=usual, onto="wrong"),
            "far keys masked": partial(mask_far_keys, trained=self.reach),
            **in_layers,
            "logits times log n": partial(scale_by_log_n, trained=keys),
            "oracle": partial(force_attention, heads=heads),
            "weighted oracle": partial(
                weigh_as_usual, usual=self.seen_in_domain.by_kind, heads=heads
            ),
            "source masked": lambda part: hide_tokens(part, part.held),
            "attention off": switch_attention_off,
            "state reset": reset_at_answers,
            "state reset at length": partial(reset_at_length, trained=keys),
        }
        applies = {
            "fewer keys": more_keys,
            "usual penalty": self._has_term(),
            "logits times log n": more_keys,
            "weighted oracle": bool((self.in_domain.held.sum(1) > 1).any()),
            **dict.fromkeys(("attention off", "state reset", "state reset at length"), hybrid),
        }
        controls = dict.fromkeys(("source masked", "attention off", "state reset"), "control")
        kinds = {**controls, **dict.fromkeys(in_layers, "detail")}
        for name, make in makes.items():
            of, colon, _ = name.partition(":")
            helps = any(row.name == of and row.helps for row in self.rows)
            if helps if colon else applies.get(name, True):
                kind = "placebo" if colon else kinds.get(name, "intervention")
                self._intervene(name, make, kind, draws[1:] if name == "fewer keys" else ())

    def _lost_terms(self) -> dict[int, Tensor]:
        """The mean in domain of the term at the source, of heads in which it is lower on the split
        by more than its deviation in domain; others have no least value."""
        name, deviate = "term at source", partial(torch.std, correction=0)
        usual = self.seen_in_domain.reduced(name, torch.mean)
        deviation, beyond = (
            self.seen_in_domain.reduced(name, deviate),
            self.seen_on_split.reduced(name, torch.mean),
        )
        return {
            layer: usual[layer].where(usual[layer] - beyond[layer] > deviation[layer], -torch.inf)
            for layer in usual
        }

    def _temperature(self) -> None:
        """The factor that is best on one half of the sequences, measured on the other half."""
        found = {1.0: [self.plain[self.on_split], self.plain[self.in_domain]]}
        for factor in FACTORS:
            found[factor] = [
                find_wrong(self.model, questions, partial(scale_logits, factor=factor))
                for questions in (self.on_split, self.in_domain)
            ]
        half = self.on_split.row % 2 == 0
        measured_here, chosen = np.zeros(len(self.on_split)), []
        for here in (half, ~half):
            others = ~here if (~here).any() else here
            best = min(found, key=lambda factor: found[factor][0][others].mean())
            measured_here[here] = found[best][0][here]
            chosen.append(best)
        near = max(float(found[best][1].mean()) for best in chosen)
        self._row("logits scaled", "intervention", _mean(measured_here), near)
        self.rows.append(Row("factor", "detail", float(np.mean(chosen))))

    def _controls(self) -> None:
        forced = partial(force_attention, heads=self.heads, onto="wrong")
        follows = []
        for questions in (self.on_split, self.in_domain):
            some = questions.only(questions.wrong_target >= 0)
            logits = predict(self.model, some, forced)
            follows.append(_mean(~mark_wrong(some.task, logits, some.wrong_target)))
        self._row("follows a wrong token", "control", *follows)

    def _has_term(self) -> bool:
        """Whether what the encoding adds can be told from the product of queries and keys."""
        encodings = self.model.encodings
        return any({"bias", "logits"} & e.hooks() for e in encodings) and not any(
            e.replaces_content or "normalize" in e.hooks() for e in encodings
        )

    def _readers(self) -> list[Head]:
        """The heads that read the tokens that hold the answer in domain."""
        mass = {
            (layer, head): float(of_heads[:, head].mean())
            for layer, of_heads in self.seen_in_domain.values["mass"].items()
            for head in range(of_heads.shape[1])
        }
        return [head for head, mean in mass.items() if mean >= READS] or [
            max(mass, key=lambda head: mass[head])
        ]

    def _intervene(
        self,
        name: str,
        make: MakeIntervention,
        kind: str = "intervention",
        more: Sequence[MakeIntervention] = (),
    ) -> None:
        """Add the error under an intervention, on the split the mean over it and more draws."""
        draws = [find_wrong(self.model, self.on_split, each) for each in (make, *more)]
        near = find_wrong(self.model, self.in_domain, make)
        self._row(name, kind, _mean(np.mean(draws, axis=0)), _mean(near))

    def _row(self, name: str, kind: str, value: float | None, near: float | None) -> None:
        plain = float(self.plain[self.on_split].mean())
        added = plain - float(self.plain[self.in_domain].mean())
        restored = None
        if kind in ("intervention", "placebo", "detail") and value is not None and added > 0:
            restored = (plain - value) / added
        self.rows.append(Row(name, kind, value, near, restored))


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def measure_attention(model: Model, questions: Questions) -> AttentionMeasures:
    """The measures of attention, and which answers are wrong."""
    parts: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    all_kinds: list[Tensor] = []

    def reading(part: Questions) -> Reading:
        answer, place, kinds = kinds_of_tokens(part)
        all_kinds.append(kinds)

        def read(logits: Tensor, weights: Tensor, seen: LayerAttention) -> None:
            # Of one sequence where all share it, as for a bias.
            term = compute_term(seen).expand(len(part.batch), -1, -1, -1)
            found = _quantities(logits, weights, term, part, seen)
            for name, values in (("weight at source", weights), ("term at source", term)):
                found[name] = rows_of_answers(values, part)[answer, :, place].double()
            for name, value in found.items():
                parts[name][seen.layer].append(value)

        return read

    logits = predict(model, questions, read=reading)
    values = {k: {n: torch.cat(v) for n, v in by.items()} for k, by in parts.items()}
    kinds, n_kinds = torch.cat(all_kinds), N_KINDS * len(questions.task.vocab)
    by_kind = {}
    for layer, each in values["weight at source"].items():
        sums = each.new_zeros(n_kinds, each.shape[1]).index_add(0, kinds, each)
        by_kind[layer] = sums / kinds.bincount(minlength=n_kinds)[:, None]
    wrong = mark_wrong(questions.task, logits, questions.target)
    return AttentionMeasures(wrong, values, by_kind)


def _quantities(
    logits: Tensor, weights: Tensor, term: Tensor, part: Questions, seen: LayerAttention
) -> dict[str, Tensor]:
    """The measures of each answer in each head, and the range of the term over all visible keys of
    all queries."""
    held, hidden = torch.from_numpy(part.held)[:, None], ~seen.inputs.mask_TS
    rows = rows_of_answers(logits, part).double()
    rows = rows.masked_fill(hidden[part.place][:, None], -torch.inf)
    shares = rows_of_answers(weights, part).double()
    source = rows.masked_fill(~held, -torch.inf)
    others = rows.masked_fill(held, -torch.inf)
    count = -(~others.isneginf()).sum(-1).clamp(min=1).log()
    odds = source.logsumexp(-1) - others.logsumexp(-1)
    terms = rows_of_answers(term, part).double()
    of_best = [terms.gather(-1, each.argmax(-1, keepdim=True))[..., 0] for each in (source, others)]
    margin = source.amax(-1) - others.amax(-1)
    return {
        "mass": (shares * held).sum(-1),
        "margin": margin,
        "term": (of_best[0] - of_best[1]).where(margin.isfinite(), torch.nan),
        "log_odds": odds,
        "count": count,
        "gap": count - odds,
        "entropy": -torch.special.xlogy(shares, shares).sum(-1),
        "first": shares[..., 0],
        "least term": term.masked_fill(hidden, torch.inf).amin((0, 2, 3))[None],
        "largest term": term.masked_fill(hidden, -torch.inf).amax((0, 2, 3))[None],
    }


def average_measures(found: AttentionMeasures, heads: list[Head]) -> dict[str, float | None]:
    """The mean of the finite values of each measure in these heads; None where there is none."""
    each = {name: found.of(name, heads) for name in QUANTITIES}
    # The same answers for the three terms of the identity.
    in_identity = each["log_odds"].isfinite()
    each |= {name: each[name][in_identity] for name in ("log_odds", "count", "gap")}
    each |= {
        "mass of right answers": each["mass"][~found.wrong],
        "mass of wrong answers": each["mass"][found.wrong],
    }
    finite = {name: values[values.isfinite()] for name, values in each.items()}
    return {name: float(values.mean()) if len(values) else None for name, values in finite.items()}
