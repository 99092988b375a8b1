//! What a testbed's namespaces and folder are called. A name carries the process id
//! of its owner, so that what a killed one left is known as such.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where `ip netns` keeps its names.
pub(crate) const NAMESPACES: &str = "/run/netns";
/// What our namespaces begin with; process id, testbed and node (or `hub`) follow.
const PREFIX: &str = "dpc";
/// What our folders in the temporary directory begin with; process id and testbed follow.
const FOLDER_PREFIX: &str = "dipole-testbed-";
/// The namespace of the bridges.
const HUB: &str = "hub";

pub(crate) fn node(testbed: u32, node: u32) -> String {
    format!("{PREFIX}{}-{testbed}-{node}", std::process::id())
}

pub(crate) fn hub(testbed: u32) -> String {
    format!("{PREFIX}{}-{testbed}-{HUB}", std::process::id())
}

/// A namespace made to see whether one can be made; it has the form of a node's and
/// is swept like one.
pub(crate) fn probe() -> String {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let count = TRIED.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}-0", std::process::id())
}

pub(crate) fn folder(testbed: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{FOLDER_PREFIX}{}-{testbed}", std::process::id()))
}

/// The interface of every node on this network.
pub(crate) fn interface(network: u32) -> String {
    format!("net{network}")
}

/// The bridge's end of a node's cable.
pub(crate) fn port(node: u32, network: u32) -> String {
    format!("n{node}k{network}")
}

/// The file that stands for a namespace.
pub(crate) fn path(namespace: &str) -> PathBuf {
    Path::new(NAMESPACES).join(namespace)
}

/// The process a namespace belongs to, if it is a testbed's.
pub(crate) fn namespace_owner(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let owner = number(parts.next()?)?;
    number(parts.next()?)?;
    let place = parts.next()?;
    (parts.next().is_none() && (place == HUB || number(place).is_some())).then_some(owner)
}

/// The process a folder belongs to, if it is a testbed's.
pub(crate) fn folder_owner(name: &str) -> Option<u32> {
    let (owner, testbed) = name.strip_prefix(FOLDER_PREFIX)?.split_once('-')?;
    number(testbed)?;
    number(owner)
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner_and_foreign_names_tell_none() {
        let ours = Some(std::process::id());
        assert_eq!(namespace_owner(&node(7, 12)), ours);
        assert_eq!(namespace_owner(&hub(7)), ours);
        let folder = folder(3);
        let name = folder.file_name().and_then(|name| name.to_str());
        assert_eq!(folder_owner(name.unwrap()), ours);
        for foreign in [
            "dpc",
            "dpc1",
            "dpc1-2",
            "dpc1-2-x",
            "dpc1-2-3-4",
            "dpc+1-2-3",
            "dpb1a",
        ] {
            assert_eq!(namespace_owner(foreign), None, "{foreign}");
        }
        for foreign in [
            "dipole-testbed-",
            "dipole-testbed-1",
            "dipole-testbed-x-1",
            "dipole-bench-1",
        ] {
            assert_eq!(folder_owner(foreign), None, "{foreign}");
        }
    }
}
