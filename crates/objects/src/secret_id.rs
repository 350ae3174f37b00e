//! Tells secrets apart.

use std::fmt;

/// Tells secrets with which objects are encrypted apart, without a hint at what they are: eight
/// bytes that are derived from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecretId(pub [u8; 8]);

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
