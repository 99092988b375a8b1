//! Holes of files.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// True for a file that may have holes.
pub(super) fn is_sparse(found: &Metadata) -> bool {
    found.is_file() && found.blocks().saturating_mul(512) < found.len()
}

/// The next range of a sparse file that holds data, from this offset on.
pub(super) fn extent(
    file: &File,
    from_bytes: u64,
    length_bytes: u64,
) -> io::Result<Option<(u64, u64)>> {
    let begin = match rustix::fs::seek(file, SeekFrom::Data(from_bytes)) {
        Ok(begin) => begin,
        // A hole up to the end.
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from_bytes, length_bytes))),
        Err(cause) => return Err(cause.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin))?.min(length_bytes);
    Ok(Some((begin, end)).filter(|_| begin < end))
}

/// Fills the buffer from this offset on, as far as the file goes.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset_bytes + filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_leave_holes_out() {
        let mut file = tempfile::tempfile().unwrap();
        let length = 1 << 24;
        file.set_len(length).unwrap();
        io::Write::write_all(&mut file, b"x").unwrap();
        let (begin, end) = extent(&file, 0, length).unwrap().unwrap();
        assert!(begin == 0 && (1..=length).contains(&end));
        let mut buffer = [1; 4];
        assert_eq!(read_at(&file, &mut buffer, length - 2).unwrap(), 2);
        assert_eq!(buffer, [0, 0, 1, 1]);
    }
}
