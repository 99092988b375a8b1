//! `dipole calibrate pacing`: finds the slots in which the processes of a superstep should send.
//!
//! It is a program of a job with one process on each node. `exchange` runs the supersteps and
//! `choice` selects the slots. All members see the same numbers, so they make the same decisions
//! without further messages.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use dipole_model::{Medium, Pacing, Profile, Slots};
use serde_json::json;

use super::choice::{Trial, best};
use super::exchange::{Measured, Member, Relation};
use crate::output::{Failure, table};

/// Bytes per slot. Short queues lose part of longer bursts.
const SLOT_BYTES: [u32; 3] = [32 << 10, 16 << 10, 8 << 10];
/// Durations of slots, relative to the time that their bytes need.
const FACTORS: [f64; 8] = [0.9, 1.0, 1.03, 1.06, 1.1, 1.15, 1.25, 1.4];
/// A superstep is long enough if it takes this time, or moves this much between two processes.
const LEAST_NS: u64 = 10_000_000;
const LEAST_BYTES: usize = 128 << 10;
const MOST_BYTES: usize = 2 << 20;
/// Supersteps of which the shortest shows the capacity of the links.
const LEARNING: u32 = 8;
/// Number of turns of each trial, because networks and machines drift.
const TURNS: u32 = 2;

/// Find how supersteps should send between nodes, and save it on each node
///
/// Runs in every process of a job with one process on each node:
/// dipole run -n 8 --hosts FILE dipole calibrate pacing
#[derive(Args, Debug)]
pub(crate) struct PacingArgs {
    /// Number of supersteps of each trial
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    rounds: u32,
}

/// Measures, saves and prints; with `json` one object per line.
pub(super) fn execute(
    arguments: &PacingArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let mut member = Member::join()?;
    let (bytes, trials) = trials(&mut member, arguments.rounds)?;
    let Some(chosen) = best(&trials) else {
        return Err("nothing was measured".into());
    };
    let unpaced = &trials[0];
    let mut profile = match Profile::load(member.link())? {
        Some(profile) => profile,
        None => Profile::new(member.link()),
    };
    profile.pacing = Some(Pacing {
        slots: chosen.slots,
        processes: u32::try_from(member.size())?,
        g_ns_per_byte: chosen.g_ns_per_byte,
        g_sd: chosen.g_sd,
        unpaced_g_ns_per_byte: unpaced.g_ns_per_byte,
        unpaced_g_sd: unpaced.g_sd,
    });
    let file = profile.save()?;
    if member.rank() == 0 {
        if json {
            print_json(out, &member, &trials, chosen)?;
        } else {
            writeln!(
                out,
                "total exchange of {bytes} bytes, {} processes over {}\n{}\n{}; saved in {} on each node",
                member.size(),
                member.link(),
                show(&trials),
                conclusion(chosen),
                file.display()
            )?;
        }
    }
    member.leave()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the message length and the trials, of which the first is not paced.
fn trials(member: &mut Member, rounds: u32) -> Result<(usize, Vec<Trial>), Failure> {
    let size = member.size();
    let total = |bytes: usize| move |from: usize, to: usize| if from == to { 0 } else { bytes };
    let mut bytes = LEAST_BYTES;
    loop {
        let measured = member.measure(&total(bytes), None, LEARNING)?;
        let least_ns = measured.times_ns.iter().min().copied().unwrap_or(0);
        if least_ns >= LEAST_NS || bytes >= MOST_BYTES {
            break;
        }
        bytes *= 2;
    }
    let h = bytes * (size - 1);
    // Compare one sender with all processes sending to their neighbours, to detect a shared medium.
    let least = |member: &mut Member, relation: Relation<'_>| {
        let measured = member.measure(relation, None, LEARNING)?;
        Ok::<u64, Failure>(measured.times_ns.into_iter().min().unwrap_or(1))
    };
    let alone_ns = least(member, &|from, to| if (from, to) == (0, 1) { h } else { 0 })?;
    let all_ns = least(member, &|from, to| {
        if to == (from + 1) % size { h } else { 0 }
    })?;
    let medium = medium(alone_ns, all_ns, size);
    let mut plans = vec![None];
    for slot_bytes in SLOT_BYTES {
        let need = u128::from(alone_ns) * u128::from(slot_bytes) / h as u128;
        for factor in FACTORS {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "times far below 2^53 ns"
            )]
            let epsilon_ns = (need as f64 * factor).round() as u64;
            plans.push(Some(Slots {
                bytes: slot_bytes,
                epsilon_ns,
                medium,
            }));
        }
    }
    let mut measured: Vec<Measured> = plans.iter().map(|_| Measured::default()).collect();
    for _ in 0..TURNS {
        for (slots, so_far) in plans.iter().zip(&mut measured) {
            so_far.add(member.measure(&total(bytes), *slots, rounds.div_ceil(TURNS))?);
        }
    }
    let both = plans.into_iter().zip(&measured);
    let trials = both.map(|(slots, all)| Trial::new(slots, &all.times_ns, h, all.repeats()));
    let trials = trials.collect();
    Ok((bytes, trials))
}

