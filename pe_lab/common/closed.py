"""Dataclasses that a section of the configuration is checked against."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

closed = dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)
"""A class decorator: a frozen dataclass that refuses unknown keys and values of other types."""
