//! Connections between a virtual machine and its host (`AF_VSOCK`), for which neither needs a
//! network. The address of a socket is the number of a machine, its context identifier (CID), and a
//! port.
//!
//! The standard library and rustix do not know these addresses, and socket2 does. Once a socket is
//! connected it is a stream of bytes like any other.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use socket2::{Domain, SockAddr, Type};

use crate::socket::Socket;

/// The number that stands for any machine and any port. No machine and no port has it.
const ANY: u32 = u32::MAX;

/// Limit of the connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The address of a listening socket of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VsockAddress {
    /// The context identifier of the machine: 2 is the host of this machine, and 1 is this machine
    /// itself.
    pub cid: u32,
    /// The port.
    pub port: u32,
}

impl FromStr for VsockAddress {
    type Err = String;

    /// Parses CID:PORT.
    fn from_str(text: &str) -> Result<VsockAddress, String> {
        let parts = text.split_once(':');
        let (cid, port) = parts.ok_or("it has no number of a machine and port")?;
        let cid = number(cid).ok_or("it has no number of a machine, which is 2 for the host")?;
        let port = number(port).filter(|port| *port > 0).ok_or("it has no port")?;
        Ok(VsockAddress { cid, port })
    }
}

impl fmt::Display for VsockAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.cid, self.port)
    }
}

/// Parses digits. Returns `None` for other text, and for the number that stands for any.
fn number(text: &str) -> Option<u32> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<u32>().ok().filter(|number| is_digits && *number != ANY)
}

impl Socket {
    /// Connects to the server that listens at this address. Waits for at most `time`; the kernel
    /// itself waits for 2 s for another machine.
    pub fn connect_vsock(address: VsockAddress, time: Duration) -> io::Result<Socket> {
        let socket = socket2::Socket::new(Domain::VSOCK, Type::STREAM, None)?;
        let time = time.max(Duration::from_millis(1));
        socket.connect_timeout(&SockAddr::vsock(address.cid, address.port), time)?;
        Ok(connected(socket))
    }
}

/// Returns the connection of a connected socket.
fn connected(socket: socket2::Socket) -> Socket {
    // A `UnixStream` uses its descriptor alone, as any connected stream socket is used.
    UnixStream::from(OwnedFd::from(socket)).into()
}

/// Listens for connections of other machines.
pub struct VsockListener {
    socket: socket2::Socket,
    /// Written to when the listener stops.
    stop: OwnedFd,
}

impl VsockListener {
    /// Listens at a port; port 0 is any that is free. With a `cid`, only connections to this number
    /// of this machine are accepted: 1 is for those of this machine itself.
    pub fn bind(cid: Option<u32>, port: u32) -> io::Result<VsockListener> {
        let socket = socket2::Socket::new(Domain::VSOCK, Type::STREAM, None)?;
        let port = if port == 0 { ANY } else { port };
        socket.bind(&SockAddr::vsock(cid.unwrap_or(ANY), port))?;
        socket.listen(BACKLOG)?;
        // A connection may be gone between the end of a wait and its accept.
        socket.set_nonblocking(true)?;
        Ok(VsockListener { socket, stop: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Returns the port, which may have been assigned.
    pub fn port(&self) -> io::Result<u32> {
        let address = self.socket.local_addr()?.as_vsock_address();
        address.map(|(_, port)| port).ok_or_else(no_address)
    }

    /// Waits for a connection. Returns it with the CID of its machine, or `None` if the listener
    /// has been stopped.
    pub fn accept(&self) -> io::Result<Option<(Socket, u32)>> {
        loop {
            let mut on =
                [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut on, None))?;
            if !on[0].revents().is_empty() {
                return Ok(None);
            }
            match self.socket.accept() {
                Ok((socket, from)) => {
                    let (cid, _) = from.as_vsock_address().ok_or_else(no_address)?;
                    return Ok(Some((connected(socket), cid)));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends the listener: [`VsockListener::accept`] returns `None` from now on.
    pub fn stop(&self) {
        // The counter cannot overflow by a few of these.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

fn no_address() -> io::Error {
    io::Error::other("the socket has no address of a machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_number_of_a_machine_and_a_port() {
        for (text, cid, port) in [("2:7411", 2, 7411), ("1:1", 1, 1), ("4294967294:80", !1, 80)] {
            assert_eq!(text.parse::<VsockAddress>(), Ok(VsockAddress { cid, port }));
            assert_eq!(VsockAddress { cid, port }.to_string(), text);
        }
        for wrong in [
            "",
            ":",
            "2",
            "2:",
            ":7411",
            "2:0",
            "+2:7411",
            "2:7411:1",
            "host:7411",
            "4294967295:7411",
            "2:4294967295",
            "2:4294967296",
        ] {
            assert!(wrong.parse::<VsockAddress>().is_err(), "{wrong}");
        }
    }
}
