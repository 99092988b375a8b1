//! Replies to every message: `cargo run --example echo_server -- 7`. A client that is gone or does
//! not read its replies does not delay the others.

use dipole_node::{Config, EndpointId, Node, SendError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = std::env::args()
        .nth(1)
        .ok_or("usage: echo_server ENDPOINT")?;
    let node = Node::open(Config::from_env()?)?;
    let server = node.endpoint(EndpointId(number.parse()?))?;
    eprintln!("echoing at {}", server.address());
    loop {
        let message = server.receive()?;
        match server.reply(&message, &message) {
            Ok(()) => {}
            Err(SendError::Broken(cause)) => return Err(cause.into()),
            Err(error) => eprintln!("no answer to {}: {error}", message.source()),
        }
    }
}
