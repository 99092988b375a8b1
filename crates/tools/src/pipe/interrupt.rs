//! Handles Ctrl-C and SIGTERM: notifies the other side before this process ends.

use std::io;
use std::process::exit;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dipole_naming::threads;
use dipole_node::{Address, Endpoint, Node};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::LAST_ACK;
use super::frame::{Frame, Kind};

/// The partner and number of the current transfer, if any.
pub(super) type Partner = Arc<Mutex<Option<(Address, u64)>>>;

/// From now on, a signal first notifies the partner and disconnects from all peers, so that none of
/// them waits; then it ends the process as usual. `hint` describes how to continue after `program`.
pub(super) fn watch(
    node: Weak<Node>,
    endpoint: Weak<Endpoint>,
    partner: Partner,
    (program, hint): (&'static str, &'static str),
) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    threads::start("dipole-signals", move || {
        let Some(signal) = signals.forever().next() else {
            return;
        };
        let now = *partner.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((to, stream)), Some(endpoint)) = (now, endpoint.upgrade()) {
            let reason = match signal {
                SIGINT => format!("it was interrupted there (SIGINT){hint}"),
                _ => format!("it was terminated there (SIGTERM){hint}"),
            };
            if !hint.is_empty() {
                eprintln!("{program}: interrupted{hint}");
            }
            let mut message = Vec::new();
            Frame {
                stream,
                offset_bytes: 0,
                kind: Kind::Failed(&reason),
            }
            .write(&mut message);
            // A partner that does not get the message notices the end of this process.
            let _ = endpoint.edge(to).and_then(|edge| {
                edge.send_timeout(&message, LAST_ACK)?;
                edge.flush(LAST_ACK)
            });
        }
        if let Some(node) = node.upgrade() {
            node.send_goodbye();
        }
        exit(128 + signal);
    })?;
    Ok(())
}
