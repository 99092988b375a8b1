//! A cluster in namespaces, for trying things by hand or running a program on it.

use std::ffi::OsString;
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dipole_testbed::{Faults, Offloads, Testbed, TestbedError};

use crate::command::{Failure, run};

#[derive(Args)]
pub(crate) struct Arguments {
    /// How many nodes.
    nodes: u32,
    /// How many networks; every node has an interface on each.
    #[arg(long, default_value_t = 1)]
    networks: u32,
    /// The largest IP packet in bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Ranks per node, for the hosts file.
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// How fast interfaces and switch ports send, as in 1gbit or 100mbit.
    #[arg(long, value_parser = rate)]
    rate: Option<u64>,
    /// What waits at most at a switch port, in bytes; needs --rate.
    #[arg(long)]
    queue: Option<u32>,
    /// What the interfaces join and cut; off with --rate or a fault, else on.
    #[arg(long)]
    offloads: Option<Joining>,
    #[command(flatten)]
    harm: Harm,
    /// Run on the first node, with `DIPOLE_HOSTS` set; without it, wait for Ctrl-C.
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Faults of the network; any of them makes it a switch in user space.
#[derive(Args)]
struct Harm {
    /// Probability that a packet vanishes.
    #[arg(long, default_value_t = 0.0)]
    drop: f64,
    /// Probability that a packet arrives twice.
    #[arg(long, default_value_t = 0.0)]
    repeat: f64,
    /// Probability that others overtake a packet.
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Probability that a packet is held back for --delay-us.
    #[arg(long, default_value_t = 0.0)]
    delay: f64,
    /// How long a delayed packet is held back, in microseconds.
    #[arg(long, default_value_t = 1000)]
    delay_us: u64,
    /// Probability that a packet is damaged.
    #[arg(long, default_value_t = 0.0)]
    corrupt: f64,
    /// The same seed does the same to the packets of the same numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Joining {
    /// Every packet crosses and arrives by itself
    Off,
    /// Long packets cross in one piece
    On,
    /// Every packet crosses by itself, the receiving interface joins them
    GroOnly,
}

pub(crate) fn cluster(arguments: &Arguments) -> Result<(), Failure> {
    let testbed = make(arguments).map_err(|error| Failure::Told(error.to_string()))?;
    explain(&testbed);
    let done = match arguments.command.split_first() {
        Some((program, rest)) => run(testbed.command(1, program).args(rest)),
        None => loop {
            // A signal takes the testbed away and ends the program.
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

/// How to use the testbed, on standard error: the command's output is its own.
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
        // What is no probability is for the testbed to refuse.
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

/// Reads a rate in Mbit/s, or with its unit.
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
