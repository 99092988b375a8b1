//! Other processors than x86-64: nothing can be saved or restored.

use std::convert::Infallible;
use std::path::PathBuf;

use crate::chain::Chain;
use crate::error::{CaptureError, Outcome, RestoreError, Until};
use crate::image::Identity;
use crate::store::Store;

const REASON: &str = "images are written and restored on x86-64 processors only";

/// Takes no images.
#[derive(Debug, Default)]
pub struct Recorder;

impl Recorder {
    /// Refuses to take an image.
    ///
    /// # Errors
    /// Always: the processor is not supported.
    pub fn take(
        &mut self,
        _store: &Store,
        _identity: Identity,
        _ignored: &[PathBuf],
        _reporter: &str,
        _until: Until,
    ) -> Result<Outcome, CaptureError> {
        Err(CaptureError::Unsupported(REASON.to_owned()))
    }

    /// False: no image is written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        false
    }
}

/// Why images of processes on this machine cannot leave out what has not changed.
#[must_use]
pub fn full_images_only() -> Option<String> {
    Some(REASON.to_owned())
}

/// Refuses to restore an image.
///
/// # Errors
/// Always: the processor is not supported.
pub fn restore(
    images: Chain,
    _environment: &[(String, String)],
) -> Result<Infallible, RestoreError> {
    Err(RestoreError::Machine {
        path: images.path().to_owned(),
        reason: REASON.to_owned(),
    })
}
