//! A counter shared by processes: `cargo run --example shared_counter -- serve 7` runs it as an
//! active port, `cargo run --example shared_counter -- add 7 5` adds to it and prints the sum.

use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Node};

const USAGE: &str = "usage: shared_counter serve PORT | shared_counter add PORT NUMBER";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let node = Node::open(Config::from_env()?)?;
    match arguments[..] {
        ["serve", port] => {
            let mut sum = 0_u64;
            // Messages are handled one at a time, so no lock is needed.
            let port = node.open_port(EndpointId(port.parse()?), move |port, message| {
                let Ok(number) = message[..].try_into() else {
                    return eprintln!("{} sent no number", message.source());
                };
                sum = sum.wrapping_add(u64::from_le_bytes(number));
                if let Err(error) = port.reply(&message, &sum.to_le_bytes()) {
                    eprintln!("no answer to {}: {error}", message.source());
                }
            })?;
            eprintln!("counting at {}", port.address());
            Ok(port.wait(Duration::MAX)?)
        }
        ["add", port, number] => {
            let client = node.endpoint(EndpointId::ANY)?;
            let counter = Address {
                node: node.id(),
                endpoint: EndpointId(port.parse()?),
            };
            let number: u64 = number.parse()?;
            client.send_to(counter, &number.to_le_bytes())?;
            let sum = client.receive()?;
            println!("{}", u64::from_le_bytes(sum[..].try_into()?));
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}
