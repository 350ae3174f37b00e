//! Clients in virtual machines of this host, or on the host of this virtual machine: a port of
//! `AF_VSOCK`, at which each connection must show a token. The bytes go through the hypervisor
//! alone, which can read the memory of its machines anyway, so they are not encrypted.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kvdb_wire::{Server, Tokens, VsockListener};

use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The pause after a failed accept, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The address to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The number of this machine at which connections are accepted. `None` means any that it has.
    cid: Option<u32>,
    /// Port 0 is any that is free.
    port: u32,
}

impl Port {
    /// Parses PORT or CID:PORT.
    pub fn parse(text: &str) -> Outcome<Port> {
        // The greatest number stands for any in the interface of the kernel.
        let number = |text: &str| {
            let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|number| is_digits && *number < u32::MAX)
        };
        let parsed = match text.split_once(':') {
            None => number(text).map(|port| Port { cid: None, port }),
            Some((cid, port)) => {
                number(cid).zip(number(port)).map(|(cid, port)| Port { cid: Some(cid), port })
            }
        };
        parsed.ok_or_else(|| {
            let what = format!("vsock:{text} is no address to listen at");
            Failure::new(Exit::Usage, what)
                .hint("write vsock:PORT, or vsock:CID:PORT for one number of this machine")
        })
    }

    fn text(self) -> String {
        let Port { cid, port } = self;
        cid.map_or_else(|| format!("vsock:{port}"), |cid| format!("vsock:{cid}:{port}"))
    }
}

/// Accepts connections until it is dropped.
pub struct Listening {
    at: Port,
    listener: Arc<VsockListener>,
    accepting: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at the port.
    pub fn begin(at: Port, tokens: Arc<Tokens>, server: Weak<Server>) -> Outcome<Listening> {
        let cannot = |e| Failure::io(format!("cannot listen at {}", at.text()), &e);
        let listener = Arc::new(VsockListener::bind(at.cid, at.port).map_err(cannot)?);
        let at = Port { port: listener.port().map_err(cannot)?, ..at };
        let accepts = listener.clone();
        let accept = move || {
            loop {
                let (socket, cid) = match accepts.accept() {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => break,
                    Err(e) => {
                        tracing::warn!("no connection is accepted: {e}");
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                };
                let Some(server) = server.upgrade() else { break };
                if let Err(e) = server.serve_with(socket, &tokens) {
                    tracing::warn!("machine {cid} is not served: {e}");
                }
            }
        };
        let accepting = std::thread::Builder::new().name("serve-vsock".into()).spawn(accept);
        let accepting = Some(accepting.map_err(cannot)?);
        Ok(Listening { at, listener, accepting })
    }

    /// Returns the address, with the port that was assigned.
    pub fn address(&self) -> String {
        self.at.text()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listener.stop();
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_listened_at_for_all_numbers_of_this_machine_or_for_one() {
        for (text, cid, port) in [("7411", None, 7411), ("0", None, 0), ("1:7411", Some(1), 7411)] {
            let parsed = Port::parse(text).map_err(|e| e.message);
            assert_eq!(parsed, Ok(Port { cid, port }));
            assert_eq!(Port { cid, port }.text(), format!("vsock:{text}"));
        }
        for wrong in ["", ":", "1:", ":7411", "host:7411", "1:2:3", "4294967295", "-1", "+1"] {
            assert!(Port::parse(wrong).is_err(), "{wrong}");
        }
    }
}
