//! The address pairs between this node and another if one of them has several interfaces, and which
//! of them sessions will use.

use std::net::IpAddr;
use std::time::Duration;

use dipole_node::hosts::Host;
use dipole_node::registry::{ProbeLength, ProbeResult, Prober};

use super::answer::Answer;
use super::finding::Finding;
use super::peer::{Own, TRIES, headers, who};

/// Result of probing one of a node's addresses.
#[derive(Debug)]
enum Outcome {
    /// This node has the same address.
    Own,
    /// The node replies to IP packets of this length.
    Answers(usize),
    /// It replies, but not to packets of this length.
    Short(usize),
    /// It does not reply correctly.
    Not(Answer),
}

/// Probes each address of a node; `interfaces` are those of this node.
pub(super) fn examine(host: &Host, own: Own<'_>, interfaces: &[IpAddr]) -> Vec<Finding> {
    let patience = own.patience;
    if interfaces.len() < 2 && host.interfaces.is_empty() && host.control.is_none() {
        return Vec::new();
    }
    let addresses = host.directories().into_iter().map(|directory| {
        let theirs = directory.ip();
        let leads_back = interfaces.contains(&theirs) && theirs != host.address;
        let prober = Prober::open(None, directory, host.node, own.key);
        let ours = prober.as_ref().ok().and_then(|prober| prober.source().ok());
        let outcome = match prober {
            _ if leads_back => Outcome::Own,
            Err(cause) => Outcome::Not(Answer::Failed(cause)),
            Ok(prober) => ask(&prober, ours.unwrap_or(theirs), patience),
        };
        let judged = match host.control == Some(theirs) {
            true => judge_control(ours, theirs, &outcome),
            false => judge(ours, theirs, &outcome),
        };
        judged.about(host.to_string())
    });
    addresses.collect()
}

fn ask(prober: &Prober, ours: IpAddr, patience: Duration) -> Outcome {
    match who(prober, patience) {
        Answer::Right => {}
        other => return Outcome::Not(other),
    }
    // The longest packet for both devices, as sessions would agree on it.
    let longest = dipole_link::udp::longest_frame_bytes(ours).unwrap_or(0);
    let theirs = match prober.probe(ProbeLength::SHORTEST, patience) {
        ProbeResult::Answered(presence, _) if presence.max_packet_bytes != 0 => {
            usize::from(presence.max_packet_bytes)
        }
        _ => longest,
    };
    let length = ProbeLength::nearest(longest.min(theirs));
    let bytes = length.bytes() + headers(ours);
    for _ in 0..TRIES {
        if let ProbeResult::Answered(..) = prober.probe(length, patience / TRIES) {
            return Outcome::Answers(bytes);
        }
    }
    Outcome::Short(bytes)
}

/// Judges a network for queries only; its MTU does not matter because messages do not use it.
fn judge_control(ours: Option<IpAddr>, theirs: IpAddr, outcome: &Outcome) -> Finding {
    const NAME: &str = "control network";
    let from = ours.map_or_else(|| "somewhere".to_owned(), |ours| ours.to_string());
    let pair = format!("{from} to {theirs}");
    match outcome {
        Outcome::Answers(_) | Outcome::Short(_) => Finding::good(
            NAME,
            format!("{pair}: answers, questions and membership go there"),
        ),
        Outcome::Not(Answer::Refused) => Finding::unknown(
            NAME,
            format!("{pair}: the host answers, but no process of Dipole runs there"),
            "",
        ),
        _ => Finding::slow(
            NAME,
            format!("{pair}: the node does not answer there, questions go by its interfaces"),
            "mend that network, or correct `control=` in the hosts file",
        ),
    }
}

fn judge(ours: Option<IpAddr>, theirs: IpAddr, outcome: &Outcome) -> Finding {
    const NAME: &str = "path";
    const MEND: &str =
        "take the address out of `interfaces=` in the hosts file, or mend its network";
    let pair = match ours {
        Some(ours) => format!("{ours} <-> {theirs}"),
        None => format!("to {theirs}"),
    };
    let (fact, advice) = match outcome {
        Outcome::Answers(bytes) => {
            let fact = format!("{pair}: answers to packets of {bytes} bytes, will be used");
            return Finding::good(NAME, fact);
        }
        Outcome::Not(Answer::Refused) => {
            let fact = format!("{pair}: the host answers, but no process of Dipole runs there");
            return Finding::unknown(NAME, fact, "");
        }
        Outcome::Own => (
            "an address of this node too, will not be used".to_owned(),
            "bridges and overlays of containers have the same address everywhere: take it out of \
             `interfaces=` in the hosts file",
        ),
        Outcome::Short(bytes) => (
            format!("no answer to packets of {bytes} bytes, will not be used"),
            "set the same MTU on every device in between",
        ),
        Outcome::Not(Answer::Stranger(mismatch)) => (
            format!("{mismatch}, so it will not be used"),
            "give all nodes of a cluster the same DIPOLE_KEY",
        ),
        Outcome::Not(Answer::Failed(cause)) => (
            format!("nothing can be sent ({cause}), will not be used"),
            MEND,
        ),
        Outcome::Not(Answer::Silent) => ("no answer, will not be used".to_owned(), MEND),
        // After a correct reply the longest packet is probed, see above.
        Outcome::Not(Answer::Wrong | Answer::Right) => (
            "another node answers, so it will not be used".to_owned(),
            MEND,
        ),
    };
    Finding::slow(NAME, format!("{pair}: {fact}"), advice)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Good, Slow, Unknown};
    use super::*;
    use std::io;

    #[test]
    fn pairs_that_do_not_answer_are_named_and_cost_no_more_than_speed() {
        let (ours, theirs) = (IpAddr::from([10, 1, 0, 1]), IpAddr::from([10, 1, 0, 2]));
        let judged = |outcome| judge(Some(ours), theirs, &outcome);
        let good = judged(Outcome::Answers(1500));
        assert_eq!(good.verdict, Good);
        assert!(good.fact.contains("10.1.0.1 <-> 10.1.0.2"), "{}", good.fact);
        for outcome in [
            Outcome::Own,
            Outcome::Not(Answer::Silent),
            Outcome::Short(9000),
            Outcome::Not(Answer::Wrong),
            Outcome::Not(Answer::Failed(io::ErrorKind::NetworkUnreachable.into())),
        ] {
            let found = judged(outcome);
            assert_eq!(found.verdict, Slow);
            assert!(found.fact.contains("not be used"), "{}", found.fact);
        }
        assert_eq!(judged(Outcome::Not(Answer::Refused)).verdict, Unknown);
        let control = |outcome| judge_control(Some(ours), theirs, &outcome);
        assert_eq!(control(Outcome::Short(1500)).verdict, Good);
        let silent = control(Outcome::Not(Answer::Silent));
        assert_eq!(silent.verdict, Slow);
        assert!(silent.advice.contains("control="), "{}", silent.advice);
    }
}
