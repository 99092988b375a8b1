use super::wire::{Reason, VERSION};
use super::*;

const BYTES: u32 = 1 << 16;

struct Broker {
    folder: tempfile::TempDir,
    listener: OwnedFd,
}

impl Broker {
    fn new() -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let listener = channel::listen(&folder.path().join("broker")).unwrap();
        Broker { folder, listener }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("broker")
    }

    /// The next caller, its request, and the number of descriptors that it sent.
    fn next(&self) -> (OwnedFd, Request, usize) {
        let connection = loop {
            if let Some(connection) = channel::accept(self.listener.as_fd()).unwrap() {
                break connection;
            }
            std::thread::yield_now();
        };
        loop {
            if let Received::Message(bytes, files) = channel::recv(connection.as_fd()) {
                return (connection, Request::decode(&bytes).unwrap(), files.len());
            }
            std::thread::yield_now();
        }
    }
}

fn granted(sender: bool) -> Reply {
    Reply::Granted(Granted {
        interface: InterfaceId {
            index: 3,
            name: "interface".to_owned(),
        },
        ring_bytes: BYTES,
        sender,
    })
}

/// A file that takes the place of a ring.
fn ring() -> OwnedFd {
    std::fs::File::open("/dev/zero").unwrap().into()
}

/// Requests a grant from a broker with this reply and number of descriptors; returns the broker's end.
fn asked(broker: &Broker, bytes: &[u8], files: usize) -> (Result<Grant, GrantError>, OwnedFd) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let path = broker.path();
    std::thread::scope(|scope| {
        let grant = scope.spawn(|| super::request(&path, socket.as_fd(), BYTES));
        let (connection, request, sent) = broker.next();
        assert_eq!((request.dry, request.ring_bytes, sent), (false, BYTES, 1));
        let ring = ring();
        let files = vec![ring.as_fd(); files];
        channel::send(connection.as_fd(), bytes, &files).unwrap();
        (grant.join().unwrap(), connection)
    })
}

#[test]
fn what_is_granted_is_held_and_an_end_of_the_broker_is_seen_and_made_good() {
    let broker = Broker::new();
    let (grant, connection) = asked(&broker, &granted(true).encode(), 2);
    let mut grant = grant.unwrap();
    assert_eq!((grant.ring_bytes(), grant.interface().index), (BYTES, 3));
    assert!(grant.take_sender().is_some() && grant.take_sender().is_none());
    assert_eq!(grant.check(0), GrantEvent::Unchanged);
    drop(connection);
    assert_eq!(grant.check(5), GrantEvent::Lost);
    // Not at once, but after a second it offers its ring to the broker that listens then.
    assert_eq!(grant.check(10), GrantEvent::Unchanged);
    assert_eq!(grant.check(9 + RETRY_NS), GrantEvent::Unchanged);
    assert!(grant.connection().is_none());
    assert_eq!(grant.check(10 + RETRY_NS), GrantEvent::Unchanged);
    let (connection, request, sent) = broker.next();
    assert_eq!((request.ring_bytes, sent), (BYTES, 2));
    assert_eq!(grant.check(11 + RETRY_NS), GrantEvent::Unchanged);
    let ring = ring();
    let files = [ring.as_fd(), ring.as_fd()];
    channel::send(connection.as_fd(), &granted(true).encode(), &files).unwrap();
    assert_eq!(grant.check(12 + RETRY_NS), GrantEvent::Restored);
    assert!(grant.take_sender().is_some());
    assert_eq!(grant.check(13 + RETRY_NS), GrantEvent::Unchanged);
}

#[test]
fn a_broker_that_refuses_or_does_not_reply_is_contacted_again_later() {
    let broker = Broker::new();
    let (grant, connection) = asked(&broker, &granted(false).encode(), 1);
    let mut grant = grant.unwrap();
    drop(connection);
    let mut now = 0;
    assert_eq!(grant.check(now), GrantEvent::Lost);
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    now += RETRY_NS;
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    let (silent, ..) = broker.next();
    now += TIMEOUT_NS;
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    assert!(grant.connection().is_none(), "given up");
    drop(silent);
    now += RETRY_NS;
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    let (connection, ..) = broker.next();
    let refused = Reply::Refused(Refusal {
        reason: Reason::User,
        text: "no".to_owned(),
    });
    channel::send(connection.as_fd(), &refused.encode(), &[]).unwrap();
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    now += REFUSED_RETRY_NS - 1;
    assert_eq!(grant.check(now), GrantEvent::Unchanged);
    assert!(grant.connection().is_none());
    assert_eq!(grant.check(now + 1), GrantEvent::Unchanged);
    assert!(grant.connection().is_some(), "contacted again");
}

#[test]
fn malformed_replies_and_replies_without_a_ring_are_rejected() {
    let broker = Broker::new();
    let mut other = granted(false).encode();
    other[4] = u8::try_from(VERSION + 1).unwrap();
    let nothing: (&[u8], usize) = (&granted(false).encode(), 0);
    for (bytes, files) in [(&b"who?"[..], 1), (&other[..], 1), nothing] {
        let (grant, _) = asked(&broker, bytes, files);
        assert!(
            matches!(grant, Err(GrantError::Malformed { .. })),
            "{bytes:?}: {grant:?}"
        );
    }
}

#[test]
fn every_error_names_the_place_and_a_remedy() {
    let broker = Broker::new();
    let refused = Reply::Refused(Refusal {
        reason: Reason::User,
        text: "user 7 may not".to_owned(),
    });
    let (grant, _) = asked(&broker, &refused.encode(), 0);
    assert!(grant.unwrap_err().to_string().contains("user 7 may not"));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = super::request(Path::new("/nowhere/broker"), socket.as_fd(), BYTES).unwrap_err();
    let text = nobody.to_string();
    assert!(
        text.contains("/nowhere/broker") && text.contains("interfaces.toml"),
        "{text}"
    );
    let silent = GrantError::Silent {
        path: broker.path(),
    };
    assert!(silent.to_string().contains("2 s"), "{silent}");
}

#[test]
fn a_client_rejected_before_its_request_is_read_gets_the_reason() {
    let broker = Broker::new();
    let path = broker.path();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused = std::thread::scope(|scope| {
        let grant = scope.spawn(|| super::request(&path, socket.as_fd(), BYTES));
        let connection = loop {
            if let Some(connection) = channel::accept(broker.listener.as_fd()).unwrap() {
                break connection;
            }
            std::thread::yield_now();
        };
        let busy = Reply::Refused(Refusal {
            reason: Reason::Busy,
            text: "too many".to_owned(),
        });
        channel::send(connection.as_fd(), &busy.encode(), &[]).unwrap();
        // Its request is still unread.
        drop(connection);
        grant.join().unwrap()
    });
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("too many"), "{text}");
}
