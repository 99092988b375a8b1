//! An assembler for the kernel's BPF machine, with jumps to labels.
//!
//! It supports only what our programs use: 64-bit arithmetic, loads, stores, jumps, helpers, and
//! maps by number. [`Assembler::finish`] returns the program without the maps' descriptors,
//! which [`Program::linked`] fills in.
//! Source: Documentation/bpf/standardization/instruction-set.rst of the kernel.

/// A register of the BPF machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    /// Return value of helpers and of the program.
    R0 = 0,
    /// R1 to R5 are arguments of helpers, which overwrite them.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    /// R6 to R9 survive calls.
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    /// The top of the stack, which grows down.
    Frame = 10,
}

/// Size of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Condition of a jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Equal = 0x10,
    Greater = 0x20,
    /// Some bit is set in both operands.
    AnyBit = 0x40,
    Different = 0x50,
}

/// Arithmetic with a constant or a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Math {
    Add = 0x00,
    And = 0x50,
    ShiftLeft = 0x60,
    Move = 0xb0,
}

/// A helper function of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    MapLookup = 1,
    SkbLoadBytes = 26,
    SocketCookie = 46,
    RingReserve = 131,
    RingSubmit = 132,
    RingDiscard = 133,
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Constant(i32),
    Register(Reg),
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Constant(value)
    }
}

impl From<Reg> for Operand {
    fn from(register: Reg) -> Self {
        Self::Register(register)
    }
}

const LOAD_CONSTANT_64: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_CONSTANT: u8 = 0x62;
const STORE: u8 = 0x63;
const ADD_TO_MEMORY_64: u8 = 0xdb;
const MATH_64: u8 = 0x07;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Converts between host and network byte order.
const TO_BIG_ENDIAN: u8 = 0xdc;
const BY_REGISTER: u8 = 0x08;
/// Marks the constant of a 64-bit load as a map's descriptor.
const IS_MAP: u8 = 1;

/// One instruction, as the kernel reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    pub(crate) to: u8,
    pub(crate) from: u8,
    pub(crate) offset: i16,
    pub(crate) constant: i32,
}

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let registers = match cfg!(target_endian = "little") {
            true => self.from << 4 | self.to,
            false => self.to << 4 | self.from,
        };
        let [low, high] = self.offset.to_ne_bytes();
        let [a, b, c, d] = self.constant.to_ne_bytes();
        [self.code, registers, low, high, a, b, c, d]
    }
}

/// A jump target in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program with resolved jumps; its maps are still numbers, not descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) instructions: Vec<Instruction>,
}

