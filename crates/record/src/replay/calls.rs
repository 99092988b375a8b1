//! Calls of the program and of the engine.

use dipole_proto::wire::{Address, PipeTag};
use dipole_proto::{BeginError, EdgeId, PeerId};

use super::{MessageCall, Mismatch, Observed, Replay, compare, same};
use crate::input::Input;

impl Replay {
    /// Makes a call that neither takes nor returns a packet.
    pub(super) fn call(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let mut report = |peer, text| report_call(peer, text, None, observed);
        let (now, machine) = (self.now, &mut self.machine);
        match input {
            Input::Queue(peer, slots, bulk, queued) => {
                return same(&machine.queue(*peer, slots, *bulk), queued);
            }
            Input::QueueUnreliable(peer, slot, bulk, queued) => {
                return same(&machine.queue_unreliable(*peer, *slot, *bulk), queued);
            }
            Input::Begin(edge, total, check) => {
                let begun = machine.begin(now, *edge, *total);
                report_begin(machine, *edge, *total, begun.as_ref().err(), observed);
                return compare(&begun, *check);
            }
            Input::Retract(edge, total) => machine.retract(*edge, *total),
            Input::BeginUnreliable(edge, check) => {
                return compare(&machine.begin_unreliable(*edge), *check);
            }
            Input::Consumed(edge, total) => {
                machine.consumed(now, *edge, *total);
                let text = format!("consumes a message of {total} bytes");
                let call = MessageCall::Taken(*edge, *total);
                report_call(Some(edge.peer), text, Some(call), observed);
            }
            Input::Assembled(check) => return compare_unit(machine, *check),
            Input::Agreement(check) => {
                let agreement = machine.take_agreement();
                return match agreement {
                    Some(agreement) => compare(&agreement, *check),
                    None => Err(("an agreement".to_owned(), "none".to_owned())),
                };
            }
            Input::Ended(index, serial) => {
                return same(&machine.take_ended_session(), &Some((*index, *serial)));
            }
            Input::Count(reason) => {
                machine.count(*reason);
                report(None, format!("drops a packet: {}", reason.name()));
            }
            other => return self.call_of_peer(other, observed),
        }
        Ok(())
    }

    fn call_of_peer(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let mut report = |peer, text| report_call(peer, text, None, observed);
        let (now, machine) = (self.now, &mut self.machine);
        match input {
            Input::Connect(home, incarnation, check) => {
                let peer = machine.connect(now, *home, *incarnation);
                report(peer.ok(), format!("connects to {}", Shown(*home)));
                return compare(&peer, *check);
            }
            Input::Disconnect(peer) => {
                machine.disconnect(*peer);
                report(Some(*peer), "disconnects".to_owned());
            }
            Input::RenewProofs => {
                machine.renew_proofs(now);
                report(None, "requests new proofs of membership".to_owned());
            }
            Input::SetLanes(lanes, moved) => {
                machine.set_lanes(now, lanes, moved);
                report(
                    None,
                    format!("listens on {} lanes from now on", lanes.len()),
                );
            }
            Input::Acknowledge(peer) => machine.acknowledge(*peer),
            Input::PacketTooLong(transmit) => {
                machine.packet_too_long(now, transmit);
                let text = format!("cannot send {} bytes at once", transmit.length);
                report(transmit.peer, text);
            }
            Input::Watch(peer, watched) => {
                machine.watch(now, *peer, *watched);
                let verb = if *watched {
                    "watches"
                } else {
                    "stops watching"
                };
                report(Some(*peer), format!("{verb} the peer"));
            }
            Input::ConfirmAlive(peer, runs) => {
                machine.confirm_alive(now, *peer, *runs);
                let state = if *runs { "runs" } else { "is stopped" };
                report(Some(*peer), format!("is notified that the peer {state}"));
            }
            Input::GiveUp(peer) => {
                machine.give_up(*peer);
                report(
                    Some(*peer),
                    "is notified that the peer has ended".to_owned(),
                );
            }
            other => return self.call_of_edge(other, observed),
        }
        Ok(())
    }

    fn call_of_edge(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let mut report = |peer, text| report_call(peer, text, None, observed);
        let (now, machine) = (self.now, &mut self.machine);
        match input {
            Input::OpenEndpoint(target) => {
                machine.open_endpoint(*target);
                report(None, format!("opens endpoint {target}"));
            }
            Input::CloseEndpoint(target) => {
                machine.close_endpoint(now, *target);
                report(None, format!("closes endpoint {target}"));
            }
            Input::RandomKey(check) => return compare(&machine.new_random_key(), *check),
            Input::Edge((peer, source, target), check) => {
                let edge = machine.edge(*peer, *source, *target);
                report(Some(*peer), format!("opens edge {source}>{target}"));
                return compare(&edge, *check);
            }
            Input::CloseEdge(edge) => {
                let key = machine.edge_key(*edge);
                machine.close_edge(*edge);
                if let Some((source, target)) = key.map(|key| key.ends()) {
                    report(Some(edge.peer), format!("closes edge {source}>{target}"));
                }
            }
            Input::Cancel(edge) => machine.cancel(*edge),
            Input::ClearRefusal(edge) => machine.clear_refusal(*edge),
            other => return self.call_of_pipe(other, observed),
        }
        Ok(())
    }

