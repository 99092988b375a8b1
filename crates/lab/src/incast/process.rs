//! One process of an incast: a sender on its own node, or the receiver.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dipole_node::{Address, Config, Endpoint, EndpointId, Node};

use super::{RECEIVER, now_ns};
use crate::task::{Go, IncastJob, IncastPart};
use dipole_bench::channel::broken;
use dipole_bench::control::Ready;
use dipole_bench::dipole::failed;
use dipole_bench::machine;
use dipole_bench::machine::enter_namespace;
use dipole_bench::peers::only_port;
use dipole_bench::pingpong::GIVE_UP;
use dipole_bench::stdio::{recv, send};
use dipole_bench::subject::Subject;

/// The endpoint that receives all messages.
const INBOX: u32 = 7;

/// Plays its role until the parent kills this process.
pub(crate) fn take_part(job: &IncastJob) -> io::Result<()> {
    enter_namespace(&job.namespace)?;
    machine::pin(job.core)?;
    match (job.subject, job.part) {
        (Subject::Dipole, IncastPart::Receive) => receive(job),
        (Subject::Dipole, IncastPart::Send) => {
            let node = open()?;
            let endpoint = endpoint(&node, EndpointId::ANY)?;
            meet(&[])?;
            let target = endpoint.target(Address::new(RECEIVER, INBOX));
            target.map_err(failed)?;
            endpoint.send_timeout(&[], GIVE_UP).map_err(failed)?;
            send_bursts(job, |payload| {
                endpoint.send_timeout(payload, GIVE_UP).map_err(failed)?;
                // No other call retransmits lost packets, so wait here.
                endpoint.drain(GIVE_UP).map_err(failed)
            })
        }
        (_, IncastPart::Receive) => receive_by_tcp(job),
        (_, IncastPart::Send) => {
            let port = only_port(&meet(&[])?)?;
            let mut stream = TcpStream::connect(SocketAddr::new(job.receiver, port))?;
            prepare(&stream)?;
            send_bursts(job, |payload| stream.write_all(payload))
        }
    }
}

fn open() -> io::Result<Node> {
    Node::open(Config::from_env().map_err(failed)?).map_err(failed)
}

fn endpoint(node: &Node, id: EndpointId) -> io::Result<Endpoint> {
    node.endpoint(id).map_err(failed)
}

/// Sends the parent the port of this process, if any, and waits for the receiver's.
fn meet(ports: &[u16]) -> io::Result<Vec<u16>> {
    let ports = ports.to_vec();
    send(&Ready { ports })?;
    Ok(recv::<Ready>()?.ports)
}

/// Reports that it is connected, then sends on every command and reports the start time.
fn send_bursts(
    job: &IncastJob,
    mut send_one: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut payload = vec![0x5a; job.size_bytes];
    send(&Ready::default())?;
    loop {
        let go = recv::<Go>()?;
        payload[0] = go.number;
        thread::sleep(Duration::from_nanos(go.at_ns.saturating_sub(now_ns())));
        let begun_ns = now_ns();
        send_one(&payload)?;
        send(&begun_ns)?;
    }
}

fn receive(job: &IncastJob) -> io::Result<()> {
    let node = open()?;
    let inbox = endpoint(&node, EndpointId(INBOX))?;
    meet(&[])?;
    // A node without peers replies only while a thread waits, so each sender sends a first message.
    for _ in 0..job.senders {
        inbox.receive_timeout(2 * GIVE_UP).map_err(failed)?;
    }
    send(&Ready::default())?;
    loop {
        let go = recv::<Go>()?;
        let mut read_ns = Vec::new();
        for _ in 0..go.messages {
            let message = inbox.receive_timeout(2 * GIVE_UP).map_err(failed)?;
            read_ns.push(now_ns());
            check(&message, job, go.number)?;
        }
        send(&read_ns)?;
    }
}

/// Receives over TCP, with a thread per connection.
fn receive_by_tcp(job: &IncastJob) -> io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::new(job.receiver, 0))?;
    meet(&[listener.local_addr()?.port()])?;
    let (told, read) = mpsc::channel();
    for _ in 0..job.senders {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream)?;
        let told = told.clone();
        let mut message = vec![0; job.size_bytes];
        thread::spawn(move || {
            loop {
                let done = stream.read_exact(&mut message);
                let ends = done.is_err();
                let done = done.map(|()| (now_ns(), message[0]));
                if told.send(done).is_err() || ends {
                    return;
                }
            }
        });
    }
    send(&Ready::default())?;
    loop {
        let go = recv::<Go>()?;
        let mut read_ns = Vec::new();
        for _ in 0..go.messages {
            let done = read.recv_timeout(2 * GIVE_UP);
            let (ns, number) = done.map_err(|_| broken("no message arrived".to_owned()))??;
            if number != go.number {
                return Err(wrong(go.number, number));
            }
            read_ns.push(ns);
        }
        send(&read_ns)?;
    }
}

/// Sets the most common congestion control, so that results do not depend on this machine's default.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_tcp_congestion(stream, "cubic")?;
    stream.set_nodelay(true)
}

fn check(message: &[u8], job: &IncastJob, number: u8) -> io::Result<()> {
    match message.first() {
        Some(&first) if message.len() == job.size_bytes && first == number => Ok(()),
        first => Err(wrong(number, first.copied().unwrap_or_default())),
    }
}

fn wrong(expected: u8, found: u8) -> io::Error {
    broken(format!(
        "a message of burst {found} arrived in burst {expected}, or its length is wrong"
    ))
}
