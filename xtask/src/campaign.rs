//! Campaigns: tests that usually run for seconds, repeated for minutes or nights.

use std::time::{Duration, Instant};

use crate::command::{Failure, cargo, describe, run};

/// A group of tests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Campaign {
    Attack,
    Soak,
    Kill,
}

/// A test binary with its tests and settings.
struct Part {
    package: &'static str,
    binary: &'static str,
    tests: &'static [&'static str],
    knobs: &'static [(&'static str, &'static str)],
    /// Each round continues with the next seeds.
    seeded: bool,
}

const fn part(package: &'static str, binary: &'static str) -> Part {
    Part {
        package,
        binary,
        tests: &[],
        knobs: &[],
        seeded: false,
    }
}

/// Seeds of the simulator per round.
const SEEDS: u64 = 2000;

impl Campaign {
    fn parts(self) -> Vec<Part> {
        match self {
            Campaign::Attack => vec![
                Part {
                    knobs: &[("DIPOLE_ATTACK_S", "20")],
                    ..part("dipole-tools", "attack")
                },
                Part {
                    tests: &["hostile::"],
                    ..part("dipole-node", "api")
                },
                part("dipole-node", "users"),
                part("dipole-tools", "broker"),
                Part {
                    tests: &["membership"],
                    ..part("dipole-agent", "")
                },
            ],
            Campaign::Soak => vec![
                Part {
                    tests: &["seeds_violate_no_rule"],
                    knobs: &[("DIPOLE_SEEDS", "2000")],
                    seeded: true,
                    ..part("dipole-node", "simulation")
                },
                Part {
                    knobs: &[("DIPOLE_CLUSTER_S", "20")],
                    ..part("dipole-tools", "cluster")
                },
                Part {
                    tests: &["messages::"],
                    ..part("dipole-node", "memory")
                },
            ],
            Campaign::Kill => vec![
                Part {
                    knobs: &[("DIPOLE_STORM", "1000")],
                    ..part("dipole-node", "storm")
                },
                Part {
                    tests: &["ports_killed::", "silence::"],
                    ..part("dipole-node", "processes")
                },
                part("dipole-group", "groups"),
                Part {
                    tests: &["run_losses::"],
                    ..part("dipole-tools", "commands")
                },
                part("dipole-tools", "agent"),
            ],
        }
    }
}

/// Runs rounds until the time is over; stops at the first failure.
pub(crate) fn campaign(which: Campaign, minutes: u64) -> Result<(), Failure> {
    let (began, time) = (Instant::now(), Duration::from_secs(minutes * 60));
    let parts = which.parts();
    let mut rounds = vec![0_u64; parts.len()];
    while began.elapsed() < time {
        for (at, part) in parts.iter().enumerate() {
            if began.elapsed() >= time {
                break;
            }
            let mut command = cargo();
            command.args(["test", "--locked", "--release", "-p", part.package]);
            match part.binary {
                "" => command.arg("--lib"),
                binary => command.args(["--test", binary]),
            };
            command.arg("--").args(part.tests);
            command.envs(part.knobs.iter().copied());
            if part.seeded {
                // Continues after the seeds of the test run.
                let from = (rounds[at] + 1) * SEEDS;
                command.env("DIPOLE_SEED_FROM", from.to_string());
            }
            let knobs = command.get_envs().filter_map(|(name, value)| {
                Some(format!("{}={} ", name.to_str()?, value?.to_str()?))
            });
            let knobs: String = knobs.collect();
            println!(
                "{} s: {knobs}{}",
                began.elapsed().as_secs(),
                describe(&command)
            );
            run(&mut command)?;
            rounds[at] += 1;
        }
    }
    println!(
        "{which:?} for {} s, nothing failed:",
        began.elapsed().as_secs()
    );
    for (part, rounds) in parts.iter().zip(rounds) {
        println!("{rounds:>6} x {} {}", part.package, part.binary);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::assert_is_test;

    #[test]
    fn every_part_is_a_test_program_that_exists() {
        for campaign in [Campaign::Attack, Campaign::Soak, Campaign::Kill] {
            for part in campaign
                .parts()
                .iter()
                .filter(|part| !part.binary.is_empty())
            {
                assert_is_test(part.package, part.binary, part.tests);
            }
        }
    }
}
