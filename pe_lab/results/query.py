"""Conditions over the columns of a table of runs, in SQL: ``task=flipflop and train.steps>=1000``.

A key may be written without its group where that is clear (steps>=1000, d_model=128), and the
error on a split as the split: sparse<0.1 is ood/sparse/error<0.1, ood<0.1 the mean out of domain.
Words need quotes only if they hold blanks, commas or parentheses: pe in (cope, rope). Errors are
shares, not %. A run without a key has null there, of which no comparison is true: npos = null.
"""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import polars as pl

from pe_lab.core.config_dir import choices
from pe_lab.core.errors import UsageError, check_known, did_you_mean, reason
from pe_lab.core.metrics import OOD

STATES = ("finished", "running", "interrupted", "failed", "killed", "not begun", "broken")
# A broken run whose keys nobody knows: no condition on them leaves it out.
UNREADABLE = (pl.col("state") == "broken") & pl.col("setting").is_null()
KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_WORD = re.compile(r"""'[^']*'|"[^"]*"|(?:\[[^\]]*\]|[^\s=!<>(),'"\[])+""")
_OPERATOR = re.compile(r"\s*(<>|[=!<>]|(?:not\s+)?in\b|is\b)", re.IGNORECASE)


def filter_where(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    """Return the rows for which ``where`` holds.

    Raises:
        UsageError: it is not understood, or a key is unknown.
    """
    is_text = True

    def to_sql(match: re.Match[str]) -> str:
        nonlocal is_text
        word = match[0].strip("'\"")
        if word.lower() in KEYWORDS:
            return word
        operator = _OPERATOR.match(where, match.end())
        if operator is None:
            return "'{}'".format(re.sub('"|(?<=,) ', "", word)) if is_text else _number(word, where)
        name = column_of(word, frame.columns)
        if name is None:
            raise UsageError(f"where={where!r}: {unknown(word, frame.columns)}")
        is_text = not frame.schema[name].is_numeric()
        if is_text and operator[1] in ("<", ">"):
            raise UsageError(f"where={where!r}: {name} holds words, {operator[1]} compares numbers")
        # A list matches however it is written: [kda, attention].
        return (
            f"""REPLACE(REPLACE("{name}", '"', ''), ', ', ',')"""
            if frame.schema[name] == pl.String
            else f'"{name}"'
        )

    sql = re.sub(r"(!=|<>)\s*null\b", " is not null", _WORD.sub(to_sql, where), flags=re.IGNORECASE)
    sql = re.sub(r"=\s*null\b", " is null", sql, flags=re.IGNORECASE)
    try:
        return frame.filter(pl.sql_expr(sql).fill_null(UNREADABLE))
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"where={where!r} is no condition ({reason(error)})") from None


def _number(word: str, where: str) -> str:
    """Return a number as SQL writes it, without an exponent."""
    try:
        return f"{Decimal(word):f}"
    except InvalidOperation:
        raise UsageError(f"where={where!r}: give a number in place of {word}") from None


def filter_key(
    frame: pl.DataFrame, key: str, values: str, also: Sequence[str] = ()
) -> pl.DataFrame:
    """Return the rows whose ``key`` is one of the comma-separated values.

    Args:
        also: keys of another kind, which an unknown one may be meant for.

    Raises:
        UsageError: a key or a choice is unknown.
    """
    name = column_of(key, frame.columns)
    if name is None:
        raise UsageError(f"{key}={values}: {unknown(key, [*frame.columns, *also])}")
    # In brackets are a list, or several numbers.
    listed = re.sub(r"[\[\]]", "", values) if frame.schema[name].is_numeric() else values
    words, column = split_values(listed), pl.col(name)
    known = STATES if name == "state" else choices(name)
    if known:
        check_known(f"there is no {name} {{}}", words, {*known, *frame[name].drop_nulls(), "null"})
    if frame.schema[name] == pl.List:
        return frame.filter(
            pl.any_horizontal(column.list.contains(word).fill_null(UNREADABLE) for word in words)
        )
    numbers = [float(word) for word in words if re.fullmatch(r"-?\d*\.?\d+([eE][+-]?\d+)?", word)]
    # A list matches as it is written on a command line, too: [kda, attention].
    equal = (
        column.cast(pl.String)
        .str.replace_all('[" ]', "")
        .is_in([re.sub('[" ]', "", word) for word in words])
    )
    equal |= column.cast(pl.Float64, strict=False).is_in(numbers).fill_null(value=False)
    return frame.filter(equal.fill_null(pl.lit("null" in words) | UNREADABLE))


def split_values(values: str) -> list[str]:
    """Return the values between commas; those in brackets are one, a list."""
    words = (word.strip() for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", values))
    return [word for word in words if word]


def column_of(key: str, columns: Sequence[str]) -> str | None:
    """Return the column that a key stands for: itself; the error on a split, ``sparse`` or ``ood``;
    another metric of a split, ``sparse/loss``; or the only one that ends alike, ``d_model``."""
    names = [key, f"{key}/error", f"{OOD}/{key}", f"{OOD}/{key}/error"]
    alike = [name for name in columns if name.count(".") == 1 and name.endswith(f".{key}")]
    return next((name for name in (*names, *alike[: len(alike) == 1]) if name in columns), None)


def unknown(key: str, columns: Sequence[str]) -> str:
    """Return the message for an unknown key."""
    return f"none of the runs has a key {key}: {did_you_mean(key, columns)}"
