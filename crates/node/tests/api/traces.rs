//! Waits of calls are recorded with their cause, their peer and their length.

use std::path::Path;
use std::time::Duration;

use dipole_node::{
    Address, Config, Endpoint, EndpointId, Links, LongWait, Node, NodeId, ReceiveError,
};
use dipole_trace::waits::{Cause, EndpointAddress, Wait, WaitFile};

const SHORT: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(60);

fn node(folder: &Path) -> Node {
    let mut config = Config::local(NodeId(1), folder.join("runtime"));
    config.links = Links::Udp;
    config.recordings.trace_dir = Some(folder.to_owned());
    Node::open(config).expect("a node")
}

fn address(endpoint: u32) -> Address {
    Address {
        node: NodeId(1),
        endpoint: EndpointId(endpoint),
    }
}

fn in_trace(endpoint: u32) -> Option<EndpointAddress> {
    Some(EndpointAddress { node: 1, endpoint })
}

/// Endpoint 8, whose target is endpoint 7, of two nodes.
fn connected(folder: &Path) -> (Endpoint, Endpoint) {
    let (here, there) = (node(folder), node(folder));
    let from = here.endpoint(EndpointId(8)).expect("free");
    let to = there.endpoint(EndpointId(7)).expect("free");
    there.start_progress().expect("a thread");
    from.target(address(7)).expect("it is open");
    (from, to)
}

/// The file of this process.
fn file(folder: &Path) -> WaitFile {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut traces = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "trace")
        });
    let path = traces.next().expect("a trace");
    assert_eq!(traces.next(), None, "one file for all nodes of a process");
    WaitFile::parse(&std::fs::read(path).expect("readable")).expect("as written")
}

/// The recorded waits of a cause, whose duration is at least [`SHORT`].
fn waits(folder: &Path, cause: Cause) -> Vec<Wait> {
    let all = file(folder).waits.records.into_iter();
    let least = u64::try_from(SHORT.as_nanos()).expect("short");
    all.filter(|wait| wait.cause == cause && wait.ns() >= least)
        .collect()
}

#[test]
fn a_wait_for_a_message_has_its_source_and_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (node(folder.path()), node(folder.path()));
    let (from, to) = (here.endpoint(EndpointId(8)), there.endpoint(EndpointId(7)));
    let (from, to) = (from.expect("free"), to.expect("free"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(2 * SHORT);
            from.send_to(address(7), &[1; 100]).expect("room");
        });
        assert_eq!(to.receive().expect("open").len(), 100);
    });
    // Nothing waits for these.
    from.send_to(address(7), b"at once").expect("room");
    from.drain(PATIENCE).expect("it arrives");
    to.receive().expect("open");
    let found = waits(folder.path(), Cause::Message);
    let [wait] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (wait.own, wait.peer, wait.bytes),
        (in_trace(7), in_trace(8), 100)
    );
    assert!(!file(folder.path()).header.has_ended);
    drop((from, here));
    assert!(
        !file(folder.path()).header.has_ended,
        "one node is still open"
    );
    drop((to, there));
    let file = file(folder.path());
    assert!(file.header.has_ended);
    let mut endpoints = file.endpoints;
    endpoints.sort();
    assert_eq!(endpoints, [in_trace(7), in_trace(8)].map(Option::unwrap));
}

#[test]
fn a_wait_for_room_has_its_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = connected(folder.path());
    while from.send_timeout(&[0; 1000], SHORT).is_ok() {}
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(2 * SHORT);
            while to.receive_timeout(SHORT).is_ok() {}
        });
        from.send(&[0; 1000]).expect("there will be room");
    });
    let found = waits(folder.path(), Cause::Room);
    let [.., wait] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (wait.own, wait.peer, wait.bytes),
        (in_trace(8), in_trace(7), 1000)
    );
}

