use super::*;
use crate::sim::{Network, NetworkConfig};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fails after this many writes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two ports of a network at these addresses, with UDP ports from 5000 and 6000.
fn pair(first: &str, second: &str) -> (crate::sim::Port, crate::sim::Port) {
    let network = Network::new(1, NetworkConfig::default());
    let address = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let attach = |ip, port| {
        network
            .attach(address(ip, port), address(ip, port + 1))
            .unwrap()
    };
    (attach(first, 5000), attach(second, 6000))
}

fn word(file: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(file[at..at + 4].try_into().unwrap())
}

/// Checks the headers and checksums of a recorded packet, and compares its payload.
fn check_packet(packet: &SlicedPacket<'_>, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
    let (source, target) = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(v4) => {
            let header = v4.header();
            assert_eq!(
                header.header_checksum(),
                header.to_header().calc_header_checksum()
            );
            (
                header.source_addr().into(),
                header.destination_addr().into(),
            )
        }
        NetSlice::Ipv6(v6) => (
            v6.header().source_addr().into(),
            v6.header().destination_addr().into(),
        ),
        other => panic!("{other:?}"),
    };
    assert_eq!((source, target), (from.ip(), to.ip()));
    let Some(TransportSlice::Udp(udp)) = &packet.transport else {
        panic!("no UDP")
    };
    assert_eq!(
        (udp.source_port(), udp.destination_port()),
        (from.port(), to.port())
    );
    assert_eq!(udp.payload(), payload);
    let header = udp.to_header();
    let checksum = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(v4) => header.calc_checksum_ipv4(&v4.header().to_header(), payload),
        NetSlice::Ipv6(v6) => header.calc_checksum_ipv6(&v6.header().to_header(), payload),
        other => panic!("{other:?}"),
    };
    assert_eq!(header.checksum, checksum.unwrap());
}

#[test]
fn recorded_packets_have_correct_headers_and_times() {
    for (first, second) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (inner, mut other) = pair(first, second);
        let shared = Shared::default();
        let offset_ns = 1_700_000_000_000_000_000;
        let mut link = Capture::to_writer(
            inner,
            Box::new(shared.clone()),
            Path::new("memory"),
            offset_ns,
        );
        let (here, there) = (link.local(Class::Small), other.local(Class::Bulk));
        let sent: Vec<Vec<u8>> = (1..20).map(|len| vec![0xa5; len * 70]).collect();
        for bytes in &sent {
            link.send(
                1_000_000_007,
                &[Outgoing::frame(Class::Small, there, bytes)],
            )
            .unwrap();
        }
        let answer = Outgoing::frame(Class::Bulk, here, b"answer");
        other.send(1_000_000_007, &[answer]).unwrap();
        assert_eq!(link.poll(2_000_000_009, Class::Small).unwrap(), 1);
        assert_eq!(link.packets, 20);

        let file = shared.0.lock().unwrap().clone();
        assert_eq!(word(&file, 0), 0xa1b2_3c4d);
        assert_eq!(word(&file, 20), 101);
        let mut at = 24;
        let answer = b"answer".to_vec();
        for payload in sent.iter().chain([&answer]) {
            let is_sent = payload != &answer;
            let time = (word(&file, at), word(&file, at + 4));
            let expected = if is_sent {
                (1_700_000_001, 7)
            } else {
                (1_700_000_002, 9)
            };
            assert_eq!(time, expected);
            let len = word(&file, at + 8) as usize;
            assert_eq!(word(&file, at + 12) as usize, len);
            let packet = SlicedPacket::from_ip(&file[at + 16..at + 16 + len]).unwrap();
            at += 16 + len;
            let (from, to) = if is_sent {
                (here, there)
            } else {
                (there, here)
            };
            check_packet(&packet, from, to, &payload[..]);
        }
        assert_eq!(at, file.len());
    }
}

#[test]
fn a_full_disk_stops_the_recording_but_not_the_traffic() {
    let (inner, mut other) = pair("10.0.0.1", "10.0.0.2");
    let mut link = Capture::to_writer(inner, Box::new(FullDisk(2)), Path::new("disk"), 0);
    let to = other.local(Class::Small);
    for _ in 0..5 {
        let sent = link
            .send(0, &[Outgoing::frame(Class::Small, to, b"x")])
            .unwrap();
        assert_eq!(sent, 1);
    }
    assert_eq!(link.packets, 1);
    let message = link.failure().unwrap().to_string();
    assert!(
        message.contains("disk stopped after 1 packets"),
        "{message}"
    );
    assert!(message.contains("traffic continues"), "{message}");
    assert_eq!(other.poll(1_000_000, Class::Small).unwrap(), 5);
}

#[test]
fn only_frames_that_the_link_took_are_recorded() {
    let (inner, other) = pair("10.0.0.1", "10.0.0.2");
    let mut link = Capture::to_writer(inner, Box::new(io::sink()), Path::new("sink"), 0);
    let frame = Outgoing::frame(Class::Bulk, other.local(Class::Bulk), &[0; 1400]);
    let taken = link.send(0, &vec![frame; 2000]).unwrap();
    assert!(taken < 2000);
    assert_eq!(link.packets, taken as u64);
}

#[test]
fn a_capture_that_cannot_be_created_names_its_file() {
    let (inner, _other) = pair("10.0.0.1", "10.0.0.2");
    let error = Capture::create(inner, Path::new("/nonexistent/x.pcap"), 0).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("/nonexistent/x.pcap") && message.contains("permissions"),
        "{message}"
    );
}

#[test]
fn a_capture_is_private_and_follows_no_symlink() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let create = |name: &str| {
        let (inner, _other) = pair("10.0.0.1", "10.0.0.2");
        Capture::create(inner, &at(name), 0).map(drop)
    };
    std::fs::write(at("old"), "old content").unwrap();
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(at("old"), open).unwrap();
    for name in ["new", "old"] {
        create(name).unwrap();
        let mode = std::fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(!std::fs::read(at("old")).unwrap().starts_with(b"what"));
    std::fs::write(at("precious"), "old content").unwrap();
    symlink(at("precious"), at("link")).unwrap();
    create("link").unwrap_err();
    assert_eq!(std::fs::read(at("precious")).unwrap(), b"old content");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("precious"), Some(65_534), None).unwrap();
        let error = create("precious").unwrap_err().to_string();
        assert!(error.contains("another user"), "{error}");
    } else {
        eprintln!("SKIPPED: a foreign owner; giving a file away needs root");
    }
}
