//! Creates testbeds, or prints why a test is skipped.

use dipole_testbed::{Builder, Testbed};

/// Creates the testbed. `None`, with a message, if that is impossible here.
pub(crate) fn make(builder: Builder) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = builder.build().expect("a testbed");
    eprintln!("{}", testbed.description());
    Some(testbed)
}
