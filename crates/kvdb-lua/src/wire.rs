//! The messages between a server and a worker.
//!
//! A frame consists of a byte for its kind, the length of the payload in four bytes, and the
//! payload. The server begins with `Load`, `Register`, `Run` or `Invoke`. A worker answers `Run`
//! and `Invoke` with any number of `Call` and `Log` frames, followed by `Done`, `Failed` or
//! `Uncompiled`; the server answers each `Call` with an `Answer`. The worker answers `Load` with
//! `Loaded` or `Uncompiled`, and `Register` with any number of `Log` frames, followed by
//! `Registered` or `Uncompiled`. Numbers are little-endian.

use std::io::{self, Read, Write};

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the worker: a text, of which it reports whether it compiles.
    Load,
    /// To the worker: an encoded [`Run`] whose text is a library, of which it reports the
    /// functions.
    Register,
    /// To the worker: an encoded [`Run`].
    Run,
    /// To the worker: an encoded [`Run`] whose text is a library, and whose name is the function of
    /// it that is called.
    Invoke,
    /// To the worker: the reply of a command, as RESP.
    Answer,
    /// To the server: the RESP version of the wanted answer, as a byte, and a list of the arguments
    /// of a command.
    Call,
    /// To the server: a level as a byte, and a text for the log.
    Log,
    /// To the server: the script compiles.
    Loaded,
    /// To the server: the library was run; its functions, encoded by [`crate::library::encode`].
    Registered,
    /// To the server: the script does not compile, or the library registers no functions; an error
    /// with its code.
    Uncompiled,
    /// To the server: the result of the script, as one reply in RESP.
    Done,
    /// To the server: the script has failed; an error with its code.
    Failed,
}

const KINDS: [(Kind, u8); 12] = [
    (Kind::Load, b'L'),
    (Kind::Register, b'Y'),
    (Kind::Run, b'R'),
    (Kind::Invoke, b'I'),
    (Kind::Answer, b'A'),
    (Kind::Call, b'C'),
    (Kind::Log, b'G'),
    (Kind::Loaded, b'O'),
    (Kind::Registered, b'E'),
    (Kind::Uncompiled, b'U'),
    (Kind::Done, b'D'),
    (Kind::Failed, b'F'),
];

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the message.
    pub kind: Kind,
    /// Its content.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads a frame whose payload has at most `most` bytes. Memory is allocated as the bytes
    /// arrive, not when they are announced.
    pub fn read(from: &mut impl Read, most: usize) -> io::Result<Frame> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let (kind, _) = *KINDS.iter().find(|(_, byte)| *byte == kind).ok_or(wrong("no frame"))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > most {
            return Err(wrong("a frame that is too long"));
        }
        let mut payload = Vec::with_capacity(length.min(64 << 10));
        from.by_ref().take(length as u64).read_to_end(&mut payload)?;
        if payload.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Frame { kind, payload })
    }
}

/// Writes a frame.
pub fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a frame that is too long");
    let length = u32::try_from(payload.len()).map_err(|_| too_long())?;
    let byte = KINDS.iter().find(|(known, _)| *known == kind).map_or(0, |(_, byte)| *byte);
    let mut frame = Vec::with_capacity(payload.len() + 5);
    frame.push(byte);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    to.write_all(&frame)
}

/// A script to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// The reply is written for a client that speaks RESP3.
    pub resp3: bool,
    /// The worker ends by itself after this time, even if the server no longer exists.
    pub seconds: u32,
    /// Its name, for messages.
    pub name: &'a [u8],
    /// The text of the script, without its shebang line.
    pub text: &'a [u8],
    /// `KEYS`.
    pub keys: Vec<&'a [u8]>,
    /// `ARGV`.
    pub arguments: Vec<&'a [u8]>,
}

impl<'a> Run<'a> {
    /// Encodes the script as the payload of a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.resp3)];
        out.extend_from_slice(&self.seconds.to_le_bytes());
        out.extend_from_slice(&(self.keys.len() as u32).to_le_bytes());
        let keys = self.keys.iter().chain(&self.arguments).copied();
        write_list([self.name, self.text].into_iter().chain(keys), &mut out);
        out
    }
    /// Decodes the payload of a frame.
    pub fn decode(payload: &'a [u8]) -> Option<Run<'a>> {
        let (&resp3, rest) = payload.split_first()?;
        let (seconds, rest) = number(rest)?;
        let (keys, rest) = number(rest)?;
        let mut list = read_list(rest)?;
        let rest = (list.len() >= 2).then(|| list.split_off(2))?;
        let (keys, arguments) = rest.split_at_checked(keys as usize)?;
        Some(Run {
            resp3: resp3 != 0,
            seconds,
            name: list[0],
            text: list[1],
            keys: keys.to_vec(),
            arguments: arguments.to_vec(),
        })
    }
}

fn number(from: &[u8]) -> Option<(u32, &[u8])> {
    let (bytes, rest) = from.split_first_chunk()?;
    Some((u32::from_le_bytes(*bytes), rest))
}

/// Appends a list: the number of items, and the length and the bytes of each.
pub fn write_list<'a>(items: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut count = 0u32;
    for item in items {
        count += 1;
        out.extend_from_slice(&(item.len() as u32).to_le_bytes());
        out.extend_from_slice(item);
    }
    out[at..at + 4].copy_from_slice(&count.to_le_bytes());
}

/// Reads a list that fills `from`. Returns `None` if `from` is not a list.
pub fn read_list(from: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut rest) = number(from)?;
    // Each item takes at least four bytes.
    if count as usize > rest.len() / 4 {
        return None;
    }
    let mut items = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (length, behind) = number(rest)?;
        let (item, behind) = behind.split_at_checked(length as usize)?;
        items.push(item);
        rest = behind;
    }
    rest.is_empty().then_some(items)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for (kind, _) in KINDS {
            let mut bytes = Vec::new();
            write(&mut bytes, kind, b"what it says").expect("into memory");
            let read = Frame::read(&mut &bytes[..], 12).expect("whole");
            assert_eq!(read, Frame { kind, payload: b"what it says".to_vec() });
            assert!(Frame::read(&mut &bytes[..], 11).is_err(), "longer than allowed");
            assert!(Frame::read(&mut &bytes[..bytes.len() - 1], 12).is_err(), "cut short");
        }
        assert!(Frame::read(&mut &b"X\0\0\0\0"[..], 12).is_err(), "of no kind");
    }

    #[test]
    fn a_length_that_was_only_announced_takes_no_memory() {
        let mut bytes = vec![b'C'];
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(Frame::read(&mut &bytes[..], usize::MAX).is_err());
        assert_eq!(read_list(&u32::MAX.to_le_bytes()), None);
    }

    proptest! {
        #[test]
        fn runs_and_lists_are_read_as_they_were_written(
            name in prop::collection::vec(any::<u8>(), 0..50),
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            rest in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            resp3 in any::<bool>(),
            seconds in any::<u32>(),
        ) {
            let run = Run {
                resp3,
                seconds,
                name: &name,
                text: b"return 1",
                keys: keys.iter().map(Vec::as_slice).collect(),
                arguments: rest.iter().map(Vec::as_slice).collect(),
            };
            let bytes = run.encode();
            prop_assert_eq!(Run::decode(&bytes), Some(run));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Run::decode(&bytes[..cut]), None, "cut at {}", cut);
            }
        }
        #[test]
        fn any_bytes_are_a_run_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Run::decode(&bytes);
            let _ = read_list(&bytes);
            let _ = Frame::read(&mut &bytes[..], 1 << 20);
        }
    }
}
