//! Which links a process has opened, and why not better ones.

use std::net::IpAddr;

use crate::config::{Config, Links, variables};

/// What was opened, and why not better: for those who ask.
#[derive(Debug)]
pub(crate) struct LinkChoice {
    /// Why no memory is shared, if it is not for what a variable says.
    pub(crate) memory: Option<String>,
    /// The variable because of which none may be shared.
    pub(crate) packets_only: Option<&'static str>,
    /// Why small packets of an interface take its socket; interfaces with a fast path are missing.
    pub(crate) sockets: Vec<(IpAddr, String)>,
}

impl LinkChoice {
    pub(crate) fn new(config: &Config) -> LinkChoice {
        LinkChoice {
            memory: None,
            sockets: Vec::new(),
            packets_only: match config.links {
                Links::Udp | Links::Bpf => Some(variables::LINK),
                Links::Auto if config.fault.is_some() => Some(variables::FAULT),
                Links::Auto if config.capture.is_some() => Some(variables::CAPTURE),
                Links::Auto | Links::Shm => None,
            },
        }
    }
}
