"""The models that are checked, and their inputs."""

from typing import Any

import torch
from torch import Tensor

from pe_lab.common.instantiate import instantiate
from pe_lab.evaluation.contract.encodings import NONE
from pe_lab.evaluation.contract.outcome import ContractError
from pe_lab.evaluation.contract.tiny import Section, move_parameters
from pe_lab.models.base import Model, ModelConfig, Vocabulary
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.training.encodings import build_encodings
from pe_lab.training.kernels import accelerate

LENGTH, MAX_LEN, VOCAB, SEPARATOR, PLACE = 12, 48, 11, 10, 4
"""Tokens, positions, words, the separator and its place."""
FLIPFLOP = FlipFlop(length=16, p_ignore=0.5, loss_on="scored", train_sequences=None, splits={})


def config(section: Section, **changes: Any) -> ModelConfig:
    made: ModelConfig = instantiate({**section, **changes}, "model", ModelConfig)
    return made


def built(
    section: Section, pe: Section = NONE, fast: bool = True, seed: int = 0, **changes: Any
) -> Model | None:
    """The model with all parameters moved, as what starts at zero hides; None: it refuses the
    encoding."""
    cfg = config(section, **changes)
    torch.manual_seed(seed)
    made = build_encodings(pe, cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.without())
    if any(cfg.refuses(encoding) is not None for encoding in made):
        return None
    torch.manual_seed(seed + 1)
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), made)
    if fast:
        accelerate(model)
    for encoding in dict.fromkeys(made):
        move_parameters(encoding)
    torch.manual_seed(seed + 2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "encoding" not in key:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def model_of(section: Section, **changes: Any) -> Model:
    """``built`` with no encoding, which no model refuses."""
    model = built(section, **changes)
    if model is None:
        raise ContractError("it refuses pe=none")
    return model


def two_parts(section: Section) -> bool:
    """Whether the model is for tasks with an input and an output part."""
    return config(section).refuses_task(FLIPFLOP) is not None


def tokens(n: int = 2, seed: int = 0) -> Tensor:
    """Rows with the separator at one place."""
    drawn = torch.randint(0, SEPARATOR, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    drawn[:, PLACE] = SEPARATOR
    return drawn


def with_dropout(section: Section) -> dict[str, Any]:
    return {"dropout": 0.3} if "dropout" in section else {}
