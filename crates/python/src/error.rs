//! The library's errors as the exceptions of `dipole/_errors.py`, with the library's texts.

use std::error::Error;
use std::time::Duration;

use dipole_group::GroupError;
use dipole_node::job::JobError;
use dipole_node::{
    CloseError, ConfigError, OpenError, PortError, ReceiveError, SendError, TargetError,
};
use pyo3::prelude::*;

/// An error that knows its exception.
pub(crate) trait Fault: Error + Send + Sized {
    /// Name of the class in `dipole._errors`.
    fn class(&self) -> &'static str;

    /// How it ends a wait.
    fn ending(&self) -> Ending {
        Ending::Final
    }

    /// The same time-out for a longer wait.
    #[must_use]
    fn after(self, _waited: Duration) -> Self {
        self
    }
}

/// How an error ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The given time is over.
    TimedOut,
    /// A signal handler has run.
    Interrupted,
    /// The call has failed.
    Final,
}

/// The exception for an error.
pub(crate) fn raise<F: Fault>(py: Python<'_>, fault: &F) -> PyErr {
    raise_as(py, fault.class(), fault.to_string())
}

/// An exception of `dipole._errors`.
pub(crate) fn raise_as(py: Python<'_>, class: &str, text: String) -> PyErr {
    let made = py
        .import("dipole._errors")
        .and_then(|errors| errors.getattr(class)?.call1((text,)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

impl Fault for SendError {
    fn class(&self) -> &'static str {
        match self {
            SendError::Full { .. } => "WouldBlock",
            SendError::TimedOut { .. } => "TimedOut",
            SendError::TooLong { .. } => "TooLong",
            SendError::Refused { .. } => "Refused",
            SendError::OperationFailed { .. } => "OperationFailed",
            SendError::PeerGone { .. } => "PeerGone",
            SendError::Unreachable(cause) => cause.class(),
            SendError::Forked | SendError::Ended => "Closed",
            SendError::NoTarget { .. } => "NoTarget",
            SendError::Interrupted { .. } | SendError::Cancelled { .. } => "Cancelled",
            SendError::Broken(_) => "LinkBroken",
        }
    }

    fn ending(&self) -> Ending {
        match self {
            SendError::TimedOut { .. } => Ending::TimedOut,
            SendError::Interrupted { .. } => Ending::Interrupted,
            _ => Ending::Final,
        }
    }

    fn after(self, waited: Duration) -> SendError {
        match self {
            SendError::TimedOut { target, .. } => SendError::TimedOut { target, waited },
            other => other,
        }
    }
}

impl Fault for ReceiveError {
    fn class(&self) -> &'static str {
        match self {
            ReceiveError::TimedOut { .. } => "TimedOut",
            ReceiveError::TooShort { .. } => "TooLong",
            ReceiveError::Broken(_) => "LinkBroken",
            ReceiveError::Forked | ReceiveError::Ended => "Closed",
            ReceiveError::Interrupted | ReceiveError::Cancelled => "Cancelled",
            ReceiveError::TooManyPosted { .. } => "WouldBlock",
        }
    }

    fn ending(&self) -> Ending {
        match self {
            ReceiveError::TimedOut { .. } => Ending::TimedOut,
            ReceiveError::Interrupted => Ending::Interrupted,
            _ => Ending::Final,
        }
    }

    fn after(self, waited: Duration) -> ReceiveError {
        match self {
            ReceiveError::TimedOut { endpoint, .. } => ReceiveError::TimedOut { endpoint, waited },
            other => other,
        }
    }
}

impl Fault for TargetError {
    fn class(&self) -> &'static str {
        match self {
            TargetError::PeerGone { .. } => "PeerGone",
            TargetError::TimedOut { .. } => "TimedOut",
            TargetError::Forked | TargetError::Ended => "Closed",
            TargetError::Broken(_) => "LinkBroken",
            _ => "Unreachable",
        }
    }

    fn ending(&self) -> Ending {
        match self {
            TargetError::Interrupted { .. } => Ending::Interrupted,
            _ => Ending::Final,
        }
    }
}

impl Fault for OpenError {
    fn class(&self) -> &'static str {
        match self {
            OpenError::Forked | OpenError::Ended => "Closed",
            _ => "OpenError",
        }
    }
}

impl Fault for PortError {
    fn class(&self) -> &'static str {
        match self {
            PortError::Broken(_) => "LinkBroken",
            _ => "Closed",
        }
    }
}

impl Fault for CloseError {
    fn class(&self) -> &'static str {
        match self {
            CloseError::Unacknowledged { .. } => "TimedOut",
            CloseError::Broken(_) => "LinkBroken",
            CloseError::Forked => "Closed",
        }
    }
}

impl Fault for ConfigError {
    fn class(&self) -> &'static str {
        "ConfigurationError"
    }
}

impl Fault for JobError {
    fn class(&self) -> &'static str {
        "ConfigurationError"
    }
}

impl Fault for GroupError {
    fn class(&self) -> &'static str {
        match self {
            GroupError::Open(cause) => cause.class(),
            GroupError::Send(cause) => cause.class(),
            GroupError::Gone { .. } | GroupError::Left { .. } => "PeerGone",
            GroupError::TimedOut { .. } => "TimedOut",
            GroupError::Interrupted => "Cancelled",
            _ => "GroupFailed",
        }
    }
}
