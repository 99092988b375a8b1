//! `bare-tcp-spin` and `bare-tcp-block`: one TCP connection with `TCP_NODELAY`, with non-blocking or
//! blocking calls. The work is that of [`super::bytes`].

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{Meet, only_port};
use crate::control::Job;
use crate::peers::bytes::Bytes;
use crate::pingpong::GIVE_UP;
use crate::work::Role;

/// Connects the two sides. The following side listens.
pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Bytes<TcpStream>> {
    let [stream] = connect(job, meet)?;
    prepare(stream, job)
}

/// Like [`open`], with two connections.
pub(crate) fn open_two(job: &Job, meet: Meet) -> io::Result<(Bytes<TcpStream>, Bytes<TcpStream>)> {
    let [one, other] = connect(job, meet)?;
    Ok((prepare(one, job)?, prepare(other, job)?))
}

fn connect<const COUNT: usize>(job: &Job, meet: Meet) -> io::Result<[TcpStream; COUNT]> {
    let streams = match job.role {
        Role::Lead => {
            let port = only_port(&meet(Vec::new())?)?;
            let to = SocketAddr::new(job.other, port);
            let connect = |_| {
                TcpStream::connect_timeout(&to, GIVE_UP).map_err(|error| {
                    let told = format!(
                        "cannot connect to {to} by TCP: {error}; does a firewall drop it? \
                         --subjects dipole leaves sockets out"
                    );
                    io::Error::new(error.kind(), told)
                })
            };
            (0..COUNT).map(connect).collect::<io::Result<Vec<_>>>()?
        }
        Role::Follow => {
            let listener = TcpListener::bind((job.own, 0))?;
            meet(vec![listener.local_addr()?.port()])?;
            // Connections arrive in the order in which they were opened.
            let accept = |_| Ok(listener.accept()?.0);
            (0..COUNT).map(accept).collect::<io::Result<Vec<_>>>()?
        }
    };
    Ok(streams.try_into().expect("as many as requested"))
}

fn prepare(stream: TcpStream, job: &Job) -> io::Result<Bytes<TcpStream>> {
    let spins = !job.subject.blocks();
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GIVE_UP))?;
    stream.set_write_timeout(Some(GIVE_UP))?;
    stream.set_nonblocking(spins)?;
    Ok(Bytes::new(stream.try_clone()?, stream, spins))
}
