"""Generation: drawing tokens, a model that continues its answers, and pe-lab generate."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import Here, assert_refused, succeeded, the_run, tiny, working_in
from torch import Tensor

from pe_lab.core.errors import RunError
from pe_lab.core.task import Batch
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train import measure as decoding
from pe_lab.train.measure import generated_answers, sample

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).log_softmax(-1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(**how: Any) -> list[float]:
    """How often each token is drawn of 20 000."""
    rows = LOGITS.expand(20_000, -1)
    return (torch.bincount(sample(rows, seeded(), **how)[:, 0], minlength=4) / 20_000).tolist()


def expected(*kept: int, temperature: float = 1.0) -> list[float]:
    p = (LOGITS[0] / temperature).exp()
    p = torch.where(torch.isin(torch.arange(4), torch.tensor(kept)), p, 0)
    return (p / p.sum()).tolist()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({}, expected(0, 1, 2, 3)),
        ({"temperature": 0.5}, expected(0, 1, 2, 3, temperature=0.5)),
        ({"temperature": 1e-310}, expected(1)),
        ({"temperature": 1e300}, [0.25] * 4),
        ({"top_k": 1}, expected(1)),
        ({"top_k": 2}, expected(1, 2)),
        # 0.64, 0.24, 0.09, 0.03: the first alone reaches 0.6, two of them 0.7, three 0.9.
        ({"top_p": 0.001}, expected(1)),
        ({"top_p": 0.6}, expected(1)),
        ({"top_p": 0.7}, expected(1, 2)),
        ({"top_p": 0.9}, expected(0, 1, 2)),
        ({"top_p": 1.0}, expected(0, 1, 2, 3)),
        # Of the two likeliest the first has 0.73; hotter, 0.62 of all.
        ({"top_k": 2, "top_p": 0.7}, expected(1)),
        ({"temperature": 2.0, "top_p": 0.7}, expected(1, 2, temperature=2.0)),
    ],
    ids=str,
)
def test_drawn_as_often_as_the_softmax_says(how: dict[str, Any], wanted: list[float]) -> None:
    found = shares(**how)
    for k, p in zip(found, wanted, strict=True):
        assert abs(k - p) <= 4.5 * (p * (1 - p) / 20_000) ** 0.5 + 1e-9, (found, wanted)


def test_a_draw_can_be_repeated() -> None:
    rows = LOGITS.expand(50, -1)
    one, again, other = (sample(rows, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_nothing_is_drawn_from_what_is_no_number() -> None:
    with pytest.raises(RunError, match="not all finite"):
        sample(torch.tensor([[0.0, float("nan")]]), seeded())


class Successor(Model):
    """Says the next number after the last token and its position together, of 7."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(()))
        self.read: list[tuple[int, ...]] = []

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return []

    def forward(self, tokens_BT: Tensor, pos_BS: Tensor, cache: Any = None, **_: Any) -> Tensor:
        cache.append(tokens_BT)
        assert sum(t.shape[1] for t in cache) == pos_BS.shape[1]
        self.read.append(tuple(tokens_BT.shape))
        told = (tokens_BT + pos_BS[:, -tokens_BT.shape[1] :] + 1) % 7
        return torch.nn.functional.one_hot(told, 7).float()

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden

    def empty_cache(self) -> list[Tensor]:
        return []


def test_a_model_reads_what_it_has_written() -> None:
    model = Successor()
    prompt, pos = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 2, 3], [1, 2, 5]])
    answers = decoding.generate(model, prompt, pos, 2)
    assert answers.tolist() == [[5, 2], [0, 6]]
    assert model.read == [(2, 2), (2, 1)]


