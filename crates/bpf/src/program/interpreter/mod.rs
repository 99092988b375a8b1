//! A BPF interpreter for tests, stricter than a CPU.
//!
//! On the path that is taken it rejects what the kernel's verifier would: uninitialised reads, accesses
//! outside of packet, stack, record or map value, packet reads beyond the checked length, pointers
//! from helpers without a null check, and records that are never submitted.

mod helpers;

use std::collections::HashMap;

use super::assembler::{Instruction, Program};
use super::maps::{ALLOWED_BYTES, KEY_BYTES, Reason};

/// Limit on executed instructions; our programs have no loops.
const MAX_STEPS: usize = 2_000;
const STACK_BYTES: usize = 512;

/// A ring with `room` bytes left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) room: usize,
    /// Records that the program submitted to the ring.
    pub(super) records: Vec<Vec<u8>>,
}

/// Maps that the program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Maps {
    Ingress {
        rings: HashMap<[u8; KEY_BYTES], Ring>,
        counters: [u64; Reason::ALL.len()],
        full: HashMap<[u8; KEY_BYTES], u64>,
    },
    Egress {
        allowed: HashMap<u64, [u8; ALLOWED_BYTES]>,
        refused: u64,
    },
}

/// The packet and its context.
#[derive(Clone, Debug)]
pub(super) struct Input<'a> {
    pub(super) frame: &'a [u8],
    /// Length of the contiguous start of the frame.
    pub(super) linear: usize,
    /// Context fields by offset.
    pub(super) fields: HashMap<i16, u32>,
    /// Context offsets of the pointers to the packet's start and end.
    pub(super) data: [i16; 2],
    pub(super) cookie: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    Context,
    Stack,
    Packet,
    PacketEnd,
    Counter(u32),
    FullCount([u8; KEY_BYTES]),
    Allowed(u64),
    Refused,
    Ring([u8; KEY_BYTES]),
    Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unset,
    Number(u64),
    Pointer(Region, i64),
    /// A pointer from a helper that was not compared with null yet.
    Unchecked(Region),
    Map(i32),
}

use Value::{Map, Number, Pointer, Unchecked, Unset};

/// Runs a program; returns its result, or what it did wrong.
pub(super) fn run(program: &Program, input: &Input<'_>, maps: &mut Maps) -> Result<i32, String> {
    let mut machine = Machine {
        registers: [Unset; 11],
        stack: [None; STACK_BYTES],
        checked: 0,
        record: None,
        input,
        maps,
    };
    machine.registers[1] = Pointer(Region::Context, 0);
    machine.registers[10] = Pointer(Region::Stack, i64::try_from(STACK_BYTES).unwrap());
    let mut at = 0;
    for _ in 0..MAX_STEPS {
        let instruction = *(program.instructions.get(at)).ok_or("it runs over its end")?;
        let step = machine.step(instruction, &program.instructions, at);
        match step.map_err(|wrong| format!("instruction {at}, {instruction:?}: {wrong}"))? {
            Some(next) => at = next,
            None => return machine.result(),
        }
    }
    Err("it does not end".to_owned())
}

struct Machine<'a> {
    registers: [Value; 11],
    stack: [Option<u8>; STACK_BYTES],
    /// Length of the packet that was checked and may be read.
    checked: i64,
    /// The reserved record that was not submitted yet, and its ring.
    record: Option<(Vec<Option<u8>>, [u8; KEY_BYTES])>,
    input: &'a Input<'a>,
    maps: &'a mut Maps,
}

fn size_of_access(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

/// A number from bytes in native order, zero-extended.
fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    match cfg!(target_endian = "little") {
        true => whole[..bytes.len()].copy_from_slice(bytes),
        false => whole[8 - bytes.len()..].copy_from_slice(bytes),
    }
    u64::from_ne_bytes(whole)
}

fn bytes_of(value: u64, count: usize) -> Vec<u8> {
    match cfg!(target_endian = "little") {
        true => value.to_le_bytes()[..count].to_vec(),
        false => value.to_be_bytes()[8 - count..].to_vec(),
    }
}

/// The constant, sign-extended to 64 bits.
fn extended(constant: i32) -> u64 {
    i64::from(constant).cast_unsigned()
}

