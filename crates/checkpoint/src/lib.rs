//! Images of processes, without privileges and without changes to the program.
//!
//! [`Recorder::take`] forks: the program goes on at once, and a child writes the image from a frozen
//! copy of the memory, without the pages that have not changed since the last image. [`restore()`]
//! replaces the calling process by the one in a [`Chain`] of images. [`Store`] keeps the images of a
//! job in a directory; a set of them counts only when it is complete.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 8: at a barrier, local checkpoints are a global one.

// On other processors nothing calls most of this.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

mod chain;
mod copies;
mod descriptors;
mod error;
mod image;
mod incoming;
mod interval;
mod machine;
mod maps;
mod migration;
mod sets;
mod store;

#[cfg(target_arch = "x86_64")]
mod capture;
#[cfg(target_arch = "x86_64")]
mod context;
#[cfg(target_arch = "x86_64")]
mod handover;
#[cfg(target_arch = "x86_64")]
mod history;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(all(test, target_arch = "x86_64"))]
mod model;
#[cfg(target_arch = "x86_64")]
mod ranges;
#[cfg(target_arch = "x86_64")]
mod restore;
#[cfg(target_arch = "x86_64")]
mod scratch;
#[cfg(target_arch = "x86_64")]
mod thread;
#[cfg(target_arch = "x86_64")]
mod tracker;
#[cfg(target_arch = "x86_64")]
mod transfer;
#[cfg(not(target_arch = "x86_64"))]
mod unsupported;

#[cfg(target_arch = "x86_64")]
pub use capture::Recorder;
pub use chain::Chain;
pub use copies::{Copies, Fetch};
pub use descriptors::close_inherited;
pub use error::{CaptureError, Outcome, RestoreError, Until};
#[doc(hidden)]
pub use image::is_intact;
pub use image::{Identity, Image, ImageError};
pub use incoming::{CopyError, Incoming};
pub use interval::Interval;
pub use migration::{
    Answer, MIGRATION, MigrationRequest, Moved, Note, Order, Prepared, end_without_handlers,
};
#[cfg(target_arch = "x86_64")]
pub use restore::restore;
pub use sets::{ImageName, Set};
pub use store::{Store, StoreError};
#[cfg(target_arch = "x86_64")]
pub use tracker::full_images_only;
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::{Recorder, full_images_only, restore};
