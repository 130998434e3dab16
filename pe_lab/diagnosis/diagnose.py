"""All interventions on one trained model, in domain and on a split.

>>> found = diagnose(load("runs/recall/rope/seed0-0123abcd"))
>>> found.rows[0]
Row(name='plain', kind='error', value=0.31, in_domain=0.002, restored=None)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import plain, validated
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.task import TRAIN, Bools
from pe_lab.diagnosis.answers import Asked, Made, asked, predicted, wrongly
from pe_lab.diagnosis.hook import Intervention
from pe_lab.diagnosis.interventions import (
    Head,
    distances_clamped,
    encoded,
    far_masked,
    fewer_keys,
    forced,
    in_trained_positions,
    log_scaled,
    scaled,
    source_masked,
    terms_clamped,
    usual_penalty,
)
from pe_lab.diagnosis.measures import QUANTITIES, Attended, attended
from pe_lab.diagnosis.record import METHOD, Diagnosis, Distance, Row
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.models.base import Model
from pe_lab.models.transformer import Decoder
from pe_lab.pe.base import PositionalEncoding
from pe_lab.training.plan import replaced

FACTORS = (1.1, 1.25, 1.5, 2.0, 4.0)
DRAWS = 5
READS = 0.3
"""The mean weight on the tokens that hold the answer, in domain, from which a head reads them."""
SAME = 1e-3
"""How far logits may differ where positions are shifted, in an encoding that reads distances."""


def plain_model(run: LoadedRun) -> Model:
    """The run's model without kernels, which compute no logits."""
    config = validated(replaced(plain(run.plan.config), {"train.fast": False}))
    model = replace(run.plan, config=config).model()
    model.load_state_dict(run.model.state_dict())
    return model.eval()


def measured(run: LoadedRun, split: str, metric: str) -> float | None:
    """What the run measured of a split."""
    where = split if split == IN_DOMAIN else f"ood/{split}"
    found: float | None = run.summary["metrics"].get(f"{where}/{metric}")
    return found


def worst_split(run: LoadedRun) -> str:
    """The split with the highest error that the run measured.

    Raises:
        UsageError: it measured none.
    """
    errors = {split: measured(run, split, "error") for split in run.plan.splits}
    found = {k: v for k, v in errors.items() if k != IN_DOMAIN and v is not None}
    if not found:
        raise UsageError(f"run={run.path} has no split but in_domain: there is nothing to explain")
    return max(found, key=lambda split: found[split])


def diagnose(run: LoadedRun, split: str | None = None, model: Model | None = None) -> Diagnosis:
    """Measure a finished run with each intervention.

    Args:
        split: None: the one with the highest error.
        model: in place of the run's own, a plain one.

    Raises:
        UsageError: no such split, or the model has no attention of each token to those before, or
            the task does not say which tokens hold an answer.
    """
    if not isinstance(run.model, Decoder) or not run.plan.dims.n_heads:
        raise UsageError(
            f"run={run.path} has no layers of attention from each token to those before: give a "
            f"run of model=transformer, not of model={run.summary['names'].get('model')}"
        )
    split = worst_split(run) if split is None else split
    return _Bench(run, split, plain_model(run) if model is None else model).measured()


