//! Records the inputs of the protocol core, if `DIPOLE_RECORD` names a directory.

use dipole_driver::Clock;
use dipole_engine::Engine;
use dipole_record::{DEFAULT_BYTES, Options};

use crate::environment::{record_bytes, record_dir, variables};

/// Begins to record this process if the user has requested it. A process that cannot be recorded
/// reports that and runs without a recording.
pub(crate) fn start(engine: &mut Engine, clock: Clock) {
    let Some(directory) = record_dir() else {
        return;
    };
    let options = Options {
        directory,
        bytes: record_bytes().unwrap_or(DEFAULT_BYTES),
        since_1970_ns: clock.since_1970_ns(),
    };
    let place = options.directory.display().to_string();
    if let Err(cause) = engine.record(options, clock.now()) {
        let (name, pid) = (variables::RECORD, std::process::id());
        eprintln!(
            "dipole: process {pid} is not recorded: cannot create a file in {place} ({name}): \
             {cause}"
        );
    }
}
