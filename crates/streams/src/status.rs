//! Requests to an interface by programs that have no stream: its state, and its end.

use std::time::{Duration, Instant};

use dipole_node::{Address, Endpoint, Message as Received, ReceiveError, SendError};

use crate::error::StreamError;
use crate::message::Message;
use crate::progress::StreamStatus;
use crate::session::CHECK_INTERVAL;

/// The state of all open streams of an interface: peers, bytes, rates, and who waits for whom. Needs
/// an endpoint that receives nothing else meanwhile; ranks of a stream use
/// [`Stream::status`](crate::Stream::status).
///
/// # Errors
/// The interface is gone, or does not reply within `timeout`.
pub fn status(
    endpoint: &Endpoint,
    interface: Address,
    timeout: Duration,
) -> Result<Vec<StreamStatus>, StreamError> {
    request(endpoint, interface, &Message::GetStatus, timeout, |it| {
        refusal(&it, interface)
    })
}

/// Requests an interface to accept no more streams. It ends when those that are open have ended;
/// returns these. Needs an endpoint as [`status`] does.
///
/// # Errors
/// The interface is gone, does not reply within `timeout`, or belongs to a program
/// ([`can_be_stopped`](crate::InterfaceConfig::can_be_stopped)).
pub fn stop(
    endpoint: &Endpoint,
    interface: Address,
    timeout: Duration,
) -> Result<Vec<StreamStatus>, StreamError> {
    request(endpoint, interface, &Message::Stop, timeout, |it| {
        refusal(&it, interface)
    })
}

/// The error of a reply from the interface that is not a state.
fn refusal(received: &Received, interface: Address) -> Result<(), StreamError> {
    if received.source() != interface {
        return Ok(());
    }
    let why = match Message::decode(received) {
        Ok(Message::Ended { why }) => why.to_owned(),
        _ => "its reply is not a state of streams".into(),
    };
    Err(StreamError::Ended { interface, why })
}

/// Sends a request that is answered with the state of all streams, and passes on other messages that
/// arrive meanwhile.
pub(crate) fn request(
    endpoint: &Endpoint,
    interface: Address,
    message: &Message<'_>,
    timeout: Duration,
    mut other: impl FnMut(Received) -> Result<(), StreamError>,
) -> Result<Vec<StreamStatus>, StreamError> {
    let began = Instant::now();
    let edge = endpoint.edge(interface)?;
    edge.send_timeout(&message.encode(), timeout)?;
    loop {
        match endpoint.receive_timeout(CHECK_INTERVAL) {
            Ok(received) => match Message::decode(&received) {
                Ok(Message::Status { streams }) if received.source() == interface => {
                    return Ok(streams.into_iter().map(StreamStatus::from).collect());
                }
                _ => other(received)?,
            },
            Err(ReceiveError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match edge.watch() {
            Ok(()) | Err(SendError::Full { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if began.elapsed() >= timeout {
            let seconds = timeout.as_secs();
            return Err(StreamError::Silent { interface, seconds });
        }
    }
}
