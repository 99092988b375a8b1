//! What a rank says while it waits.

use dipole_link::clock::monotonic_ns;

use crate::call::Call;
use crate::local::{Mates, Milestone};
use crate::patience::Patience;
use crate::trace::Tracer;

/// A wait for a rank of the node, which counts if it is traced and that rank has not come before.
pub(super) struct Wait(Option<u64>);

impl Wait {
    #[inline]
    pub(super) fn begin(
        trace: &Option<Box<Tracer>>,
        mates: &Mates,
        (mate, milestone, epoch): (usize, Milestone, u32),
    ) -> Wait {
        let is_traced = trace.is_some();
        let waits = is_traced && mates.board(mate).has_reached(milestone, epoch).is_err();
        Wait(waits.then(monotonic_ns))
    }

    #[inline]
    pub(super) fn end(self, trace: &mut Option<Box<Tracer>>, rank: u32) {
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

pub(super) fn tell_words(
    call: &Call,
    rank: u32,
    superstep: u32,
    patience: &mut Patience,
    waits: &str,
) {
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
