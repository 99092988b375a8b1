//! Names of namespaces and folders. They contain the process id of the owner, so that leftovers of a
//! killed process can be recognised.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Folder of named namespaces (`ip netns`).
pub(crate) const NAMESPACES: &str = "/run/netns";
/// Prefix of namespaces, followed by the process id, the testbed, and the node or `hub`.
const PREFIX: &str = "dpc";
/// Prefix of folders in the temporary directory, followed by the process id and the testbed.
const FOLDER_PREFIX: &str = "dipole-testbed-";
/// Name of the namespace with the bridges.
const HUB: &str = "hub";

pub(crate) fn node(testbed: u32, node: u32) -> String {
    format!("{PREFIX}{}-{testbed}-{node}", std::process::id())
}

pub(crate) fn hub(testbed: u32) -> String {
    format!("{PREFIX}{}-{testbed}-{HUB}", std::process::id())
}

/// Name of a namespace that is created only to find out whether that works. It looks like the name
/// of a node, so that leftovers are removed.
pub(crate) fn probe() -> String {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let count = TRIED.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}-0", std::process::id())
}

pub(crate) fn folder(testbed: u32) -> String {
    format!("{FOLDER_PREFIX}{}-{testbed}", std::process::id())
}

/// Name of the interface of every node on this network.
pub(crate) fn interface(network: u32) -> String {
    format!("net{network}")
}

/// Name of the bridge's end of a cable to a node.
pub(crate) fn port(node: u32, network: u32) -> String {
    format!("n{node}k{network}")
}

pub(crate) fn path(namespace: &str) -> PathBuf {
    Path::new(NAMESPACES).join(namespace)
}

/// Returns the process that owns a namespace of a testbed.
pub(crate) fn namespace_owner(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let owner = number(parts.next()?)?;
    number(parts.next()?)?;
    let place = parts.next()?;
    (parts.next().is_none() && (place == HUB || number(place).is_some())).then_some(owner)
}

/// Returns the process that owns a folder of a testbed.
pub(crate) fn folder_owner(name: &str) -> Option<u32> {
    let (owner, testbed) = name.strip_prefix(FOLDER_PREFIX)?.split_once('-')?;
    number(testbed)?;
    number(owner)
}

/// Parses digits only; `parse` alone would accept a sign.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_contains_its_owner_and_foreign_names_do_not() {
        let ours = Some(std::process::id());
        assert_eq!(namespace_owner(&node(7, 12)), ours);
        assert_eq!(namespace_owner(&hub(7)), ours);
        assert_eq!(folder_owner(&folder(3)), ours);
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