    fn call_of_pipe(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let mut report = |peer, text| report_call(peer, text, None, observed);
        let (now, machine) = (self.now, &mut self.machine);
        match input {
            Input::OpenPipe(greeting, check) => {
                let peer = machine.open_pipe(*greeting);
                report(
                    peer.ok(),
                    "shares memory with a process of this node".to_owned(),
                );
                return compare(&peer, *check);
            }
            Input::ClosePipe(peer, reason) => machine.close_pipe(*peer, *reason),
            Input::BeginWhole(edge, total, check) => {
                let begun = machine.begin_whole(*edge, *total);
                report_begin(machine, *edge, *total, begun.as_ref().err(), observed);
                return compare(&begun, *check);
            }
            Input::PipeMessage(peer, number, length, check) => {
                let taken = machine.on_pipe_message(now, *peer, *number, size(*length));
                let delivery = taken.as_ref().ok().copied().flatten();
                let text = format!("gets a message of {length} bytes in memory");
                let call = delivery.map(|it| MessageCall::Delivered(it.edge, it.key.ends()));
                report_call(Some(*peer), text, call, observed);
                return compare(&taken, *check);
            }
            Input::PipeMessageRead(peer, number, length, reader, check) => {
                let size = size(*length);
                let taken = machine.on_pipe_message_read(now, *peer, *number, size, *reader);
                let text = format!("endpoint {reader} reads a message of {length} bytes in memory");
                let call = taken.map(|it| MessageCall::DeliveredAndTaken(it.edge, it.key.ends()));
                report_call(Some(*peer), text, call, observed);
                return match taken {
                    Some(delivery) => compare(&delivery, *check),
                    None => Err(("a message".to_owned(), "no message".to_owned())),
                };
            }
            Input::PipeRecord {
                peer,
                tag,
                payload,
                length,
                check,
            } => {
                let tag = PipeTag::from_word(*tag).map_err(|_| super::invalid("a tag"))?;
                report(Some(*peer), format!("gets a record: {:?}", tag.kind));
                let taken = machine.on_pipe_record(now, *peer, tag, payload, size(*length));
                return compare(&taken, *check);
            }
            Input::ReadyPipe(check) => return compare(&machine.poll_ready_pipe(), *check),
            Input::PollRecord(peer, check) => return compare(&machine.poll_record(*peer), *check),
            Input::PopRecord(peer) => machine.pop_record(*peer),
            Input::Offer(edge, begun, place, head) => {
                machine.offer(*edge, *begun, *place, head.as_ref());
            }
            Input::Announce(edge, begun, total, head) => {
                machine.announce(*edge, *begun, *total, head.as_ref());
            }
            Input::PiecesSent(edge, sequence) => machine.pieces_sent(*edge, *sequence),
            Input::FetchCompleted(edge, number, sequence) => {
                machine.fetch_completed(now, *edge, *number, *sequence);
            }
            Input::FetchFailed(edge, number, sequence, total) => {
                machine.fetch_failed(*edge, *number, *sequence, *total);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reports a message that the program sends, or why it cannot.
fn report_begin(
    machine: &mut dipole_proto::Machine,
    edge: EdgeId,
    total: u64,
    error: Option<&BeginError>,
    observed: &mut Vec<Observed>,
) {
    let ends = machine.edge_key(edge).map(|key| key.ends());
    let name = ends.map_or("an edge".to_owned(), |(source, target)| {
        format!("{source}>{target}")
    });
    let (text, message) = match error {
        None => (
            format!("sends a message of {total} bytes on {name}"),
            ends.map(|ends| MessageCall::Begun(edge, ends, total)),
        ),
        Some(cause) => (
            format!("cannot send {total} bytes on {name}: {cause}"),
            Some(MessageCall::Blocked(edge)),
        ),
    };
    report_call(Some(edge.peer), text, message, observed);
}

fn report_call(
    peer: Option<PeerId>,
    text: String,
    message: Option<MessageCall>,
    observed: &mut Vec<Observed>,
) {
    observed.push(Observed::Call {
        peer,
        text,
        message,
    });
}

fn compare_unit(
    machine: &mut dipole_proto::Machine,
    check: crate::check::Check,
) -> Result<(), Mismatch> {
    match machine.take_assembled() {
        Some(whole) if crate::check::Check::of(&whole[..]) == check => Ok(()),
        Some(whole) => Err(("other bytes".to_owned(), format!("{} bytes", whole.len()))),
        None => Err(("a unit in parts".to_owned(), "none".to_owned())),
    }
}

/// An address as people write it.
struct Shown(Address);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ip = std::net::Ipv6Addr::from(self.0.ip).to_canonical();
        std::net::SocketAddr::new(ip, self.0.port).fmt(f)
    }
}

/// A length that a damaged file may have made too large.
fn size(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
