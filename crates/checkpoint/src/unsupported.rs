//! Other processors than x86-64: nothing can be saved or restored.

use std::convert::Infallible;
use std::path::PathBuf;

use crate::error::{CaptureError, Outcome, RestoreError, Until};
use crate::image::{Identity, Image};
use crate::store::Store;

const REASON: &str = "images are written and restored on x86-64 processors only";

/// Refuses to take an image.
///
/// # Errors
/// Always: the processor is not supported.
pub fn take(
    _store: &Store,
    _identity: Identity,
    _ignored: &[PathBuf],
    _reporter: &str,
    _until: Until,
) -> Result<Outcome, CaptureError> {
    Err(CaptureError::Unsupported(REASON.to_owned()))
}

/// Refuses to restore an image.
///
/// # Errors
/// Always: the processor is not supported.
pub fn restore(
    image: Image,
    _environment: &[(String, String)],
) -> Result<Infallible, RestoreError> {
    Err(RestoreError::Machine {
        path: image.path().to_owned(),
        reason: REASON.to_owned(),
    })
}
