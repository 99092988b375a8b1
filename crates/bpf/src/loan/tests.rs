use super::wire::{Reason, VERSION};
use super::*;

const BYTES: u32 = 1 << 16;

struct Lender {
    folder: tempfile::TempDir,
    listener: OwnedFd,
}

impl Lender {
    fn new() -> Lender {
        let folder = tempfile::tempdir().unwrap();
        let listener = channel::listen(&folder.path().join("lender")).unwrap();
        Lender { folder, listener }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("lender")
    }

    /// The next caller, what it asks, and how many descriptors it sent.
    fn next(&self) -> (OwnedFd, Question, usize) {
        let connection = loop {
            if let Some(connection) = channel::accept(self.listener.as_fd()).unwrap() {
                break connection;
            }
            std::thread::yield_now();
        };
        loop {
            if let Heard::Message(bytes, files) = channel::hear(connection.as_fd()) {
                return (connection, Question::decode(&bytes).unwrap(), files.len());
            }
            std::thread::yield_now();
        }
    }
}

fn granted(sender: bool) -> Answer {
    Answer::Granted(Granted {
        card: CardId {
            index: 3,
            name: "card".to_owned(),
        },
        ring_bytes: BYTES,
        sender,
    })
}

/// A file that stands for a ring here.
fn ring() -> OwnedFd {
    std::fs::File::open("/dev/zero").unwrap().into()
}

/// Asks one lender, which answers so with so many descriptors; the connection is the lender's end.
fn asked(lender: &Lender, bytes: &[u8], files: usize) -> (Result<Loan, LoanError>, OwnedFd) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let path = lender.path();
    std::thread::scope(|scope| {
        let loan = scope.spawn(|| ask(&path, socket.as_fd(), BYTES));
        let (connection, question, sent) = lender.next();
        assert_eq!((question.dry, question.ring_bytes, sent), (false, BYTES, 1));
        let ring = ring();
        let files = vec![ring.as_fd(); files];
        channel::say(connection.as_fd(), bytes, &files).unwrap();
        (loan.join().unwrap(), connection)
    })
}

#[test]
fn what_is_granted_is_held_and_an_end_of_the_lender_is_seen_and_made_good() {
    let lender = Lender::new();
    let (loan, connection) = asked(&lender, &granted(true).encode(), 2);
    let mut loan = loan.unwrap();
    assert_eq!((loan.ring_bytes(), loan.card().index), (BYTES, 3));
    assert!(loan.take_sender().is_some() && loan.take_sender().is_none());
    assert_eq!(loan.check(0), News::Nothing);
    drop(connection);
    assert_eq!(loan.check(5), News::Lost);
    // Not at once, but after a second it offers its ring to whoever lends now.
    assert_eq!(loan.check(10), News::Nothing);
    assert_eq!(loan.check(9 + AGAIN_NS), News::Nothing);
    assert!(loan.connection().is_none());
    assert_eq!(loan.check(10 + AGAIN_NS), News::Nothing);
    let (connection, question, sent) = lender.next();
    assert_eq!((question.ring_bytes, sent), (BYTES, 2));
    assert_eq!(loan.check(11 + AGAIN_NS), News::Nothing);
    let ring = ring();
    let files = [ring.as_fd(), ring.as_fd()];
    channel::say(connection.as_fd(), &granted(true).encode(), &files).unwrap();
    assert_eq!(loan.check(12 + AGAIN_NS), News::Back);
    assert!(loan.take_sender().is_some());
    assert_eq!(loan.check(13 + AGAIN_NS), News::Nothing);
}

#[test]
fn a_lender_that_refuses_or_is_silent_is_asked_again_later() {
    let lender = Lender::new();
    let (loan, connection) = asked(&lender, &granted(false).encode(), 1);
    let mut loan = loan.unwrap();
    drop(connection);
    let mut now = 0;
    assert_eq!(loan.check(now), News::Lost);
    assert_eq!(loan.check(now), News::Nothing);
    now += AGAIN_NS;
    assert_eq!(loan.check(now), News::Nothing);
    let (silent, ..) = lender.next();
    now += PATIENCE_NS;
    assert_eq!(loan.check(now), News::Nothing);
    assert!(loan.connection().is_none(), "given up");
    drop(silent);
    now += AGAIN_NS;
    assert_eq!(loan.check(now), News::Nothing);
    let (connection, ..) = lender.next();
    let refused = Answer::Refused(Refusal {
        reason: Reason::User,
        text: "no".to_owned(),
    });
    channel::say(connection.as_fd(), &refused.encode(), &[]).unwrap();
    assert_eq!(loan.check(now), News::Nothing);
    now += REFUSED_AGAIN_NS - 1;
    assert_eq!(loan.check(now), News::Nothing);
    assert!(loan.connection().is_none());
    assert_eq!(loan.check(now + 1), News::Nothing);
    assert!(loan.connection().is_some(), "asked again");
}

#[test]
fn a_lender_that_speaks_nonsense_or_sends_no_ring_is_none() {
    let lender = Lender::new();
    let mut other = granted(false).encode();
    other[4] = u8::try_from(VERSION + 1).unwrap();
    let nothing: (&[u8], usize) = (&granted(false).encode(), 0);
    for (bytes, files) in [(&b"who?"[..], 1), (&other[..], 1), nothing] {
        let (loan, _) = asked(&lender, bytes, files);
        assert!(
            matches!(loan, Err(LoanError::Nonsense { .. })),
            "{bytes:?}: {loan:?}"
        );
    }
}

#[test]
fn every_error_says_where_and_what_to_do() {
    let lender = Lender::new();
    let refused = Answer::Refused(Refusal {
        reason: Reason::User,
        text: "user 7 may not".to_owned(),
    });
    let (loan, _) = asked(&lender, &refused.encode(), 0);
    assert!(loan.unwrap_err().to_string().contains("user 7 may not"));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = ask(Path::new("/nowhere/broker"), socket.as_fd(), BYTES).unwrap_err();
    let text = nobody.to_string();
    assert!(
        text.contains("/nowhere/broker") && text.contains("interfaces.toml"),
        "{text}"
    );
    let silent = LoanError::Silent {
        path: lender.path(),
    };
    assert!(silent.to_string().contains("2 s"), "{silent}");
}

#[test]
fn who_is_turned_away_before_they_asked_hears_why() {
    let lender = Lender::new();
    let path = lender.path();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused = std::thread::scope(|scope| {
        let loan = scope.spawn(|| ask(&path, socket.as_fd(), BYTES));
        let connection = loop {
            if let Some(connection) = channel::accept(lender.listener.as_fd()).unwrap() {
                break connection;
            }
            std::thread::yield_now();
        };
        let busy = Answer::Refused(Refusal {
            reason: Reason::Busy,
            text: "too many".to_owned(),
        });
        channel::say(connection.as_fd(), &busy.encode(), &[]).unwrap();
        // Its question lies there unread.
        drop(connection);
        loan.join().unwrap()
    });
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("too many"), "{text}");
}
