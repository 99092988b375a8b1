//! An image with all images that it builds on.

use std::path::Path;

use crate::image::{Content, Header, Identity, Image, ImageError};
use crate::store::Store;

/// Images of one process that build on each other, whose headers have been read and checked.
#[derive(Debug)]
pub struct Chain {
    /// The last one first, the full one last.
    images: Vec<Image>,
}

impl Chain {
    /// Opens an image in the folder of a job, and those that it builds on.
    ///
    /// # Errors
    /// One of them cannot be read, is not an intact image, could be another user's, is missing, or is
    /// not the one that was built on.
    pub fn open(path: &Path) -> Result<Chain, ImageError> {
        let mut images = vec![Image::open(path)?];
        while let Some((image, base)) = images.last().and_then(|it| Some((it, it.header.base?))) {
            let missing = || ImageError::BaseMissing {
                path: image.path().to_owned(),
                base: base.set,
            };
            let folder = image.path().parent().and_then(Path::parent);
            let store = Store::new(folder.ok_or_else(missing)?.to_owned());
            // The header has been checked: the number becomes smaller each time.
            let identity = Identity {
                set: base.set,
                ..image.identity()
            };
            let next = store.image(identity);
            if !next.exists() {
                return Err(missing());
            }
            let next = Image::open(&next)?;
            if next.identity() != identity || next.header.id != base.id {
                return Err(ImageError::OtherBase {
                    path: image.path().to_owned(),
                    base: next.path().to_owned(),
                });
            }
            images.push(next);
        }
        Ok(Chain { images })
    }

    /// The file of the last image.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.images[0].path()
    }

    /// The files, the last one first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.images.iter().map(Image::path)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.images[0].header
    }

    /// Reads the memory of the last image: the chunks of all images in the order in which they were
    /// written, so a later one replaces what an earlier one has at the same addresses.
    pub(crate) fn read_chunks(
        &mut self,
        take: &mut dyn FnMut(u64, Content<'_>) -> std::io::Result<()>,
    ) -> Result<(), ImageError> {
        self.images
            .iter_mut()
            .rev()
            .try_for_each(|image| image.read_chunks(take))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::image::tests::header;
    use crate::image::{Base, Writer};

    /// Writes an image, and returns its path.
    fn write(store: &Store, set: u64, base: Option<Base>, id: u64) -> std::path::PathBuf {
        let mut header = header();
        header.identity.set = set;
        (header.base, header.id) = (base, id);
        let part = store.begin(header.identity, base.map(|base| base.set));
        let part = part.expect("own folder");
        let mut writer = Writer::begin(part.file().expect("a file"), &header).expect("written");
        let value = u8::try_from(set).expect("few sets");
        writer.chunk(0x1000, &[value; 0x1000]).expect("written");
        writer.end().expect("written");
        part.commit().expect("own folder");
        part.image().to_owned()
    }

    #[test]
    fn an_image_is_read_with_all_on_which_it_builds() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().to_owned());
        let base = |set| Some(Base { set, id: 10 + set });
        let first = write(&store, 1, None, 11);
        let second = write(&store, 2, base(1), 12);
        let third = write(&store, 3, base(2), 13);
        let mut chain = Chain::open(&third).expect("intact");
        assert_eq!(
            chain.paths().collect::<Vec<_>>(),
            [&*third, &*second, &*first]
        );
        let mut values = Vec::new();
        let read = chain.read_chunks(&mut |_, content| {
            if let Content::Bytes(bytes) = content {
                values.push(bytes[0]);
            }
            Ok(())
        });
        read.expect("intact");
        assert_eq!(values, [1, 2, 3]);
    }

    #[test]
    fn a_missing_foreign_or_damaged_base_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().to_owned());
        let first = write(&store, 1, None, 11);
        let second = write(&store, 2, Some(Base { set: 1, id: 11 }), 12);
        let refusal = || {
            Chain::open(&second)
                .expect_err("it is of no use")
                .to_string()
        };
        let bytes = fs::read(&first).expect("an image");
        write(&store, 1, None, 99);
        assert!(
            refusal().contains("changes since another image"),
            "{}",
            refusal()
        );
        fs::write(&first, &bytes[..bytes.len() - 2]).expect("own file");
        let mut halved = Chain::open(&second).expect("its head is intact");
        let read = halved.read_chunks(&mut |_, _| Ok(()));
        assert!(matches!(read, Err(ImageError::Damaged { .. })), "{read:?}");
        fs::set_permissions(&first, fs::Permissions::from_mode(0o666)).expect("own file");
        assert!(refusal().contains("others may write it"), "{}", refusal());
        fs::remove_file(&first).expect("own file");
        assert!(
            refusal().contains("whose image of this rank is missing"),
            "{}",
            refusal()
        );
    }
}
