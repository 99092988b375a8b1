//! The cost of copying long messages: messages copied when they are posted and when they are read,
//! compared with messages whose bytes the library shares and that arrive directly in the memory of
//! a waiting receiver or of posted receives (twice as many as messages in flight).
//! `long_messages shm|udp [bytes [in flight]]`, on two threads of one process.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Bytes, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId, Links, Node,
    NodeId, Operation, RegionMemory,
};

const PATIENCE: Duration = Duration::from_secs(30);
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 9;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Copied,
    Shared,
    Placed,
    SharedAndPlaced,
    Posted,
    SharedAndPosted,
}

impl Way {
    fn shares(self) -> bool {
        matches!(
            self,
            Way::Shared | Way::SharedAndPlaced | Way::SharedAndPosted
        )
    }

    fn places(self) -> bool {
        matches!(self, Way::Placed | Way::SharedAndPlaced)
    }

    fn posts(self) -> bool {
        matches!(self, Way::Posted | Way::SharedAndPosted)
    }
}

fn send(
    edge: &Edge,
    queue: &CompletionQueue,
    message: &Bytes,
    (count, most): (usize, usize),
    way: Way,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut under_way = 0;
    for sent in 0..=count {
        if sent < count {
            match way.shares() {
                true => edge.post_bytes(Operation::Message, message.clone(), 0)?,
                false => edge.post(Operation::Message, &[std::io::IoSlice::new(message)], 0)?,
            }
            under_way += 1;
        }
        while under_way >= most || (sent == count && under_way > 0) {
            match queue.wait(PATIENCE)? {
                Some(Completion::Sent { .. }) => under_way -= 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    Ok(())
}

fn receive(
    endpoint: &Endpoint,
    memory: &mut [u8],
    count: usize,
    way: Way,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for _ in 0..count {
        if way.places() {
            endpoint.receive_into_timeout(memory, PATIENCE)?;
        } else {
            let message = endpoint.receive_timeout(PATIENCE)?;
            memory[..message.len()].copy_from_slice(&message);
        }
    }
    Ok(())
}

fn receive_posted(
    endpoint: &Endpoint,
    queue: &CompletionQueue,
    memories: &[RegionMemory],
    count: usize,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for memory in memories.iter().take(count) {
        endpoint.post_receive(memory.clone(), queue, 0)?;
    }
    for left in (0..count).rev() {
        match queue.wait(PATIENCE)? {
            Some(Completion::Filled { memory, .. }) if left >= memories.len() => {
                endpoint.post_receive(memory, queue, 0)?;
            }
            Some(Completion::Filled { .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let links = match arguments.next().as_deref() {
        Some("shm") => Links::Shm,
        Some("udp") => Links::Udp,
        _ => return Err("long_messages shm|udp [bytes [under way]]".into()),
    };
    let bytes: usize = arguments.next().map_or(Ok(1 << 20), |text| text.parse())?;
    let most: usize = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let directory = std::env::temp_dir().join(format!("long-messages-{}", std::process::id()));
    let open = || {
        let config = Config::local(NodeId(1), directory.clone());
        Node::open(Config { links, ..config })
    };
    let (here, there) = (open()?, open()?);
    let from = here.endpoint(EndpointId(1))?;
    let to = there.endpoint(EndpointId(2))?;
    let (edge, queue) = (from.edge(Address::new(1, 2))?, here.completion_queue());
    edge.attach(&queue);
    let message = Bytes::from(vec![7; bytes]);
    let mut memory = vec![0; bytes];
    let filled = there.completion_queue();
    let memories = (0..2 * most).map(|_| RegionMemory::new(bytes));
    let memories: Vec<RegionMemory> = memories.collect::<Result<_, _>>()?;
    let mut run = |count, way| {
        thread::scope(|scope| {
            let begun = Instant::now();
            let sender = scope.spawn(|| send(&edge, &queue, &message, (count, most), way));
            match way.posts() {
                true => receive_posted(&to, &filled, &memories, count)?,
                false => receive(&to, &mut memory, count, way)?,
            }
            sender.join().map_err(|_| "the sender panicked")??;
            Ok::<_, Box<dyn Error + Send + Sync>>(begun.elapsed())
        })
    };
    let ways = [
        ("copied twice more", Way::Copied),
        ("shared", Way::Shared),
        ("placed", Way::Placed),
        ("shared and placed", Way::SharedAndPlaced),
        ("posted", Way::Posted),
        ("shared and posted", Way::SharedAndPosted),
    ];
    let tried = run(64, Way::Copied)?;
    let count = usize::try_from(64 * ROUND.as_nanos() / tried.as_nanos().max(1))?.max(8);
    let mut rates = ways.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((_, way), rates) in ways.iter().zip(&mut rates) {
            let took = run(count, *way)?;
            rates.push((count * bytes) as f64 / took.as_secs_f64() / 1e9);
        }
    }
    for ((name, _), mut rates) in ways.into_iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        let [least, median, most] = [rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]];
        println!("{name:18} {median:6.2} GB/s ({least:.2} to {most:.2})");
    }
    let _gone = std::fs::remove_dir_all(&directory);
    Ok(())
}
