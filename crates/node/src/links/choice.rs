//! Records the links that a process has opened, and the reasons why not faster ones.

use std::net::IpAddr;

use crate::config::{Config, Links, variables};

/// The opened links, and the reasons against faster ones.
#[derive(Debug)]
pub(crate) struct LinkChoice {
    /// Why shared memory is not available, unless a variable forbids it.
    pub(crate) memory: Option<String>,
    /// The variable that forbids shared memory.
    pub(crate) packets_only: Option<&'static str>,
    /// Interfaces without a fast path, and why their small packets use the socket.
    pub(crate) sockets: Vec<(IpAddr, String)>,
}

impl LinkChoice {
    pub(crate) fn new(config: &Config) -> LinkChoice {
        LinkChoice {
            memory: None,
            sockets: Vec::new(),
            packets_only: match config.links {
                Links::Udp | Links::Bpf => Some(variables::LINK),
                Links::Auto if config.injects_into_link() => Some(variables::FAULT),
                Links::Auto if config.recordings.capture.is_some() => Some(variables::CAPTURE),
                Links::Auto | Links::Shm => None,
            },
        }
    }
}
