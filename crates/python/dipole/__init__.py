"""Messaging with the latency of a supercomputer, on ordinary Linux machines.

    >>> inbox, outbox = dipole.Endpoint(7), dipole.Endpoint()
    >>> outbox.send({"hello": [1, 2, 3]}, to=inbox.address)
    >>> inbox.recv()
    {'hello': [1, 2, 3]}

The first endpoint opens this process's node from the environment, as in C and Rust: DIPOLE_NID,
DIPOLE_HOSTS, DIPOLE_KEY and so on.
"""

import atexit as _atexit
import os as _os
from typing import NamedTuple as _NamedTuple

from . import _dipole
from ._address import Address
from ._cluster import Cluster, RankFailed, cluster
from ._dipole import Edge, Message, Region, finalize, node_id
from ._endpoint import Endpoint, Port
from ._endpoint import close_ports as _close_ports
from ._errors import (
    Cancelled,
    Closed,
    ConfigurationError,
    Error,
    GroupFailed,
    LinkBroken,
    NoTarget,
    OpenError,
    OperationFailed,
    PeerGone,
    Refused,
    TimedOut,
    TooLong,
    Unreachable,
    WouldBlock,
)
from ._group import Group
from ._queue import Queue
from ._tools import Result, Rows, bench, predict, report, trace

__all__ = [
    "Address",
    "Cancelled",
    "Closed",
    "Cluster",
    "ConfigurationError",
    "Edge",
    "Endpoint",
    "Error",
    "Group",
    "GroupFailed",
    "Job",
    "LinkBroken",
    "Message",
    "NoTarget",
    "OpenError",
    "OperationFailed",
    "PeerGone",
    "Port",
    "Queue",
    "RankFailed",
    "Refused",
    "Region",
    "Result",
    "Rows",
    "TimedOut",
    "TooLong",
    "Unreachable",
    "WouldBlock",
    "bench",
    "cluster",
    "finalize",
    "job",
    "node_id",
    "predict",
    "report",
    "trace",
]


class Job(_NamedTuple):
    """This process's place among the ranks that a launcher started."""

    rank: int
    size: int
    addresses: list[Address]


def job() -> Job:
    """The job of this process, as `dipole run`, mpirun or Slurm described it. Raises
    ConfigurationError outside a job."""
    return Job(*_dipole.job())


def _at_exit() -> None:
    _close_ports()
    try:
        finalize()
    except Error as failure:
        import sys

        print(f"dipole: at exit: {failure}", file=sys.stderr)


_atexit.register(_at_exit)
_os.register_at_fork(after_in_child=_dipole.forked)
