//! Output of the core: packets to send, events, free frames.

use dipole_proto::{Agreement, Event, Frames, Instant, PeerId, Slot, Transmit};

use super::RecordedMachine;
use crate::check::Check;
use crate::frames::ObservedFrames;
use crate::input::Input;

impl RecordedMachine {
    /// See [`Machine::poll_transmit`](dipole_proto::Machine::poll_transmit).
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, frames: &mut impl Frames) -> Option<Transmit> {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.poll_transmit(now, frames);
        };
        let log = &mut recorder.frames;
        log.clear();
        let transmit = self
            .machine
            .poll_transmit(now, &mut ObservedFrames { frames, log });
        let check = transmit.map(|it| log.check_packet(&it, frames));
        recorder.last_transmit = transmit.or(recorder.last_transmit);
        let sending = recorder.sending();
        recorder.push_at(now, &Input::PollTransmit(sending, check));
        transmit
    }

    /// See [`Machine::transmit_alone`](dipole_proto::Machine::transmit_alone).
    #[inline]
    pub fn transmit_alone(
        &mut self,
        now: Instant,
        peer: PeerId,
        slot: Slot,
        frames: &mut impl Frames,
    ) -> Option<Transmit> {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.transmit_alone(now, peer, slot, frames);
        };
        let log = &mut recorder.frames;
        log.clear();
        let observed = &mut ObservedFrames { frames, log };
        let transmit = self.machine.transmit_alone(now, peer, slot, observed);
        let check = transmit.map(|it| log.check_packet(&it, frames));
        let sending = recorder.sending();
        let input = Input::TransmitAlone(peer, slot, sending, check);
        recorder.push_at(now, &input);
        transmit
    }

    /// See [`Machine::transmit_train`](dipole_proto::Machine::transmit_train).
    #[inline]
    pub fn transmit_train(
        &mut self,
        now: Instant,
        like: &Transmit,
        frames: &mut impl Frames,
        slots: &mut [Slot],
    ) -> Option<(Transmit, usize)> {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.transmit_train(now, like, frames, slots);
        };
        let log = &mut recorder.frames;
        log.clear();
        let observed = &mut ObservedFrames { frames, log };
        // The count of a train must fit a byte of the recording.
        let most = slots.len().min(usize::from(u8::MAX));
        let slots = &mut slots[..most];
        let train = self.machine.transmit_train(now, like, observed, slots);
        let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        let result = train.map(|(first, count)| {
            let check = log.check_train(&first, &slots[..count], frames);
            (small(count), check)
        });
        let input = Input::TransmitTrain {
            like: (recorder.last_transmit != Some(*like)).then_some(*like),
            room: small(most),
            sending: recorder.sending(),
            result,
        };
        recorder.push_at(now, &input);
        recorder.last_transmit = train.map(|(first, _)| first).or(Some(*like));
        train
    }

    /// See [`Machine::poll_released`](dipole_proto::Machine::poll_released).
    #[inline]
    pub fn poll_released(&mut self) -> Option<Slot> {
        let slot = self.machine.poll_released()?;
        self.note(|it| it.push(&Input::Released(slot)));
        Some(slot)
    }

    /// See [`Machine::poll_event`](dipole_proto::Machine::poll_event).
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.machine.poll_event()?;
        self.note(|it| it.push(&Input::Event(Check::of(&event))));
        Some(event)
    }

    /// See [`Machine::take_assembled`](dipole_proto::Machine::take_assembled).
    #[inline]
    pub fn take_assembled(&mut self) -> Option<Vec<u8>> {
        let whole = self.machine.take_assembled()?;
        self.note(|it| it.push(&Input::Assembled(Check::of(&whole[..]))));
        Some(whole)
    }

    /// See [`Machine::take_agreement`](dipole_proto::Machine::take_agreement).
    #[inline]
    pub fn take_agreement(&mut self) -> Option<Agreement> {
        let agreement = self.machine.take_agreement()?;
        self.note(|it| it.push(&Input::Agreement(Check::of(&agreement))));
        Some(agreement)
    }

    /// See [`Machine::take_ended_session`](dipole_proto::Machine::take_ended_session).
    #[inline]
    pub fn take_ended_session(&mut self) -> Option<(u32, u64)> {
        let (index, serial) = self.machine.take_ended_session()?;
        self.note(|it| it.push(&Input::Ended(index, serial)));
        Some((index, serial))
    }
}
