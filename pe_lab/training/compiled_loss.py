"""The loss of a training step, compiled by torch.compile (``train.compile``).

What an encoding does in Python is run, not read, while the step is traced: torch.compile's own
reader of Python stops at much of it, and would compile anew whatever it takes for new. So it sees
one function of tensors, the model's parameters among them, and what a step may change, the tokens,
the dropout key, the number of places that count, is in tensors. Positions are the same in every
step, and what is asked of their values is known beforehand.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.common.errors import RunError
from pe_lab.common.tracing import traced
from pe_lab.models.base import Model
from pe_lab.pe.functional import tell_facts
from pe_lab.training.loss import FixedLoss, Padded, padded_loss

LEAST = 2
"""Places that count, at least: one, and none, would be compiled by themselves."""


class CompiledLoss(FixedLoss):
    """``FixedLoss``, compiled for each shape of the tokens and each ``first``, and never again,
    however many places count. What is measured runs as ever.

    Attributes:
        backend: what compiles (``torch.compile``).
    """

    backend = "inductor"

    def __init__(self, model: Model, pos: Tensor, half: bool) -> None:
        super().__init__(model, pos, half)
        # What an earlier run in this process has compiled counts as the same function.
        torch.compiler.reset()
        self.loss, names = _Loss(model), model.names_of_parameters()
        held: list[tuple[list[str], Tensor]] = [(names[id(p)], p) for p in model.parameters()]
        held += [([name], buffer) for name, buffer in model.named_buffers()]
        self.names, self.held = zip(*held, strict=True)
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, part: Padded) -> Tensor:
        """The loss of a part on the model's device.

        Raises:
            RunError: it cannot be compiled.
        """
        given = part.tokens_BT, self.pos, part.scored_3N, part.key
        if part.first is not None:
            torch._dynamo.mark_dynamic(part.scored_3N, 1)
        kind = part.first, part.tokens_BT.shape
        if kind in self.compiled:
            found: Tensor = self.compiled[kind](*given, *self.held)
            return found
        # Kernels are built and proved, and positions asked, on tensors with values.
        with traced():
            super().__call__(part)
        call = self._function(part.first)
        try:
            found = call(*given, *self.held)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise RunError(
                "train.compile=true is not possible here, torch.compile failed with "
                f"{type(error).__name__} ({lines[0] if lines else 'no word why'}): set "
                "train.compile=false"
            ) from error
        self.compiled[kind] = call
        return found

    def _function(self, first: int | None) -> Any:
        # Torch's compiler takes as long to import as torch; so does this, a little.
        from torch.func import functional_call

        def loss(tokens: Tensor, pos: Tensor, scored: Tensor, key: Tensor, *held: Tensor) -> Tensor:
            tell_facts(pos, self.pos)
            state = {
                f"model.{name}": x
                for names, x in zip(self.names, held, strict=True)
                for name in names
            }
            given = tokens, pos, scored, key, first
            with traced(), self.autocast():
                # Ties are among the names; a module that layers share is one module.
                found: Tensor = functional_call(self.loss, state, given, tie_weights=False)
            return found

        # Turns are made in complex numbers, by PyTorch's own code; what is turned is not.
        warnings.filterwarnings("ignore", "Torchinductor does not support code generation for comp")
        run = torch.compiler.allow_in_graph(loss)  # type: ignore[no-untyped-call]

        def whole(*given: Tensor) -> Tensor:
            found: Tensor = run(*given)
            return found

        return torch.compile(whole, fullgraph=True, dynamic=False, backend=self.backend)


class _Loss(nn.Module):
    """``padded_loss`` as a module, whose parameters can be given."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Any) -> Tensor:
        return padded_loss(self.model, *given)
