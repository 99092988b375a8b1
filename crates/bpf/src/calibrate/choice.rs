//! From figures to choices: what is usual stays unless something else is clearly faster.

use super::{Calibration, Figure, RUNS, Receive, SIZES, Send};

/// Longest run of full bulk frames to one destination that leaves as raw ones, where nothing
/// was measured. (`docs/bpf.md`: one raw frame 2.5 us, by the socket 3.6; two 5.1 and 4.1.)
pub const DEFAULT_RAW_RUN_FRAMES: usize = 1;

/// What a link does on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// By what small packets come.
    pub receive: Receive,
    /// By what small packets leave where there is a way: [`Send::AfPacket`] or [`Send::AfXdp`].
    pub send: Send,
    /// The longest run of full bulk frames to one destination that leaves as raw ones.
    pub raw_run_frames: usize,
}

impl Default for Choices {
    /// A ring filled at TCX, AF_PACKET, single bulk frames.
    fn default() -> Self {
        Choices {
            receive: Receive::Tcx,
            send: Send::AfPacket,
            raw_run_frames: DEFAULT_RAW_RUN_FRAMES,
        }
    }
}

impl Calibration {
    /// What follows from the figures. AF_XDP needs a queue of its own, and both directions
    /// cannot have it, so only cards with one queue get it, and for sending only where it is
    /// not taken for receiving.
    #[must_use]
    pub fn choices(&self) -> Choices {
        let receive = self.receive();
        Choices {
            receive,
            send: match receive {
                Receive::AfXdp => Send::AfPacket,
                _ => self.send(),
            },
            raw_run_frames: self.raw_run_frames(),
        }
    }

    fn has_one_queue(&self) -> bool {
        self.facts.queues == Some(1)
    }

    fn receive(&self) -> Receive {
        let figure = |receive| self.receives.get(&(receive, SIZES[0]));
        let rings = [Receive::Tcx, Receive::XdpGeneric];
        // The first that the kernel has at all.
        let Some(mut best) = rings.into_iter().find(|one| figure(*one).is_some()) else {
            return Receive::Tcx;
        };
        for other in Receive::ALL {
            let is_allowed = other != Receive::AfXdp || self.has_one_queue();
            if is_allowed && is_clearly_below(figure(other), figure(best)) {
                best = other;
            }
        }
        best
    }

    fn send(&self) -> Send {
        let wins = SIZES.iter().all(|bytes| {
            let figure = |way| self.sends.get(&(way, *bytes));
            is_clearly_below(figure(Send::AfXdp), figure(Send::AfPacket))
        });
        match wins && self.has_one_queue() {
            true => Send::AfXdp,
            false => Send::AfPacket,
        }
    }

    fn raw_run_frames(&self) -> usize {
        let mut longest = 0;
        for frames in RUNS {
            let figure = |way| self.runs.get(&(way, frames));
            let (raw, socket) = (figure(Send::AfPacket), figure(Send::Socket));
            let usual = frames <= DEFAULT_RAW_RUN_FRAMES;
            let is_raw = match usual {
                true => !is_clearly_below(socket, raw),
                false => is_clearly_below(raw, socket),
            };
            if !is_raw {
                break;
            }
            longest = frames;
        }
        longest
    }
}

fn is_clearly_below(one: Option<&Figure>, other: Option<&Figure>) -> bool {
    one.zip(other)
        .is_some_and(|(one, other)| one.clearly_below(other))
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::sample;
    use super::*;

    fn figure(median_ns: u64) -> Figure {
        Figure {
            median_ns,
            spread_ns: 100,
        }
    }

    /// On a card with one queue, nothing measured.
    fn empty() -> Calibration {
        let mut empty = sample();
        empty.facts.queues = Some(1);
        empty.sends.clear();
        empty.runs.clear();
        empty.receives.clear();
        empty
    }

    #[test]
    fn without_figures_all_is_as_usual() {
        assert_eq!(empty().choices(), Choices::default());
    }

    #[test]
    fn only_what_is_clearly_faster_is_taken_instead() {
        let mut found = empty();
        for (receive, ns) in [(Receive::Tcx, 1000), (Receive::XdpGeneric, 950)] {
            found.receives.insert((receive, 64), figure(ns));
        }
        assert_eq!(found.choices().receive, Receive::Tcx);
        found
            .receives
            .insert((Receive::XdpGeneric, 64), figure(800));
        assert_eq!(found.choices().receive, Receive::XdpGeneric);
        found.receives.insert((Receive::AfXdp, 64), figure(750));
        assert_eq!(found.choices().receive, Receive::XdpGeneric);
        // Where the kernel lacks the usual one.
        found.receives.remove(&(Receive::Tcx, 64));
        assert_eq!(found.choices().receive, Receive::XdpGeneric);
    }

    #[test]
    fn a_queue_goes_to_one_direction_of_a_card_that_has_one() {
        let mut found = empty();
        for bytes in SIZES {
            found.sends.insert((Send::AfPacket, bytes), figure(2000));
            found.sends.insert((Send::AfXdp, bytes), figure(1000));
        }
        assert_eq!(found.choices().send, Send::AfXdp);
        found.receives.insert((Receive::Tcx, 64), figure(2000));
        found.receives.insert((Receive::AfXdp, 64), figure(1000));
        let choices = found.choices();
        assert_eq!(
            (choices.receive, choices.send),
            (Receive::AfXdp, Send::AfPacket)
        );
        for queues in [None, Some(2)] {
            found.facts.queues = queues;
            let choices = found.choices();
            assert_eq!(
                (choices.receive, choices.send),
                (Receive::Tcx, Send::AfPacket)
            );
        }
    }

    #[test]
    fn runs_are_raw_as_long_as_the_socket_is_dearer() {
        let mut found = empty();
        let mut set = |frames, raw, socket| {
            found.runs.insert((Send::AfPacket, frames), figure(raw));
            found.runs.insert((Send::Socket, frames), figure(socket));
            found.choices().raw_run_frames
        };
        assert_eq!(set(1, 2500, 3600), 1);
        assert_eq!(set(2, 5000, 4100), 1);
        assert_eq!(set(4, 100, 4300), 1, "a gap ends it");
        assert_eq!(set(2, 3000, 4100), 4);
        assert_eq!(set(1, 2500, 2450), 4, "not clearly dearer");
        assert_eq!(set(1, 2500, 1500), 0);
    }
}
