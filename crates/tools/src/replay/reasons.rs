//! The reasons for which a session waits.

use std::collections::BTreeMap;

use dipole_proto::{Instant, LaneState, PeerStatus, SessionStatus};
use dipole_record::Replay;

use super::duration;

/// A shorter silence of the peer is not worth a line.
const SILENCE_NS: u64 = 100_000_000;

/// The cores of all recorded processes at the end, by incarnation.
pub(super) type States<'a> = BTreeMap<u64, &'a Replay>;

/// The same session in the peer's recording.
struct OtherEnd {
    status: PeerStatus,
}

impl OtherEnd {
    /// The session of `status` as the recorded peer sees it.
    fn of(states: &States<'_>, own: u64, status: &PeerStatus) -> Option<OtherEnd> {
        let machine = states.get(&status.incarnation)?.machine();
        let sessions = machine.peers().filter_map(|peer| machine.status(peer));
        let status = sessions.into_iter().find(|it| it.incarnation == own)?;
        Some(OtherEnd { status })
    }
}

/// Everything that the session of a process waits for.
pub(super) fn reasons(
    own: u64,
    status: &PeerStatus,
    states: &States<'_>,
    now: Instant,
) -> Vec<String> {
    let other = OtherEnd::of(states, own, status);
    let mut reasons = Vec::new();
    if let Some(session) = &status.session {
        of_handshake(session, now, &mut reasons);
        of_units(session, other.as_ref(), now, &mut reasons);
        of_arrivals(session, &mut reasons);
    }
    if status.long_messages > 0 {
        let count = status.long_messages;
        reasons.push(format!(
            "{count} long messages: the peer has not copied them yet"
        ));
    }
    of_outgoing(status, other.as_ref(), &mut reasons);
    of_incoming(status, &mut reasons);
    reasons
}

fn of_handshake(session: &SessionStatus, now: Instant, reasons: &mut Vec<String>) {
    if !session.is_open {
        let since = session.owed_since.map_or(0, |since| now.since(since));
        reasons.push(format!(
            "the session is opening: hellos have not been answered for {}; the process does not \
             run there, or packets are lost in one direction",
            duration(since)
        ));
    }
}

fn of_units(
    session: &SessionStatus,
    other: Option<&OtherEnd>,
    now: Instant,
    reasons: &mut Vec<String>,
) {
    let unacknowledged = session.in_flight + session.lost;
    if let Some((unit, sent_at)) = session.oldest {
        let mut text = format!(
            "{unacknowledged} units are not acknowledged; the oldest, unit {unit}, was last sent \
             {} ago",
            duration(now.since(sent_at))
        );
        if let Some(theirs) = other.and_then(|it| it.status.session.as_ref()) {
            text.push_str(match theirs.units_next > unit {
                true => {
                    "; the peer has received it, so its acknowledgements do not arrive or are not \
                     sent"
                }
                false => "; the peer has not received it, so packets to the peer are lost",
            });
        }
        reasons.push(text);
    }
    if session.queued > 0 {
        let queued = session.queued;
        reasons.push(match session.restricted_to {
            Some(limit) => format!(
                "{queued} packets wait, because the peer allows only {limit} packets in flight"
            ),
            None => format!("{queued} packets wait for earlier ones to be acknowledged"),
        });
    }
    let owed_since = session
        .owed_since
        .filter(|since| now.since(*since) >= SILENCE_NS);
    if let Some(since) = owed_since.filter(|_| session.is_open) {
        let heard = now.since(session.last_heard);
        let suspected = if session.is_suspected {
            ", and is suspected"
        } else {
            ""
        };
        reasons.push(format!(
            "the peer has owed an answer for {}{suspected}; its last packet came {} ago",
            duration(now.since(since)),
            duration(heard)
        ));
    }
}

fn of_arrivals(session: &SessionStatus, reasons: &mut Vec<String>) {
    if session.units_missing > 0 {
        let (missing, next) = (session.units_missing, session.units_next);
        reasons.push(format!(
            "{missing} units of the peer are missing, from unit {next} on, although later ones have \
             arrived: the peer must retransmit them"
        ));
    }
    let paths = session.paths.len();
    let down = session
        .paths
        .iter()
        .filter(|path| path.state == LaneState::Silent);
    let down = down.count();
    if down > 0 {
        reasons.push(format!(
            "{down} of {paths} addresses of the peer do not answer"
        ));
    }
}

fn of_outgoing(status: &PeerStatus, other: Option<&OtherEnd>, reasons: &mut Vec<String>) {
    for edge in &status.outgoing {
        let (source, target) = edge.key.ends();
        if let Some(missing) = edge.credit_missing {
            let theirs = other.and_then(|it| {
                let mut edges = it.status.incoming.iter();
                edges.find(|theirs| theirs.key == edge.key)
            });
            let why = match theirs {
                _ if edge.is_ending => {
                    "it was closed and opened again, and the peer has not forgotten its earlier life"
                        .to_owned()
                }
                Some(theirs) if theirs.granted > edge.limit => format!(
                    "the peer has granted {} bytes more than have arrived here: its grant is lost",
                    theirs.granted - edge.limit
                ),
                Some(theirs) if theirs.unread_bytes > 0 => format!(
                    "the program of the peer has not read {} bytes of it",
                    theirs.unread_bytes
                ),
                Some(_) => "the peer has read everything and has granted no more".to_owned(),
                None => "the program of the peer does not read, or its grant is lost".to_owned(),
            };
            reasons.push(format!(
                "edge {source}>{target}: message {} waits for credit, {missing} bytes are missing; \
                 {why}",
                edge.next
            ));
        } else if edge.is_ending {
            reasons.push(format!(
                "edge {source}>{target} is closed, and the peer has not confirmed that yet"
            ));
        }
        if let Some(reason) = edge.refused {
            reasons.push(format!(
                "edge {source}>{target}: the peer refuses messages: {reason:?}"
            ));
        }
    }
}

fn of_incoming(status: &PeerStatus, reasons: &mut Vec<String>) {
    for edge in &status.incoming {
        let (source, target) = edge.key.ends();
        if edge.incomplete > 0 {
            reasons.push(format!(
                "edge {source}>{target}: message {} has arrived only in part; {} begun messages \
                 wait for their rest",
                edge.next, edge.incomplete
            ));
        } else if edge.unread_bytes > 0 {
            reasons.push(format!(
                "edge {source}>{target}: {} bytes were delivered to endpoint {target}, and its \
                 program has not read them",
                edge.unread_bytes
            ));
        }
        if edge.requested > 0 {
            reasons.push(format!(
                "edge {source}>{target}: the peer requests {} bytes of credit that it does not have",
                edge.requested
            ));
        }
    }
}
