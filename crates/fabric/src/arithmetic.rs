//! The arithmetic of atomic operations on arrays.
//!
//! Works on bytes in the byte order of this machine; `atomics.rs` checks access and excludes
//! concurrent operations. `long double` has no counterpart in Rust and is not offered.

use std::ffi::c_int;

use crate::abi::atomic::*;

/// The kind of call that requests an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Applies the operand and returns nothing.
    Update,
    /// Returns the previous contents.
    Fetch,
    /// Has operands to compare with and returns the previous contents.
    Compare,
}

/// An offered operation on elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) mode: Mode,
    datatype: c_int,
    op: c_int,
}

impl Operation {
    /// `None` if the operation is not offered for this type.
    pub(crate) fn new(mode: Mode, datatype: c_int, op: c_int) -> Option<Operation> {
        let is_of_mode = match mode {
            Mode::Update => op != FI_ATOMIC_READ && (FI_MIN..=FI_ATOMIC_WRITE).contains(&op),
            Mode::Fetch => (FI_MIN..=FI_ATOMIC_WRITE).contains(&op),
            Mode::Compare => (FI_CSWAP..=FI_MSWAP).contains(&op),
        };
        let is_of_bits = matches!(op, FI_BOR | FI_BAND | FI_BXOR | FI_MSWAP);
        let is_of_order =
            matches!(op, FI_MIN | FI_MAX) || (FI_CSWAP_LE..=FI_CSWAP_GT).contains(&op);
        let is_of_type = match datatype {
            FI_INT8..=FI_UINT64 | FI_INT128 | FI_UINT128 => true,
            FI_FLOAT | FI_DOUBLE => !is_of_bits,
            FI_FLOAT_COMPLEX | FI_DOUBLE_COMPLEX => !is_of_bits && !is_of_order,
            _ => false,
        };
        (is_of_mode && is_of_type).then_some(Operation { mode, datatype, op })
    }

    /// The operation as one number.
    pub(crate) fn encode(self) -> u64 {
        let mode = match self.mode {
            Mode::Update => 0,
            Mode::Fetch => 1,
            Mode::Compare => 2,
        };
        mode << 16
            | u64::from(self.datatype.unsigned_abs()) << 8
            | u64::from(self.op.unsigned_abs())
    }

    pub(crate) fn decode(number: u64) -> Option<Operation> {
        let mode = match number >> 16 {
            0 => Mode::Update,
            1 => Mode::Fetch,
            2 => Mode::Compare,
            _ => return None,
        };
        let byte = |at: usize| c_int::from(number.to_le_bytes()[at]);
        Operation::new(mode, byte(1), byte(0))
    }

    /// The size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self.datatype {
            FI_INT8 | FI_UINT8 => 1,
            FI_INT16 | FI_UINT16 => 2,
            FI_INT32 | FI_UINT32 | FI_FLOAT => 4,
            FI_INT64 | FI_UINT64 | FI_DOUBLE | FI_FLOAT_COMPLEX => 8,
            _ => 16,
        }
    }

    /// Returns two flags: the operation reads, and it writes.
    pub(crate) fn access(self) -> (bool, bool) {
        (self.mode != Mode::Update, self.op != FI_ATOMIC_READ)
    }

    /// Changes every element with its operand, and in `Compare` with its operand to compare with.
    pub(crate) fn apply(self, elements: &mut [u8], operands: &[u8], compared: &[u8]) {
        /// Applies `change` to each element of a type and its operands.
        macro_rules! each {
            ($type:ty, $change:expr) => {{
                const BYTES: usize = size_of::<$type>();
                let change: fn(c_int, $type, $type, $type) -> $type = $change;
                let (elements, _) = elements.as_chunks_mut::<BYTES>();
                let (operands, _) = operands.as_chunks::<BYTES>();
                let (compared, _) = compared.as_chunks::<BYTES>();
                for (index, element) in elements.iter_mut().enumerate() {
                    let of = |all: &[[u8; BYTES]]| {
                        <$type>::from_ne_bytes(all.get(index).copied().unwrap_or([0; BYTES]))
                    };
                    let was = <$type>::from_ne_bytes(*element);
                    *element = change(self.op, was, of(operands), of(compared)).to_ne_bytes();
                }
            }};
        }
        macro_rules! integer {
            ($type:ty) => {
                each!($type, |op, was, operand, compared| match op {
                    FI_SUM => was.wrapping_add(operand),
                    FI_PROD => was.wrapping_mul(operand),
                    FI_BOR => was | operand,
                    FI_BAND => was & operand,
                    FI_BXOR => was ^ operand,
                    FI_MSWAP => operand & compared | was & !compared,
                    FI_LOR => <$type>::from(was != 0 || operand != 0),
                    FI_LAND => <$type>::from(was != 0 && operand != 0),
                    FI_LXOR => <$type>::from((was != 0) != (operand != 0)),
                    _ => ordered(op, was, operand, compared),
                })
            };
        }
        macro_rules! float {
            ($type:ty) => {
                each!($type, |op, was, operand, compared| match op {
                    FI_SUM => was + operand,
                    FI_PROD => was * operand,
                    FI_LOR => <$type>::from(u8::from(was != 0.0 || operand != 0.0)),
                    FI_LAND => <$type>::from(u8::from(was != 0.0 && operand != 0.0)),
                    FI_LXOR => <$type>::from(u8::from((was != 0.0) != (operand != 0.0))),
                    _ => ordered(op, was, operand, compared),
                })
            };
        }
        match self.datatype {
            FI_INT8 => integer!(i8),
            FI_UINT8 => integer!(u8),
            FI_INT16 => integer!(i16),
            FI_UINT16 => integer!(u16),
            FI_INT32 => integer!(i32),
            FI_UINT32 => integer!(u32),
            FI_INT64 => integer!(i64),
            FI_UINT64 => integer!(u64),
            FI_INT128 => integer!(i128),
            FI_UINT128 => integer!(u128),
            FI_FLOAT => float!(f32),
            FI_DOUBLE => float!(f64),
            FI_FLOAT_COMPLEX => each!(Complex<f32>, Complex::<f32>::change),
            _ => each!(Complex<f64>, Complex::<f64>::change),
        }
    }
}

