//! Calls by which a program shows that it does not only wait.

use std::ptr;
use std::sync::Arc;

use dipole_node::{Config, Node, NodeId};

use super::messages::Label;
use super::{CompletionMode, Ep, ep};
use crate::abi::fabric::{FI_ADDR_UNSPEC, FI_PEEK};
use crate::av::Av;
use crate::completion::{Source, lock};
use crate::matching::Criteria;
use crate::memory::Pieces;
use crate::node::Domain;

const MESSAGES: u64 = 300;

/// An endpoint that sends to itself.
struct Loop {
    ep: Arc<Ep>,
    own: u64,
    _folder: tempfile::TempDir,
}

impl Loop {
    fn new() -> Loop {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::local(NodeId(1), folder.path().to_owned());
        let domain = Domain::on(Node::open(config).expect("a node")).expect("a domain");
        let mut out = ptr::null_mut();
        // SAFETY: `out` is valid for writes.
        unsafe { Ep::open(&Arc::new(domain), None, &raw mut out, ptr::null_mut()) }
            .unwrap_or_else(|_| panic!("no endpoint"));
        // SAFETY: opened above; the test lets it leak.
        let ep = unsafe { ep(out) }.unwrap_or_else(|_| panic!("no endpoint"));
        let av = Av::default();
        let own = av.insert(lock(&ep.exchange).name()).expect("room");
        assert!(ep.av.set(Arc::new(av)).is_ok());
        Loop {
            ep: Arc::clone(ep),
            own,
            _folder: folder,
        }
    }

    fn send(&self, tag: u64) {
        let label = Label {
            tag: Some(tag),
            data: None,
            to: self.own,
        };
        let sent = self.ep.send(
            Pieces::none(),
            label,
            ptr::null_mut(),
            CompletionMode::INJECTED,
        );
        assert_eq!(sent, Ok(0));
    }

    /// Posts a receive, or looks for a message.
    fn receive(&self, tag: u64, flags: u64) {
        let source = self.ep.source(FI_ADDR_UNSPEC).expect("any source");
        let criteria = Criteria {
            source,
            tag,
            ignore: 0,
        };
        let posted = (self.ep).receive_tagged(Pieces::none(), criteria, ptr::null_mut(), flags);
        assert_eq!(posted, Ok(0));
    }
}

#[test]
fn a_program_that_receives_messages_that_have_arrived_is_never_idle() {
    let test = Loop::new();
    for tag in 0..MESSAGES {
        test.send(tag);
        assert_eq!(test.ep.progress(), 1);
    }
    for tag in (0..MESSAGES).rev() {
        test.receive(tag, 0);
        // MPI libraries poll again after they have read a completion.
        assert_eq!(test.ep.progress(), 1);
    }
}

#[test]
fn a_program_that_only_polls_or_looks_for_messages_is_idle() {
    let test = Loop::new();
    for polls in 1..300 {
        assert_eq!(test.ep.progress(), polls);
        test.receive(7, FI_PEEK);
    }
    test.receive(7, 0);
    assert_eq!(test.ep.progress(), 1);
}
