//! The kernel's helper functions that our programs call.

use super::{Machine, Maps, Region, Value, written};
use super::{Map, Number, Pointer, Unchecked, Unset};
use crate::program::assembler::Helper;
use crate::program::maps::{self, KEY_BYTES, Reason};

const EFAULT: i64 = -14;

impl Machine<'_> {
    pub(super) fn call(&mut self, helper: i32) -> Result<(), String> {
        let result = match helper {
            it if it == Helper::MapLookup as i32 => self.look_up()?,
            it if it == Helper::SkbLoadBytes as i32 => self.load_bytes()?,
            it if it == Helper::SocketCookie as i32 => {
                self.context_argument()?;
                Number(self.input.cookie)
            }
            it if it == Helper::RingReserve as i32 => self.reserve()?,
            it if it == Helper::RingSubmit as i32 => self.end_record(true)?,
            it if it == Helper::RingDiscard as i32 => self.end_record(false)?,
            _ => return Err("no such helper".to_owned()),
        };
        self.registers[1..=5].fill(Unset);
        self.set(0, result)
    }

    fn context_argument(&self) -> Result<(), String> {
        match self.get(1)? {
            Pointer(Region::Context, 0) => Ok(()),
            other => Err(format!("{other:?} is not the context")),
        }
    }

    fn look_up(&mut self) -> Result<Value, String> {
        let Map(map) = self.get(1)? else {
            return Err("not a map".to_owned());
        };
        let key = |count: usize| -> Result<Vec<u8>, String> {
            let (region, at) = self.place(2, 0)?;
            let begin = usize::try_from(at).map_err(|_| "the key is before the stack")?;
            match (region, self.stack.get(begin..begin + count)) {
                (Region::Stack, Some(bytes)) => written(bytes),
                _ => Err("the key is not on the stack".to_owned()),
            }
        };
        let found = match &*self.maps {
            Maps::Ingress { rings, full, .. } => match map {
                maps::RINGS => {
                    let key = key(KEY_BYTES)?.try_into().unwrap();
                    rings.contains_key(&key).then_some(Region::Ring(key))
                }
                maps::FULL => {
                    let key = key(KEY_BYTES)?.try_into().unwrap();
                    full.contains_key(&key).then_some(Region::FullCount(key))
                }
                maps::COUNTERS => {
                    let index = u32::from_ne_bytes(key(4)?.try_into().unwrap());
                    let known = usize::try_from(index).unwrap() < Reason::ALL.len();
                    known.then_some(Region::Counter(index))
                }
                _ => return Err("no such map".to_owned()),
            },
            Maps::Egress { allowed, .. } => match map {
                maps::COOKIES => {
                    let cookie = u64::from_ne_bytes(key(8)?.try_into().unwrap());
                    allowed
                        .contains_key(&cookie)
                        .then_some(Region::Allowed(cookie))
                }
                maps::REFUSED => (key(4)? == [0; 4]).then_some(Region::Refused),
                _ => return Err("no such map".to_owned()),
            },
        };
        Ok(found.map_or(Number(0), Unchecked))
    }

    fn load_bytes(&mut self) -> Result<Value, String> {
        self.context_argument()?;
        let (from, count) = (self.number_in(2)?, self.number_in(4)?);
        let (from, count) = (
            usize::try_from(from).unwrap(),
            usize::try_from(count).unwrap(),
        );
        if count == 0 {
            return Err("a read of no bytes".to_owned());
        }
        let (region, at) = self.place(3, 0)?;
        let end = from.saturating_add(count);
        let (bytes, result) = match self.input.frame.get(from..end) {
            Some(bytes) => (bytes.to_vec(), 0),
            // The kernel clears the buffer on failure.
            None => (vec![0; count], EFAULT),
        };
        self.put(region, at, &bytes)?;
        Ok(Number(result.cast_unsigned()))
    }

    fn reserve(&mut self) -> Result<Value, String> {
        let Pointer(Region::Ring(key), 0) = self.get(1)? else {
            return Err("no ring".to_owned());
        };
        let bytes = usize::try_from(self.number_in(2)?).unwrap();
        if self.number_in(3)? != 0 || self.record.is_some() {
            return Err("a wrong reservation".to_owned());
        }
        let Maps::Ingress { rings, .. } = &mut *self.maps else {
            return Err("there are no rings".to_owned());
        };
        let ring = rings.get_mut(&key).unwrap();
        let Some(left) = ring.room.checked_sub(bytes) else {
            return Ok(Number(0));
        };
        ring.room = left;
        self.record = Some((vec![None; bytes], key));
        Ok(Unchecked(Region::Record))
    }

    fn end_record(&mut self, submit: bool) -> Result<Value, String> {
        let (Pointer(Region::Record, 0), Number(0)) = (self.get(1)?, self.get(2)?) else {
            return Err("no record".to_owned());
        };
        let (record, key) = self.record.take().ok_or("the record is gone")?;
        if let (true, Maps::Ingress { rings, .. }) = (submit, &mut *self.maps) {
            // Uninitialised bytes hold data of an earlier packet.
            let bytes = record.into_iter().map(|byte| byte.unwrap_or(0xa5));
            rings.get_mut(&key).unwrap().records.push(bytes.collect());
        }
        Ok(Unset)
    }
}
