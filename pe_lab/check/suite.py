"""All checks of an encoding, a task and a model, in the order shown."""

from collections.abc import Iterator
from functools import partial

from pe_lab.check import tasks
from pe_lab.check.base import Outcome, Section, build_transformer, choices, exact, outcome
from pe_lab.check.networks import encoding_checks, every_key, model_checks, same_keys
from pe_lab.train.plan import build_task

EVERY_KEY = "every key changes something"


def check_encoding(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of an encoding: with the keys as they are, unless another choice
    of one key fails."""
    with exact():
        yield outcome("keys of yaml and class", partial(same_keys, section))
        sections = choices(section)
        for name in encoding_checks(section):
            outcomes = {
                words: outcome(name, encoding_checks(one)[name]) for words, one in sections.items()
            }
            failed = [(words, one) for words, one in outcomes.items() if one.state == "fail"]
            for words, one in failed[:1]:
                sentence = f"with {words}: {one.sentence}" if words else one.sentence
                outcomes[""] = Outcome(name, "fail", sentence)
            yield outcomes[""]
        yield outcome(EVERY_KEY, partial(every_key, section, build_transformer))


def check_task(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a task."""
    task = build_task(section)
    for name, check in tasks.CHECKS.items():
        yield outcome(name, partial(check, task))
    yield outcome(EVERY_KEY, partial(tasks.every_key, section))


def check_model(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a model."""
    with exact():
        for name, check in model_checks(section).items():
            yield outcome(name, check)
