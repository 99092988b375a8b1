"""The exceptions of the package. Each carries the library's text: what happened, to which
endpoint, and what to do about it."""


class Error(Exception):
    """Any failure that the library reports."""


class ConfigurationError(Error, ValueError):
    """A variable, the hosts file or the key is wrong, or the process is not part of a job."""


class OpenError(Error, OSError):
    """A node or an endpoint cannot be opened."""


class WouldBlock(Error, BlockingIOError):
    """The call would have to wait: nothing has arrived, or there is no room."""


class TimedOut(Error, TimeoutError):
    """The given time is over."""


class Unreachable(Error, ConnectionError):
    """The endpoint was not found, or its process does not answer."""


class PeerGone(Error, ConnectionResetError):
    """The peer's process has ended or cannot be reached any more."""


class Refused(Error, ConnectionRefusedError):
    """The peer's process does not have this endpoint, or no longer."""


class OperationFailed(Error, PermissionError):
    """The owner of a region rejected an operation: key, rights or bounds are wrong."""


class NoTarget(Error, ValueError):
    """The endpoint has no such target."""


class TooLong(Error, ValueError):
    """The message is too long for this way of sending, or for the buffer."""


class Closed(Error, ValueError):
    """The object was closed, or belongs to the process from which this one was forked."""


class Cancelled(Error):
    """The operation was cancelled before it began."""


class LinkBroken(Error, OSError):
    """The network link of this process is broken."""


class GroupFailed(Error):
    """The members of a group made different calls, or have different lists of members."""
