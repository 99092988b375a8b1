//! What was measured on this node's cards, what is chosen by it, and measuring.

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dipole_bpf::calibrate::{
    Calibration, Choices, FOLDER, Figure, FileError, RUNS, Receive, SIZES, Send, SocketBy,
    calibrate,
};
use dipole_bpf::{CardId, card_of, is_permitted};
use dipole_node::Config;

use super::finding::Finding;

const NAME: &str = "calibration";
const MAKE: &str = "`dipole doctor --calibrate` measures this card (as root; less than 2 s)";

/// Looks at the calibration of each card of this node, after making it if asked to.
pub(super) fn examine(config: &Config, make: bool) -> Vec<Finding> {
    let addresses = std::iter::once(config.bind).chain(config.cards.iter().copied());
    let addresses = addresses.filter(|one| !one.is_loopback() && !one.is_unspecified());
    let cards: Vec<(IpAddr, CardId)> = addresses
        .filter_map(|address| Some((address, card_of(address).ok()?.0)))
        .collect();
    if cards.is_empty() && make {
        let finding = Finding::broken(
            NAME,
            "there is no card to calibrate: this node has no address of one",
            "set DIPOLE_BIND to an address of the card, or --hosts",
        );
        return vec![finding];
    }
    let mut findings = Vec::new();
    for (address, card) in cards {
        let mut found = match make {
            true => measure(config, address, &card),
            false => Vec::new(),
        };
        if found.is_empty() {
            found = look(config, &card);
        }
        findings.extend(found.into_iter().map(|one| one.about(&card.name)));
    }
    findings
}

/// Measures and keeps; only what went wrong is told.
fn measure(config: &Config, address: IpAddr, card: &CardId) -> Vec<Finding> {
    let others = config.hosts.iter().filter(|host| host.node != config.node);
    let peers: Vec<IpAddr> = others.map(|host| host.address).collect();
    let failed = |what: String| vec![Finding::broken(NAME, what, "run it as root")];
    let calibration = match calibrate(card, address, &peers) {
        Ok(calibration) => calibration,
        Err(cause) => return failed(cause.to_string()),
    };
    match calibration.save(&config.runtime_dir.join(FOLDER)) {
        Ok(_) => Vec::new(),
        Err(cause) => failed(format!("it cannot be kept: {cause}")),
    }
}

/// What a link that is opened now would find.
fn look(config: &Config, card: &CardId) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in config.calibrations() {
        match Calibration::load(&folder, card) {
            Ok(None) => {}
            Ok(Some(found)) => {
                findings.extend(told(&found, &folder.join(&card.name)));
                return findings;
            }
            Err(cause) => findings.push(refused(&cause)),
        }
    }
    if findings.is_empty() && is_permitted() {
        let usual = usual(Choices::default());
        findings.push(Finding::good(NAME, format!("none, so {usual} as usual")).advise(MAKE));
    }
    findings
}

fn refused(cause: &FileError) -> Finding {
    let usual = usual(Choices::default());
    Finding::slow(NAME, format!("{cause}; so {usual} as usual"), MAKE)
}

fn usual(choices: Choices) -> String {
    format!(
        "small packets come by {}, leave by {}, and bulk runs of up to {} frames leave raw",
        place(choices.receive),
        way(choices.send),
        choices.raw_run_frames
    )
}

fn place(receive: Receive) -> &'static str {
    match receive {
        Receive::Tcx => "a ring at TCX",
        Receive::XdpGeneric => "a ring at generic XDP",
        Receive::AfXdp => "AF_XDP",
    }
}

fn way(send: Send) -> &'static str {
    match send {
        Send::AfPacket => "AF_PACKET",
        Send::AfXdp => "AF_XDP",
        Send::Socket => "the socket",
    }
}

/// Age, choices, and the figures from which they follow.
fn told(found: &Calibration, path: &Path) -> Vec<Finding> {
    let choices = found.choices();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let age_s = now.map_or(0, |now| now.as_secs().saturating_sub(found.made_s));
    let made = Finding::good(NAME, format!("{} old, in {}", age(age_s), path.display()));
    let made = match found.is_noisy() {
        true => made.advise(
            "some figures spread by more than a quarter: measure again when less is going on",
        ),
        false => made,
    };
    let receives = listed(SIZES.into_iter().flat_map(|bytes| {
        let figure = move |one: Receive| Some((one, *found.receives.get(&(one, bytes))?));
        let all = Receive::ALL.into_iter().filter_map(figure);
        all.map(move |(one, figure)| (format!("{} {bytes} B", one.name()), figure))
    }));
    let receives = match receives.is_empty() {
        true => "not measured: it takes root".to_owned(),
        false => format!("from sending to reading, on a private pair: {receives}"),
    };
    let sends = listed(found.sends.iter().map(|((one, bytes), figure)| {
        let from = match (one, found.socket_by) {
            (Send::Socket, SocketBy::Pair) => ", on a private pair",
            _ => "",
        };
        (format!("{} {bytes} B{from}", one.name()), *figure)
    }));
    let runs = listed(RUNS.into_iter().flat_map(|frames| {
        let figure = move |one: Send| Some((one, *found.runs.get(&(one, frames))?));
        let all = Send::ALL.into_iter().filter_map(figure);
        all.map(move |(one, figure)| (format!("{frames} by {}", one.name()), figure))
    }));
    let queue = match found.facts.queues {
        Some(1) => "",
        _ => " (AF_XDP is only for cards with one queue)",
    };
    vec![
        made,
        Finding::good(
            "receiving",
            format!("by {}{queue}; {receives}", place(choices.receive)),
        ),
        Finding::good("sending", format!("by {}; {sends}", way(choices.send))),
        Finding::good(
            "bulk runs",
            format!("raw up to {} frames; {runs}", choices.raw_run_frames),
        ),
    ]
}

/// Figures in a row: nanoseconds and, in brackets, how far they spread.
fn listed(figures: impl Iterator<Item = (String, Figure)>) -> String {
    let all: Vec<String> = figures
        .map(|(name, figure)| format!("{name} {} ({}) ns", figure.median_ns, figure.spread_ns))
        .collect();
    all.join(", ")
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_that_suits() {
        let told = [5, 119, 120, 7199, 7200, 200_000].map(age);
        assert_eq!(told, ["5 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }

    #[test]
    fn what_is_usual_is_told_in_words() {
        let told = usual(Choices::default());
        for word in ["a ring at TCX", "AF_PACKET", "1 frames"] {
            assert!(told.contains(word), "{told}");
        }
    }
}
