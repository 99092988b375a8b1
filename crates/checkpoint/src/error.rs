//! How taking and restoring an image can end.

use std::io;
use std::path::PathBuf;

use crate::image::ImageError;
use crate::store::StoreError;

/// Why no image was taken. The process goes on.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The program uses something that an image cannot hold.
    #[error("this program cannot be saved: {0}")]
    Unsupported(String),
    /// A system call failed.
    #[error("{doing} failed: {cause}")]
    System {
        /// The action.
        doing: &'static str,
        /// The error of the system.
        cause: io::Error,
    },
    /// The directory cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The child that writes the image has printed why it failed.
    #[error("its image was not written, for the reason that is printed above")]
    NotWritten,
}

/// When [`take`](crate::Recorder::take) returns in the process that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A child writes the image.
    Begun,
    /// The image is complete.
    Written,
}

/// How [`take`](crate::Recorder::take) returned.
#[derive(Debug)]
pub enum Outcome {
    /// The process goes on; a child writes the image.
    Continued,
    /// This process was restored from the image. The variables are the environment that
    /// [`restore`](crate::restore()) was given; the old ones are still set.
    Restored(Vec<(String, String)>),
}

/// Why an image cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not a usable image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The image needs another machine.
    #[error("{} cannot be restored here: {reason}", .path.display())]
    Machine {
        /// The file.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
    /// A system call failed.
    #[error("{doing} failed: {cause}")]
    System {
        /// The action.
        doing: &'static str,
        /// The error of the system.
        cause: io::Error,
    },
}
