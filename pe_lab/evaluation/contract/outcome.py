"""What a check of the contract finds.

A check is a function that returns one sentence with its numbers if what it holds is true, raises
``ContractError`` with one if it is not, and ``NotClaimedError`` if there is nothing to hold.
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
    """Raises ContractError with a sentence where something is not true."""
    if not true:
        raise ContractError(otherwise)


class NotClaimedError(Exception):
    """There is nothing to check; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check.

    Args:
        name: what is held, in a few words.
        sentence: the finding, with numbers.
    """

    name: str
    state: State
    sentence: str


def outcome(name: str, check: Callable[[], str], state: State = "pass") -> Outcome:
    """Do a check. What the checked code raises breaks the contract, too.

    Args:
        state: the state of a check that returns: ``measured`` where it holds nothing.
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
