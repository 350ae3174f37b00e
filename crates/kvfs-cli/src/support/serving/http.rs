//! A small HTTP/1.1 server for metrics and pages on this machine: requests are limited in size and
//! time, each is answered by one call, and then the connection is closed.
//!
//! Browsers open idle connections in advance, so each connection has a thread. If there are too
//! many, the oldest one that is not being answered is closed in favour of the new one, so that idle
//! connections cannot keep others out. `message` parses requests.

mod message;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use env::sync::{Condvar, Mutex};

pub use message::{Request, Response};

/// The time limit for reading a request, and for writing the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The limit of simultaneous connections.
const MOST_CLIENTS: usize = 32;

/// Answers a request.
pub type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// Reads until the deadline `until`, however slowly the bytes arrive.
struct Hurried<'a> {
    client: &'a TcpStream,
    until: Instant,
}

impl Read for Hurried<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.client.set_read_timeout(Some(left))?;
        self.client.read(buffer)
    }
}

fn converse(place: &Client, mut client: &TcpStream, handler: &Handler) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let read = message::read(&mut Hurried { client, until: Instant::now() + PATIENCE })?;
    let bytes = match read {
        None => return Ok(()),
        Some(Err(answer)) => answer.encoded(true),
        Some(Ok(request)) => {
            place.is_answered(true);
            let answer = handler(&request);
            place.is_answered(false);
            answer.encoded(request.method != "HEAD")
        }
    };
    client.write_all(&bytes)?;
    // Read and discard remaining input for a moment: closing a connection with unread bytes resets
    // it, and the answer would be lost.
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut dropped = [0; 4096];
    for _ in 0..64 {
        if !matches!(client.read(&mut dropped), Ok(read) if read > 0) {
            break;
        }
    }
    Ok(())
}

struct Open {
    client: Arc<TcpStream>,
    /// True while the handler works on it.
    is_answered: bool,
}

#[derive(Default)]
struct Clients {
    /// Open connections by number, in order of arrival.
    open: Mutex<BTreeMap<u64, Open>>,
    /// Signalled when a connection ends.
    gone: Condvar,
    stop: AtomicBool,
}

impl Clients {
    /// Admits a client, if necessary in place of another one. Returns `false` if all clients are
    /// being answered.
    fn admit(&self, number: u64, client: &Arc<TcpStream>) -> bool {
        let mut open = self.open.lock();
        while open.len() >= MOST_CLIENTS {
            let Some(oldest) = open.values().find(|open| !open.is_answered) else { return false };
            // The thread of that client notices the shutdown and ends.
            let _ = oldest.client.shutdown(Shutdown::Both);
            self.gone.wait_for(&mut open, PATIENCE);
        }
        open.insert(number, Open { client: client.clone(), is_answered: false });
        true
    }
}

/// An admitted client, until this is dropped.
struct Client {
    clients: Arc<Clients>,
    number: u64,
}

impl Client {
    fn is_answered(&self, is_answered: bool) {
        if let Some(open) = self.clients.open.lock().get_mut(&self.number) {
            open.is_answered = is_answered;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.clients.open.lock().remove(&self.number);
        self.clients.gone.notify_all();
    }
}

/// Answers requests until it is dropped; after that, no call of the handler runs or begins.
pub struct Listening {
    clients: Arc<Clients>,
    listener: Arc<TcpListener>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at an address. `handler` makes the handler from the actual address, which replaces
    /// port 0.
    pub fn start(
        address: SocketAddr,
        handler: impl FnOnce(SocketAddr) -> Handler,
    ) -> io::Result<Listening> {
        let listener = Arc::new(TcpListener::bind(address)?);
        let address = listener.local_addr()?;
        let handler = handler(address);
        let clients = Arc::new(Clients::default());
        let (accepted, waiting) = (clients.clone(), listener.clone());
        let accepting = std::thread::Builder::new()
            .name("kvfs-http".into())
            .spawn(move || accept(&waiting, &accepted, &handler))?;
        Ok(Listening { clients, listener, address, accepting: Some(accepting) })
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.clients.stop.store(true, Ordering::Release);
        // Wake the thread that waits for a client by a shutdown. (Connecting to it would need a
        // descriptor, and there may be none left.)
        if let Err(e) = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both) {
            tracing::debug!("the HTTP server waits for a client more: {e}");
        }
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        let mut open = self.clients.open.lock();
        for Open { client, .. } in open.values() {
            let _ = client.shutdown(Shutdown::Both);
        }
        while !open.is_empty() {
            self.clients.gone.wait(&mut open);
        }
    }
}

