//! The first steps of a forked child.

use pyo3::prelude::*;

use crate::{channels, process};

/// To be called in a forked child, which opens a node of its own.
#[pyfunction]
pub(crate) fn forked() {
    process::forget();
    channels::forget_sent();
}
