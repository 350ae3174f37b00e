//! The byte stream of one client. A conversation takes complete requests from an input buffer,
//! runs them in order, and sends their replies in one write.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::bell::Bell;
use crate::commands;
use crate::output::{Output, Sink};
use crate::request::{Parser, Progress};
use crate::session::{Session, Shared};

/// The size of the buffer between requests.
const BUFFER: usize = 64 << 10;
/// The least free space that is passed to a read.
const ROOM: usize = 16 << 10;

pub struct Conversation {
    session: Session,
    parser: Parser,
    out: Output,
    input: Vec<u8>,
    /// The part of the capacity of `input` that is charged to [`Shared::memory`].
    charged: usize,
    /// The end of the last turn in which the client sent something.
    heard: Instant,
}

impl Conversation {
    pub fn new(
        shared: Arc<Shared>,
        sink: Box<dyn Sink>,
        address: String,
        needs_password: bool,
    ) -> Self {
        let closer = sink.closer();
        let budget = shared.memory.whole_replies().clone();
        let out = Output::new(shared.db.clone(), sink, shared.limits.reply, budget);
        let session = Session::new(shared, address, needs_password, closer);
        session.shared.clients.add(session.connection.clone());
        let heard = Instant::now();
        let parser = Parser::default();
        Conversation { session, parser, out, input: Vec::new(), charged: 0, heard }
    }

    /// Sets the user and the process id of the client.
    pub fn with(mut self, user: Option<u32>, process: Option<i32>) -> Self {
        let confined = self.session.shared.seals.confine(process);
        self.session.identity.reveal(user, process, confined);
        self
    }

    pub fn id(&self) -> u64 {
        self.session.id
    }

    /// Returns the bell that rings when messages arrive for this connection. Returns `None` if
    /// the connection has no subscriptions, because then only the next bytes of the client
    /// matter.
    pub fn bell(&self) -> Option<&Bell> {
        self.session.listens().then_some(&self.session.connection.bell)
    }

    /// Sends the messages that have arrived. Returns `false` if the conversation is over.
    pub fn deliver(&mut self) -> bool {
        self.session.connection.bell.take();
        self.session.deliver(&mut self.out);
        self.send()
    }

    /// Returns the buffer to which the next bytes of the client must be appended. The buffer has
    /// room for at least some bytes. Returns `None` if there is no memory for a request as large
    /// as the incoming one. In this case the client has received an error, and the conversation
    /// is over.
    pub fn input(&mut self) -> Option<&mut Vec<u8>> {
        if self.input.capacity() - self.input.len() < ROOM {
            // The capacity is doubled, so that it follows the number of bytes that have arrived,
            // never the announced length.
            let capacity = (self.input.len() * 2).max(BUFFER);
            let charge = capacity.saturating_sub(BUFFER).saturating_sub(self.charged);
            if !self.session.shared.memory.take_for_requests(charge) {
                self.out.error("ERR too many large requests at once; try again later");
                self.out.flush();
                return None;
            }
            self.charged += charge;
            self.input.reserve_exact(capacity - self.input.len());
        }
        Some(&mut self.input)
    }

    /// Runs every complete request and sends the replies. Returns `false` if the conversation is
    /// over.
    pub fn process(&mut self) -> bool {
        self.run() && self.send()
    }

    /// Runs every complete request, including requests that were read ahead. Returns `false` if
    /// the conversation is over. Otherwise some replies may still have to be sent; see
    /// [`Conversation::is_unsent`].
    pub fn run(&mut self) -> bool {
        self.out.heard();
        let mut open = self.run_whole();
        while open && self.out.has_ahead() {
            open = self.take_ahead() && self.run_whole();
        }
        self.heard = Instant::now();
        open
    }

    /// Takes some of the bytes that were read ahead. Returns `false` if there is no memory for
    /// the request. In this case the client has received an error, and the conversation is over.
    fn take_ahead(&mut self) -> bool {
        if self.input().is_none() {
            return false;
        }
        let got = self.out.take_ahead(&mut self.input);
        self.session.shared.metrics.bytes_in.fetch_add(got as u64, Relaxed);
        true
    }

