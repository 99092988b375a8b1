//! Waiting for ranks of the node, and what a rank says while it waits.

use std::time::Duration;

use dipole_link::clock::monotonic_ns;

use super::super::Process;
use crate::call::Call;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{Mates, Milestone};
use crate::patience::Patience;
use crate::trace::Tracer;

/// How long a rank sleeps for another one of its node before it looks whether that lives.
const SLEEP: Duration = Duration::from_millis(100);
/// The same where messages may come from other nodes, or have not left yet.
const LISTEN: Duration = Duration::from_millis(10);
const SEND: Duration = Duration::from_millis(1);

impl<C: Carrier> Process<C> {
    /// Waits until a rank of this node has reached a milestone; `waits` says for what, if not for that rank.
    ///
    /// What was sent goes on leaving meanwhile, and what comes is taken: that rank may wait for ranks of
    /// other nodes, which wait for this one's messages, or for room that those have which came here.
    #[inline]
    pub(super) fn wait_for(
        &mut self,
        mate: usize,
        (milestone, epoch): (Milestone, u32),
        waits: Option<&str>,
    ) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let (rank, wait) = (
            mates.rank(mate),
            Wait::begin(&self.trace, mates, (mate, milestone, epoch)),
        );
        if !mates.wait_briefly(mate, milestone, epoch) {
            self.wait_long(mate, (milestone, epoch), waits)?;
        }
        wait.end(&mut self.trace, rank);
        Ok(())
    }

    #[cold]
    fn wait_long(
        &mut self,
        mate: usize,
        (milestone, epoch): (Milestone, u32),
        waits: Option<&str>,
    ) -> Result<(), Failure> {
        let mut patience = Patience::new();
        loop {
            let most = self.attend()?;
            let Some(mates) = &self.mates else {
                return Ok(());
            };
            if mates.sleep(mate, milestone, epoch, most)? {
                return Ok(());
            }
            let (rank, superstep) = (mates.rank(mate), self.superstep());
            match waits {
                None => tell(&self.call, self.rank, superstep, &mut patience, &[rank]),
                Some(words) => tell_words(&self.call, self.rank, superstep, &mut patience, words),
            }
        }
    }

    /// Goes on with messages to and from other nodes; how long it need not be done again.
    fn attend(&mut self) -> Result<Duration, Failure> {
        if self.carrier.is_none() || self.exchange.places().nodes() == 1 {
            return Ok(SLEEP);
        }
        let is_sent = self.transmit()?;
        while let Some((from, message)) = self.carrier()?.receive(Duration::ZERO)? {
            self.take(from, message)?;
        }
        Ok(match is_sent && self.carrier()?.has_left()? {
            true => LISTEN,
            false => SEND,
        })
    }
}

/// A wait for a rank of the node, which counts if it is traced and that rank has not come before.
struct Wait(Option<u64>);

impl Wait {
    #[inline]
    fn begin(
        trace: &Option<Box<Tracer>>,
        mates: &Mates,
        (mate, milestone, epoch): (usize, Milestone, u32),
    ) -> Wait {
        let is_traced = trace.is_some();
        let waits = is_traced && mates.board(mate).has_reached(milestone, epoch).is_err();
        Wait(waits.then(monotonic_ns))
    }

    #[inline]
    fn end(self, trace: &mut Option<Box<Tracer>>, rank: u32) {
        if let (Some(since_ns), Some(trace)) = (self.0, trace) {
            trace.waited(rank, since_ns);
        }
    }
}

/// Says for which ranks a rank waits, now and then.
pub(super) fn tell(call: &Call, rank: u32, superstep: u32, patience: &mut Patience, waits: &[u32]) {
    let names: Vec<_> = waits.iter().map(ToString::to_string).collect();
    let words = match waits {
        [] => "other nodes to take what is sent to them".to_owned(),
        [_] => format!("rank {}", names[0]),
        _ => format!("ranks {}", names.join(", ")),
    };
    tell_words(call, rank, superstep, patience, &words);
}

fn tell_words(call: &Call, rank: u32, superstep: u32, patience: &mut Patience, waits: &str) {
    if let Some(waited) = patience.word() {
        let waited = waited.as_secs();
        // Those before the first are in bsp_begin.
        let superstep = match superstep.cast_signed() {
            ..0 => String::new(),
            _ => format!(", superstep {superstep}"),
        };
        eprintln!("bsp: rank {rank}{superstep}: {call} has waited {waited} s for {waits}");
    }
}
