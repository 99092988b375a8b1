//! The device with this node's address: its kind, link state, speed and MTU.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use dipole_link::sys::InterfaceAddress;

use super::finding::Finding;
use super::kernel::read;
use super::pause;

/// The device with an address.
pub(super) fn of(address: IpAddr, all: &[InterfaceAddress]) -> Option<&InterfaceAddress> {
    let exact = all.iter().find(|one| one.ip == address);
    exact.or_else(|| all.iter().find(|one| one.loopback && address.is_loopback()))
}

pub(super) fn examine(device: &InterfaceAddress) -> Vec<Finding> {
    let folder = Path::new("/sys/class/net").join(&device.name);
    let mtu = read(folder.join("mtu")).and_then(|text| text.parse().ok());
    let carrier = read(folder.join("carrier"));
    let mut findings = vec![
        link(device, runs(carrier, read(folder.join("operstate")))),
        packet(mtu),
    ];
    if !device.loopback {
        findings.push(kind(kind_of(&folder)));
        let speed = read(folder.join("speed")).and_then(|text| text.parse().ok());
        findings.push(rate(speed, read(folder.join("duplex")).as_deref()));
        findings.push(pause::examine(&device.name));
    }
    let named = findings.into_iter().map(|finding| {
        // The user can paste this advice into a shell.
        let advice = finding.advice.replace("DEVICE", &device.name);
        finding.advise(advice).about(&device.name)
    });
    named.collect()
}

/// True if a device that is up can send. Its state lags behind the carrier by up to a second.
fn runs(carrier: Option<String>, state: Option<String>) -> bool {
    // Loopback and virtual devices may not report a state.
    let can_send = |state: String| ["up", "unknown"].contains(&&*state);
    carrier.as_deref() != Some("0") && state.is_none_or(can_send)
}

fn link(device: &InterfaceAddress, runs: bool) -> Finding {
    const NAME: &str = "link";
    match (device.up, runs) {
        (true, true) => Finding::good(NAME, format!("up, with {}", device.ip)),
        (true, false) => Finding::broken(
            NAME,
            format!("has {} but no carrier", device.ip),
            "check the cable and the port of the switch; a virtual device needs its other end up",
        ),
        (false, _) => Finding::broken(
            NAME,
            format!("has {} but is down", device.ip),
            format!("`ip link set {} up`", device.name),
        ),
    }
}