    fn run_whole(&mut self) -> bool {
        let mut at = 0;
        let mut open = true;
        while open {
            let bytes = &self.input[at..];
            match self.parser.parse(
                bytes,
                &self.session.shared.limits,
                self.session.identity.is_authenticated(),
            ) {
                Ok(Progress::More) => break,
                Ok(Progress::Empty(len)) => at += len,
                Ok(Progress::Request(len)) => {
                    commands::run(&mut self.session, self.parser.arguments(bytes), &mut self.out);
                    at += len;
                    self.out.send_if_large();
                    open = !self.session.closing && !self.out.is_broken();
                }
                Ok(Progress::Refused(len, why)) => {
                    commands::refuse(&mut self.session, &why.to_string(), &mut self.out);
                    at += len;
                }
                Err(error) => {
                    self.session.shared.metrics.protocol_errors.fetch_add(1, Relaxed);
                    self.out.error(&format!("ERR Protocol error: {error}"));
                    open = false;
                }
            }
        }
        self.input.drain(..at);
        if self.input.is_empty() && self.input.capacity() > BUFFER {
            self.input = Vec::new();
            self.parser.shrink();
            self.release();
        }
        match open && self.out.may_wait() {
            true => true,
            false => open & self.flush(),
        }
    }

    /// Returns whether [`Conversation::send`] still has to send replies.
    pub fn is_unsent(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends the replies, and runs the requests that have arrived while the replies waited for
    /// the client. Returns `false` if the conversation is over.
    pub fn send(&mut self) -> bool {
        self.flush() && (!self.out.has_ahead() || self.run())
    }

    fn flush(&mut self) -> bool {
        let sent = self.out.sent;
        let open = self.out.flush();
        self.session.shared.metrics.bytes_out.fetch_add(self.out.sent - sent, Relaxed);
        if let Some(error) = self.out.broken() {
            self.say(error);
        }
        open
    }

    /// Logs the reason if the server has dropped the client.
    fn say(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            let (id, address) = (self.id(), &self.session.connection.address);
            tracing::warn!("RESP connection {id} ({address}) is closed: {error}");
        }
    }

    /// Returns the time at which the server drops the client if the client neither takes nor
    /// sends data before.
    pub fn deadline(&self) -> Option<Instant> {
        self.out.deadline()
    }
    /// Returns whether the server still waits for the client. If it does not, the conversation is
    /// over.
    pub fn is_patient(&self) -> bool {
        self.out.check().inspect_err(|error| self.say(error)).is_ok()
    }
    /// Returns whether the client has sent nothing for `limit`, and can be disconnected without a
    /// loss: it has no transaction, no work on files in progress and no seal, does not wait for
    /// messages, and has taken all replies.
    pub fn is_idle(&self, limit: Duration) -> bool {
        let session = &self.session;
        let holds = session.is_joined()
            || !session.attached.is_empty()
            || session.file_work.is_under_way()
            || session.shared.seals.is_sealing(session.id);
        let owed = self.is_unsent() || self.deadline().is_some();
        self.heard.elapsed() >= limit && !holds && !owed && !session.connection.takes_messages()
    }
    /// Waits until the client has received its last replies, or is dropped. No further requests
    /// are accepted.
    pub fn finish(&mut self) {
        self.out.finish();
    }

    fn release(&mut self) {
        self.session.shared.memory.give_back(std::mem::take(&mut self.charged));
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use env::sync::Mutex;
    use kvdb::Kvdb;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::Limits;

    struct Memory(Arc<Mutex<Vec<u8>>>);
    impl Sink for Memory {
        fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.lock().extend_from_slice(bytes);
            Ok(())
        }
        // A command that waits finds that its client has disconnected.
        fn wait(&mut self, _: &Bell, _: Option<Duration>) {}
        fn is_gone(&self) -> bool {
            true
        }
    }

