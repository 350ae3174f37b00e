//! Identities by which secrets are told apart.

use std::fmt;

/// The identity of a secret with which objects are encrypted. It has eight bytes that are derived
/// from the secret, and does not reveal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecretId(pub [u8; 8]);

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
