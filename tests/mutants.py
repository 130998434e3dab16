"""``make mutants``: bugs planted in the training code, each of which a test must find.

    python -m tests.mutants [NUMBER ..]

A mutant is an edit of one file. It is applied to the source as Python loads it, in a process of its
own: no file changes. The tests of tests/train run until one fails, and its name is printed.
Exit status 1 if a mutant survives.
"""

import importlib.machinery
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TESTS = "tests/train"

TRAINER = "pe_lab/train/trainer.py"
ADAM = "pe_lab/train/optimizer.py"
OPTIMIZER = "pe_lab/core/optimizer.py"
MEASURE = "pe_lab/train/measure.py"
BATCHES = "pe_lab/train/batches.py"
METRICS = "pe_lab/core/metrics.py"
MODEL = "pe_lab/models/base.py"
MEMORY = "pe_lab/train/memory.py"

FIRST = {
    "test_trainer.py": (TRAINER,),
    "test_optimizer.py": (ADAM, OPTIMIZER),
    "test_batches.py": (BATCHES,),
    "test_answers.py": (MEASURE, METRICS, MODEL, MEMORY),
}
"""The tests of each file, which run first where it is changed."""

MUTANTS = [
    # The trainer
    ("learning rate of the next step", TRAINER,
     "self.optimizer.step(learning_rate(self.config, self.step))",
     "self.optimizer.step(learning_rate(self.config, self.step + 1))"),
    ("clip never applied", TRAINER,
     "self.optimizer.clip(self.config.clip)", "self.optimizer.clip(None)"),
    ("clip always 1.0", TRAINER,
     "self.optimizer.clip(self.config.clip)", "self.optimizer.clip(1.0)"),
    ("loss divided by all positions", TRAINER,
     "int(part.counted.sum())", "part.counted.size"),
    ("loss divided by the number of sequences", TRAINER,
     "int(part.counted.sum())", "len(part.counted)"),
    ("logged loss divided by log_every", TRAINER,
     "float(self.loss_sum) / self.loss_steps", "float(self.loss_sum) / self.config.log_every"),
    ("train/lr logged for the next step", TRAINER,
     "learning_rate(self.config, self.step - 1)", "learning_rate(self.config, self.step)"),
    ("same dropout mask at every step", TRAINER,
     '"dropout", self.step, number', '"dropout", 0, number'),
    ("same dropout mask for each microbatch", TRAINER,
     '"dropout", self.step, number', '"dropout", self.step, 0'),
    ("model left in evaluation mode", MEASURE,
     "model.train(was_training)", "pass"),
    ("same dropout masks with every seed", TRAINER,
     'torch_seed(seed, "dropout"', 'torch_seed(0, "dropout"'),
    ("batch of the next step", TRAINER,
     "self.data.batch(self.step)", "self.data.batch(self.step + 1)"),
    ("gradients never set to zero", TRAINER,
     "self.optimizer.zero_grad()", "pass"),
    ("sum of losses never set to zero", TRAINER,
     "self.loss_sum.zero_()", "pass"),
    ("number of losses never set to zero", TRAINER,
     "        self.loss_steps = 0\n        rate", "        rate"),
    ("only the last part's loss logged", TRAINER,
     "loss += part_loss.detach() / total", "loss = part_loss.detach() / total"),
    ("positions of the first rows in each part", TRAINER,
     "else positions[rows])", "else positions[: len(rows)])"),
    ("loss positions of the first rows in each part", TRAINER,
     "counted[rows], pos", "counted[: len(rows)], pos"),
    ("same random positions at every step", TRAINER,
     '"train positions", self.step)', '"train positions", 0)'),
    ("gradient not checked to be finite", TRAINER,
     " or not math.isfinite(float(norm))", ""),
    ("neither loss nor gradient checked to be finite", TRAINER,
     "if not math.isfinite(float(loss)) or not math.isfinite(float(norm)):", "if False:"),
    ("the last steps not logged before they are shown", TRAINER,
     " or self.step == self.config.steps:", ":"),
    ("steps after the last row not logged at an early stop", TRAINER,
     "if self.loss_steps:\n            self._log_loss()", "if False:\n            pass"),
    ("early stop by out-of-domain splits", TRAINER,
     "if split == IN_DOMAIN:", "if split != IN_DOMAIN:"),
    ("early stop only below stop_below", TRAINER,
     "error <= limit", "error < limit"),
    ("early stop one evaluation late", TRAINER,
     "self.below >= self.config.patience", "self.below > self.config.patience"),
    ("early stop by evaluations that are not in a row", TRAINER,
     "error <= limit else 0", "error <= limit else self.below"),
    ("optimizer not restored", TRAINER,
     'self.optimizer.load_state_dict(state["optimizer"])', "pass"),
    ("sum of losses not restored", TRAINER,
     'self.loss_sum.fill_(state["loss_sum"])', "pass"),
    ("count for early stopping not restored", TRAINER,
     '"measured_at", "below",', '"measured_at",'),
    ("evaluated again after a resume", TRAINER,
     '"last_loss", "measured_at",', '"last_loss",'),
    # The loss
    ("mean in place of the sum", TRAINER,
     'reduction="sum"', 'reduction="mean"'),
    ("no dropout where all positions are counted", TRAINER,
     "model(tokens, pos, key=key)", "model(tokens, pos)"),
    ("no dropout where some positions are counted", TRAINER,
     "device), key=key)", "device))"),
    ("loss in half precision", TRAINER,
     "logits.to(torch.promote_types(logits.dtype, torch.float32))", "logits"),
    # The schedule
    ("warm-up from zero", ADAM,
     "cfg.lr * (step + 1) / cfg.warmup", "cfg.lr * step / cfg.warmup"),
    ("decay from the first step", ADAM,
     "(step - cfg.warmup) /", "step /"),
    ("half a cosine too little", ADAM,
     "math.pi * progress", "math.pi * progress / 2"),
    ("linear schedule constant", ADAM,
     "cfg.lr * (1 - progress) if", "cfg.lr if"),
    # The optimizers
    ("betas exchanged", ADAM,
     "beta1=self.betas[0]", "beta1=self.betas[1]"),
    ("weight decay on vectors too", ADAM,
     "None), 0.0)]", "None), weight_decay)]"),
    ("no weight decay", ADAM,
     "weight_decay=decay", "weight_decay=0.0"),
    ("AdamW's decay as an L2 penalty", ADAM,
     "decoupled = True", "decoupled = False"),
    ("Adam's decay decoupled", ADAM,
     "decoupled: ClassVar[bool] = False", "decoupled: ClassVar[bool] = True"),
    ("larger epsilon", ADAM,
     "EPS = 1e-8", "EPS = 1e-6"),
    ("small gradients scaled up", OPTIMIZER,
     ".clamp(max=1)", ""),
    ("norm after clipping returned", OPTIMIZER,
     "        return norm", "        return torch.linalg.vector_norm(self.gradient)"),
    ("another optimizer's state accepted", OPTIMIZER,
     "if ours != theirs:", "if False:"),
    # Evaluation
    ("bfloat16 ignored", MODEL,
     '== "bfloat16"', '== "float16"'),
    ("the first sequences of a split ignored", MEASURE,
     "first = slice(0, n)", "first = slice(0, None)"),
    ("right and wrong exchanged", MEASURE,
     "(~right)", "(right)"),
    ("a loss that is nan may be right", MEASURE,
     " & ~loss.isnan()", ""),
    ("positions of the first chunk in each chunk", MEASURE,
     "positions if len(positions) == 1 else positions[rows]\n        yield",
     "positions if len(positions) == 1 else positions[:size]\n        yield"),
    ("same random positions in every split", MEASURE,
     'generator(0, "positions", split)', 'generator(0, "positions")'),
    ("sequences with a right answer counted as wrong", MEASURE,
     "np.unique(self.row[self.wrong])", "np.unique(self.row[~self.wrong])"),
    ("breakdown one token short", MEASURE,
     "self.position + 1", "self.position"),
    ("least likely token generated", MEASURE,
     "logits_BV.argmax(-1, keepdim=True)", "logits_BV.argmin(-1, keepdim=True)"),
    ("generated answers compared with the next place's", MEASURE,
     "part.targets[:, first : first + n]", "part.targets[:, first - 1 : first + n - 1]"),
    # Batches
    ("batches overlap", BATCHES,
     "start = within * self.batch_size", "start = within"),
    ("the same draw in each block", BATCHES,
     "generator(self.seed, TRAIN, block)", "generator(self.seed, TRAIN, 0)"),
    ("the same data with every seed", BATCHES,
     "generator(self.seed, TRAIN, block)", "generator(0, TRAIN, block)"),
    ("the same finite set with every seed", BATCHES,
     'generator(seed, TRAIN, "set")', 'generator(0, TRAIN, "set")'),
    ("the same order in every epoch", BATCHES,
     'generator(self.seed, "order", epoch)', 'generator(self.seed, "order", 0)'),
    ("a finite set not shuffled", BATCHES,
     '"order", epoch).permutation(n)', '"order", epoch).integers(1) + np.arange(n)'),
    ("the split's changes ignored", BATCHES,
     "task.split(split).sample(", "task.sample("),
    ("the same draw for each split", BATCHES,
     'generator(0, "evaluation", split)', 'generator(0, "evaluation")'),
    # Metrics
    ("wrong sequences divided by answers", METRICS,
     "answers.n_seq_wrong / answers.n_seq,", "answers.n_seq_wrong / answers.n,"),
    ("loss summed", METRICS,
     "float(answers.loss.mean())", "float(answers.loss.sum())"),
    ("an interval of 90 %", METRICS,
     "Z_95 = 1.959963984540054", "Z_95 = 1.6448536269514722"),
    ("the interval's bounds exchanged", METRICS,
     "wilson(answers.n_wrong, answers.n)[0]", "wilson(answers.n_wrong, answers.n)[1]"),
    ("in_domain in the mean out of domain", METRICS,
     "for split in splits if split != IN_DOMAIN]", "for split in splits]"),
    ("mean over the measured splits only", METRICS,
     "if errors and len(errors) == len(ood) else None", "if errors else None"),
    ("longer splits measured with as many sequences", MEMORY,
     "most * min(length, train_len) // length", "most"),
]  # fmt: skip
"""What is wrong, the file, its text, and the text in its place."""