#[test]
fn a_wait_for_an_endpoint_that_is_not_open_yet_is_none_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (node(folder.path()), node(folder.path()));
    let from = here.endpoint(EndpointId(8)).expect("free");
    let missing = from.send_to_timeout(address(6), b"message", 2 * SHORT);
    missing.expect_err("it is never opened");
    let to = std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            std::thread::sleep(2 * SHORT);
            let to = there.endpoint(EndpointId(7)).expect("free");
            there.start_progress().expect("a thread");
            to
        });
        from.send_to(address(7), b"message")
            .expect("it will be open");
        opened.join().expect("no panic")
    });
    assert_eq!(to.receive().expect("open")[..], *b"message");
    let found = waits(folder.path(), Cause::Target);
    let peers: Vec<_> = found.iter().map(|wait| wait.peer).collect();
    assert_eq!(peers, [in_trace(6), in_trace(7)]);
    assert!(waits(folder.path(), Cause::Room).is_empty());
}

#[test]
fn a_wait_in_vain_is_recorded_once_whatever_its_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = node(folder.path());
    let endpoint = here.endpoint(EndpointId(7)).expect("free");
    let in_vain = || match endpoint.receive_timeout(SHORT) {
        Err(ReceiveError::TimedOut { .. }) => {}
        other => panic!("{other:?}"),
    };
    in_vain();
    let mut whole = LongWait::new();
    whole.part(in_vain);
    whole.last_part(in_vain);
    let found = waits(folder.path(), Cause::Nothing);
    let [one, parts] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((one.own, one.peer), (in_trace(7), None));
    let least = u64::try_from((2 * SHORT).as_nanos()).expect("short");
    assert!(parts.ns() >= least, "{parts:?}");
}

#[test]
fn a_wait_that_its_caller_gives_up_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = connected(folder.path());
    let mut whole = LongWait::new();
    whole
        .part(|| to.receive_timeout(SHORT))
        .expect_err("silent");
    whole
        .part(|| to.receive_timeout(SHORT))
        .expect_err("silent");
    assert!(waits(folder.path(), Cause::Nothing).is_empty());
    drop(whole);
    let found = waits(folder.path(), Cause::Nothing);
    let [wait] = &found[..] else {
        panic!("{found:?}")
    };
    let least = u64::try_from((2 * SHORT).as_nanos()).expect("short");
    assert!(wait.ns() >= least, "{wait:?}");
    // Of a wait that succeeded, the unsuccessful parts are not.
    let mut whole = LongWait::new();
    whole
        .part(|| to.receive_timeout(SHORT))
        .expect_err("silent");
    from.send(b"message").expect("room");
    whole
        .part(|| to.receive_timeout(PATIENCE))
        .expect("it arrives");
    drop(whole);
    assert_eq!(waits(folder.path(), Cause::Nothing).len(), 1);
}

#[test]
fn parts_of_a_wait_for_room_are_one_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = connected(folder.path());
    let mut whole = LongWait::new();
    while from.try_send(&[0; 1000]).is_ok() {}
    let mut last = Ok(());
    // Until the receiver has no room for the part's whole duration.
    while last.is_ok() {
        last = whole.part(|| from.send_timeout(&[0; 1000], SHORT));
    }
    assert!(waits(folder.path(), Cause::Room).is_empty());
    whole
        .last_part(|| from.send_timeout(&[0; 1000], SHORT))
        .expect_err("the receiver has no room");
    let found = waits(folder.path(), Cause::Room);
    let [wait] = &found[..] else {
        panic!("{found:?}")
    };
    let least = u64::try_from((2 * SHORT).as_nanos()).expect("short");
    assert!(wait.ns() >= least, "{wait:?}");
    drop(to);
}

#[test]
fn a_closed_node_has_ended_while_its_endpoints_remain() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = node(folder.path());
    let endpoint = here.endpoint(EndpointId(7)).expect("free");
    here.clone().close(PATIENCE).expect("nothing is sent");
    assert!(file(folder.path()).header.has_ended);
    drop(endpoint);
    let _again = node(folder.path());
    assert!(!file(folder.path()).header.has_ended);
}

#[test]
fn waits_for_operations_and_queues_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = node(folder.path());
    let endpoint = here.endpoint(EndpointId(7)).expect("free");
    let queue = here.completion_queue();
    endpoint.attach(&queue);
    assert!(queue.wait(SHORT).expect("open").is_none());
    assert_eq!(waits(folder.path(), Cause::Nothing).len(), 1);
    let counter = here.completion_counter();
    assert!(counter.wait(1, SHORT).expect("open").is_none());
    assert_eq!(waits(folder.path(), Cause::Nothing).len(), 2);
}
