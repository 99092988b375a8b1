//! Two network namespaces joined by one veth cable, for measurements without a bridge in between.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::cleanup;
use crate::error::TestbedError;
use crate::names;
use crate::namespace::ip;
use crate::testbed::Testbed;

const MTU_BYTES: u32 = 1500;

/// Two namespaces on one veth cable. Dropping it removes them and kills all processes in them.
#[derive(Debug)]
pub struct Pair {
    number: u32,
    folder: PathBuf,
    namespaces: [String; 2],
}

impl Pair {
    /// Name of the interface in both namespaces.
    pub const INTERFACE: &'static str = "veth0";
    /// Subnet of both interfaces.
    pub const SUBNET: &'static str = "10.97.0.0/24";
    /// Addresses of the two interfaces.
    pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 97, 0, 1), Ipv4Addr::new(10, 97, 0, 2)];

    /// Creates the two namespaces, after removing the leftovers of killed processes.
    ///
    /// # Errors
    /// [`TestbedError`]; everything created before is removed.
    pub fn create() -> Result<Pair, TestbedError> {
        if let Some(why) = Testbed::why_not() {
            return Err(TestbedError::NotHere { why });
        }
        cleanup::sweep();
        let number = cleanup::register(true)?;
        // After an error from here on, dropping removes what exists.
        let mut pair = Pair {
            number,
            folder: PathBuf::new(),
            namespaces: [1, 2].map(|node| names::node(number, node)),
        };
        pair.folder = cleanup::create_folder(number, None)?;
        let [one, other] = &pair.namespaces;
        for name in [one, other] {
            cleanup::create_namespace(number, name)?;
        }
        let device = Pair::INTERFACE;
        ip(&format!(
            "-n {one} link add {device} mtu {MTU_BYTES} type veth peer name {device} mtu {MTU_BYTES} \
             netns {other}"
        ))?;
        for (name, address) in pair.namespaces.iter().zip(Pair::ADDRESSES) {
            ip(&format!("-n {name} address add {address}/24 dev {device}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {device} up"))?;
        }
        Ok(pair)
    }

    /// Returns the names of the two namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &[String; 2] {
        &self.namespaces
    }

    /// Returns a folder that is removed with the pair.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Describes the pair in one line.
    #[must_use]
    pub fn description(&self) -> String {
        let [one, other] = &self.namespaces;
        format!("veth pair between the namespaces {one} and {other}, MTU {MTU_BYTES}")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        cleanup::remove(self.number);
    }
}

/// A folder for files of this process, which is removed when it is dropped, on SIGINT, SIGTERM and
/// SIGHUP, and after this process was killed.
#[derive(Debug)]
pub struct Folder {
    number: u32,
    path: PathBuf,
}

impl Folder {
    /// Creates an empty folder, after removing the leftovers of killed processes.
    ///
    /// # Errors
    /// [`TestbedError`].
    pub fn create() -> Result<Folder, TestbedError> {
        cleanup::sweep();
        let number = cleanup::register(true)?;
        let mut folder = Folder {
            number,
            path: PathBuf::new(),
        };
        folder.path = cleanup::create_folder(number, None)?;
        Ok(folder)
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove(self.number);
    }
}
