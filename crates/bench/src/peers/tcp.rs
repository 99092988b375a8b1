//! `bare-tcp-spin` and `bare-tcp-block`: one TCP connection with
//! `TCP_NODELAY`; they differ in one flag, whether calls wait. The work is
//! that of [`super::bytes`].

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use super::super::channel::broken;
use super::super::control::Role;
use super::super::pingpong::GIVE_UP;
use super::bytes::Bytes;

/// Before the connection: the side that listens.
pub(crate) enum Waiting {
    /// Will connect.
    Lead,
    /// Listens.
    Follow(TcpListener),
}

impl Waiting {
    pub(crate) fn bind(ip: IpAddr, role: Role) -> io::Result<Self> {
        match role {
            Role::Lead => Ok(Waiting::Lead),
            Role::Follow => Ok(Waiting::Follow(TcpListener::bind((ip, 0))?)),
        }
    }

    pub(crate) fn ports(&self) -> io::Result<Vec<u16>> {
        match self {
            Waiting::Lead => Ok(Vec::new()),
            Waiting::Follow(listener) => Ok(vec![listener.local_addr()?.port()]),
        }
    }

    pub(crate) fn connect(
        self,
        other: IpAddr,
        ports: &[u16],
        spins: bool,
    ) -> io::Result<Bytes<TcpStream>> {
        let stream = match (self, ports) {
            (Waiting::Lead, &[port]) => TcpStream::connect(SocketAddr::new(other, port))?,
            (Waiting::Lead, _) => {
                return Err(broken(format!(
                    "one port expected from the other side, not {ports:?}"
                )));
            }
            (Waiting::Follow(listener), _) => listener.accept()?.0,
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GIVE_UP))?;
        stream.set_write_timeout(Some(GIVE_UP))?;
        stream.set_nonblocking(spins)?;
        Ok(Bytes::new(stream.try_clone()?, stream, spins))
    }
}
