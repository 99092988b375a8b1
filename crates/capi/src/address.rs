//! C representation of addresses: `struct dp_address`.

use std::ffi::c_int;

use crate::failure::Failure;

/// `struct dp_address`: an endpoint of a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Node id.
    pub nid: u32,
    /// Id of the endpoint on the node.
    pub dpid: u32,
}

impl From<dipole_node::Address> for Address {
    fn from(address: dipole_node::Address) -> Address {
        Address {
            nid: address.node.0,
            dpid: address.endpoint.0,
        }
    }
}

impl Address {
    /// The address in two signed numbers, as the calls of the papers take them.
    pub(crate) fn from_signed(nid: c_int, dpid: c_int) -> Result<dipole_node::Address, Failure> {
        let (nid, dpid) = (unsigned("nid", nid)?, unsigned("dpid", dpid)?);
        Address { nid, dpid }.checked()
    }

    pub(crate) fn checked(self) -> Result<dipole_node::Address, Failure> {
        if self.nid == 0 {
            return Err(Failure::BadNumber {
                what: "nid",
                found: 0,
                expected: "a node from 1 to 4294967295",
            });
        }
        Ok(dipole_node::Address::new(self.nid, self.dpid))
    }
}

/// A number that C passes as an `int` and that must not be negative.
fn unsigned(what: &'static str, number: c_int) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::BadNumber {
        what,
        found: number.into(),
        expected: "a number that is not negative",
    })
}
