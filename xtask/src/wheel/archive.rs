//! The archive of a wheel, and the record of its files. Two archives of the same files are equal.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::command::{Failure, at};

/// A wheel that is being written.
pub(super) struct Archive {
    path: PathBuf,
    zip: ZipWriter<BufWriter<File>>,
    record: String,
    method: CompressionMethod,
}

impl Archive {
    pub(super) fn create(path: &Path, compressed: bool) -> Result<Archive, Failure> {
        let file = File::create(path).map_err(at(path))?;
        let method = match compressed {
            true => CompressionMethod::Deflated,
            false => CompressionMethod::Stored,
        };
        Ok(Archive {
            path: path.to_owned(),
            zip: ZipWriter::new(BufWriter::new(file)),
            record: String::new(),
            method,
        })
    }

    /// Adds a file.
    pub(super) fn add(
        &mut self,
        name: &str,
        bytes: &[u8],
        executable: bool,
    ) -> Result<(), Failure> {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        self.record += &format!("{name},sha256={hash},{}\n", bytes.len());
        self.write(name, bytes, executable)
    }

    fn write(&mut self, name: &str, bytes: &[u8], executable: bool) -> Result<(), Failure> {
        // With the default time, the first that the format knows.
        let options = SimpleFileOptions::default()
            .compression_method(self.method)
            .unix_permissions(if executable { 0o755 } else { 0o644 });
        let failed = at(&self.path);
        let written = self
            .zip
            .start_file(name, options)
            .map_err(std::io::Error::from)
            .and_then(|()| self.zip.write_all(bytes));
        written.map_err(failed)
    }

    /// Adds the record of all files under this name, and ends the archive.
    pub(super) fn finish(mut self, name: &str) -> Result<(), Failure> {
        let record = format!("{}{name},,\n", self.record);
        self.write(name, record.as_bytes(), false)?;
        let ended = self.zip.finish().map_err(std::io::Error::from);
        ended
            .and_then(|mut file| file.flush())
            .map_err(at(&self.path))
    }
}