fn packet(mtu: Option<u32>) -> Finding {
    const NAME: &str = "mtu";
    match mtu {
        None => Finding::unknown(NAME, "the kernel does not show it here", "`ip link` may"),
        Some(mtu @ ..284) => Finding::broken(
            NAME,
            format!("{mtu}: the shortest packets of a session need 284"),
            "`ip link set DEVICE mtu 1500`",
        ),
        Some(mtu @ 284..1500) => Finding::slow(
            NAME,
            format!("{mtu}: shorter than Ethernet's 1500, so messages take more packets"),
            "`ip link set DEVICE mtu 1500`, if all between the nodes carry that",
        ),
        Some(mtu @ 1500..9000) => Finding::good(NAME, format!("{mtu}")).advise(
            "long messages go faster with 9000, if every interface and switch between the nodes \
             carries that: `ip link set DEVICE mtu 9000` on all nodes",
        ),
        Some(mtu) => Finding::good(NAME, format!("{mtu}: packets of up to 9000 are used")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bridge,
    Overlay,
    Tunnel,
    Wireless,
    Hardware,
    Virtual,
    Hidden,
}

fn kind_of(folder: &Path) -> Kind {
    let has = |name: &str| folder.join(name).exists();
    if !folder.exists() {
        return Kind::Hidden;
    }
    let uevent = fs::read_to_string(folder.join("uevent")).unwrap_or_default();
    let sort = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVTYPE="));
    match sort {
        _ if has("bridge") => Kind::Bridge,
        Some("bridge") => Kind::Bridge,
        Some("vxlan" | "geneve" | "gretap") => Kind::Overlay,
        Some("wireguard") => Kind::Tunnel,
        _ if has("tun_flags") => Kind::Tunnel,
        Some("wlan") => Kind::Wireless,
        _ if has("wireless") => Kind::Wireless,
        _ if has("device") => Kind::Hardware,
        _ => Kind::Virtual,
    }
}

fn kind(kind: Kind) -> Finding {
    const NAME: &str = "device";
    const PHYSICAL: &str = "put the address of a network card into the hosts file (containers: \
                            host networking)";
    match kind {
        Kind::Hardware => Finding::good(NAME, "a network card"),
        Kind::Virtual => Finding::good(NAME, "virtual (veth, VLAN, bond or the like)"),
        Kind::Hidden => Finding::unknown(NAME, "/sys/class/net does not show it", ""),
        Kind::Bridge => Finding::slow(
            NAME,
            "a bridge (docker, libvirt or the like): every packet takes a detour through it",
            PHYSICAL,
        ),
        Kind::Overlay => Finding::slow(
            NAME,
            "an overlay: every packet is wrapped in another",
            PHYSICAL,
        ),
        Kind::Tunnel => Finding::slow(
            NAME,
            "a tunnel: every packet is wrapped in another",
            PHYSICAL,
        ),
        Kind::Wireless => Finding::slow(NAME, "wireless: milliseconds, and losses", "use a cable"),
    }
}

fn rate(megabits: Option<i64>, duplex: Option<&str>) -> Finding {
    const NAME: &str = "speed";
    if duplex == Some("half") {
        return Finding::slow(
            NAME,
            "half duplex: one direction at a time",
            "let interface and switch negotiate: `ethtool -s DEVICE autoneg on`, on both",
        );
    }
    match megabits {
        Some(speed @ 1..1000) => Finding::slow(
            NAME,
            format!("{speed} Mbit/s: below what interface and cable usually reach"),
            "check the cable and the port of the switch",
        ),
        Some(speed @ 1000..) => Finding::good(NAME, format!("{speed} Mbit/s")),
        _ => Finding::unknown(NAME, "the device does not report it", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Broken, Good, Slow, Unknown};
    use super::*;

    #[test]
    fn links_without_power_or_carrier_are_broken() {
        let mut device = dipole_link::sys::interface_addresses()
            .expect("devices")
            .into_iter()
            .find(|one| one.loopback);
        let device = device.as_mut().expect("a loopback device");
        assert_eq!(link(device, true).verdict, Good);
        assert_eq!(link(device, false).verdict, Broken);
        assert!(link(device, false).fact.contains("no carrier"));
        let said = |text: &str| Some(text.to_owned());
        assert!(runs(None, None) && runs(said("1"), said("unknown")));
        assert!(!runs(said("0"), said("up")) && !runs(said("1"), said("dormant")));
        device.up = false;
        assert!(link(device, true).advice.contains("ip link set lo up"));
        let other = of(IpAddr::from([127, 7, 7, 7]), std::slice::from_ref(device));
        assert_eq!(other.expect("its device").name, "lo");
    }

    #[test]
    fn short_packets_slow_speeds_and_detours_are_slow() {
        let packets = [None, Some(100), Some(1200), Some(1500), Some(65_536)];
        let verdicts = packets.map(|mtu| packet(mtu).verdict);
        assert_eq!(verdicts, [Unknown, Broken, Slow, Good, Good]);
        assert_eq!(rate(Some(100), Some("full")).verdict, Slow);
        assert_eq!(rate(Some(10_000), Some("half")).verdict, Slow);
        assert_eq!(rate(Some(10_000), Some("full")).verdict, Good);
        assert_eq!(rate(Some(-1), Some("unknown")).verdict, Unknown);
        assert_eq!(rate(None, None).verdict, Unknown);
        assert_eq!(kind(Kind::Bridge).verdict, Slow);
        assert_eq!(kind(Kind::Virtual).verdict, Good);
    }

    #[test]
    fn a_device_is_known_by_its_files() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("dev");
        assert_eq!(kind_of(&path), Kind::Hidden);
        fs::create_dir(&path).expect("our own");
        assert_eq!(kind_of(&path), Kind::Virtual);
        fs::write(path.join("uevent"), "INTERFACE=dev\nDEVTYPE=vxlan\n").expect("our own");
        assert_eq!(kind_of(&path), Kind::Overlay);
        fs::create_dir(path.join("bridge")).expect("our own");
        assert_eq!(kind_of(&path), Kind::Bridge);
    }
}
