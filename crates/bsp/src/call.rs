//! Where the program is in its source.

use std::fmt;

/// A call of the program's, and where it stands in its source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// The source file and the line, if they are known.
    pub place: Option<(&'static str, u32)>,
}

impl Call {
    /// True of the same texts at the same place; equal ones elsewhere do not count.
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
