//! A small client that sends commands and receives replies as bytes, over the socket of a server
//! or directly on a store in this process.
//!
//! On a store in this process a request runs through the same code as over a socket, so that both
//! behave the same in every detail.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use env::sync::Mutex;
use kvdb::Kvdb;

use crate::commands;
use crate::conversation::Conversation;
use crate::files::Files;
use crate::limits::Limits;
use crate::output::Sink;
use crate::owner::{Describe, Owner};
use crate::peer;
use crate::reply::Reply;
use crate::scripts::Scripts;
use crate::session::Shared;
use crate::transactions::Transactions;

/// The largest number of arguments in one command of a client over another host.
const MOST_WORDS: usize = 4 << 20;

enum Transport {
    Socket(BufReader<UnixStream>),
    Local { conversation: Box<Conversation>, replies: Arc<Mutex<Vec<u8>>> },
}

/// A connection to a server, or to a store in this process.
pub struct Client {
    transport: Transport,
}

struct LocalReplies(Arc<Mutex<Vec<u8>>>);

impl Sink for LocalReplies {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().extend_from_slice(bytes);
        Ok(())
    }
}

impl Client {
    /// Connects to the server whose socket is at `path`. The server must run as the same user or
    /// as root (root may connect to the server of any user), so that no other user can put a
    /// socket in its place and receive the keys.
    pub fn connect(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        let (us, them) = (rustix::process::geteuid().as_raw(), peer::user(&stream)?);
        if them != us && them != 0 && us != 0 {
            let what = format!("the server there runs as user {them}, not as you");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(Client { transport: Transport::Socket(BufReader::with_capacity(64 << 10, stream)) })
    }

    /// Makes a client of `db` in this process.
    pub fn local(db: Kvdb) -> Client {
        Client::of(Arc::new(Shared::new(db, Limits::default(), None, false, commands::metrics())))
    }

    /// Makes a client of `db` in this process that can run scripts, in processes started by
    /// `command`.
    pub fn local_with_scripts(db: Kvdb, command: Vec<OsString>) -> Client {
        let mut shared = Shared::new(db, Limits::default(), None, false, commands::metrics());
        shared.scripts = Scripts::new(Some(command), &shared.limits);
        Client::of(Arc::new(shared))
    }

    /// Makes a client of `db` in this process with another host of transactions and files, and
    /// with a function that describes keys. The number of arguments of a request is limited only
    /// by its bytes, because a remote client may take any number of paths out of its transaction
    /// at once.
    pub fn local_over<H>(db: Kvdb, host: Arc<H>, describe: Describe) -> Client
    where
        H: Transactions + Files + 'static,
    {
        let limits = Limits { arguments: MOST_WORDS, ..Limits::default() };
        let mut shared = Shared::new(db, limits, None, false, commands::metrics());
        shared.owner = Owner::of_store(&shared.db)
            .hosted_by(Some(host.clone()), None, Some(host))
            .with_describe(Some(describe));
        Client::of(Arc::new(shared))
    }

    /// Makes one of several clients that share a store in this process.
    pub(crate) fn of(shared: Arc<Shared>) -> Client {
        let replies = Arc::new(Mutex::new(Vec::new()));
        let conversation = Conversation::new(
            shared,
            Box::new(LocalReplies(replies.clone())),
            "local".into(),
            false,
        );
        Client { transport: Transport::Local { conversation: Box::new(conversation), replies } }
    }

    /// Sends one command over a socket, and returns its reply and the stream of bytes that the
    /// server sends after it. The stream ends with the connection.
    pub fn stream(mut self, args: &[&[u8]]) -> io::Result<(Reply, impl Read + use<>)> {
        let reply = self.call(args)?;
        match self.transport {
            Transport::Socket(stream) => Ok((reply, stream)),
            Transport::Local { .. } => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a store in this process sends no stream",
            )),
        }
    }

    /// Sends one command over a socket. Unless the reply is an error, sends the bytes that
    /// `write` writes, and returns the reply to the command and the bytes.
    pub fn send_stream(
        mut self,
        args: &[&[u8]],
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Reply> {
        let reply = self.call(args)?;
        let Transport::Socket(mut stream) = self.transport else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a store in this process takes no stream",
            ));
        };
        if let Reply::Error(_) = reply {
            return Ok(reply);
        }
        // A server that refuses the rest replies with the reason and closes the connection; its
        // reply takes precedence.
        let written = write(stream.get_mut());
        let shut = stream.get_mut().shutdown(Shutdown::Write);
        match read_reply(&mut stream, 0) {
            Err(error) => Err(written.and(shut).err().unwrap_or(error)),
            reply => reply,
        }
    }

    /// Sends one command over a socket. [`Client::receive`] receives the replies later, in the
    /// order of the commands. While few replies are outstanding, client and server cannot
    /// deadlock.
    pub fn send(&mut self, args: &[&[u8]]) -> io::Result<()> {
        match &mut self.transport {
            Transport::Socket(stream) => write_request(stream.get_mut(), args),
            Transport::Local { .. } => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a store in this process replies at once",
            )),
        }
    }

    /// Waits for the reply to the oldest command that has not been answered yet.
    pub fn receive(&mut self) -> io::Result<Reply> {
        match &mut self.transport {
            Transport::Socket(stream) => read_reply(stream, 0),
            Transport::Local { .. } => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a store in this process replies at once",
            )),
        }
    }

    /// Sends one command and waits for its reply. An `Err` means that no reply arrived; an error
    /// reply is a `Reply::Error`.
    pub fn call(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        let request = encoded(args);
        match &mut self.transport {
            Transport::Socket(stream) => {
                // A server that refuses the request replies and closes the connection while the
                // client still writes; its reply takes precedence.
                let written = stream.get_mut().write_all(&request);
                match read_reply(stream, 0) {
                    Err(error) => Err(written.err().unwrap_or(error)),
                    reply => reply,
                }
            }
            Transport::Local { conversation, replies } => {
                read_reply(&mut run(conversation, replies, &request)?.as_slice(), 0)
            }
        }
    }

    /// Runs one command on a store in this process, and returns its reply or error reply as the
    /// bytes of RESP2. A long reply is in memory once in this form; a parsed reply takes many
    /// times its bytes.
    pub fn call_unparsed(&mut self, args: &[&[u8]]) -> io::Result<Vec<u8>> {
        match &mut self.transport {
            Transport::Local { conversation, replies } => {
                run(conversation, replies, &encoded(args))
            }
            Transport::Socket(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a server's replies are parsed to find their ends",
            )),
        }
    }
}

