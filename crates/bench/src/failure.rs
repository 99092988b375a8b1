//! Errors of measurements, on this host or another one.

use std::io;
use std::time::Duration;

use dipole_node::NodeId;

/// Reason why a measurement has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot start this program again as a side: {0}; was it moved?")]
    Start(io::Error),
    /// A process exited without a result, or sent something invalid.
    #[error("the {who} {event}; its messages are above")]
    Lost { who: String, event: String },
    #[error(
        "the {who} did not respond for {:.0} s and was killed; is the machine overloaded?",
        .waited.as_secs_f64()
    )]
    Silent { who: String, waited: Duration },
    /// A process on another host ended without a result.
    #[error("the bench server of node {node} {event}")]
    LostThere { node: NodeId, event: String },
    /// A process reported an error.
    #[error("the {who}: {cause}")]
    Failed { who: String, cause: String },
}
