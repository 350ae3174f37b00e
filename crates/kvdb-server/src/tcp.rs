//! Connections over TCP that notice when the other machine has disappeared.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Time after which a silent side is probed.
const SILENT: Duration = Duration::from_secs(15);
/// Interval of the further probes of a silent side.
const ASKED: Duration = Duration::from_secs(5);
/// Number of probes without an answer after which the connection ends.
const QUESTIONS: u32 = 3;
/// Time in milliseconds after which a connection with unacknowledged data ends.
const UNTAKEN_MILLIS: u32 = 30_000;

/// Lets the kernel end a connection whose other machine does not answer any more.
pub fn notices_the_end(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENT)?;
    sockopt::set_tcp_keepintvl(stream, ASKED)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    sockopt::set_tcp_user_timeout(stream, UNTAKEN_MILLIS)?;
    stream.set_nodelay(true)
}
