//! Each path of Dipole's, and a socket's, by streams of two lengths.

use super::super::BenchArgs;
use super::super::control::{Carrier, Kind, Placement};
use super::super::crossings::{CrossingsPlan, Path};
use super::super::subject::Subject;
use super::points::{LEAST_ROUNDS, ROUNDS};
use super::{PlanError, TABLE_SECONDS, Variation, asked_place, duration, rounds};

/// Lengths of messages that go whole, or fit a packet, and of such that do not.
const WHOLE: [usize; 2] = [2 << 10, 8 << 10];
const PACKET: [usize; 2] = [256, 1400];
const LONG: [usize; 2] = [256 << 10, 1 << 20];

pub(super) fn plan(arguments: &BenchArgs) -> Result<CrossingsPlan, PlanError> {
    for (option, is_given) in [
        ("--to", arguments.remote.to.is_some()),
        ("--size", arguments.size.is_some()),
        ("--block", arguments.block),
        ("--unreliable", arguments.unreliable),
        ("--drop", arguments.drop.is_some()),
        ("--subjects", !arguments.subjects.is_empty()),
        ("--html", arguments.html.is_some()),
    ] {
        if is_given {
            return Err(PlanError::Excluded {
                option,
                by: "crossings",
            });
        }
    }
    let asked = asked_place(arguments)?;
    let own = [
        (Placement::OneNode, Carrier::Shm, WHOLE),
        (Placement::OneNode, Carrier::Shm, LONG),
        (Placement::TwoNodes, Carrier::Bpf, PACKET),
        (Placement::TwoNodes, Carrier::Udp, PACKET),
        (Placement::TwoNodes, Carrier::Udp, LONG),
    ]
    .map(|path| (Subject::Dipole, path));
    let sockets = [
        (
            Subject::BareUnixBlock,
            (Placement::OneNode, Carrier::Shm, LONG),
        ),
        (
            Subject::BareTcpBlock,
            (Placement::TwoNodes, Carrier::Udp, LONG),
        ),
    ];
    let all = own.into_iter().chain(sockets);
    let all = all.filter(|(_, (place, carrier, _))| {
        asked.is_none_or(|asked| asked == *place) && (*carrier != Carrier::Bpf || arguments.has_bpf)
    });
    let paths = all.map(|(subject, (place, carrier, sizes))| {
        let [shorter, longer] = sizes.map(|size_bytes| {
            let variation = Variation {
                kind: Kind::Stream,
                size_bytes,
                duration: duration(arguments, TABLE_SECONDS),
                block: true,
                unreliable: false,
                two_threads_a_side: false,
                place,
                carrier,
                rounds: rounds(arguments, LEAST_ROUNDS, ROUNDS),
            };
            variation.entry("crossings".to_owned(), subject, None)
        });
        Path { shorter, longer }
    });
    Ok(CrossingsPlan {
        paths: paths.collect(),
        rounds: rounds(arguments, LEAST_ROUNDS, ROUNDS).most,
        quick: arguments.quick,
        on: arguments.on,
    })
}