class _Bench:
    def __init__(self, run: LoadedRun, split: str, model: Model) -> None:
        self.model, self.split = model, split
        self.identity = str(run.summary["identity"])
        self.keys = run.plan.dims.train_len
        task = run.plan.task
        self.reach = run.plan.positions.limit_for(task.split(TRAIN), training=True)
        self.guess = [measured(run, s, "guess") or 0.0 for s in (split, IN_DOMAIN)]
        found = [asked(task.split(s), s, *run.sequences(s)) for s in (IN_DOMAIN, split)]
        if found[0] is None or found[1] is None:
            raise UsageError(
                f"task={run.summary['task']} does not say which tokens hold an answer (holds_answer "
                "of its class): choose another task"
            )
        self.near, self.far = found[0], found[1]
        self.rows: list[Row] = []
        with torch.no_grad():
            logits, self.attended = attended(model, self.near)
        self.heads = self._readers()
        self.plain = {self.near: self._wrong(self.near, logits)}

    def measured(self) -> Diagnosis:
        logits, beyond = attended(self.model, self.far)
        self.plain[self.far] = self._wrong(self.far, logits)
        self._add("plain", "error", lambda questions: self.plain[questions])
        far = self.far.distance >= self.reach
        for name, chosen in (("near", ~far), ("far", far)):
            error = float(self.plain[self.far][chosen].mean()) if chosen.any() else None
            self.rows.append(Row(name, "error", error))
        self._interventions()
        self._controls()
        self._parts()
        for name in QUANTITIES:
            each = [one.of(name, self.heads) for one in (beyond, self.attended)]
            self.rows.append(Row(name, "attention", *(finite_mean(values) for values in each)))
        for right, name in ((True, "mass of right answers"), (False, "mass of wrong answers")):
            pairs = ((beyond, self.far), (self.attended, self.near))
            means = [finite_mean(one.of("mass", self.heads)[self.plain[q] != right]) for one, q in pairs]
            self.rows.append(Row(name, "attention", *means))
        distances = [
            *self._distances(IN_DOMAIN, self.near, self.attended),
            *self._distances(self.split, self.far, beyond),
        ]
        return Diagnosis(
            self.identity, METHOD, self.split, *self.guess, len(self.far), self.heads, self.rows,
            distances,
        )  # fmt: skip

    def _interventions(self) -> None:
        keys, reach, heads = self.keys, self.reach, self.heads
        self._clamped()
        if self._has_term():
            usual = self.attended.usual
            lifted = self._with(lambda p: usual_penalty(p, usual))
            self._add("usual penalty", "intervention", lifted)
        self._add("fewer keys", "intervention", self._fewer)
        self._add("far keys masked", "intervention", self._with(lambda p: far_masked(p, reach)))
        layers = len(self.model.encodings)
        for layer in range(layers) if layers > 1 else ():
            masked = partial(far_masked, trained=reach, layers=[layer])
            self._add(f"far keys masked in layer {layer}", "detail", self._with(masked))
        self._temperature()
        self._add("logits times log n", "detail", self._with(lambda p: log_scaled(keys)))
        self._add("oracle", "intervention", self._with(lambda p: forced(p, p.held, heads)))

    def _controls(self) -> None:
        self._add("source masked", "control", self._with(source_masked))
        heads = self.heads

        def follows(questions: Asked) -> Bools:
            some = questions.only(questions.wrong_target >= 0)
            if not len(some):
                return np.zeros(0, dtype=bool)
            logits = predicted(self.model, some, lambda p: forced(p, p.wrong, heads))
            found: Bools = (logits.argmax(-1).numpy() == some.wrong_target)
            return found

        self._add("follows a wrong token", "control", follows)

    def _parts(self) -> None:
        names = {name for encoding in self.model.encodings for name in encoding.parts()}
        for name in sorted(names):
            changed = encoded(self.model, lambda e, name=name: e.parts().get(name, e))  # type: ignore[misc]
            with changed:
                self._add(f"without {name}", "part", lambda q: wrongly(self.model, q))
        if len(names) > 1:
            with encoded(self.model, lambda e: PositionalEncoding()):
                self._add("q.k alone", "part", lambda q: wrongly(self.model, q))

    def _clamped(self) -> None:
        """Positions, distances or terms of the encoding kept within those of training."""
        encodings, name = self.model.encodings, "distances clamped"
        if not any(encoding.reads_positions for encoding in encodings):
            if self._has_term():
                limits = self.attended.least, self.attended.largest
                self._add(name, "intervention", self._with(lambda p: terms_clamped(*limits)))
            return
        carried = any({"layer_state", "update_state"} & e.hooks() for e in encodings)
        if self.near.positions.ndim > 2 or carried:
            return
        if self._invariant():
            self._add(name, "intervention", self._with(lambda p: distances_clamped(self.reach)))
            return
        wraps = all(encoding.only_at_input() for encoding in encodings)
        trained = [
            (in_trained_positions(q, self.reach, wraps), q) for q in (self.far, self.near)
        ]
        errors = [float(wrongly(self.model, moved).mean()) for moved, _ in trained]
        # Beside the plain error of the same answers.
        few = replace(trained[0][0], positions=self.far.positions)
        self._row(name, "intervention", *errors, base=float(wrongly(self.model, few).mean()))

    def _has_term(self) -> bool:
        """Whether an additive term can be told from the product of queries and keys."""
        encodings = self.model.encodings
        if any(e.replaces_content or "normalize" in e.hooks() for e in encodings):
            return False
        return any({"bias", "logits"} & e.hooks() for e in encodings) and all(
            layer.attention.logn is None for layer in self.model.layers
        )

    def _invariant(self) -> bool:
        """Whether logits stay as they are where all positions are shifted by one."""
        few = replace(self.near, batch=self.near.batch.take(slice(0, 2)))
        few = replace(few, positions=self.near.positions[:2]).only(self.near.row < 2)
        try:
            moved = predicted(self.model, replace(few, positions=few.positions + 1))
        except (IndexError, RuntimeError, ValueError):
            return False
        return bool((moved - predicted(self.model, few)).abs().max() < SAME)

    def _fewer(self, questions: Asked) -> Bools:
        draws = [
            wrongly(self.model, questions, partial(fewer_keys, trained=self.keys, draw=draw))
            for draw in range(DRAWS if questions is self.far else 1)
        ]
        return np.mean(draws, axis=0)

    def _temperature(self) -> None:
        """The factor that is best on one half of the sequences, measured on the other."""
        found = {}
        for factor in FACTORS:
            make = partial(_scaled, factor=factor)
            found[factor] = [wrongly(self.model, q, make) for q in (self.far, self.near)]
        half = self.far.row % 2 == 0
        chosen = np.zeros(len(self.far))
        near = []
        for here in (half, ~half):
            options = {1.0: self.plain[self.far], **{f: v[0] for f, v in found.items()}}
            best = min(options, key=lambda f: options[f][~here].mean() if (~here).any() else f)
            chosen[here] = options[best][here]
            near.append(float((self.plain[self.near] if best == 1 else found[best][1]).mean()))
            self.rows.append(Row(f"factor {len(near)}", "detail", best))
        self._row("logits scaled", "intervention", float(chosen.mean()), max(near))

    def _with(self, make: Made) -> Callable[[Asked], Bools]:
        return lambda questions: wrongly(self.model, questions, make)

    def _add(self, name: str, kind: str, wrong: Callable[[Asked], Bools]) -> None:
        found = [wrong(questions) for questions in (self.far, self.near)]
        self._row(name, kind, *(float(one.mean()) if len(one) else None for one in found))

    def _row(
        self, name: str, kind: str, value: float | None, near: float | None,
        base: float | None = None,
    ) -> None:  # fmt: skip
        plain = {q: float(self.plain[q].mean()) for q in self.plain}
        base = plain[self.far] if base is None else base
        added = base - plain[self.near]
        restored = None
        if kind in ("intervention", "detail") and value is not None and added > 0:
            restored = (base - value) / added
        self.rows.append(Row(name, kind, value, near, restored))

    def _wrong(self, questions: Asked, logits: Tensor) -> Bools:
        right = questions.task.correct(logits, torch.from_numpy(questions.target))
        found: Bools = (~right).numpy()
        return found

    def _readers(self) -> list[Head]:
        mass = {
            (layer, head): float(of_heads[:, head].mean())
            for layer, of_heads in self.attended.values["mass"].items()
            for head in range(of_heads.shape[1])
        }
        return [head for head, m in mass.items() if m >= READS] or [max(mass, key=lambda h: mass[h])]

    def _distances(self, split: str, questions: Asked, found: Attended) -> Iterator[Distance]:
        upper = 2 ** np.ceil(np.log2(np.maximum(questions.distance, 1))).astype(int)
        mass, margin = (found.of(name, self.heads).numpy() for name in ("mass", "margin"))
        for top in np.unique(upper):
            here = (upper == top) & np.isfinite(margin)
            if n := int(here.sum()):
                means = float(mass[here].mean()), float(margin[here].mean())
                yield Distance(split, int(top), *means, n)


def _scaled(part: Asked, factor: float) -> Intervention:
    return scaled(factor)


def finite_mean(values: Tensor) -> float | None:
    """The mean of the finite values; None where there is none."""
    finite = values[values.isfinite()]
    return float(finite.mean()) if len(finite) else None