/// Detects a shared medium from the time of a single sender and that of all senders at once.
fn medium(alone_ns: u64, all_ns: u64, processes: usize) -> Medium {
    // On a switch both take about the same time; on a bus all senders take `processes` times as long.
    let times = u64::try_from(processes).unwrap_or(u64::MAX);
    match all_ns.saturating_mul(4) > alone_ns.saturating_mul(times).saturating_mul(3) {
        true => Medium::Bus,
        false => Medium::Switch,
    }
}

fn slot(slots: Option<Slots>) -> [String; 2] {
    match slots {
        None => ["-".to_owned(), "not paced".to_owned()],
        Some(slots) => [
            slots.bytes.to_string(),
            format!("{:.1}", in_us(slots.epsilon_ns)),
        ],
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
fn in_us(ns: u64) -> f64 {
    ns as f64 * 1e-3
}

fn show(trials: &[Trial]) -> String {
    let mut rows = table([
        "slot, bytes",
        "epsilon, us",
        "g, ns/byte",
        "deviation, %",
        "repeats, %",
    ]);
    for trial in trials {
        let [bytes, epsilon] = slot(trial.slots);
        rows.add_row([
            bytes,
            epsilon,
            format!("{:.3}", trial.g_ns_per_byte),
            format!("{:.1}", trial.g_sd / trial.g_ns_per_byte * 100.0),
            format!("{:.2}", trial.repeats * 100.0),
        ]);
    }
    rows.to_string()
}

fn conclusion(chosen: &Trial) -> String {
    match chosen.slots {
        None => "pacing has no benefit here".to_owned(),
        Some(slots) => format!(
            "{} bytes every {:.1} us, on a {}",
            slots.bytes,
            in_us(slots.epsilon_ns),
            match slots.medium {
                Medium::Switch => "switch",
                Medium::Bus =>
                    "bus: each process uses one slot of each cycle, which has a slot per sender",
            }
        ),
    }
}

fn print_json(
    out: &mut dyn Write,
    member: &Member,
    trials: &[Trial],
    chosen: &Trial,
) -> Result<(), Failure> {
    for trial in trials {
        let line = json!({
            "calibrate": "pacing",
            "link": member.link(),
            "processes": member.size(),
            "slots": trial.slots,
            "g_ns_per_byte": trial.g_ns_per_byte,
            "g_sd": trial.g_sd,
            "repeats": trial.repeats,
            "chosen": trial == chosen,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_slows_down_with_senders_and_a_switch_does_not() {
        assert_eq!(medium(100, 110, 8), Medium::Switch);
        assert_eq!(medium(100, 790, 8), Medium::Bus);
        assert_eq!(medium(100, 105, 2), Medium::Switch);
        assert_eq!(medium(100, 200, 2), Medium::Bus);
    }

    #[test]
    fn slots_are_not_longer_than_chunks() {
        for bytes in SLOT_BYTES {
            assert!(bytes as usize <= crate::calibrate::exchange::CHUNK_BYTES);
        }
    }
}
