"""Addresses of endpoints."""

from typing import NamedTuple


class Address(NamedTuple):
    """An endpoint on a node: destination or source of a message."""

    nid: int
    dpid: int

    def __str__(self) -> str:
        return f"{self.nid}:{self.dpid}"
