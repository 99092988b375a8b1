//! Other programs on an interface, before, while and after processes use the bpf link there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use dipole_bpf::{hook, interface_of};
use dipole_testbed::Testbed;

use crate::job::Job;

const PAGE_BYTES: usize = 1 << 20;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A web server, a simple name server, and a responder to pings: on the second node.
struct Others<'a> {
    testbed: &'a Testbed,
    web: SocketAddr,
    echo: SocketAddr,
}

impl Others<'_> {
    /// Runs as long as the test.
    fn start(testbed: &Testbed) -> Others<'_> {
        let ip = testbed.node(2).addresses[0];
        let bind = || -> std::io::Result<_> {
            Ok((TcpListener::bind((ip, 80))?, UdpSocket::bind((ip, 53))?))
        };
        let (web, echo) = testbed
            .inside(2, bind)
            .expect("a namespace")
            .expect("ports");
        let addresses = (web.local_addr(), echo.local_addr());
        std::thread::spawn(move || serve_pages(&web));
        std::thread::spawn(move || serve_echo(&echo));
        Others {
            testbed,
            web: addresses.0.expect("bound"),
            echo: addresses.1.expect("bound"),
        }
    }

    /// Uses all of them from the first node.
    fn use_all(&self) {
        let ping = self.testbed.command(1, "ping");
        assert!(answers_pings(ping, &self.web.ip().to_string()));
        let connect = || TcpStream::connect(self.web);
        let mut web = self
            .testbed
            .inside(1, connect)
            .expect("a namespace")
            .expect("it listens");
        web.set_read_timeout(PATIENCE).expect("a time");
        web.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it reads");
        let mut page = Vec::new();
        web.read_to_end(&mut page).expect("it answers");
        assert_eq!(page.len(), PAGE_BYTES);
        assert!(
            page.iter()
                .enumerate()
                .all(|(at, byte)| *byte == content(at))
        );
        let bind = || UdpSocket::bind((self.testbed.node(1).addresses[0], 0));
        let asker = self
            .testbed
            .inside(1, bind)
            .expect("a namespace")
            .expect("a port");
        asker.set_read_timeout(PATIENCE).expect("a time");
        // Longer packets are fragmented.
        for length in [1, 64, 1400, 9000] {
            let question: Vec<u8> = (0..length).map(content).collect();
            asker.send_to(&question, self.echo).expect("sent");
            let mut answer = [0; 10_000];
            let (answered, from) = asker.recv_from(&mut answer).expect("answered");
            assert_eq!((&answer[..answered], from), (&question[..], self.echo));
        }
    }

    fn attached(&self) -> usize {
        [1, 2].map(|node| attached(self.testbed, node)).iter().sum()
    }
}

fn attached(testbed: &Testbed, node: u32) -> usize {
    let look = || {
        let (interface, _) = interface_of(testbed.node(node).addresses[0].into())?;
        hook::attached(&interface)
    };
    let found = testbed.inside(node, look).expect("a namespace");
    found.expect("the kernel tells").len()
}

fn content(at: usize) -> u8 {
    ((at * 7) ^ (at >> 8)).to_le_bytes()[0]
}

fn serve_pages(web: &TcpListener) {
    let page: Vec<u8> = (0..PAGE_BYTES).map(content).collect();
    for visitor in web.incoming() {
        let mut visitor = visitor.expect("it accepts");
        let mut question = [0; 18];
        visitor.read_exact(&mut question).expect("a question");
        visitor.write_all(&page).expect("it reads");
    }
}

fn serve_echo(echo: &UdpSocket) {
    let mut question = [0; 10_000];
    loop {
        let (length, from) = echo.recv_from(&mut question).expect("it works");
        echo.send_to(&question[..length], from).expect("sent");
    }
}

fn answers_pings(mut ping: Command, address: &str) -> bool {
    ping.args(["-c", "3", "-i", "0.2", "-s", "1000", "-W", "5", address]);
    if let Err(error) = Command::new("ping").arg("-V").output() {
        eprintln!("SKIPPED: pings, because ping cannot be run (iputils-ping): {error}");
        return true;
    }
    let output = ping.output().expect("it can be run");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    output.status.success()
}

#[test]
fn other_programs_on_the_interface_are_not_affected_and_nothing_is_left() {
    let Some(testbed) = crate::testbed(Testbed::builder().nodes(2).slots(2)) else {
        return;
    };
    let others = Others::start(&testbed);
    others.use_all();
    assert_eq!(others.attached(), 0);

    let mut job = Job::soak(&testbed, 4, crate::phase().as_secs_f64(), &[]);
    job.wait_for(4, "all ranks found");
    let held = others.attached();
    println!("{held} programs are attached");
    assert!(held >= 2, "the bpf link is not used");
    others.use_all();
    assert!(job.end().success());
    assert_eq!(job.count("every byte accounted for"), 4);
    assert_eq!(job.count("from rings and"), 4);

    assert_eq!(others.attached(), 0, "something is left");
    others.use_all();
}
