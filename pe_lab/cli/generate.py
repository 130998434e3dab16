"""``pe-lab generate``: the model of a finished run continues a prompt.

    pe-lab generate run=FOLDER prompt="The "      the folder of a run, or
    pe-lab generate run=text/rope prompt=..       a part of its path below runs_dir=runs
    pe-lab generate .. tokens=200                 number of generated tokens (200)
    pe-lab generate .. temperature=0.8            divides the logits before sampling (1)
    pe-lab generate .. top_k=10                   sample from the 10 most likely tokens; 1: greedy
    pe-lab generate .. top_p=0.9                  sample from the smallest set of tokens with a
                                                  total probability of at least 0.9
    pe-lab generate .. seed=1                     random seed (0)
    pe-lab generate .. --config-dir FOLDER        trust the classes that the yamls there name

A prompt is text for task=text. For other tasks it is tokens of the vocabulary, like "w 1 i 0 r" or
w1i0r. Where sequences end with <eos> (task.bos_eos), so does the continuation. It is shorter than
``tokens`` where the encoding has no more positions; a line then says so.
"""

import sys
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from pe_lab.cli.run_argument import RunArgument, find_run
from pe_lab.core.config_dir import trust
from pe_lab.core.errors import UsageError
from pe_lab.core.options import AtLeastOne, parse, without_config_dir
from pe_lab.core.output import printable

if TYPE_CHECKING:
    from pe_lab.experiment.load_run import LoadedRun


class GenerateOptions(RunArgument):
    command = "generate"

    prompt: str = Field(description='a prompt for the model to go on from: give prompt=".."')
    tokens: AtLeastOne = 200
    temperature: float = Field(1.0, gt=0, description="a number greater than 0")
    top_k: AtLeastOne | None = None
    top_p: float | None = Field(None, gt=0, le=1, description="a number greater than 0, at most 1")
    seed: int = Field(0, ge=0, lt=2**63, description="a whole number from 0 to 2^63 - 1")

    @model_validator(mode="after")
    def _draws(self) -> Self:
        if self.top_k == 1 and (idle := {"temperature", "top_p", "seed"} & self.model_fields_set):
            key = min(idle)
            raise ValueError(
                f"{key}={getattr(self, key)} has no effect with top_k=1, which leaves nothing to "
                "draw: drop one of them"
            )
        return self


def show(words: Sequence[str]) -> None:
    """Print the prompt and its continuation.

    Raises:
        UsageError: a wrong option, no finished run, a prompt outside of its vocabulary or longer
            than its encoding can encode, or a model that cannot generate token by token.
    """
    config_dir, rest = without_config_dir(words)
    trust(config_dir)
    options = parse(GenerateOptions, rest)
    path = find_run(options.run, options.runs_dir)
    # Imported here: torch takes a second.
    import numpy as np
    import torch

    from pe_lab.core.rng import torch_seed
    from pe_lab.core.task import Batch
    from pe_lab.experiment.load_run import load
    from pe_lab.train import measure as decoding
    from pe_lab.train.measure import fixed_positions

    run, top_k = load(path), options.top_k
    task = run.plan.task
    prompt_tokens = _encode(run, options.prompt)
    if top_k is not None and top_k > len(task.vocab):
        raise UsageError(
            f"top_k={top_k} is more than the {len(task.vocab)} tokens of the vocabulary: give 1 to "
            f"{len(task.vocab)}, or leave it out"
        )
    tokens = _possible(run, len(prompt_tokens), options.tokens)
    try:
        run.model.empty_cache()
    except ValueError as error:
        raise UsageError(f"{path} cannot write token by token: {error}; give another run") from None
    source = run.plan.positions
    row = np.array([prompt_tokens + [0] * (tokens - 1)])
    unscored = Batch(row, row, np.zeros(row.shape, dtype=bool))
    positions = fixed_positions(source, "generate", unscored)
    choice = partial(
        decoding.sample,
        generator=torch.Generator().manual_seed(torch_seed(options.seed, "generate")),
        temperature=options.temperature,
        top_k=top_k,
        top_p=options.top_p,
    )
    end = None if task.end is None else task.vocab.index(task.end)
    with run.autocast():
        (answer,) = decoding.generate(
            run.model, torch.tensor([prompt_tokens]), torch.from_numpy(positions), tokens, choice,
            source.of_tokens if source.from_tokens else None, end,
        ).tolist()  # fmt: skip
    print(task.decode(prompt_tokens + answer))
    if len(answer) == tokens < options.tokens and answer[-1] != end:
        cut = f"ended after {tokens} of tokens={options.tokens}: {path} has no position for more"
        print(printable(cut), file=sys.stderr)


def _encode(run: "LoadedRun", prompt: str) -> list[int]:
    task = run.plan.task
    try:
        tokens: list[int] = task.encode(prompt)
    except ValueError as error:
        raise UsageError(f"prompt: {error}") from None
    if not tokens:
        raise UsageError(f"prompt is empty: give some of {task.shown_vocab}")
    if task.separator is not None and task.vocab.index(task.separator) not in tokens:
        raise UsageError(
            f"prompt={prompt} asks for no answer: end what is to be answered with {task.separator}"
        )
    return tokens


def _possible(run: "LoadedRun", read: int, tokens: int) -> int:
    """The number of tokens, at most ``tokens``, that the encoding has positions for.

    Raises:
        UsageError: its positions are those of a task's sequences, none is left after the prompt,
            or memory does not suffice.
    """
    from pe_lab.pe.task_positions import Coupled
    from pe_lab.train.memory import min_bytes, refuse_beyond

    source = run.plan.positions
    if isinstance(source, Coupled):
        raise UsageError(
            f"{run.path} was trained with positions={run.plan.config.names['positions']}, which "
            "only the task's own sequences have: give a run with other positions"
        )
    reach = min((e.max_len for e in run.model.encodings if e.max_len is not None), default=None)

    def missing(n: int) -> str:
        """Why n tokens have no positions; empty where they have."""
        try:
            # The last token is generated and not read.
            last = source.limit(read + n - 1, training=False)
        except ValueError as error:
            return str(error)
        if reach is None or last <= reach:
            return ""
        return f"it needs {last} positions, more than the {reach} that {run.path} can encode"

    if why := missing(1):
        raise UsageError(f"a prompt of {read} tokens is too long: {why}; shorten the prompt")
    fit = bisect_left(range(1, tokens + 1), True, key=lambda n: missing(n) != "")
    refuse_beyond(f"tokens={tokens} is too many", min_bytes(read + fit, 1, 0), "give fewer")
    return fit