def test_a_model_stops_after_the_end() -> None:
    """It goes on until every row has said it: 5 is first in row 0, third in row 1."""
    prompt, pos = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 2, 3, 5, 6], [1, 2, 5, 5, 6]])
    whole = decoding.generate(Successor(), prompt, pos, 4).tolist()
    assert whole == [[5, 2, 1, 1], [0, 6, 5, 5]]
    assert decoding.generate(Successor(), prompt, pos, 4, end=5).shape == (2, 3)
    assert decoding.generate(Successor(), prompt, pos, 4, end=3).tolist() == whole
    assert decoding.generate(Successor(), prompt[:1], pos[:1], 4, end=2).tolist() == [[5, 2]]


def test_answers_of_rows_scored_at_different_positions() -> None:
    """Each row is scored at other positions; the first row errs at its second answer, and goes
    on from what it has written."""
    pos = np.array([[0, 1, 2, 3, 4, 5], [0, 2, 4, 6, 8, 10], [0, 1, 2, 3, 4, 5]])
    tokens = np.array([[1, 1, 2, 6, 0, 0], [2, 5, 1, 0, 0, 0], [0, 1, 1, 4, 0, 0]])
    targets = np.array([[1, 2, 5, 3, 0, 0], [5, 1, 6, 0, 0, 0], [1, 1, 4, 1, 0, 0]])
    scored = np.zeros((3, 6), dtype=bool)
    scored[0, 2:4] = scored[1, 1:2] = scored[2, 2:4] = True
    model = Successor()
    answers = generated_answers(
        model, Batch(tokens, targets, scored), pos, batch_tokens=6, autocast=nullcontext
    )
    # Row 0: 2 at 2 says 5, 5 at 3 says 2. Row 1: 5 at 2 says 1. Row 2: 1 says 4, 4 at 3 says 1.
    assert answers.row.tolist() == [0, 0, 1, 2, 2]
    assert answers.position.tolist() == [2, 3, 1, 2, 3]
    assert answers.wrong.tolist() == [False, True, False, False, False]
    assert np.isnan(answers.loss).all()