    /// Returns all replies to `pieces`, which arrive one after another, on a fresh store.
    fn replies<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, needs_password: bool) -> Vec<u8> {
        let limits = Limits {
            arguments: 64,
            argument: 4096,
            value: 40_000,
            tuple: 3000,
            key: 100,
            request: 16 << 10,
            reply: 600,
            ..Limits::default()
        };
        let password = needs_password.then(|| "secret".to_string());
        // The clock stands still, and random numbers are drawn from a seed.
        let db = Kvdb::create(
            Arc::new(zones::MemoryDevice::new()),
            Arc::new(env::Simulated::new(1)),
            kvdb::CreateOptions {
                open: kvdb::OpenOptions {
                    memory: 8 << 20,
                    zero_journal: false,
                    ..kvdb::OpenOptions::default()
                },
                ..kvdb::CreateOptions::default()
            },
        )
        .expect("a store in memory");
        let shared = Arc::new(Shared::new(db, limits, password, false, commands::metrics()));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let mut conversation = Conversation::new(
            shared.clone(),
            Box::new(Memory(sent.clone())),
            "test".into(),
            needs_password,
        );
        for piece in pieces {
            conversation.input().expect("there is room").extend_from_slice(piece);
            if !conversation.process() {
                break;
            }
        }
        drop(conversation);
        assert_eq!(shared.memory.of_requests(), 0, "what was counted is given back");

        std::mem::take(&mut *sent.lock())
    }

    /// Asserts that the replies are well-formed.
    fn assert_well_formed(mut bytes: &[u8]) {
        while !bytes.is_empty() {
            crate::client::read_reply(&mut bytes, 0).expect("a well-formed reply");
        }
    }

    const SAMPLE: &[u8] =
        b"PING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\nal\r\n\r\n*0\r\nget k\nHELLO 3\r\n*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n\
        SET 'a b' \"\\x00\"\r\nKEYS *\r\nRANGE - +\r\nDURABLE yes\r\nINCR n\r\nINCR k\r\nECHO \"\r\n\"\r\nPING\r\n";

    #[test]
    fn requests_split_at_every_byte_get_the_same_replies() {
        let whole = replies([SAMPLE], false);
        assert!(
            whole.ends_with(b"-ERR Protocol error: unbalanced quotes in request\r\n"),
            "{}",
            whole.escape_ascii()
        );
        for at in 1..SAMPLE.len() {
            assert_eq!(replies([&SAMPLE[..at], &SAMPLE[at..]], false), whole, "split at {at}");
        }
        assert_eq!(replies(SAMPLE.chunks(1), false), whole);
    }

    /// Generates pieces that the parser is likely to accept.
    fn fragment() -> impl Strategy<Value = Vec<u8>> {
        let names: Vec<&'static str> = crate::commands::COMMANDS
            .iter()
            .map(|c| c.name)
            .filter(|n| !matches!(*n, "info" | "kvfs.stat" | "kvfs.zones" | "memory" | "slowlog"))
            .collect();
        let word = prop_oneof![
            4 => prop::sample::select(names.clone()).prop_map(|n| n.as_bytes().to_vec()),
            4 => prop::sample::select(vec!["a", "b", "key", "0", "-1", "7", "2", "3", "*", "-", "+", "nx", "get", "rev", "limit", "match", "count", "ex", "px", "9", "1.5", "inf", "(1", "[a", "left", "bit", "i8", "u4", "#1", "withscores", "byscore", "weights"]).prop_map(|n| n.as_bytes().to_vec()),
            2 => prop::collection::vec(any::<u8>(), 0..12),
            1 => (0usize..5000).prop_map(|n| vec![b'x'; n]),
        ];
        let command = (prop::sample::select(names), prop::collection::vec(word.clone(), 0..5))
            .prop_map(|(name, args)| {
                let mut request =
                    format!("*{}\r\n${}\r\n{name}\r\n", args.len() + 1, name.len()).into_bytes();
                for arg in args {
                    request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
                    request.extend_from_slice(&arg);
                    request.extend_from_slice(b"\r\n");
                }
                request
            });
        let line = prop::collection::vec(word, 0..4)
            .prop_map(|words| [words.join(&b' '), b"\r\n".to_vec()].concat());
        prop_oneof![
            8 => command,
            3 => line,
            1 => prop::collection::vec(any::<u8>(), 0..30),
            1 => prop::sample::select(vec!["*", "$", "\r\n", "*3\r\n", "$5\r\n", "*-1\r\n", "$-1\r\n", "*99999999999\r\n", "$99999999999\r\n", "\"", "'"])
                .prop_map(|s| s.as_bytes().to_vec()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]
        /// Checks that arbitrary bytes in arbitrary pieces cause no panic and only well-formed
        /// replies, and that the replies do not depend on the division into pieces.
        #[test]
        fn any_bytes_in_any_pieces(
            fragments in prop::collection::vec(fragment(), 0..30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            needs_password in prop::bool::weighted(0.1),
        ) {
            let bytes = fragments.concat();
            let whole = replies([bytes.as_slice()], needs_password);
            assert_well_formed(&whole);
            let mut cuts: Vec<usize> = cuts.iter().map(|i| i.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort();
            let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
            // Cursors of SCAN start at a random number, so replies with a cursor may differ.
            let scans = bytes.to_ascii_lowercase().windows(4).any(|w| w == b"scan");
            let cut = replies(pieces, needs_password);
            if !scans {
                prop_assert_eq!(cut.escape_ascii().to_string(), whole.escape_ascii().to_string());
            }
        }
    }
}
