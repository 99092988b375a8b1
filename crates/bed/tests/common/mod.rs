//! What the tests share: skipping aloud.

use dipole_bed::{Bed, Builder};

/// The bed, or a word why there is none.
pub(crate) fn make(builder: Builder) -> Option<Bed> {
    if let Some(why) = Bed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let bed = builder.build().expect("a bed can be made here");
    eprintln!("{}", bed.description());
    Some(bed)
}
