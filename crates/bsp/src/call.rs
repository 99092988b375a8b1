//! A call of the program and its position in the source.

use std::fmt;

/// A call that the program has made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Name of the function.
    pub name: &'static str,
    /// Source file and line, if known.
    pub place: Option<(&'static str, u32)>,
}

impl Call {
    /// True if name and place are the same static strings. Equal strings at other addresses do not
    /// count, so that this stays cheap.
    #[inline]
    pub(crate) fn is_same(&self, other: &Call) -> bool {
        let place = |call: &Call| call.place.map(|(file, line)| (file.as_ptr(), line));
        std::ptr::eq(self.name, other.name) && place(self) == place(other)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.place {
            Some((file, line)) => write!(f, " at {file}:{line}"),
            None => Ok(()),
        }
    }
}
