//! Tells secrets apart.

use std::fmt;

/// Identifies a secret with which objects are encrypted, without revealing it: eight bytes that are
/// derived from the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecretId(pub [u8; 8]);

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
