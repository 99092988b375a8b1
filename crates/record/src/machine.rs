//! The core with an optional recorder: every call that changes it goes through here.

mod credit;
mod edges;
mod output;
mod pipes;

use std::io;
use std::ops::Deref;

use dipole_proto::wire::{Address, Flags, LaneAddress};
use dipole_proto::{
    Addressed, ConnectError, DropReason, Instant, Machine, PeerId, Train, Transmit,
};

use crate::check::Check;
use crate::input::Input;
use crate::recorder::{Options, Recorder};
use credit::CreditShortage;

/// The protocol core. It can be read like a [`Machine`]; what changes it is recorded if
/// [`record`](Self::record) was called. Otherwise each call costs one more branch.
#[derive(Debug)]
pub struct RecordedMachine {
    machine: Machine,
    recorder: Option<Box<Recorder>>,
    credit: Option<Box<CreditShortage>>,
}

impl From<Machine> for RecordedMachine {
    fn from(machine: Machine) -> RecordedMachine {
        RecordedMachine {
            machine,
            recorder: None,
            credit: None,
        }
    }
}

impl Deref for RecordedMachine {
    type Target = Machine;

    #[inline]
    fn deref(&self) -> &Machine {
        &self.machine
    }
}

/// A [`Train`] whose packets are recorded.
#[derive(Debug)]
pub struct RecordedTrain<'a> {
    train: Train<'a>,
    first: Addressed<'a>,
    /// Flags of the packets after the first one, if they are recorded.
    flags: Option<Vec<u8>>,
}

impl RecordedTrain<'_> {
    /// See [`Train::expects`].
    #[inline]
    #[must_use]
    pub fn expects(&self, packet: &[u8]) -> Option<Flags> {
        self.train.expects(packet)
    }

    /// See [`Train::add`].
    #[inline]
    pub fn add(&mut self, flags: Flags) {
        self.train.add(flags);
        if let Some(recorded) = &mut self.flags {
            recorded.push(flags.0);
        }
    }

    /// See [`Train::count`].
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.train.count()
    }
}

impl RecordedMachine {
    /// Records all calls from now on.
    ///
    /// # Errors
    /// The directory or the first file cannot be created or written.
    pub fn record(&mut self, options: Options, now: Instant) -> io::Result<()> {
        let recorder = Recorder::create(options, &self.machine, now)?;
        self.recorder = Some(Box::new(recorder));
        Ok(())
    }

    /// True while calls are recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    #[inline]
    fn note(&mut self, note: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &mut self.recorder {
            note_now(recorder, note);
        }
    }

    // ---- packets and times ----------------------------------------------------