impl Machine<'_> {
    fn result(&self) -> Result<i32, String> {
        if self.record.is_some() {
            return Err("a record is neither submitted nor discarded".to_owned());
        }
        match self.registers[0] {
            Number(value) => Ok(u32::try_from(value & 0xffff_ffff).unwrap().cast_signed()),
            other => Err(format!("it returns {other:?}")),
        }
    }

    fn get(&self, register: u8) -> Result<Value, String> {
        match self.registers[usize::from(register)] {
            Unset => Err(format!("register {register} was never set")),
            value => Ok(value),
        }
    }

    fn number_in(&self, register: u8) -> Result<u64, String> {
        match self.get(register)? {
            Number(value) => Ok(value),
            other => Err(format!("register {register} is {other:?}, not a number")),
        }
    }

    fn set(&mut self, register: u8, value: Value) -> Result<(), String> {
        if register == 10 {
            return Err("the frame pointer is fixed".to_owned());
        }
        self.registers[usize::from(register)] = value;
        Ok(())
    }

    /// Executes one instruction; returns the index of the next, or `None` at the end.
    fn step(
        &mut self,
        it: Instruction,
        all: &[Instruction],
        at: usize,
    ) -> Result<Option<usize>, String> {
        let jumped = |taken: bool| -> Option<usize> {
            let far = if taken { isize::from(it.offset) } else { 0 };
            (at + 1).checked_add_signed(far)
        };
        match it.code {
            0x95 => return Ok(None),
            0x85 => self.call(it.constant)?,
            0x05 => return Ok(jumped(true)),
            0x18 if it.from == 1 && all.get(at + 1) == Some(&Instruction::default()) => {
                self.set(it.to, Map(it.constant))?;
                return Ok(Some(at + 2));
            }
            0xdc => {
                let low = self.number_in(it.to)? & 0xffff;
                let swapped = u16::from_be(u16::try_from(low).unwrap());
                self.set(it.to, Number(swapped.into()))?;
            }
            0xdb => {
                let added = self.number_in(it.from)?;
                let old = number(&self.read(it.to, it.offset, 8)?);
                self.write(it.to, it.offset, &bytes_of(old.wrapping_add(added), 8))?;
            }
            code => match code & 0x07 {
                0x01 if code & 0xe0 == 0x60 => self.load(it)?,
                0x02 | 0x03 if code & 0xe0 == 0x60 => {
                    let value = match code & 0x07 {
                        0x02 => extended(it.constant),
                        _ => self.number_in(it.from)?,
                    };
                    let bytes = bytes_of(value, size_of_access(code));
                    self.write(it.to, it.offset, &bytes)?;
                }
                0x07 => self.math(it)?,
                0x05 => return self.holds(it).map(jumped),
                _ => return Err("no such instruction".to_owned()),
            },
        }
        Ok(Some(at + 1))
    }

    fn operand(&self, it: Instruction) -> Result<Value, String> {
        match it.code & 0x08 {
            0 => Ok(Number(extended(it.constant))),
            _ => self.get(it.from),
        }
    }

    fn math(&mut self, it: Instruction) -> Result<(), String> {
        let right = self.operand(it)?;
        let value = match (it.code & 0xf0, right) {
            (0xb0, value) => value,
            (0x00, Number(right)) => match self.get(it.to)? {
                Pointer(region, offset) if region != Region::PacketEnd => {
                    Pointer(region, offset.wrapping_add(right.cast_signed()))
                }
                Number(left) => Number(left.wrapping_add(right)),
                other => return Err(format!("arithmetic on {other:?}")),
            },
            (0x50, Number(right)) => Number(self.number_in(it.to)? & right),
            (0x60, Number(right)) => Number(self.number_in(it.to)? << (right & 63)),
            _ => return Err("no such arithmetic".to_owned()),
        };
        self.set(it.to, value)
    }

    /// True if a jump is taken.
    fn holds(&mut self, it: Instruction) -> Result<bool, String> {
        let (left, right) = (self.get(it.to)?, self.operand(it)?);
        match (it.code & 0xf0, left, right) {
            (when, Unchecked(region), Number(0)) => {
                self.set(it.to, Pointer(region, 0))?;
                match when {
                    0x10 => Ok(false),
                    0x50 => Ok(true),
                    _ => Err("a pointer is compared with a number".to_owned()),
                }
            }
            (0x20, Pointer(Region::Packet, offset), Pointer(Region::PacketEnd, _)) => {
                let beyond = offset > i64::try_from(self.input.linear).unwrap();
                if !beyond {
                    self.checked = self.checked.max(offset);
                }
                Ok(beyond)
            }
            (0x10, Number(left), Number(right)) => Ok(left == right),
            (0x20, Number(left), Number(right)) => Ok(left > right),
            (0x40, Number(left), Number(right)) => Ok(left & right != 0),
            (0x50, Number(left), Number(right)) => Ok(left != right),
            _ => Err(format!("{left:?} is compared with {right:?}")),
        }
    }

    fn load(&mut self, it: Instruction) -> Result<(), String> {
        if let Pointer(Region::Context, 0) = self.get(it.from)? {
            let known = self.input.fields.get(&it.offset).copied();
            let value = match (it.offset, known) {
                (at, _) if at == self.input.data[0] => Pointer(Region::Packet, 0),
                (at, _) if at == self.input.data[1] => Pointer(Region::PacketEnd, 0),
                (_, Some(value)) if it.code & 0x18 == 0 => Number(value.into()),
                _ => return Err("the context has nothing there".to_owned()),
            };
            return self.set(it.to, value);
        }
        let bytes = self.read(it.from, it.offset, size_of_access(it.code))?;
        self.set(it.to, Number(number(&bytes)))
    }

    /// Target of an access through a register.
    fn place(&self, base: u8, offset: i16) -> Result<(Region, i64), String> {
        match self.get(base)? {
            Pointer(region, at) => Ok((region, at + i64::from(offset))),
            other => Err(format!("register {base} is {other:?}, not a pointer")),
        }
    }

    fn read(&mut self, base: u8, offset: i16, count: usize) -> Result<Vec<u8>, String> {
        let (region, at) = self.place(base, offset)?;
        let range = |length: usize| {
            let begin = usize::try_from(at).map_err(|_| "it reads before the start")?;
            let end = begin + count;
            match end <= length {
                true => Ok(begin..end),
                false => Err(format!("it reads {end} of {length} bytes of {region:?}")),
            }
        };
        match region {
            Region::Packet => {
                let checked = usize::try_from(self.checked).unwrap();
                Ok(self.input.frame[range(checked)?].to_vec())
            }
            Region::Stack => {
                if !begin_of(at).is_multiple_of(count) {
                    return Err("it reads the stack unaligned".to_owned());
                }
                written(&self.stack[range(STACK_BYTES)?])
            }
            Region::Record => {
                let (record, _) = self.record.as_ref().ok_or("the record is gone")?;
                written(&record[range(record.len())?])
            }
            _ => {
                let value = self.map_value(region)?;
                Ok(value[range(value.len())?].to_vec())
            }
        }
    }

    fn write(&mut self, base: u8, offset: i16, bytes: &[u8]) -> Result<(), String> {
        let (region, at) = self.place(base, offset)?;
        if region == Region::Stack && !begin_of(at).is_multiple_of(bytes.len()) {
            return Err("it writes the stack unaligned".to_owned());
        }
        self.put(region, at, bytes)
    }

    fn put(&mut self, region: Region, at: i64, bytes: &[u8]) -> Result<(), String> {
        let begin = usize::try_from(at).map_err(|_| "it writes before the start")?;
        let end = begin + bytes.len();
        let some = bytes.iter().copied().map(Some);
        let outside = || format!("it writes up to {end} of {region:?}");
        match region {
            Region::Stack => {
                let to = self.stack.get_mut(begin..end).ok_or_else(outside)?;
                to.iter_mut().zip(some).for_each(|(to, from)| *to = from);
            }
            Region::Record => {
                let (record, _) = self.record.as_mut().ok_or("the record is gone")?;
                let to = record.get_mut(begin..end).ok_or_else(outside)?;
                to.iter_mut().zip(some).for_each(|(to, from)| *to = from);
            }
            _ if begin == 0 && end == 8 => *self.counter(region)? = number(bytes),
            _ => return Err(outside()),
        }
        Ok(())
    }

    fn map_value(&mut self, region: Region) -> Result<Vec<u8>, String> {
        match (region, &*self.maps) {
            (Region::Allowed(cookie), Maps::Egress { allowed, .. }) => {
                Ok(allowed[&cookie].to_vec())
            }
            _ => Ok(self.counter(region)?.to_ne_bytes().to_vec()),
        }
    }

    /// A counter in a map.
    fn counter(&mut self, region: Region) -> Result<&mut u64, String> {
        Ok(match (region, &mut *self.maps) {
            (Region::Counter(index), Maps::Ingress { counters, .. }) => {
                &mut counters[usize::try_from(index).unwrap()]
            }
            (Region::FullCount(key), Maps::Ingress { full, .. }) => full.get_mut(&key).unwrap(),
            (Region::Refused, Maps::Egress { refused, .. }) => refused,
            _ => return Err(format!("{region:?} cannot be read or written")),
        })
    }
}

fn begin_of(at: i64) -> usize {
    usize::try_from(at).unwrap_or(0)
}

fn written(bytes: &[Option<u8>]) -> Result<Vec<u8>, String> {
    let all: Option<Vec<u8>> = bytes.iter().copied().collect();
    all.ok_or_else(|| "it reads uninitialised memory".to_owned())
}
