//! The key of a node without a hosts file, with which the processes of its user authenticate
//! each other.
//!
//! It is a private file in the registry, created by the first process that needs it. It protects
//! the processes of this user from packets that other users send to the same ports.

use std::io;

use super::{Registry, RegistryError, folder};
use crate::key::{ClusterKey, KeyError, Security};

/// Name of the file.
pub(super) const NAME: &str = "key";

impl Registry {
    /// The key of this node and user, created if it does not exist.
    ///
    /// # Errors
    /// It cannot be read or written, or is damaged.
    pub fn own_key(&self) -> Result<ClusterKey, RegistryError> {
        let path = self.folder.join(NAME);
        let failed = |error| match error {
            KeyError::System { doing, cause, file } => RegistryError::Io {
                doing,
                path: file,
                cause,
            },
            _ => RegistryError::Corrupt {
                path: path.clone(),
                reason: "no key that is this user's alone",
            },
        };
        let known = || match ClusterKey::load(&path) {
            Err(KeyError::System { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => None,
            known => Some(known.map_err(failed)),
        };
        // The lock is needed only to create the key.
        if let Some(known) = known() {
            return known;
        }
        let _guard = folder::lock(&self.folder, folder::Mode::Exclusive)?;
        if let Some(known) = known() {
            return known;
        }
        // Packets stay on this machine, where other users cannot read or change them.
        let key = ClusterKey::random().map_err(folder::failed("making", &path))?;
        let key = key.with_security(Security::Off);
        // Rename a complete file into place: a process killed here leaves no truncated key.
        let fresh = self.folder.join("key.new");
        folder::remove(&fresh)?;
        key.save(&fresh).map_err(failed)?;
        std::fs::rename(&fresh, &path).map_err(folder::failed("writing", &path))?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::address::NodeId;

    #[test]
    fn all_processes_of_a_node_get_one_key_that_no_other_user_can_read() {
        let base = tempfile::tempdir().unwrap();
        let open = |node| Registry::open(&base.path().join("dipole"), NodeId(node)).unwrap();
        let first = open(1);
        let key = first.own_key().unwrap();
        assert!(open(1).own_key().unwrap() == key);
        assert!(open(2).own_key().unwrap() != key);
        let file = first.path().join(NAME);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        // Files of a killed process are overwritten.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(first.path().join("key.new"), "half").unwrap();
        assert!(first.own_key().unwrap() != key);
        std::fs::write(&file, "no key").unwrap();
        let error = first.own_key().unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