fn accept(listener: &TcpListener, clients: &Arc<Clients>, handler: &Handler) {
    for (number, client) in (0..).zip(listener.incoming()) {
        if clients.stop.load(Ordering::Acquire) {
            return;
        }
        let client = match client {
            Ok(client) => Arc::new(client),
            Err(e) => {
                // The process may be out of descriptors: without a pause this would spin.
                tracing::debug!("a client of the HTTP server was not accepted: {e}");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if !clients.admit(number, &client) {
            let _ = client.set_write_timeout(Some(PATIENCE));
            let busy = Response::text(503, "there are too many clients; try again");
            let _ = (&*client).write_all(&busy.encoded(true));
            continue;
        }
        let (place, handler) = (Client { clients: clients.clone(), number }, handler.clone());
        let answer = move || {
            if let Err(e) = converse(&place, &client, &handler) {
                tracing::debug!("a client of the HTTP server was not answered: {e}");
            }
            // Drop the handler first: its resources must be released before the last client
            // disconnects.
            drop(handler);
            drop(place);
        };
        if let Err(e) = std::thread::Builder::new().name("kvfs-http".into()).spawn(answer) {
            tracing::debug!("no thread for a client of the HTTP server: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_say_nothing_hold_up_no_one_and_go_with_the_server() {
        let count = Arc::new(());
        let held = count.clone();
        let handler: Handler = Arc::new(move |request: &Request| {
            let _ = &held;
            Response::text(200, &request.path)
        });
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Listening::start(address, |_| handler).expect("it listens");
        let silent: Vec<TcpStream> = (0..MOST_CLIENTS - 1)
            .map(|_| TcpStream::connect(server.address()).expect("it accepts"))
            .collect();
        let mut client = TcpStream::connect(server.address()).expect("it accepts");
        client.write_all(b"GET /here HTTP/1.1\r\n\r\n").expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n/here\n"));
        let begun = Instant::now();
        drop(server);
        assert!(begun.elapsed() < PATIENCE, "it does not wait until their time is up");
        assert_eq!(Arc::strong_count(&count), 1, "nothing of the handler is left");
        drop(silent);
    }

    #[test]
    fn however_many_say_nothing_who_asks_is_answered() {
        let handler: Handler = Arc::new(|request: &Request| Response::text(200, &request.path));
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Listening::start(address, |_| handler).expect("it listens");
        let connect = || TcpStream::connect(server.address()).expect("it accepts");
        // Some clients have sent part of a request.
        let mut halves: Vec<TcpStream> = (0..2 * MOST_CLIENTS).map(|_| connect()).collect();
        for half in &mut halves {
            let _ = half.write_all(b"GET /half");
        }
        for _ in 0..8 {
            let mut client = connect();
            client.write_all(b"GET /here HTTP/1.1\r\n\r\n").expect("sent");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("answered");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    }

    #[test]
    fn it_ends_where_no_connection_can_be_made() {
        let handler: Handler = Arc::new(|request: &Request| Response::text(200, &request.path));
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut server = Listening::start(address, |_| handler).expect("it listens");
        // Use an address at which no process listens, that of a closed listener.
        server.address =
            TcpListener::bind(address).and_then(|gone| gone.local_addr()).expect("an address");
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            let _ = done.send(());
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
