//! What the tests share: skipping aloud.

use dipole_testbed::{Builder, Testbed};

/// The testbed, or a word why there is none.
pub(crate) fn make(builder: Builder) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = builder.build().expect("a testbed can be made here");
    eprintln!("{}", testbed.description());
    Some(testbed)
}
