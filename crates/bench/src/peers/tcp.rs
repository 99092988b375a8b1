//! `bare-tcp-spin` and `bare-tcp-block`: one TCP connection with
//! `TCP_NODELAY`; they differ in one flag, whether calls wait. The work is
//! that of [`super::bytes`].

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::super::control::{Job, Role};
use super::super::pingpong::GIVE_UP;
use super::bytes::Bytes;
use super::{Meet, only_port};

/// Connects the two sides; the following one listens.
pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Bytes<TcpStream>> {
    let stream = match job.role {
        Role::Lead => {
            let port = only_port(&meet(Vec::new())?)?;
            TcpStream::connect(SocketAddr::new(job.other, port))?
        }
        Role::Follow => {
            let listener = TcpListener::bind((job.own, 0))?;
            meet(vec![listener.local_addr()?.port()])?;
            listener.accept()?.0
        }
    };
    let spins = !job.subject.blocks();
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    stream.set_write_timeout(Some(GIVE_UP))?;
    stream.set_nonblocking(spins)?;
    Ok(Bytes::new(stream.try_clone()?, stream, spins))
}
