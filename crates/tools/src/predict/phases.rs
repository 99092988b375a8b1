//! The phases of one message, side by side over links and machines.
//!
//! # Source
//! Directed Point II §5.2, figures 6 and 7: start-up, send, network and delivery of a message of one
//! byte and of a full packet, on several machines.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use dipole_model::{PointToPoint, Profile, ProfileError, Short};
use serde_json::json;

use super::{Link, PredictArgs, missing, us};
use crate::output::{Failure, table};

/// Lengths in the paper: one byte, and a full packet.
const USUAL_BYTES: [u64; 2] = [1, 1400];
/// Longest bar in characters.
const BAR: f64 = 40.0;

/// Times of the four phases in nanoseconds; the network may take less than nothing if the receiver
/// starts before the sender's call has returned.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Phases {
    start_up: f64,
    send: f64,
    network: f64,
    delivery: f64,
}

impl Phases {
    /// Splits a message of one fragment. `None` if it is longer, or nothing was measured.
    fn of(model: &PointToPoint, bytes: usize) -> Option<Phases> {
        let first = model.short.first()?;
        let short: Short = (bytes <= model.fragment_bytes).then(|| model.short(bytes))??;
        Some(Phases {
            start_up: first.o_s_ns.median,
            send: short.o_s_ns.median - first.o_s_ns.median,
            network: short.l_ns.median,
            delivery: short.o_r_ns.median + short.u_r_ns.median,
        })
    }

    fn trip(&self) -> f64 {
        self.start_up + self.send + self.network + self.delivery
    }

    /// Draws the phases as letters, with this many nanoseconds for each.
    fn bar(&self, ns_per_letter: f64) -> String {
        let parts = [
            (self.start_up, "s"),
            (self.send, "S"),
            (self.network, "n"),
            (self.delivery, "d"),
        ];
        let mut bar = String::new();
        for (ns, letter) in parts {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and the length of a line"
            )]
            let length = (ns / ns_per_letter).clamp(0.0, 2.0 * BAR).round() as usize;
            bar += &letter.repeat(length);
        }
        bar
    }
}

/// A measured link of a machine.
struct Place {
    machine: String,
    link: String,
    model: PointToPoint,
}

/// Prints the phases of messages over all links of all machines; with `json` one object per line.
pub(super) fn show(
    arguments: &PredictArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let places = places(arguments)?;
    if places.is_empty() {
        return Err(missing(arguments, "messages", "dipole calibrate"));
    }
    let lengths = match arguments.bytes.is_empty() {
        true => &USUAL_BYTES[..],
        false => &arguments.bytes,
    };
    for &bytes in lengths {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        for place in &places {
            let phases = Phases::of(&place.model, length).ok_or_else(|| {
                format!(
                    "a message of {bytes} bytes is not one fragment over {} on {}; give at most {}",
                    place.link, place.machine, place.model.fragment_bytes
                )
            })?;
            all.push((place, phases));
        }
        match json {
            true => print_json(out, bytes, &all)?,
            false => print_table(out, bytes, &all)?,
        }
    }
    if !json {
        writeln!(
            out,
            "us; start-up (s): the shortest send; send (S): added by the length; network (n): latency; \
             delivery (d): both receive overheads. Below 0 the receiver starts before the sender's \
             call returns"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads the measured links of this machine, and of the other ones.
fn places(arguments: &PredictArgs) -> Result<Vec<Place>, Failure> {
    let own = dipole_node::profile_dir().map(|folder| ("here".to_owned(), folder));
    let others = arguments.profiles.iter();
    let others = others.map(|folder| (name_of(folder), folder.clone()));
    let links = match arguments.link.is_empty() {
        true => Link::value_variants(),
        false => &arguments.link,
    };
    let mut places = Vec::new();
    for (machine, folder) in own.into_iter().chain(others) {
        let before = places.len();
        for link in links {
            if let Some(model) = load(&folder, *link)? {
                places.push(Place {
                    machine: machine.clone(),
                    link: link.name().to_owned(),
                    model,
                });
            }
        }
        if places.len() == before && machine != "here" {
            return Err(format!("{} has no profile of messages", folder.display()).into());
        }
    }
    Ok(places)
}

fn load(folder: &Path, link: Link) -> Result<Option<PointToPoint>, ProfileError> {
    let profile = Profile::load_from(folder, link.name())?;
    Ok(profile.and_then(|profile| profile.point_to_point))
}

/// The name of the folder without its parents, for a column.
fn name_of(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    name.to_string_lossy().into_owned()
}

fn print_json(out: &mut dyn Write, bytes: u64, all: &[(&Place, Phases)]) -> Result<(), Failure> {
    for (place, phases) in all {
        let line = json!({
            "predict": "phases",
            "machine": place.machine,
            "link": place.link,
            "place": place.model.place,
            "bytes": bytes,
            "start_up_ns": phases.start_up,
            "send_ns": phases.send,
            "network_ns": phases.network,
            "delivery_ns": phases.delivery,
            "trip_ns": phases.trip(),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn print_table(out: &mut dyn Write, bytes: u64, all: &[(&Place, Phases)]) -> Result<(), Failure> {
    let longest = all.iter().map(|(_, phases)| phases.trip());
    let longest = longest.fold(1.0, f64::max);
    let mut rows = table([
        "machine", "link", "start-up", "send", "network", "delivery", "trip", "",
    ]);
    for (place, phases) in all {
        rows.add_row([
            place.machine.clone(),
            format!("{}/{}", place.link, place.model.place),
            us(phases.start_up),
            us(phases.send),
            us(phases.network),
            us(phases.delivery),
            us(phases.trip()),
            phases.bar(longest / BAR),
        ]);
    }
    writeln!(out, "a message of {bytes} bytes\n{rows}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_proportions_of_the_phases_and_none_for_negative_times() {
        let phases = Phases {
            start_up: 100.0,
            send: 300.0,
            network: -50.0,
            delivery: 200.0,
        };
        assert_eq!(phases.bar(100.0), "sSSSdd");
        assert_eq!(phases.trip(), 550.0);
        assert!(phases.bar(1e-9).len() <= 240);
    }
}
