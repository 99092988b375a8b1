//! The C interface of BSPlib: `libbsp`.
