//! The password of the server. It is the password with which the server was started, or the last
//! one that `CONFIG SET requirepass` has set, which is forgotten when the server ends. Clients of
//! the Unix socket do not need a password.

use env::sync::Mutex;

pub struct Password(Mutex<Option<String>>);

impl Password {
    pub fn new(password: Option<String>) -> Password {
        Password(Mutex::new(password))
    }
    pub fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }
    /// Returns whether `word` is the password. If there is no password, every word is accepted.
    pub fn is(&self, word: &[u8]) -> bool {
        self.0.lock().as_ref().is_none_or(|password| same(password.as_bytes(), word))
    }
    /// Returns the password itself.
    pub fn told(&self) -> Option<String> {
        self.0.lock().clone()
    }
    pub fn set(&self, password: Option<String>) {
        *self.0.lock() = password;
    }
}

/// Compares two byte strings in a time that does not reveal the position of the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (x, y)| std::hint::black_box(all | (x ^ y)));
    a.len() == b.len() && differences == 0
}
