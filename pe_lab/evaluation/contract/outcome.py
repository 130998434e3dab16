"""The outcome of a check of the contract.

A check is a function. It returns one sentence with numbers if the point is kept, raises
``ContractError`` with one if it is broken, and ``NotClaimedError`` if the point does not apply.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

import pe_lab
from pe_lab.common.errors import UsageError, reason, sentence

State = Literal["pass", "fail", "not claimed", "measured"]


class ContractError(AssertionError):
    """The contract is broken; the message is one sentence."""


def hold(true: bool | Tensor, otherwise: str) -> None:
    """ContractError with a sentence, unless something is true."""
    if not true:
        raise ContractError(otherwise)


class NotClaimedError(Exception):
    """A point does not apply; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check.

    Args:
        name: the point, in a few words.
        sentence: the finding, with numbers.
    """

    name: str
    state: State
    sentence: str


def outcome(name: str, check: Callable[[], str], state: State = "pass") -> Outcome:
    """Run a check. An exception of the checked code breaks the contract, too.

    Args:
        state: of a check that returns: ``measured`` if it only measures.
    """
    try:
        return Outcome(name, state, check())
    except NotClaimedError as found:
        return Outcome(name, "not claimed", str(found))
    except (ContractError, UsageError) as found:
        return Outcome(name, "fail", str(found))
    except Exception as error:
        return Outcome(name, "fail", f"{sentence_of(error)}{_where(error)}")


def sentence_of(error: Exception) -> str:
    """An error of the checked code in one line."""
    return f"{type(error).__name__}: {reason(error)}" if str(error) else sentence(error)


def _where(error: Exception) -> str:
    """The last line of code outside torch that raised it; of the user's files if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(next(iter(pe_lab.__path__))).resolve()
    files = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    theirs = [frame for frame in files if not Path(frame.filename).is_relative_to(ours)]
    shown = (theirs or files)[-1:]
    return "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in shown)
