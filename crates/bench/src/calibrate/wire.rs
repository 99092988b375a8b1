//! The speed of the network between two nodes, as the kernel knows it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use dipole_model::Wire;
use dipole_node::interface_addresses;

/// Returns the network of the interface with this address. `None` if its driver reports no speed, or
/// it is a virtual one, whose reported speed means nothing.
pub(super) fn of_address(address: IpAddr) -> Option<Wire> {
    let interfaces = interface_addresses().ok()?;
    let own = interfaces.into_iter().find(|one| one.ip == address)?;
    of_interface(Path::new("/sys/class/net"), &own.name)
}

fn of_interface(folder: &Path, name: &str) -> Option<Wire> {
    let folder = folder.join(name);
    // Only interfaces of devices have this link.
    fs::symlink_metadata(folder.join("device")).ok()?;
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok();
    Some(Wire {
        mbit: number("speed")?
            .trim()
            .parse()
            .ok()
            .filter(|mbit| *mbit > 0)?,
        mtu_bytes: number("mtu")?.trim().parse().ok()?,
        delay_ns: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_a_device_that_reports_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let interface = |name: &str, files: &[(&str, &str)]| {
            let own = folder.path().join(name);
            fs::create_dir(&own).expect("it is new");
            for (file, text) in files {
                fs::write(own.join(file), text).expect("it can be written");
            }
            of_interface(folder.path(), name)
        };
        let card = [("device", ""), ("speed", "25000\n"), ("mtu", "9000\n")];
        let expected = Wire {
            mbit: 25_000,
            mtu_bytes: 9000,
            delay_ns: 0.0,
        };
        assert_eq!(interface("card", &card), Some(expected));
        let down = [("device", ""), ("speed", "-1\n"), ("mtu", "1500\n")];
        assert_eq!(interface("down", &down), None);
        assert_eq!(interface("veth", &card[1..]), None, "it has no device");
        assert_eq!(of_interface(folder.path(), "absent"), None);
    }
}
