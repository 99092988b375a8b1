//! Measures this link on loopback next to a plain socket: 64-byte ping-pong on two pinned
//! threads, and a stream of runs. Prints both; asserts nothing.
//!
//! `cargo run --release -p dipole-link --example loopback`

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dipole_link::udp::UdpOptions;
use dipole_link::{Class, Link, Outgoing, Udp, cpu};

const ROUNDS: usize = 100_000;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn open() -> io::Result<Udp> {
    Udp::bind(LOOPBACK, &UdpOptions::default()).map_err(io::Error::other)
}

/// Sends and spins for the answer; returns the median one-way time.
fn ping(mut round: impl FnMut() -> io::Result<()>) -> io::Result<u128> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_nanos() / 2);
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2])
}

/// One frame out, one frame in.
fn answer(link: &mut Udp, to: SocketAddr, first: bool) -> io::Result<()> {
    let frame = Outgoing::frame(Class::Small, to, &[7; 64]);
    if first {
        link.send(0, &[frame])?;
    }
    while link.poll(0, Class::Small)? == 0 {}
    if !first {
        link.send(0, &[frame])?;
    }
    Ok(())
}

fn link_ping_pong(cores: [usize; 2]) -> io::Result<u128> {
    let (mut a, mut b) = (open()?, open()?);
    let (to_a, to_b) = (a.local(Class::Small), b.local(Class::Small));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            cpu::pin_to_core(cores[1])?;
            (0..ROUNDS).try_for_each(|_| answer(&mut b, to_a, false))
        });
        cpu::pin_to_core(cores[0])?;
        ping(|| answer(&mut a, to_b, true))
    })
}

fn plain_ping_pong(cores: [usize; 2]) -> io::Result<u128> {
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((LOOPBACK, 0))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (a, b) = (open()?, open()?);
    let (to_a, to_b) = (a.local_addr()?, b.local_addr()?);
    let wait = |socket: &UdpSocket| -> io::Result<()> {
        let mut buffer = [0; 2048];
        loop {
            match socket.recv_from(&mut buffer) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || -> io::Result<()> {
            cpu::pin_to_core(cores[1])?;
            for _ in 0..ROUNDS {
                wait(&b)?;
                b.send_to(&[7; 64], to_a)?;
            }
            Ok(())
        });
        cpu::pin_to_core(cores[0])?;
        ping(|| {
            a.send_to(&[7; 64], to_b)?;
            wait(&a)
        })
    })
}

/// Bytes per second sent and received, for runs of frames of this length.
fn stream(cores: [usize; 2], frame_bytes: usize) -> io::Result<(f64, f64)> {
    let (mut a, mut b) = (open()?, open()?);
    let to = b.local(Class::Bulk);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| -> io::Result<usize> {
            cpu::pin_to_core(cores[1])?;
            let mut bytes = 0;
            while !stop.load(Ordering::Relaxed) {
                for index in 0..b.poll(0, Class::Bulk)? {
                    bytes += b.message(index).bytes.len();
                }
            }
            Ok(bytes)
        });
        cpu::pin_to_core(cores[0])?;
        let frame = vec![7; frame_bytes];
        let batch = vec![Outgoing::frame(Class::Bulk, to, &frame); 128];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed().as_millis() < 2000 {
            sent += a.send(0, &batch)? * frame_bytes;
        }
        stop.store(true, Ordering::Relaxed);
        let seconds = start.elapsed().as_secs_f64();
        let received = receiver
            .join()
            .map_err(|_| io::Error::other("the receiver panicked"))??;
        Ok((sent as f64 / seconds, received as f64 / seconds))
    })
}

/// Duration of an empty poll.
fn empty_poll(class: Class) -> io::Result<u128> {
    let mut link = open()?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        link.poll(0, class)?;
    }
    Ok(start.elapsed().as_nanos() / ROUNDS as u128)
}

fn main() -> io::Result<()> {
    let usable = cpu::usable_cores()?;
    let cores = [usable[0], *usable.last().unwrap_or(&usable[0])];
    let stolen = cpu::steal_time()?;
    for _ in 0..3 {
        println!("64 B one way: link {} ns", link_ping_pong(cores)?);
        println!("64 B one way: plain socket {} ns", plain_ping_pong(cores)?);
    }
    for class in [Class::Small, Class::Bulk] {
        println!("empty poll, {class:?}: {} ns", empty_poll(class)?);
    }
    for frame_bytes in [1472, 8972] {
        let (sent, received) = stream(cores, frame_bytes)?;
        println!(
            "stream of {frame_bytes} B: sent {:.2} GB/s, received {:.2} GB/s",
            sent / 1e9,
            received / 1e9
        );
    }
    println!(
        "stolen meanwhile: {:?}",
        cpu::steal_time()?.saturating_sub(stolen)
    );
    Ok(())
}
