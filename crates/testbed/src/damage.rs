//! Layout of Ethernet frames, as far as a switch that damages them needs it.

const ETHERNET_BYTES: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV6_HEADER_BYTES: usize = 40;
const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
const UDP_CHECKSUM_AT: usize = 6;
const FRAGMENT_OFFSET_BITS: u16 = 0x1fff;

/// Ethernet address of a node.
pub(crate) type Station = [u8; 6];

/// Returns the destination and the source of a frame.
pub(crate) fn stations(frame: &[u8]) -> Option<(Station, Station)> {
    let to = frame.first_chunk()?;
    let from = frame.get(6..)?.first_chunk()?;
    Some((*to, *from))
}

/// True for broadcast and multicast addresses.
pub(crate) fn is_group(station: Station) -> bool {
    station[0] & 1 == 1
}

/// True for IPv4 and IPv6.
pub(crate) fn is_ip(frame: &[u8]) -> bool {
    matches!(u16_at(frame, 12), Some(IPV4 | IPV6))
}

/// Flips one bit of the payload, chosen by `choice` modulo their number. False if the payload is empty.
///
/// Clears the checksum of UDP over IPv4. Otherwise the receiving kernel would drop the packet, and
/// damage would be the same as loss.
pub(crate) fn damage(frame: &mut [u8], choice: u32) -> bool {
    let Some((begin, end, checksum)) = payload(frame) else {
        return false;
    };
    let (Some(payload), Ok(choice)) = (frame.get_mut(begin..end), usize::try_from(choice)) else {
        return false;
    };
    if payload.is_empty() {
        return false;
    }
    let bit = choice % (payload.len() * 8);
    payload[bit / 8] ^= 1 << (bit % 8);
    if let Some(checksum) = checksum {
        frame[checksum..checksum + 2].fill(0);
    }
    true
}

/// Returns the bounds of the payload and the position of a checksum that must be cleared.
fn payload(frame: &[u8]) -> Option<(usize, usize, Option<usize>)> {
    let ip = ETHERNET_BYTES;
    match u16_at(frame, 12)? {
        IPV4 => {
            let header = usize::from(frame.get(ip)? & 0xf) * 4;
            let total = usize::from(u16_at(frame, ip + 2)?);
            let is_first = u16_at(frame, ip + 6)? & FRAGMENT_OFFSET_BITS == 0;
            let (begin, end) = (ip + header, ip + total);
            if *frame.get(ip + 9)? == UDP && is_first {
                let behind = begin + UDP_HEADER_BYTES;
                Some((behind, end, Some(begin + UDP_CHECKSUM_AT)))
            } else {
                Some((begin, end, None))
            }
        }
        IPV6 => {
            let begin = ip + IPV6_HEADER_BYTES;
            Some((begin, begin + usize::from(u16_at(frame, ip + 4)?), None))
        }
        _ => None,
    }
}

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 UDP datagram in a frame, padded to 60 bytes.
    fn datagram(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 20 + 8];
        frame[12..14].copy_from_slice(&IPV4.to_be_bytes());
        frame[14] = 0x45;
        let total = u16::try_from(28 + payload.len()).unwrap();
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[23] = UDP;
        frame[40..42].copy_from_slice(&[0xab, 0xcd]);
        frame.extend(payload);
        frame.resize(frame.len().max(60), 0);
        frame
    }

    #[test]
    fn one_bit_of_the_payload_flips_and_the_checksum_goes() {
        for choice in (0..100).chain([u32::MAX]) {
            let whole = datagram(b"abc");
            let mut damaged = whole.clone();
            assert!(damage(&mut damaged, choice));
            assert_eq!(damaged[40..42], [0, 0]);
            assert_eq!(damaged[..40], whole[..40]);
            assert_eq!(damaged[45..], whole[45..], "the padding is not payload");
            let pairs = damaged[42..45].iter().zip(&whole[42..45]);
            let flipped: u32 = pairs.map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!(flipped, 1);
        }
    }

    #[test]
    fn frames_without_payload_and_truncated_frames_are_left_alone() {
        assert!(!damage(&mut datagram(b""), 5));
        let whole = datagram(b"a long payload that goes beyond the shortest frame");
        for length in 0..whole.len() {
            let mut cut = whole[..length].to_vec();
            assert!(!damage(&mut cut, 5), "{length}");
            assert_eq!(cut, whole[..length]);
        }
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!damage(&mut arp, 5));
    }
}