    /// See [`Machine::address`]. Changes the core only if it refuses the packet.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn address<'a>(
        &mut self,
        now: Instant,
        from: Address,
        bytes: &'a [u8],
    ) -> Result<Addressed<'a>, DropReason> {
        let addressed = self.machine.address(now, from, bytes);
        if let Err(reason) = &addressed {
            self.note(|it| {
                let mut images = std::mem::take(&mut it.images);
                let (packet, check) = (images.header_of(bytes), Check::of(reason));
                it.push_at(
                    now,
                    &Input::Refused {
                        from,
                        packet,
                        check,
                    },
                );
                it.images = images;
            });
        }
        addressed
    }

    /// See [`Machine::on_packet`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn on_packet(
        &mut self,
        now: Instant,
        from: Address,
        addressed: &Addressed<'_>,
    ) -> Result<(), DropReason> {
        let taken = self.machine.on_packet(now, from, addressed);
        self.note(|it| {
            let mut images = std::mem::take(&mut it.images);
            let packet = images.packet(&addressed.packet);
            it.push_at(
                now,
                &Input::Packet {
                    from,
                    packet,
                    trailer: trailer_bytes(addressed),
                    proven: addressed.proven,
                    check: Check::of(&taken),
                },
            );
            it.images = images;
        });
        taken
    }

    /// See [`Machine::begin_train`].
    #[inline]
    #[must_use]
    pub fn begin_train<'a>(&self, addressed: &Addressed<'a>) -> Option<RecordedTrain<'a>> {
        Some(RecordedTrain {
            train: self.machine.begin_train(addressed)?,
            first: *addressed,
            flags: self.recorder.is_some().then(Vec::new),
        })
    }

    /// See [`Machine::on_train`].
    #[inline]
    pub fn on_train(&mut self, now: Instant, from: Address, train: RecordedTrain<'_>) {
        let RecordedTrain {
            train,
            first,
            flags,
        } = train;
        self.machine.on_train(now, from, train);
        self.note(|it| {
            let mut images = std::mem::take(&mut it.images);
            let packet = images.packet(&first.packet);
            it.push_at(
                now,
                &Input::Train {
                    from,
                    packet,
                    trailer: trailer_bytes(&first),
                    flags: flags.unwrap_or_default().into(),
                },
            );
            it.images = images;
        });
    }

    /// See [`Machine::count`].
    pub fn count(&mut self, reason: DropReason) {
        self.machine.count(reason);
        self.note(|it| it.push(&Input::Count(reason)));
    }

    /// See [`Machine::on_timers`].
    #[inline]
    pub fn on_timers(&mut self, now: Instant) {
        if let Some(recorder) = &mut self.recorder {
            recorder.step(&self.machine, now);
            if recorder.has_failed() {
                self.recorder = None;
            }
        }
        self.machine.on_timers(now);
    }

    /// See [`Machine::next_deadline`]. The caller may sleep until then.
    #[inline]
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.machine.next_deadline();
        self.note(|it| it.next_deadline(&deadline, now));
        deadline
    }

    // ---- peers ------------------------------------------------------------------

    /// See [`Machine::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(
        &mut self,
        now: Instant,
        home: Address,
        incarnation: u64,
    ) -> Result<PeerId, ConnectError> {
        let peer = self.machine.connect(now, home, incarnation);
        self.note(|it| {
            it.push_at(now, &Input::Connect(home, incarnation, Check::of(&peer)));
        });
        peer
    }

    /// See [`Machine::disconnect`].
    pub fn disconnect(&mut self, peer: PeerId) {
        self.machine.disconnect(peer);
        self.note(|it| it.push(&Input::Disconnect(peer)));
    }

    /// See [`Machine::renew_proofs`].
    pub fn renew_proofs(&mut self, now: Instant) {
        self.machine.renew_proofs(now);
        self.note(|it| it.push_at(now, &Input::RenewProofs));
    }

    /// See [`Machine::set_lanes`].
    pub fn set_lanes(&mut self, now: Instant, lanes: &[LaneAddress], moved: &[[u8; 16]]) {
        self.machine.set_lanes(now, lanes, moved);
        self.note(|it| it.push_at(now, &Input::SetLanes(lanes.to_vec(), moved.to_vec())));
    }

    /// See [`Machine::acknowledge`].
    pub fn acknowledge(&mut self, peer: PeerId) {
        self.machine.acknowledge(peer);
        self.note(|it| it.push(&Input::Acknowledge(peer)));
    }

    /// See [`Machine::packet_too_long`].
    pub fn packet_too_long(&mut self, now: Instant, transmit: &Transmit) {
        self.machine.packet_too_long(now, transmit);
        self.note(|it| it.push_at(now, &Input::PacketTooLong(*transmit)));
    }

    /// See [`Machine::watch`].
    pub fn watch(&mut self, now: Instant, peer: PeerId, watched: bool) {
        self.machine.watch(now, peer, watched);
        self.note(|it| it.push_at(now, &Input::Watch(peer, watched)));
    }

    /// See [`Machine::confirm_alive`].
    pub fn confirm_alive(&mut self, now: Instant, peer: PeerId, runs: bool) {
        self.machine.confirm_alive(now, peer, runs);
        self.note(|it| it.push_at(now, &Input::ConfirmAlive(peer, runs)));
    }

    /// See [`Machine::give_up`].
    pub fn give_up(&mut self, peer: PeerId) {
        self.machine.give_up(peer);
        self.note(|it| it.push(&Input::GiveUp(peer)));
    }
}

/// Keeps the code of recording out of the caller's fast path.
#[cold]
#[inline(never)]
fn note_now(recorder: &mut Recorder, note: impl FnOnce(&mut Recorder)) {
    note(recorder);
}

/// Trailers are at most 28 bytes long.
fn trailer_bytes(addressed: &Addressed<'_>) -> u8 {
    u8::try_from(addressed.seal.bytes()).unwrap_or(u8::MAX)
}
