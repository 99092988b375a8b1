use proptest::prelude::*;

use super::*;

fn message(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + content.len()).expect("short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn the_loopback_interface_and_the_way_to_it_are_known() {
    let mut socket = Socket::for_questions().expect("netlink");
    let loopback = socket.ask_link(1).expect("every namespace has one");
    assert_eq!((loopback.index, loopback.ethernet), (1, false));
    assert_eq!(loopback.vlan, None);
    assert!(loopback.mtu.expect("an MTU") >= 1280);
    let own: IpAddr = [127, 0, 0, 1].into();
    let route = socket.ask_route(1, own, own).expect("a route");
    assert_eq!((route.card, route.plain), (Some(1), false));
    assert!(route.local);
    let error = socket.ask_link(u32::MAX >> 1).expect_err("no such card");
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    let nobody = [127, 0, 0, 9].into();
    assert!(socket.ask_neighbour(1, nobody).is_err());
}

#[test]
fn a_route_tells_gateway_limits_and_what_makes_it_unfit() {
    let limits =
        [(2, 1400_u32), (10, 9)].map(|(kind, value)| attribute(kind, &value.to_ne_bytes()));
    let mut content = vec![FAMILY_V4, 32, 32, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    content.extend(attribute(4, &3_u32.to_ne_bytes()));
    content.extend(attribute(5, &[10, 0, 0, 254]));
    content.extend(attribute(8, &limits.concat()));
    let found = route(&content).expect("a route");
    assert!(found.plain);
    assert_eq!(found.gateway, Some([10, 0, 0, 254].into()));
    assert_eq!((found.card, found.mtu), (Some(3), Some(1400)));
    assert_eq!(found.hops, Some(9));
    let mut dead = content.clone();
    dead[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    assert!(!route(&dead).expect("a route").plain);
    content.extend(attribute(22, &[0; 4]));
    assert!(!route(&content).expect("a route").plain);
    content[7] = 3;
    assert!(!route(&content).expect("a route").plain);
}

#[test]
fn a_gateway_of_the_other_version_is_found() {
    let mut content = vec![FAMILY_V4, 32, 32, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    let gateway = [&[FAMILY_V6, 0][..], &[0xfd; 16]].concat();
    content.extend(attribute(18, &gateway));
    let found = route(&content).expect("a route");
    assert_eq!(found.gateway, Some([0xfd; 16].into()));
}

#[test]
fn a_vlan_device_tells_its_number() {
    let data = attribute(1, &7_u16.to_ne_bytes());
    let details = [attribute(1, b"vlan\0"), attribute(2, &data)].concat();
    let mut content = vec![0; LINK_FIXED_BYTES];
    content.extend(attribute(18 | 0x8000, &details));
    assert_eq!(link(&content).expect("a link").vlan, Some(7));
    let details = [attribute(1, b"veth\0"), attribute(2, &data)].concat();
    content.truncate(LINK_FIXED_BYTES);
    content.extend(attribute(18, &details));
    assert_eq!(link(&content).expect("a link").vlan, None);
}

#[test]
fn messages_come_one_after_another_until_one_is_wrong() {
    let mut bytes = message(NEW_ROUTE, &[1, 2, 3]);
    bytes.extend(message(NEW_LINK, &[]));
    let kinds = |bytes: &[u8]| messages(bytes).map(|one| one.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&bytes), [NEW_ROUTE, NEW_LINK]);
    assert_eq!(kinds(&bytes[..bytes.len() - 1]), [NEW_ROUTE]);
    // A length that leads nowhere, or would be found forever.
    bytes[..4].copy_from_slice(&0_u32.to_ne_bytes());
    assert_eq!(kinds(&bytes), [0; 0]);
    bytes[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(kinds(&bytes), [0; 0]);
}

/// Something like attributes, with lengths that are often wrong.
fn rubbish() -> impl Strategy<Value = Vec<u8>> {
    let attribute = (
        0_u16..40,
        0_u16..32,
        proptest::collection::vec(any::<u8>(), 0..24),
    );
    let nearly = proptest::collection::vec(attribute, 0..8).prop_map(|all| {
        let mut bytes = vec![0; 12];
        for (length, kind, value) in all {
            bytes.extend(length.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
        }
        bytes
    });
    prop_oneof![nearly, proptest::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #[test]
    fn whatever_comes_is_read_to_its_end(bytes in rubbish()) {
        let _whatever = (link(&bytes), neighbour(&bytes), route(&bytes), own_address(&bytes));
        prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER_BYTES);
        prop_assert!(attributes(&bytes, 0).count() <= bytes.len() / ATTRIBUTE_HEADER_BYTES);
        for (_, value) in attributes(&bytes, 12) {
            prop_assert!(value.len() <= bytes.len() - 16);
        }
    }

    #[test]
    fn a_neighbour_is_read_as_it_was_written(
        card: u32, state: u16, ip: [u8; 16], v6: bool, mac: [u8; 6],
    ) {
        let ip = if v6 { &ip[..] } else { &ip[..4] };
        let mut content = vec![0; NEIGHBOUR_FIXED_BYTES];
        content[4..8].copy_from_slice(&card.to_ne_bytes());
        content[8..10].copy_from_slice(&state.to_ne_bytes());
        content.extend(attribute(1, ip));
        content.extend(attribute(2, &mac));
        let found = neighbour(&content).expect("whole");
        prop_assert_eq!(Some(found.address), address(ip));
        prop_assert_eq!((found.card, found.state, found.mac), (card, state, Some(mac)));
        content.truncate(NEIGHBOUR_FIXED_BYTES + 3);
        prop_assert_eq!(neighbour(&content), None);
    }
}