@dataclass
class Result:
    """How the tests of one mutant ended; ``killer`` is the first test that failed."""

    killer: str = ""
    loaded: bool = False
    seconds: float = 0.0


class First:
    """A plugin of pytest that keeps the name of the first failure."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (collection)"


def edited(number: int) -> tuple[Path, str]:
    """The file of a mutant, and its text with the edit.

    Raises:
        SystemExit: the text to replace is not there exactly once.
    """
    name, file, old, new = MUTANTS[number]
    text = (ROOT / file).read_text()
    if (n := text.count(old)) != 1:
        raise SystemExit(
            f"mutant {number} ({name}): {file} has its text {n} times, not once: {old}"
        )
    return ROOT / file, text.replace(old, new)


def run(number: int | None) -> Result:
    """The tests with this mutant, or with none."""
    result, first, began = Result(), First(), time.monotonic()
    path, text = edited(number) if number is not None else (None, "")
    get_code = importlib.machinery.SourceFileLoader.get_code

    def loaded(self: importlib.machinery.SourceFileLoader, name: str) -> Any:
        if path is None or Path(self.path).resolve() != path:
            return get_code(self, name)
        result.loaded = True
        return compile(text, self.path, "exec")

    importlib.machinery.SourceFileLoader.get_code = loaded  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="pe-lab-mutant-") as folder:
        log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        words = ["-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=120"]
        file = "" if number is None else MUTANTS[number][1]
        tests = sorted(FIRST, key=lambda test: file not in FIRST[test])
        status = pytest.main(
            [*words, f"--basetemp={folder}/tests", *(f"{TESTS}/{test}" for test in tests)],
            plugins=[first],
        )
    result.killer = first.failed or ("" if status == 0 else f"pytest: {status}")
    result.seconds = time.monotonic() - began
    return result


def main() -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    numbers = [int(word) for word in sys.argv[1:]] or list(range(len(MUTANTS)))
    for number in numbers:
        edited(number)
    # Imported once, for all processes to come; nothing of pe_lab is.
    for library in ("torch._dynamo", "hydra", "pydantic", "hypothesis.strategies", "scipy.stats"):
        importlib.import_module(library)
    assert "pe_lab" not in sys.modules
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    with context.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        plain = pool.apply(run, (None,))
        if plain.killer:
            print(f"the tests fail without any mutant: {plain.killer}")
            return 1
        print(f"no mutant: all tests pass ({plain.seconds:.0f} s)", flush=True)
        alive = 0
        for number, result in zip(numbers, pool.imap(run, numbers), strict=True):
            name, file, *_ = MUTANTS[number]
            killer = result.killer if result.loaded else ""
            alive += not killer
            end = killer.removeprefix(TESTS).lstrip("/") or (
                "SURVIVES" if result.loaded else "NOT LOADED by the tests"
            )
            print(f"{number:2} {Path(file).name}: {name}: {end}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(numbers) - alive} of {len(numbers)} mutants killed in {minutes:.1f} minutes")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