/// Runs a request in this process, and returns the bytes of the reply.
fn run(
    conversation: &mut Conversation,
    replies: &Mutex<Vec<u8>>,
    request: &[u8],
) -> io::Result<Vec<u8>> {
    let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the conversation is over");
    conversation.input().ok_or_else(gone)?.extend_from_slice(request);
    conversation.process();
    Ok(std::mem::take(&mut *replies.lock()))
}

/// Longest argument that is copied into the request's buffer, in bytes.
const COPIED: usize = 64 << 10;

/// Writes one command.
fn write_request(to: &mut impl Write, args: &[&[u8]]) -> io::Result<()> {
    if args.iter().all(|arg| arg.len() <= COPIED) {
        return to.write_all(&encoded(args));
    }
    let mut short = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        short.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        if arg.len() <= COPIED {
            short.extend_from_slice(arg);
        } else {
            to.write_all(&short)?;
            to.write_all(arg)?;
            short.clear();
        }
        short.extend_from_slice(b"\r\n");
    }
    to.write_all(&short)
}

fn encoded(args: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    request.reserve(args.iter().map(|arg| arg.len() + 16).sum());
    for arg in args {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// Longest string that a reply may announce, in bytes.
const LONGEST: u64 = 512 << 20;

fn wrong(what: &str) -> io::Error {
    let what = format!("the server's reply makes no sense: {what}");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a string of `len` bytes, and the end of its line.
fn read_string(from: &mut impl BufRead, len: u64) -> io::Result<Vec<u8>> {
    if len > LONGEST {
        return Err(wrong("a string that is too long"));
    }
    let mut bytes = Vec::new();
    from.take(len + 2).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != len + 2 || !bytes.ends_with(b"\r\n") {
        return Err(wrong("a string without its end"));
    }
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// Reads one reply in RESP2 or RESP3.
pub fn read_reply(from: &mut impl BufRead, depth: u8) -> io::Result<Reply> {
    if depth > 8 {
        return Err(wrong("nested too deep"));
    }
    let mut line = Vec::new();
    from.take(64 << 10).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection",
        ));
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| wrong("a line without an end"))?;
    let (kind, text) = line.split_first().ok_or_else(|| wrong("an empty line"))?;
    let number = || {
        std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.parse::<i64>().ok())
            .ok_or_else(|| wrong("not a number"))
    };

    Ok(match kind {
        b'+' => Reply::Status(String::from_utf8_lossy(text).into_owned()),
        b'-' => Reply::Error(String::from_utf8_lossy(text).into_owned()),
        b':' => Reply::Integer(number()?),
        b'_' => Reply::Null,
        b',' | b'(' => Reply::Bulk(text.to_vec()),
        b'#' => Reply::Integer(i64::from(text == b"t")),
        b'$' | b'=' => match u64::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(len) => {
                let mut value = read_string(from, len)?;
                if *kind == b'=' {
                    value.drain(..value.len().min(4));
                }
                Reply::Bulk(value)
            }
        },
        b'*' | b'~' | b'>' | b'%' => match u64::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(len) => {
                let len = if *kind == b'%' { len.saturating_mul(2) } else { len };
                let mut items = Vec::new();
                for _ in 0..len {
                    items.push(read_reply(from, depth + 1)?);
                }
                Reply::Array(items)
            }
        },
        _ => return Err(wrong("an unknown kind")),
    })
}
