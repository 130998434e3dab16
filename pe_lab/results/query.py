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


def condition(frame: pl.DataFrame, where: str) -> pl.Series:
    """Return whether ``where`` holds for each row of a frame, or cannot be evaluated yet.

    Raises:
        UsageError: it is not understood, or a key or a choice is unknown.
    """
    columns: dict[str, pl.Expr] = {}

    def compare(match: re.Match[str]) -> str:
        key, sign, value, contained, values = match.groups()
        if contained is None:
            holds = _compared(frame, _bare(key), sign, value)
        else:
            holds = _any_of(frame, _bare(key), values)
            holds = ~holds if contained.lower() != "in" else holds
        columns[f"_{len(columns)}_"] = holds
        return f" _{len(columns) - 1}_ "

    try:
        logic = " ".join(_COMPARISON.sub(compare, where).lower().split())
        holds = _joined(ast.parse(logic, mode="eval").body, columns)
    except SyntaxError:
        raise UsageError(f"where={where!r}: {JOIN}") from None
    except ValueError as error:
        raise UsageError(f"where={where!r}: {error}") from None
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
        return _any_of(frame, key, values).fill_null(value=True)
    except ValueError as error:
        raise UsageError(f"{key}={values}: {error}") from None


def column_of(key: str, columns: Sequence[str]) -> str | None:
    """Return the column that a key stands for: itself; the error on a split, ``sparse`` or ``ood``;
    another metric of a split, ``sparse/loss``; or the only one that ends alike, ``d_model``."""
    for name in (key, f"{key}/error", f"{OOD}/{key}", f"{OOD}/{key}/error"):
        if name in columns:
            return name
    alike = [name for name in columns if name.count(".") == 1 and name.endswith(f".{key}")]
    return alike[0] if len(alike) == 1 else None


def unknown(key: str, columns: Sequence[str]) -> str:
    """Return the message for an unknown key, with its nearest siblings."""
    sign = "/" if "/" in key else "."
    parent = key.rpartition(sign)[0] + sign
    siblings = [name for name in columns if sign in key and name.startswith(parent)]
    siblings = siblings or [re.split("[./]", name)[0] for name in columns]
    return f"none of the runs has a key {key}: {did_you_mean(key, {*siblings}, 'pe-lab --cfg job')}"


def _any_of(frame: pl.DataFrame, key: str, values: str) -> pl.Expr:
    words = [word.strip() for word in _VALUE.findall(values) if word.strip()]
    if not words:
        raise ValueError("give a value, or several joined by commas")
    return reduce(pl.Expr.or_, [_compared(frame, key, "=", word) for word in words])


def _bare(word: str) -> str:
    return word[1:-1] if word[:1] in ("'", '"') else word


def _compared(frame: pl.DataFrame, key: str, sign: str, word: str) -> pl.Expr:
    """Return true or false; null where the run has no value yet."""
    name = column_of(key, frame.columns)
    if name is None:
        raise ValueError(unknown(key, frame.columns))
    number = None
    with suppress(ValueError):
        number = float(word)
    if sign in ("<", "<=", ">", ">="):
        if frame.schema[name] in (pl.Boolean, pl.List) or number is None or number != number:
            raise ValueError(f"{sign} compares numbers, not {name}{sign}{word}")
        ways = {"<": pl.Expr.lt, "<=": pl.Expr.le, ">": pl.Expr.gt, ">=": pl.Expr.ge}
        holds = ways[sign](pl.col(name).cast(pl.Float64, strict=False), number)
    else:
        holds = _equal(frame, name, word, number).fill_null(value=False)
        holds = ~holds if sign == "!=" else holds
    has_value = pl.lit(value=True)
    if name.startswith(PREFIXES):
        has_value = pl.col("state") == "finished"
    elif "." in name:
        has_value = pl.col("setting").is_not_null()
    return pl.when(has_value).then(holds.fill_null(value=False))


def _equal(frame: pl.DataFrame, name: str, word: str, number: float | None) -> pl.Expr:
    column, kind, value = pl.col(name), frame.schema[name], _bare(word)
    if word.lower() == "null":
        return column.is_null()
    if kind == pl.List:
        return column.list.contains(value)
    if kind == pl.Boolean:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {value}")
        return column == (value.lower() == "true")
    if kind != pl.String:
        if number is None:
            raise ValueError(f"{name} holds numbers, and {word} is none")
        return column == number
    known = {*STATES} if name == "state" else {*choices(name)}
    if known and value not in (known := known | {*frame[name].drop_nulls()}):
        raise ValueError(f"there is no {name} {value}: {did_you_mean(value, known)}")
    # [0.9,0.999] is [0.9, 0.999], and [a] is ["a"].
    texts = column.str.replace_all('[ "]', "") if value.startswith("[") else column
    equal = texts == (re.sub('[ "]', "", value) if value.startswith("[") else value)
    return equal if number is None else equal | (column.cast(pl.Float64, strict=False) == number)