COPY = ("task=copy", "task.max_letters=4", "task.n_symbols=3", "task.splits={}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of copy with a table of positions that ends after twelve."""
    from pe_lab.cli.main import main

    folder = tmp_path_factory.mktemp("generate")
    words = ("pe=learned", "pe.max_len=12", "train.steps=60", "train.lr=0.01", "eval.generate=true")
    with working_in(folder):
        assert main(tiny(*COPY, *words)) == 0
    return the_run(folder / "runs")


def test_a_prompt_is_continued(run: Path, here: Here) -> None:
    def said(*words: str) -> str:
        outcome = succeeded(here("generate", f"run={run}", *words))
        return outcome.out

    one = said("prompt=abc|", "tokens=8", "temperature=0.8", "top_k=3", "top_p=0.9", "seed=2")
    assert re.fullmatch(r"a b c \|( [abc|]| <pad>){8}\n", one)
    assert one == said("prompt=a b  c|", "tokens=8", "temperature=0.8", "top_k=3", "top_p=0.9",
                       "seed=2")  # fmt: skip
    texts = {said("prompt=abc|", "tokens=8", "temperature=5", f"seed={seed}") for seed in range(4)}
    assert len(texts) == 4
    greedy = said("prompt=abc|", "tokens=8", "top_k=1")
    assert greedy == said("prompt=abc|", "tokens=8", "temperature=1e-9")


def test_an_answer_ends_where_positions_do(run: Path, here: Here) -> None:
    """The last token is generated and not read: twelve positions are for a prompt of three and ten
    tokens."""
    words = ("generate", f"run={run}", "prompt=ab|")
    whole, cut = here(*words, "tokens=10"), here(*words, "tokens=11")
    assert (whole.status, cut.status) == (0, 0)
    assert cut.out == whole.out
    assert len(cut.out.replace("<pad>", "p").split()) == 3 + 10
    assert whole.err == ""
    (line,) = cut.err.splitlines()
    assert "ended after 10 of tokens=11: " in line
    assert len(here(*words, "tokens=100000000000").err.splitlines()) == 1


def test_an_answer_ends_with_eos(here: Here, tmp_path: Path) -> None:
    words = ("task=copy", "task.bos_eos=true", "task.max_letters=3", "task.n_symbols=2")
    train = ("task.splits={}", "pe=rope", "train.steps=40", "train.lr=0.01")
    assert here(*tiny(*words, *train)).status == 0
    run = the_run(tmp_path / "runs")
    for seed in range(3):
        said = succeeded(
            here("generate", f"run={run}", "prompt=<bos> a b |", f"seed={seed}", "top_p=0.9")
        )
        answer = said.out.split()[4:]
        assert answer.count("<eos>") == 1
        assert answer[-1] == "<eos>"
        assert len(answer) < 200
    assert_refused(
        here("generate", f"run={run}", "prompt=<bos> a b |", "tokens=100000000000"),
        "tokens=100000000000 is too many",
        "GiB",
    )


BAD = {
    "no run": (["run=nowhere", "prompt=a|"], ["run=nowhere"]),
    "no run's name": (["prompt=a|"], ["generate needs a finished run"]),
    "no prompt": ([], ["generate needs a prompt"]),
    "an empty prompt": (["prompt="], ["prompt is empty", "a b c"]),
    "a word that is not known": (["prompt=axb|"], ["prompt: x", "a b c |"]),
    "nothing is asked": (["prompt=abc"], ["prompt=abc", "end", "|"]),
    "no heat": (["prompt=a|", "temperature=0"], ["temperature=0", "greater than 0"]),
    "cold": (["prompt=a|", "temperature=-1"], ["temperature=-1", "greater than 0"]),
    "no number": (["prompt=a|", "temperature=nan"], ["temperature=nan", "greater than 0"]),
    "no tokens": (["prompt=a|", "tokens=0"], ["tokens=0", "at least 1"]),
    "half a token": (["prompt=a|", "tokens=1.5"], ["tokens=1.5", "whole number"]),
    "none to draw": (["prompt=a|", "top_k=0"], ["top_k=0", "at least 1"]),
    "more than all": (["prompt=a|", "top_k=6"], ["top_k=6", "5 tokens", "1 to 5"]),
    "no share": (["prompt=a|", "top_p=0"], ["top_p=0", "at most 1"]),
    "more than 1": (["prompt=a|", "top_p=1.1"], ["top_p=1.1", "at most 1"]),
    "a negative seed": (["prompt=a|", "seed=-1"], ["seed=-1", "from 0 to"]),
    "a seed too large": (["prompt=a|", f"seed={2**63}"], [f"seed={2**63}", "to 2^63 - 1"]),
    "a key without effect": (
        ["prompt=a|", "top_k=1", "seed=1"],
        ["seed=1", "no effect", "top_k=1"],
    ),
    "an unknown key": (["prompt=a|", "token=3"], ["token", "did you mean tokens"]),
    "too long a prompt": (["prompt=abcabcabcabc|", "tokens=1"], ["13 positions", "12", "shorten"]),
}


@pytest.mark.parametrize(("words", "told"), BAD.values(), ids=BAD.keys())
def test_one_sentence(run: Path, here: Here, words: list[str], told: list[str]) -> None:
    named = any(word.startswith("run=") for word in words) or told[0].startswith(
        "generate needs a f"
    )
    outcome = here("generate", *([] if named else [f"run={run}"]), *words)
    assert_refused(outcome, *told)
    assert not outcome.out


def test_an_encoding_that_reads_the_length_cannot_write(here: Here, tmp_path: Path) -> None:
    words = ("pe=normalized", "pe.scale=sequence", "train.steps=1", "eval.every=1")
    assert here(*tiny(*COPY, *words)).status == 0
    assert_refused(
        here("generate", f"run={the_run(tmp_path / 'runs')}", "prompt=a|"),
        "cannot write token by token",
    )
