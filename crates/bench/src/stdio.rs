//! Sends messages to the parent process and receives its messages, over standard input and output.

use std::io::{self, BufRead, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::broken;
use crate::control::Ready;

/// Sends the parent the ports of this side and waits for those of the other side.
pub fn meet(ports: Vec<u16>) -> io::Result<Vec<u16>> {
    send(&Ready { ports })?;
    Ok(recv::<Ready>()?.ports)
}

pub fn send(message: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

pub fn recv<T: DeserializeOwned>() -> io::Result<T> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Err(broken(
            "the parent closed its end before it sent a command".to_owned(),
        ));
    }
    serde_json::from_str(&line)
        .map_err(|error| broken(format!("the parent sent {:?}: {error}", line.trim_end())))
}
