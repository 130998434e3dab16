"""Conditions over the columns of a table of runs: ``task=flipflop and train.steps>=1000``.

    = == != < <= > >=     pe.npos != 16, in_domain/error < 0.01 (errors are shares, not %)
    in, not in            pe in (cope, rope)
    and or not ( )        not binds before and, and before or
    'quoted', "quoted"    what holds blanks, commas or parentheses
    null true false       pe.npos = null

A key may be written without its group where that is clear (steps>=1000, d_model=128), and the
error on a split as the split: sparse<0.1 is ood/sparse/error<0.1, ood<0.1 the mean out of domain.
Numbers are compared as numbers: 1e-3 equals 0.001. A run without a key, or with null there, equals
no value and is neither below nor above one. Where the value does not exist yet, as a metric
of an unfinished run or a key of one without a configuration, the run is kept.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce

import polars as pl

from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import OOD, PREFIXES
from pe_lab.core.suggest import did_you_mean

STATES = ("finished", "running", "interrupted", "failed", "killed", "not begun", "broken")
JOIN = "join comparisons such as task=flipflop by and, or, not and parentheses"
_QUOTED = r"""'[^']*'|"[^"]*\""""
_WORD = rf"""(?:{_QUOTED}|(?:\[[^\]]*\]|[^\s=!<>(),"'\[])+)"""
_VALUE = re.compile(rf"(?:{_QUOTED}|\[[^\]]*\]|[^,'\"\[])+")
_COMPARISON = re.compile(
    rf"""({_WORD})\s*(?:(==|!=|<=|>=|[=<>])\s*(?!(?:and|or|in)\b)({_WORD})"""
    rf"""|\s((?:not\s+)?in)\s*\(([^()]*)\))""",
    re.IGNORECASE,
)
_ORDER = {"<": pl.Expr.lt, "<=": pl.Expr.le, ">": pl.Expr.gt, ">=": pl.Expr.ge}


def condition(frame: pl.DataFrame, where: str) -> pl.Series:
    """Return whether ``where`` holds for each row of a frame, or cannot be evaluated yet.

    Raises:
        UsageError: it is not understood, or a key or a choice is unknown.
    """
    columns: dict[str, pl.Expr] = {}

    def compare(match: re.Match[str]) -> str:
        key, sign, value, contained, values = match.groups()
        holds = _any_of(frame, _bare(key), [value], sign) if sign else None
        if holds is None:
            holds = _any_of(frame, _bare(key), _VALUE.findall(values))
            holds = ~holds if contained.lower() != "in" else holds
        columns[f"_{len(columns)}_"] = holds
        return f" _{len(columns) - 1}_ "

    try:
        logic = " ".join(_COMPARISON.sub(compare, where).lower().split())
        holds = _joined(ast.parse(logic, mode="eval").body, columns)
    except (SyntaxError, ValueError) as error:
        reason = JOIN if isinstance(error, SyntaxError) else error
        raise UsageError(f"where={where!r}: {reason}") from None
    return frame.select(holds.fill_null(value=True)).to_series()


def _joined(node: ast.expr, columns: Mapping[str, pl.Expr]) -> pl.Expr:
    """Return the comparisons joined by and, or and not, which Python's parser has grouped."""
    match node:
        case ast.BoolOp(op, parts):
            way = pl.Expr.and_ if isinstance(op, ast.And) else pl.Expr.or_
            return reduce(way, [_joined(part, columns) for part in parts])
        case ast.UnaryOp(ast.Not(), part):
            return ~_joined(part, columns)
        case ast.Name(name) if name in columns:
            return columns[name]
    raise ValueError(JOIN)


def one_of(frame: pl.DataFrame, key: str, values: str) -> pl.Expr:
    """Return the rows whose ``key`` is one of the comma-separated values, or missing so far.

    Raises:
        UsageError: a key or a choice is unknown, or there is no value.
    """
    try:
        return _any_of(frame, key, _VALUE.findall(values)).fill_null(value=True)
    except ValueError as error:
        raise UsageError(f"{key}={values}: {error}") from None


def column_of(key: str, columns: Sequence[str]) -> str | None:
    """Return the column that a key stands for: itself; the error on a split, ``sparse`` or ``ood``;
    another metric of a split, ``sparse/loss``; or the only one that ends alike, ``d_model``."""
    names = [key, f"{key}/error", f"{OOD}/{key}", f"{OOD}/{key}/error"]
    alike = [name for name in columns if name.count(".") == 1 and name.endswith(f".{key}")]
    return next((name for name in (*names, *alike[: len(alike) == 1]) if name in columns), None)


def unknown(key: str, columns: Sequence[str]) -> str:
    """Return the message for an unknown key."""
    return f"none of the runs has a key {key}: {did_you_mean(key, columns)}"


def _any_of(frame: pl.DataFrame, key: str, values: Sequence[str], sign: str = "=") -> pl.Expr:
    """Return true or false; null where the run has no value yet."""
    name = column_of(key, frame.columns)
    if name is None:
        raise ValueError(unknown(key, frame.columns))
    words = [word.strip() for word in values if word.strip()]
    if not words:
        raise ValueError("give a value, or several joined by commas")
    holds = reduce(pl.Expr.or_, [_compared(frame, name, sign, word) for word in words])
    has_value = pl.lit(value=True)
    if name.startswith(PREFIXES):
        has_value = pl.col("state") == "finished"
    elif "." in name:
        has_value = pl.col("setting").is_not_null()
    return pl.when(has_value).then(holds)


def _bare(word: str) -> str:
    return word[1:-1] if word[:1] in ("'", '"') else word


def _compared(frame: pl.DataFrame, name: str, sign: str, word: str) -> pl.Expr:
    column, kind, number = pl.col(name), frame.schema[name], None
    with suppress(ValueError):
        number = float(word)
    if sign not in _ORDER:
        equal = _equal(column, frame[name], word, number).fill_null(value=False)
        return ~equal if sign == "!=" else equal
    if kind in (pl.Boolean, pl.List) or number is None or number != number:
        raise ValueError(f"{sign} compares numbers, not {name}{sign}{word}")
    return _ORDER[sign](column.cast(pl.Float64, strict=False), number).fill_null(value=False)


def _equal(column: pl.Expr, values: pl.Series, word: str, number: float | None) -> pl.Expr:
    name, value = values.name, _bare(word)
    if word.lower() == "null":
        return column.is_null()
    if values.dtype == pl.List:
        return column.list.contains(value)
    if values.dtype.is_numeric():
        if number is None:
            raise ValueError(f"{name} holds numbers, and {word} is none")
        return column == number
    known = {*STATES} if name == "state" else {*choices(name)}
    if values.dtype == pl.Boolean:
        known, value = {"true", "false"}, value.lower()
    elif known:
        known |= {*values.drop_nulls()}
    if known and value not in known:
        raise ValueError(f"there is no {name} {value}: {did_you_mean(value, known)}")
    # [0.9,0.999] is [0.9, 0.999], and [a] is ["a"].
    equal = column.cast(pl.String).str.replace_all('[ "]', "") == re.sub('[ "]', "", value)
    return equal if number is None else equal | (column.cast(pl.Float64, strict=False) == number)
