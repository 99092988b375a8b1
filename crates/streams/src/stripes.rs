//! One sequence of bytes over several streams, which may go through several interfaces.

use std::borrow::Borrow;
use std::thread;

use dipole_node::Endpoint;

use crate::error::StreamError;
use crate::layout::Layout;
use crate::stream::Stream;

/// Distributes a sequence of bytes over `streams` in blocks: block k goes over stream k modulo their number.
/// Within each stream, its layout distributes the bytes over the ranks.
///
/// A rank's part of each stream is a slice of its own; [`split`](Stripes::split) gives the lengths.
#[derive(Debug)]
pub struct Stripes<E> {
    streams: Vec<Stream<E>>,
    block: u64,
}

impl<E: Borrow<Endpoint> + Send + Sync> Stripes<E> {
    /// Combines streams that all ranks have opened in the same order.
    ///
    /// # Errors
    /// There are no streams, or the blocks are empty.
    pub fn new(streams: Vec<Stream<E>>, block: u64) -> Result<Stripes<E>, StreamError> {
        if streams.is_empty() || block == 0 {
            let why = "stripes need at least one stream, and blocks of at least one byte";
            return Err(StreamError::Misuse(why.into()));
        }
        Ok(Stripes { streams, block })
    }

    /// The streams, to read and write outside of transfers.
    pub fn streams(&mut self) -> &mut [Stream<E>] {
        &mut self.streams
    }

    /// The streams, to use them singly again.
    #[must_use]
    pub fn into_streams(self) -> Vec<Stream<E>> {
        self.streams
    }

    /// The number of bytes of the sequence that go over each stream.
    #[must_use]
    pub fn split(&self, total: u64) -> Vec<u64> {
        let number = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let over = Layout::block_cyclic(number, self.block);
        (0..number).map(|stream| over.part(stream, total)).collect()
    }

    /// Writes `total` bytes over all streams at once. `parts` are this rank's parts of the streams, distributed as
    /// in `layout`. All ranks.
    ///
    /// # Errors
    /// The first error of a stream.
    pub fn write(
        &mut self,
        layout: impl Fn(u64) -> Layout + Sync,
        total: u64,
        parts: &[&[u8]],
    ) -> Result<(), StreamError> {
        let split = self.split(total);
        self.check(parts.len())?;
        let layout = &layout;
        let all = self.streams.iter_mut().zip(split).zip(parts);
        joined(
            all.map(|((stream, bytes), part)| move || stream.write(&layout(bytes), bytes, part)),
        )?;
        Ok(())
    }

    /// Reads `total` bytes from all streams at once. Returns the number read. All ranks.
    ///
    /// # Errors
    /// The first error of a stream.
    pub fn read(
        &mut self,
        layout: impl Fn(u64) -> Layout + Sync,
        total: u64,
        parts: &mut [&mut [u8]],
    ) -> Result<u64, StreamError> {
        let split = self.split(total);
        self.check(parts.len())?;
        let layout = &layout;
        let all = self.streams.iter_mut().zip(split).zip(parts);
        let came = joined(
            all.map(|((stream, bytes), part)| move || stream.read(&layout(bytes), bytes, part)),
        )?;
        Ok(came.into_iter().sum())
    }

    fn check(&self, parts: usize) -> Result<(), StreamError> {
        let streams = self.streams.len();
        match parts == streams {
            true => Ok(()),
            false => Err(StreamError::Misuse(format!(
                "{parts} parts for {streams} streams"
            ))),
        }
    }

    /// Closes all streams. All ranks.
    ///
    /// # Errors
    /// The first error of a stream.
    pub fn close(self) -> Result<(), StreamError> {
        self.streams.into_iter().try_for_each(Stream::close)
    }
}

/// Runs each function on a thread. Returns all results.
fn joined<A: Send, F>(all: impl Iterator<Item = F>) -> Result<Vec<A>, StreamError>
where
    F: FnOnce() -> Result<A, StreamError> + Send,
{
    thread::scope(|scope| {
        let threads: Vec<_> = all.map(|each| scope.spawn(each)).collect();
        let outcomes: Vec<_> = threads.into_iter().map(|it| it.join()).collect();
        let outcomes = outcomes.into_iter().map(|it| match it {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        outcomes.collect()
    })
}
