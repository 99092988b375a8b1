use super::*;

const NOW: Instant = Instant(7);

fn flight(number: u64) -> Flight {
    Flight { lane: 0, number }
}

fn window_with_flying(count: u32) -> SendWindow {
    let mut window = SendWindow::default();
    for slot in 0..count {
        window.queue(&[slot], true);
        let next = window.next(u32::MAX).expect("queued");
        window.sent(next.piece, flight(u64::from(slot)), 100, NOW);
    }
    window
}

#[test]
fn units_are_settled_by_an_acknowledgement_without_refusals() {
    let mut window = SendWindow::default();
    assert!(window.is_settled(), "nothing was sent");
    window.queue(&[4, 5], false);
    for number in 0..2 {
        let next = window.next(8).expect("room");
        window.sent(next.piece, Flight { lane: 0, number }, 100, Instant(0));
    }
    window.arrived(Piece::whole(1));
    assert!(
        !window.is_settled(),
        "the second one arrived, perhaps refused"
    );
    window.arrived(Piece::whole(0));
    assert!(!window.is_settled(), "so did the first");
    assert!(!window.settle(1, false) && !window.settle(2, true));
    assert!(!window.is_settled());
    assert!(window.settle(2, false) && !window.settle(1, false));
    assert!(window.is_settled(), "an older packet changes nothing");
    assert!(!window.has_refusals());
    window.queue_notices(6, true);
    assert!(window.has_refusals());
    let next = window.next(8).expect("room");
    window.sent(next.piece, Flight { lane: 0, number: 2 }, 100, Instant(0));
    assert!(window.has_refusals(), "in flight");
    window.arrived(next.piece);
    assert!(!window.has_refusals());
}

#[test]
fn notices_need_not_be_acknowledged() {
    let mut window = SendWindow::default();
    window.queue_notices(3, false);
    assert!(window.has_only_notices() && !window.is_empty());
    window.queue(&[4], false);
    assert!(!window.has_only_notices());
    for number in 0..2 {
        let next = window.next(8).expect("room");
        window.sent(next.piece, Flight { lane: 0, number }, 100, Instant(0));
    }
    assert!(!window.has_only_notices());
    assert_eq!(window.arrived(Piece::whole(1)), Some(4));
    assert!(window.has_only_notices() && !window.is_empty());
    assert_eq!(window.arrived(Piece::whole(0)), Some(3));
    // The slot now belongs to a message.
    window.queue(&[3], false);
    assert!(!window.has_only_notices());
}

#[test]
fn small_units_overtake_bulk_and_retransmissions_overtake_both() {
    let mut window = window_with_flying(2);
    window.queue(&[10], true);
    window.queue(&[11], false);
    assert!(window.lost(Piece::whole(1), flight(1)));
    let order: Vec<Slot> = core::iter::from_fn(|| {
        let next = window.next(10)?;
        window.sent(next.piece, flight(100 + next.piece.unit), 100, NOW);
        Some(next.slot)
    })
    .collect();
    assert_eq!(order, [1, 11, 10]);
}

#[test]
fn the_loss_of_an_older_transmission_does_not_count() {
    let mut window = window_with_flying(1);
    assert!(window.lost(Piece::whole(0), flight(0)));
    assert!(!window.lost(Piece::whole(0), flight(0)));
    let next = window.next(1).expect("lost");
    window.sent(next.piece, flight(1), 100, NOW);
    assert!(!window.lost(Piece::whole(0), flight(0)));
    assert!(window.lost(Piece::whole(0), flight(1)));
}

#[test]
fn arrivals_free_slots_once_in_any_order() {
    let mut window = window_with_flying(3);
    assert_eq!(window.arrived(Piece::whole(2)), Some(2));
    assert_eq!(window.arrived(Piece::whole(2)), None);
    assert_eq!(window.base(), 0);
    assert_eq!(window.arrived(Piece::whole(0)), Some(0));
    assert_eq!(window.arrived(Piece::whole(1)), Some(1));
    assert_eq!((window.base(), window.flying()), (3, 0));
    assert!(window.is_empty());
}

#[test]
fn no_more_packets_are_in_flight_than_allowed() {
    let mut window = window_with_flying(2);
    window.queue(&[9], false);
    assert_eq!(window.next(2), None);
    assert!(window.next(3).is_some());
}

#[test]
fn a_cleared_window_returns_exactly_the_slots_in_use() {
    let mut window = window_with_flying(3);
    window.arrived(Piece::whole(1));
    window.queue(&[7], true);
    let mut slots = window.clear();
    slots.sort_unstable();
    assert_eq!(slots, [0, 2, 7]);
    assert!(window.is_empty());
}

/// Sends everything that may be sent now.
fn send_all(window: &mut SendWindow) -> Vec<Piece> {
    let send = || {
        let next = window.next(u32::MAX)?;
        let number = 100 + u64::from(window.flying()) + window.arrivals();
        window.sent(next.piece, flight(number), 100, NOW);
        Some(next.piece)
    };
    core::iter::from_fn(send).collect()
}

fn cut_first(window: &mut SendWindow, parts: usize) {
    window.repeat(Piece::whole(0));
    let next = window.next(u32::MAX).expect("lost");
    window.cut(next.piece.unit, parts);
}

#[test]
fn a_cut_unit_has_arrived_with_its_last_part() {
    let mut window = window_with_flying(2);
    cut_first(&mut window, 3);
    let parts = send_all(&mut window);
    assert_eq!((parts.len(), window.flying()), (3, 4));
    assert_eq!(
        window.first_and_last_flying(),
        Some((parts[0], Piece::whole(1)))
    );
    assert_eq!(window.arrived(parts[2]), None);
    assert_eq!(window.arrived(parts[2]), None, "a duplicate");
    assert_eq!(window.arrived(parts[0]), None);
    window.repeat(parts[1]);
    assert_eq!(send_all(&mut window), [parts[1]]);
    assert_eq!(window.arrived(parts[1]), Some(0));
    assert_eq!((window.base(), window.flying()), (1, 1));
}

#[test]
fn parts_of_the_oldest_unit_overtake_retransmissions() {
    let mut window = window_with_flying(3);
    cut_first(&mut window, 2);
    let parts = send_all(&mut window);
    for lost in [Piece::whole(1), parts[1], Piece::whole(2)] {
        window.repeat(lost);
    }
    let order = [parts[1], Piece::whole(1), Piece::whole(2)];
    assert_eq!(send_all(&mut window), order);
}

#[test]
fn a_cut_unit_has_arrived_if_it_arrived_as_a_whole() {
    let mut window = window_with_flying(1);
    cut_first(&mut window, 3);
    let parts = send_all(&mut window);
    assert_eq!(window.arrived(parts[1]), None);
    assert_eq!(window.arrived(Piece::whole(0)), Some(0));
    assert_eq!(window.arrived(parts[0]), None);
    assert!(window.is_empty() && window.flying() == 0);
}