impl Program {
    /// The bytes for the kernel; map number `n` is replaced by `maps[n]`.
    ///
    /// # Panics
    /// If the program uses a map that is not given.
    pub(crate) fn linked(&self, maps: &[i32]) -> Vec<[u8; 8]> {
        let patched = self.instructions.iter().map(|instruction| {
            let mut copy = *instruction;
            if copy.code == LOAD_CONSTANT_64 && copy.from == IS_MAP {
                let number = usize::try_from(copy.constant).expect("a map's number");
                copy.constant = maps[number];
            }
            copy.bytes()
        });
        patched.collect()
    }
}

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    instructions: Vec<Instruction>,
    /// Position of each label, once known.
    labels: Vec<Option<usize>>,
    /// Jump instructions and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label without a position.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets the label's position to here.
    ///
    /// # Panics
    /// If it has a position already.
    pub(crate) fn place(&mut self, label: Label) {
        let before = self.labels[label.0].replace(self.instructions.len());
        assert_eq!(before, None, "a label is at one place");
    }

    /// True if something jumps to the label.
    pub(crate) fn is_used(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, to)| *to == label)
    }

    fn push(&mut self, code: u8, to: Reg, from: Reg, offset: i16, constant: i32) {
        self.instructions.push(Instruction {
            code,
            to: to as u8,
            from: from as u8,
            offset,
            constant,
        });
    }

    /// `to = to OP operand`.
    pub(crate) fn math(&mut self, math: Math, to: Reg, operand: impl Into<Operand>) {
        let code = MATH_64 | math as u8;
        match operand.into() {
            Operand::Constant(value) => self.push(code, to, Reg::R0, 0, value),
            Operand::Register(from) => self.push(code | BY_REGISTER, to, from, 0, 0),
        }
    }

    /// Emits `to = operand`.
    pub(crate) fn set(&mut self, to: Reg, operand: impl Into<Operand>) {
        self.math(Math::Move, to, operand);
    }

    /// Converts the lower 16 bits from network to host order and clears the rest.
    pub(crate) fn order_16(&mut self, register: Reg) {
        self.push(TO_BIG_ENDIAN, register, Reg::R0, 0, 16);
    }

    /// `to = *(base + offset)`, zero-extended.
    pub(crate) fn load(&mut self, size: Size, to: Reg, base: Reg, offset: i16) {
        self.push(LOAD | size as u8, to, base, offset, 0);
    }

    /// `*(base + offset) = operand`, truncated to `size`.
    pub(crate) fn store(
        &mut self,
        size: Size,
        base: Reg,
        offset: i16,
        operand: impl Into<Operand>,
    ) {
        match operand.into() {
            Operand::Constant(value) => {
                self.push(STORE_CONSTANT | size as u8, base, Reg::R0, offset, value);
            }
            Operand::Register(from) => self.push(STORE | size as u8, base, from, offset, 0),
        }
    }

    /// `*(base + offset) += from`, 64 bits, atomically.
    pub(crate) fn add_to_memory(&mut self, base: Reg, offset: i16, from: Reg) {
        self.push(ADD_TO_MEMORY_64, base, from, offset, 0);
    }

    /// `to` = map number `map`.
    pub(crate) fn load_map(&mut self, to: Reg, map: i32) {
        self.push(LOAD_CONSTANT_64, to, Reg::R1, 0, map);
        self.instructions.push(Instruction::default());
    }

    /// Emits an unconditional jump.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(JUMP, Reg::R0, Reg::R0, 0, 0);
    }

    /// Jumps if the 64-bit comparison holds; a constant is sign-extended.
    pub(crate) fn jump_if(
        &mut self,
        left: Reg,
        when: When,
        right: impl Into<Operand>,
        label: Label,
    ) {
        self.jumps.push((self.instructions.len(), label));
        let code = JUMP | when as u8;
        match right.into() {
            Operand::Constant(value) => self.push(code, left, Reg::R0, 0, value),
            Operand::Register(from) => self.push(code | BY_REGISTER, left, from, 0, 0),
        }
    }

    /// Emits a call of a helper function.
    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(CALL, Reg::R0, Reg::R0, 0, helper as i32);
    }

    /// Emits the exit, which returns R0.
    pub(crate) fn exit(&mut self) {
        self.push(EXIT, Reg::R0, Reg::R0, 0, 0);
    }

    /// Resolves the jumps.
    ///
    /// # Panics
    /// If a label has no position, or a jump is longer than 32767 instructions: a mistake in the
    /// program, independent of its input.
    pub(crate) fn finish(mut self) -> Program {
        for (at, label) in self.jumps {
            let there = self.labels[label.0].expect("a label is somewhere");
            // Relative to the instruction after the jump.
            let far = there.cast_signed() - (at + 1).cast_signed();
            self.instructions[at].offset = i16::try_from(far).expect("a jump is short");
        }
        Program {
            instructions: self.instructions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_kernels_encoding() {
        let mut code = Assembler::default();
        let end = code.label();
        code.set(Reg::R6, Reg::R1);
        code.load(Size::Word, Reg::R2, Reg::R6, 76);
        code.jump_if(Reg::R2, When::Different, 17, end);
        code.store(Size::Half, Reg::Frame, -4, Reg::R2);
        code.load_map(Reg::R1, 0);
        code.call(Helper::MapLookup);
        code.place(end);
        code.exit();
        let bytes = code.finish().linked(&[0x0102]).concat();
        if cfg!(target_endian = "little") {
            let wanted: [[u8; 8]; 8] = [
                [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
                [0x61, 0x62, 76, 0, 0, 0, 0, 0],
                [0x55, 0x02, 4, 0, 17, 0, 0, 0],
                [0x6b, 0x2a, 0xfc, 0xff, 0, 0, 0, 0],
                [0x18, 0x11, 0, 0, 2, 1, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 0],
                [0x85, 0, 0, 0, 1, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ];
            assert_eq!(bytes, wanted.concat());
        }
    }

    #[test]
    #[should_panic(expected = "a label is somewhere")]
    fn a_jump_to_nowhere_is_refused() {
        let mut code = Assembler::default();
        let label = code.label();
        code.jump(label);
        let _never = code.finish();
    }

    #[test]
    #[should_panic(expected = "a label is at one place")]
    fn a_label_at_two_places_is_refused() {
        let mut code = Assembler::default();
        let label = code.label();
        code.place(label);
        code.exit();
        code.place(label);
    }

    #[test]
    #[should_panic(expected = "a jump is short")]
    fn a_jump_that_does_not_fit_is_refused() {
        let mut code = Assembler::default();
        let label = code.label();
        code.jump(label);
        for _ in 0..=i16::MAX.cast_unsigned() {
            code.exit();
        }
        code.place(label);
        let _never = code.finish();
    }
}
