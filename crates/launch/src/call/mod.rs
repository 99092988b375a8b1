//! A call from a launcher to a node's agent: who may call, and how it is carried.
//!
//! Both ends prove to hold the cluster key; what follows is encrypted. Knows nothing of jobs but
//! what is asked for and answered first. The bytes are in `docs/protocol.md` §11.

mod channel;
mod greeting;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use channel::{Channel, Frame, MOST_BYTES, Receiver, Sender};
pub use greeting::{GREETING_BYTES, Greeting, PROOF_BYTES, proves};

/// What a caller wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Who asks, as they call themselves: a user on a machine.
    pub who: String,
    /// The job's program and its arguments, for people to read.
    pub command: String,
    /// How many ranks may be placed there.
    pub ranks: u32,
}

/// What comes of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A guard is started; at most so many ranks may be, if there is a limit.
    Welcome {
        /// `None` for no limit.
        most_ranks: Option<u32>,
    },
    /// The agent's owner does not want it.
    Refused {
        /// For the caller to read.
        reason: String,
    },
}

/// How often each end says that it is there, once the answer was a welcome.
const WORD_EVERY: Duration = Duration::from_secs(10);
/// How long an end may say nothing before its machine is taken for gone.
///
/// Not left to the kernel: what it offers cannot tell a machine that is gone from one whose
/// program does not read for now.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Says that this end is there until the other one cannot be told any more.
pub fn say_alive<W: Write + Send + 'static>(sender: Arc<Mutex<Sender<W>>>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(WORD_EVERY);
            let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            if sender.send(&Frame::Alive).is_err() {
                return;
            }
        }
    });
}
