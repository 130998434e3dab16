"""Which encodings a model can use: for the sentence that refuses another."""

import functools
from collections.abc import Callable

from pe_lab.common.errors import UsageError
from pe_lab.config.combined_parts import encoding_section, repository_of
from pe_lab.pe.base import Dims, PositionalEncoding

SHIPPED = [{"provider": "main", "schema": "pkg", "path": "pe_lab.conf"}]


@functools.cache
def fitting(dims: Dims, fits: Callable[[PositionalEncoding], bool]) -> str:
    """The names of those in conf/pe that fit in every layer with their default keys."""
    # It imports the models' base itself.
    from pe_lab.training.plan import build_encodings

    repository = repository_of(SHIPPED)
    names = []
    for name in sorted(repository.get_group_options("pe")):
        try:
            made = build_encodings(encoding_section(name, "pe", repository), dims)
        except UsageError:
            # Not with these sizes, or of parts that are not named yet.
            continue
        if all(fits(encoding) for encoding in made):
            names.append(name)
    return ", ".join(names)


def at_input(encoding: PositionalEncoding) -> bool:
    """Whether it changes the input of the model and nothing else."""
    return encoding.hooks() <= {"embed"}
