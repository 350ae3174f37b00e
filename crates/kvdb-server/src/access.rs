//! Access to the server: the addresses at which it listens, the password that it requires, and
//! the limit on the number of connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::descriptors;
use crate::password::Password;

/// Settings that govern access to the server.
pub struct Access {
    socket: String,
    tcp: Option<SocketAddr>,
    /// Connections to the TCP address are encrypted; a relay serves each of them.
    relayed: bool,
    password: Password,
    /// New connections start with `DURABLE yes`.
    durable: bool,
    /// Limit on the number of connections.
    most_connections: AtomicUsize,
    /// The number of idle seconds after which clients are disconnected; 0 stands for never.
    idle_limit: AtomicU64,
}

impl Access {
    pub fn new(password: Option<String>, durable: bool, most_connections: usize) -> Access {
        Access {
            socket: String::new(),
            tcp: None,
            relayed: false,
            password: Password::new(password),
            durable,
            most_connections: AtomicUsize::new(most_connections),
            idle_limit: AtomicU64::new(0),
        }
    }

    /// Sets the addresses at which the server listens. `encrypted` states whether it requires TLS
    /// at the address.
    pub fn listen(&mut self, socket: String, tcp: Option<SocketAddr>, encrypted: bool) {
        (self.socket, self.tcp, self.relayed) = (socket, tcp, tcp.is_some() && encrypted);
    }
    /// Returns the path of the Unix socket, or an empty string if there is none.
    pub fn socket(&self) -> &str {
        &self.socket
    }
    /// Returns the TCP address, with the port that was actually bound.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp
    }
    /// Returns whether the writes of a new connection are durable before their replies.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    pub fn password(&self) -> &Password {
        &self.password
    }

    /// Sets the limit on connections if the process can have enough file descriptors. Otherwise
    /// changes nothing, and returns the number of connections that are possible.
    pub fn allow_connections(&self, wanted: usize) -> Result<(), usize> {
        match descriptors::provide(wanted, self.relayed) {
            possible if possible < wanted => Err(possible),
            _ => {
                self.most_connections.store(wanted, Relaxed);
                Ok(())
            }
        }
    }
    /// Sets the limit on connections to `wanted`, or to the largest number that is possible.
    pub fn allow_possible(&self, wanted: usize) {
        if let Err(possible) = self.allow_connections(wanted) {
            tracing::info!(
                "{possible} connections are possible, not {wanted}: the limit of descriptors is too low"
            );
            self.most_connections.store(possible, Relaxed);
        }
    }
    pub fn most_connections(&self) -> usize {
        self.most_connections.load(Relaxed)
    }

    /// Sets the number of seconds after which idle clients are disconnected; 0 stands for never.
    pub fn set_idle_limit(&self, seconds: u64) {
        self.idle_limit.store(seconds, Relaxed);
    }
    /// Returns the time after which idle clients are disconnected, or `None` if they never are.
    pub fn idle_limit(&self) -> Option<Duration> {
        Some(self.idle_limit.load(Relaxed)).filter(|limit| *limit > 0).map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_password_is_admitted() {
        let access = Access::new(Some("secret".into()), false, 1);
        assert!(access.password().is(b"secret"));
        for wrong in [&b""[..], b"s", b"secreT", b"secrets"] {
            assert!(!access.password().is(wrong));
        }
        assert!(Access::new(None, false, 1).password().is(b"anything"));
    }
}
