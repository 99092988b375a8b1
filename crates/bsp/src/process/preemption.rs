//! The end of a job that its launcher needs the nodes of: all ranks write images, and end.

use dipole_checkpoint::{Outcome, Until, end_without_handlers};
use dipole_node::job::leave_launcher;

use super::{CLOSE_TIMEOUT, Process};
use crate::carrier::Carrier;
use crate::failure::Failure;

/// Exit status: the launcher shall start the job again (`EX_TEMPFAIL`).
const PREEMPTED: u8 = 75;

impl<C: Carrier> Process<C> {
    /// Writes an image, and ends this process when those of all ranks are written.
    ///
    /// # Errors
    /// A rank is lost. If an image cannot be written, the program goes on.
    pub(super) fn be_preempted(&mut self) -> Result<(), Failure> {
        let taken = self.take_image(Until::Written);
        let (rank, set) = (self.rank, taken.set);
        let complaint = match taken.result {
            Ok(Outcome::Restored(environment)) => {
                return self.continue_restored(&environment, taken.elapsed);
            }
            Ok(Outcome::Continued) => None,
            Err(error) => Some(error.to_string().into_bytes()),
        };
        let complaints =
            complaint.map(|text| (0..self.size).map(|to| (to, text.clone())).collect());
        let complaints: Vec<(u32, Vec<u8>)> = complaints.unwrap_or_default();
        if let Some(text) = self.exchange_hidden(&complaints)?.first() {
            if rank == 0 {
                eprintln!(
                    "bsp: the launcher preempts the job, but it cannot be saved and goes on: {}",
                    String::from_utf8_lossy(text)
                );
            }
            return Ok(());
        }
        if rank == 0 {
            eprintln!("bsp: the launcher preempts the job, which ends with checkpoint {set}");
        }
        self.close(CLOSE_TIMEOUT);
        let _was_open = leave_launcher();
        end_without_handlers(PREEMPTED)
    }
}
