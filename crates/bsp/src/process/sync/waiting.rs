//! What a rank says while it waits.

use super::super::Call;
use crate::patience::Patience;

/// Says for which ranks a rank waits, now and then.
pub(super) fn tell(call: &Call, rank: u32, epoch: u32, patience: &mut Patience, waits: &[u32]) {
    let names: Vec<_> = waits.iter().map(ToString::to_string).collect();
    let words = match waits {
        [] => "other nodes to take what is sent to them".to_owned(),
        [_] => format!("rank {}", names[0]),
        _ => format!("ranks {}", names.join(", ")),
    };
    tell_words(call, rank, epoch, patience, &words);
}

pub(super) fn tell_words(call: &Call, rank: u32, epoch: u32, patience: &mut Patience, waits: &str) {
    if let Some(waited) = patience.word() {
        let waited = waited.as_secs();
        // The first is the one in which all begin.
        let superstep = match epoch {
            1 => String::new(),
            _ => format!(", superstep {}", epoch.wrapping_sub(2)),
        };
        eprintln!("bsp: rank {rank}{superstep}: {call} has waited {waited} s for {waits}");
    }
}
