//! Images on their way between the folders of several hosts.

use std::fs::File;
use std::io::{self, Write};

use crate::image::{Identity, Image, ImageError};
use crate::sets::ImageName;
use crate::store::{PartFile, Store, StoreError};

/// Why a copy of an image was not stored.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be written, or is not what was announced.
    #[error("the copy of {image} was not stored: {cause}")]
    Write {
        /// The image.
        image: ImageName,
        /// The error of the system.
        cause: io::Error,
    },
    /// It is damaged.
    #[error(transparent)]
    Damaged(#[from] ImageError),
}

fn identity(image: ImageName) -> Identity {
    Identity {
        set: image.set,
        rank: image.name.rank,
        size: image.name.size,
    }
}

impl Store {
    /// Opens a complete image in order to send it.
    ///
    /// # Errors
    /// It does not exist or cannot be read.
    pub fn open_image(&self, image: ImageName) -> io::Result<File> {
        File::open(self.file_of(image))
    }

    /// Begins to store a copy of a complete image.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn receive(&self, image: ImageName) -> Result<Incoming, CopyError> {
        let part = self.begin(identity(image), image.name.base)?;
        let file = part
            .file()
            .map_err(|cause| CopyError::Write { image, cause })?;
        Ok(Incoming {
            image,
            part: Some(part),
            file,
        })
    }
}

/// A copy of an image that is being received. It is removed unless it is committed.
#[derive(Debug)]
pub struct Incoming {
    image: ImageName,
    part: Option<PartFile>,
    file: File,
}

impl Incoming {
    /// The image.
    #[must_use]
    pub fn image(&self) -> ImageName {
        self.image
    }

    /// Adds bytes to it.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        let image = self.image;
        let written = self.file.write_all(bytes);
        written.map_err(|cause| CopyError::Write { image, cause })
    }

    /// Gives it its name, if it is intact and the image that was announced.
    ///
    /// # Errors
    /// It is damaged or another image, or cannot be renamed.
    pub fn commit(mut self) -> Result<(), CopyError> {
        let Some(part) = &self.part else {
            return Ok(());
        };
        let image = self.image;
        let failed = |cause| CopyError::Write { image, cause };
        let received = Image::open(part.path())?;
        let base = received.header.base.map(|base| base.set);
        if (received.identity(), base) != (identity(image), image.name.base) {
            return Err(failed(io::Error::other("it is another image")));
        }
        received.verify()?;
        part.commit().map_err(failed)?;
        self.part = None;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            part.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::image::tests::header;
    use crate::image::{Base, Writer};

    /// Writes an image to a folder; returns its name and content.
    fn written(store: &Store, base: Option<Base>) -> (ImageName, Vec<u8>) {
        let mut header = header();
        (header.identity.set, header.base) = (5, base);
        let part = store.begin(header.identity, base.map(|base| base.set));
        let part = part.expect("own folder");
        let mut writer = Writer::begin(part.file().expect("a file"), &header).expect("written");
        writer.chunk(0x1000, &[7; 0x3000]).expect("written");
        writer.end().expect("written");
        part.commit().expect("own folder");
        let image = store.images().expect("a folder").pop().expect("an image");
        let bytes = fs::read(store.file_of(image)).expect("an image");
        (image, bytes)
    }

    #[test]
    fn a_copy_is_the_same_image_under_the_same_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = Store::new(folder.path().join("from"));
        let to = Store::new(folder.path().join("to"));
        let (image, bytes) = written(&from, Some(Base { set: 3, id: 9 }));
        let mut incoming = to.receive(image).expect("own folder");
        for piece in bytes.chunks(1000) {
            incoming.write(piece).expect("own folder");
        }
        assert!(!to.images().expect("a folder")[0].is_complete());
        incoming.commit().expect("intact");
        assert_eq!(to.images().expect("a folder"), [image]);
        assert_eq!(fs::read(to.file_of(image)).expect("a copy"), bytes);
        to.remove(&[image, image]).expect("own folder");
        assert!(to.images().expect("a folder").is_empty());
    }

    #[test]
    fn a_damaged_cut_or_other_image_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = Store::new(folder.path().join("from"));
        let to = Store::new(folder.path().join("to"));
        let (image, bytes) = written(&from, None);
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        let other = ImageName { set: 6, ..image };
        for (name, bytes) in [
            (image, &damaged[..]),
            (image, &bytes[..bytes.len() - 1]),
            (image, &[]),
            (other, &bytes[..]),
        ] {
            let mut incoming = to.receive(name).expect("own folder");
            incoming.write(bytes).expect("own folder");
            incoming.commit().expect_err("refused");
            assert!(to.images().expect("a folder").is_empty());
        }
        drop(to.receive(image).expect("own folder"));
        assert!(to.images().expect("a folder").is_empty());
    }
}