/// Operations that compare and select.
fn ordered<T: PartialOrd>(op: c_int, was: T, operand: T, compared: T) -> T {
    let takes_operand = match op {
        FI_MIN => operand < was,
        FI_MAX => operand > was,
        FI_ATOMIC_WRITE => true,
        FI_CSWAP => compared == was,
        FI_CSWAP_NE => compared != was,
        FI_CSWAP_LE => compared <= was,
        FI_CSWAP_LT => compared < was,
        FI_CSWAP_GE => compared >= was,
        FI_CSWAP_GT => compared > was,
        _ => false,
    };
    if takes_operand { operand } else { was }
}

/// A complex number in the layout of C.
#[derive(Clone, Copy, PartialEq)]
struct Complex<T> {
    real: T,
    imaginary: T,
}

macro_rules! complex {
    ($part:ty, $half:literal, $whole:literal) => {
        impl Complex<$part> {
            fn from_ne_bytes(bytes: [u8; $whole]) -> Self {
                let part = |at| {
                    let mut half = [0; $half];
                    half.copy_from_slice(&bytes[at..at + $half]);
                    <$part>::from_ne_bytes(half)
                };
                let (real, imaginary) = (part(0), part($half));
                Complex { real, imaginary }
            }

            fn to_ne_bytes(self) -> [u8; $whole] {
                let mut bytes = [0; $whole];
                bytes[..$half].copy_from_slice(&self.real.to_ne_bytes());
                bytes[$half..].copy_from_slice(&self.imaginary.to_ne_bytes());
                bytes
            }

            fn truth(is_true: bool) -> Self {
                let (real, imaginary) = (<$part>::from(u8::from(is_true)), 0.0);
                Complex { real, imaginary }
            }

            fn change(op: c_int, was: Self, operand: Self, compared: Self) -> Self {
                let is_true = |it: Self| it != Self::truth(false);
                match op {
                    FI_SUM => Complex {
                        real: was.real + operand.real,
                        imaginary: was.imaginary + operand.imaginary,
                    },
                    FI_PROD => Complex {
                        real: was.real * operand.real - was.imaginary * operand.imaginary,
                        imaginary: was.real * operand.imaginary + was.imaginary * operand.real,
                    },
                    FI_LOR => Self::truth(is_true(was) || is_true(operand)),
                    FI_LAND => Self::truth(is_true(was) && is_true(operand)),
                    FI_LXOR => Self::truth(is_true(was) != is_true(operand)),
                    FI_ATOMIC_WRITE => operand,
                    FI_CSWAP if was == compared => operand,
                    FI_CSWAP_NE if was != compared => operand,
                    _ => was,
                }
            }
        }
    };
}
complex!(f32, 4, 8);
complex!(f64, 8, 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn done<const N: usize>(
        (mode, datatype, op): (Mode, c_int, c_int),
        was: [u8; N],
        operand: [u8; N],
        compared: [u8; N],
    ) -> [u8; N] {
        let operation = Operation::new(mode, datatype, op).expect("it is offered");
        assert_eq!(operation.size(), N);
        assert_eq!(Operation::decode(operation.encode()), Some(operation));
        let mut elements = was;
        operation.apply(&mut elements, &operand, &compared);
        elements
    }

    #[test]
    fn integers_wrap_around_and_compare_by_the_signedness_of_their_type() {
        let signed = |op, was: i8, by: i8| {
            i8::from_ne_bytes(done(
                (Mode::Fetch, FI_INT8, op),
                was.to_ne_bytes(),
                by.to_ne_bytes(),
                [0],
            ))
        };
        assert_eq!(signed(FI_SUM, 127, 1), -128);
        assert_eq!(signed(FI_MIN, -1, 1), -1);
        assert_eq!(signed(FI_LXOR, 4, 2), 0);
        assert_eq!(signed(FI_LAND, 4, 2), 1);
        assert_eq!(signed(FI_BAND, 6, 3), 2);
        assert_eq!(signed(FI_ATOMIC_READ, 6, 3), 6);
        assert_eq!(signed(FI_ATOMIC_WRITE, 6, 3), 3);
        assert_eq!(done((Mode::Update, FI_UINT8, FI_MIN), [255], [1], [0]), [1]);
        let wide = (Mode::Update, FI_UINT128, FI_PROD);
        let square = done(
            wide,
            (1_u128 << 70).to_ne_bytes(),
            8_u128.to_ne_bytes(),
            [0; 16],
        );
        assert_eq!(u128::from_ne_bytes(square), 1 << 73);
    }

    #[test]
    fn conditional_swaps_compare_the_operand_with_the_current_value() {
        for (op, smaller, equal, greater) in [
            (FI_CSWAP, false, true, false),
            (FI_CSWAP_NE, true, false, true),
            (FI_CSWAP_LE, true, true, false),
            (FI_CSWAP_LT, true, false, false),
            (FI_CSWAP_GE, false, true, true),
            (FI_CSWAP_GT, false, false, true),
        ] {
            for (compared, swaps) in [(4_i32, smaller), (5, equal), (6, greater)] {
                let of = (Mode::Compare, FI_INT32, op);
                let (was, by) = (5_i32.to_ne_bytes(), 9_i32.to_ne_bytes());
                let is = i32::from_ne_bytes(done(of, was, by, compared.to_ne_bytes()));
                assert_eq!(is, if swaps { 9 } else { 5 }, "{op} with {compared}");
            }
        }
        let masked = (Mode::Compare, FI_UINT8, FI_MSWAP);
        assert_eq!(done(masked, [0b1010], [0b0101], [0b0011]), [0b1001]);
    }

    #[test]
    fn complex_numbers_are_multiplied_but_cannot_be_ordered() {
        let of = |real: f32, imaginary: f32| Complex { real, imaginary }.to_ne_bytes();
        let product = (Mode::Update, FI_FLOAT_COMPLEX, FI_PROD);
        assert_eq!(
            done(product, of(1.0, 2.0), of(3.0, 4.0), [0; 8]),
            of(-5.0, 10.0)
        );
        let swap = (Mode::Compare, FI_FLOAT_COMPLEX, FI_CSWAP);
        assert_eq!(
            done(swap, of(1.0, 2.0), of(3.0, 4.0), of(1.0, 2.0)),
            of(3.0, 4.0)
        );
        for (mode, op) in [(Mode::Update, FI_MIN), (Mode::Compare, FI_CSWAP_LE)] {
            assert_eq!(Operation::new(mode, FI_DOUBLE_COMPLEX, op), None);
        }
    }

    #[test]
    fn operations_that_are_not_offered_are_refused() {
        for (mode, datatype, op) in [
            (Mode::Update, FI_INT32, FI_ATOMIC_READ),
            (Mode::Update, FI_INT32, FI_CSWAP),
            (Mode::Compare, FI_INT32, FI_SUM),
            (Mode::Fetch, FI_DOUBLE, FI_BOR),
            (Mode::Fetch, FI_LONG_DOUBLE, FI_SUM),
            (Mode::Fetch, -1, FI_SUM),
            (Mode::Fetch, FI_INT32, 99),
        ] {
            assert_eq!(Operation::new(mode, datatype, op), None, "{datatype} {op}");
        }
        assert_eq!(Operation::decode(u64::MAX), None);
    }
}
