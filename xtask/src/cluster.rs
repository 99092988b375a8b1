//! A cluster in network namespaces, for experiments or to run a program on it.

use std::ffi::OsString;
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dipole_testbed::{Faults, Offloads, Testbed, TestbedError};

use crate::command::{Failure, run};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of nodes.
    nodes: u32,
    /// Number of networks; every node has an interface on each.
    #[arg(long, default_value_t = 1)]
    networks: u32,
    /// Longest IP packet in bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Ranks per node, for the hosts file.
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// Rate of interfaces and switch ports, such as 1gbit or 100mbit.
    #[arg(long, value_parser = rate)]
    rate: Option<u64>,
    /// Bytes queued at most at a switch port; needs --rate.
    #[arg(long)]
    queue: Option<u32>,
    /// Segmentation and receive offloads of interfaces; off with --rate or a fault, else on.
    #[arg(long)]
    offloads: Option<Joining>,
    #[command(flatten)]
    harm: Harm,
    /// Command to run on the first node, with `DIPOLE_HOSTS` set; without it, wait for Ctrl-C.
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Faults of the network; with any of them the network is a switch in user space.
#[derive(Args)]
struct Harm {
    /// Probability that a packet is lost.
    #[arg(long, default_value_t = 0.0)]
    drop: f64,
    /// Probability that a packet is duplicated.
    #[arg(long, default_value_t = 0.0)]
    repeat: f64,
    /// Probability that a packet is overtaken by others.
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Probability that a packet is delayed by --delay-us.
    #[arg(long, default_value_t = 0.0)]
    delay: f64,
    /// Delay in microseconds.
    #[arg(long, default_value_t = 1000)]
    delay_us: u64,
    /// Probability that a packet is corrupted.
    #[arg(long, default_value_t = 0.0)]
    corrupt: f64,
    /// Seed: the same seed has the same effect on the same packets.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Joining {
    /// Every packet is sent and delivered separately
    Off,
    /// Long packets are sent in one piece
    On,
    /// Every packet is sent separately, and the receiving interface merges them
    GroOnly,
}

pub(crate) fn cluster(arguments: &Arguments) -> Result<(), Failure> {
    let testbed = make(arguments).map_err(|error| Failure::Text(error.to_string()))?;
    explain(&testbed);
    let done = match arguments.command.split_first() {
        Some((program, rest)) => run(testbed.command(1, program).args(rest)),
        None => loop {
            // A signal removes the testbed and ends the program.
            thread::park();
        },
    };
    if arguments.harm.is_any() {
        eprintln!("{:?}", testbed.fault_counters());
    }
    done
}

fn make(arguments: &Arguments) -> Result<Testbed, TestbedError> {
    let mut builder = Testbed::builder()
        .nodes(arguments.nodes)
        .networks(arguments.networks)
        .mtu(arguments.mtu)
        .slots(arguments.slots);
    if let Some(rate_mbit) = arguments.rate {
        builder = builder.rate_mbit(rate_mbit);
    }
    if let Some(bytes) = arguments.queue {
        builder = builder.queue_bytes(bytes);
    }
    if let Some(joining) = arguments.offloads {
        builder = builder.offloads(match joining {
            Joining::Off => Offloads::Off,
            Joining::On => Offloads::On,
            Joining::GroOnly => Offloads::GroOnly,
        });
    }
    if arguments.harm.is_any() {
        builder = builder.faults(arguments.harm.faults());
    }
    builder.build()
}

/// Prints how to use the testbed on standard error; standard output belongs to the command.
fn explain(testbed: &Testbed) {
    eprintln!("{}", testbed.description());
    for node in 1..=testbed.nodes() {
        let place = testbed.node(node);
        let addresses: Vec<String> = place.addresses.iter().map(ToString::to_string).collect();
        eprintln!("\nnode {node}, {}:", addresses.join(" and "));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &place.namespace, "env"]);
        for (name, value) in testbed.environment(node) {
            command.arg(format!("{name}={value}"));
        }
        let words = command.get_args().map(|word| word.to_string_lossy());
        eprintln!("  ip {} bash", words.collect::<Vec<_>>().join(" "));
    }
    eprintln!(
        "\na job over all nodes, from within one of them:\n  dipole run -n {} --hosts {} --rsh {} PROGRAM\n",
        testbed.nodes(),
        testbed.hosts_file().display(),
        testbed.remote_shell().display()
    );
}

impl Harm {
    fn is_any(&self) -> bool {
        let all = [
            self.drop,
            self.repeat,
            self.reorder,
            self.delay,
            self.corrupt,
        ];
        // The testbed rejects invalid probabilities.
        all.iter().any(|&probability| probability != 0.0)
    }

    fn faults(&self) -> Faults {
        Faults {
            drop: self.drop,
            repeat: self.repeat,
            reorder: self.reorder,
            delay: self.delay,
            delay_time: Duration::from_micros(self.delay_us),
            corrupt: self.corrupt,
            seed: self.seed,
        }
    }
}

/// Parses a rate in Mbit/s, or with its unit.
fn rate(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "mbit" => Some(1),
        "gbit" => Some(1000),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let rate = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    rate.ok_or_else(|| "give a whole number with mbit or gbit, as in 1gbit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_with_its_unit() {
        assert_eq!(rate("1gbit"), Ok(1000));
        assert_eq!(rate("250Mbit"), Ok(250));
        assert_eq!(rate("10"), Ok(10));
        for wrong in [
            "",
            "gbit",
            "1.5gbit",
            "1kbit",
            "-1mbit",
            "99999999999999999gbit",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
