//! The format in which a snapshot is sent to another store: frames with length and checksum, so
//! that damage in transit or on a disk is detected before a frame is applied.
//!
//! ```text
//! 8 bytes  magic: KVFS then "send"; then frames:
//! u8 kind · u32 length · payload · u32 CRC-32C of all before it in the frame
//!
//! 1 header: varint version (2), 16 bytes uuid of the store, label of the snapshot (see the
//!           manifest), u8 1 when there is a base, then 16 bytes its id and bytes its name; varint
//!           number of the first chunk; varint count of dictionaries, each as in edit 1
//! 2 chunk:  varint number, varint which dictionary of the header, varint count, then each:
//!           u8 1 put: bytes key, bytes value; 2 delete: bytes key. Keys ascend within a
//!           dictionary, dictionaries follow one another
//! 3 end:    varint number of chunks, varint tuples in them
//! ```

use std::io::{self, Read, Write};

use bytes::Bytes;
use zones::{ZONE_SIZE, crc32c};

use crate::dictionary::DictionaryInfo;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::log::codec::{Decoder, put_bytes, put_varint};
use crate::manifest::{dictionary, put_dictionary, text};

pub(super) const MAGIC: &[u8; 8] = b"KVFSsend";
const VERSION: u64 = 2;
/// The oldest version that can be read, in which dictionaries have no join rules.
const OLDEST_VERSION: u64 = 1;
const HEADER: u8 = 1;
const CHUNK: u8 = 2;
pub(super) const END: u8 = 3;
/// Bytes of a frame before its payload: kind, length.
pub(super) const HEAD: usize = 5;
/// Bytes after the payload: the checksum.
pub(super) const TAIL: usize = 4;
/// An upper bound of the length of a frame: a chunk ends with the first value that exceeds the
/// intended size, and each value lies in one zone.
const LONGEST: u32 = 2 * ZONE_SIZE as u32;

/// The state that a stream's changes apply to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BuildsUpon {
    /// Unknown, since an earlier version did not record it.
    #[default]
    Unknown,
    /// No base: the stream has everything.
    Nothing,
    /// The snapshot with this id.
    Snapshot([u8; 16]),
}

/// The position up to which a stream was received, from which the sender can resume; see
/// [`crate::Kvdb::send`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The snapshot's id.
    pub id: [u8; 16],
    /// All chunks before this number were received.
    pub chunks: u64,
    /// The number of tuples before that chunk.
    pub tuples: u64,
    /// The dictionary of the last tuple.
    pub dictionary: u32,
    /// The key of the last tuple.
    pub key: Bytes,
    /// The base of the stream. Only a stream with the same base can resume, since the chunks of
    /// other streams have other tuples.
    pub base: BuildsUpon,
}

impl Received {
    /// Encodes it as bytes, to be stored or sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.id.to_vec();
        [self.chunks, self.tuples, u64::from(self.dictionary)]
            .into_iter()
            .for_each(|n| put_varint(&mut out, n));
        put_bytes(&mut out, &self.key);
        match &self.base {
            BuildsUpon::Unknown => {}
            BuildsUpon::Nothing => out.push(0),
            BuildsUpon::Snapshot(id) => {
                out.push(1);
                out.extend_from_slice(id);
            }
        }
        out
    }

    /// Decodes the bytes that [`Received::to_bytes`] has made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Received> {
        let mut r = Decoder::new(bytes, "a received position");
        let mut received = Received::default();
        received.id.copy_from_slice(r.take(16)?);
        (received.chunks, received.tuples, received.dictionary) =
            (r.varint()?, r.varint()?, r.varint_u32()?);
        received.key = Bytes::copy_from_slice(r.bytes()?);
        if !r.is_empty() {
            received.base = match r.u8()? {
                0 => BuildsUpon::Nothing,
                1 => {
                    let mut id = [0; 16];
                    id.copy_from_slice(r.take(16)?);
                    BuildsUpon::Snapshot(id)
                }
                _ => return Err(Error::Corrupt("a received position: of no known kind".into())),
            };
        }
        Ok(received)
    }
}

/// The header of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamHeader {
    pub uuid: [u8; 16],
    pub label: Label,
    /// Id and name of the snapshot that the changes apply to. `None` if the stream has everything.
    pub base: Option<([u8; 16], String)>,
    pub first: u64,
    pub dictionaries: Vec<DictionaryInfo>,
}

/// A frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Header(Box<StreamHeader>),
    Chunk {
        number: u64,
        dictionary: u32,
        /// Keys with values. Without a value, the key is deleted.
        tuples: Vec<(Bytes, Option<Bytes>)>,
    },
    End {
        chunks: u64,
        tuples: u64,
    },
}

impl Frame {
    fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let kind = match self {
            Frame::Header(h) => {
                put_varint(&mut out, VERSION);
                out.extend_from_slice(&h.uuid);
                h.label.encode(&mut out);
                out.push(u8::from(h.base.is_some()));
                if let Some((id, name)) = &h.base {
                    out.extend_from_slice(id);
                    put_bytes(&mut out, name.as_bytes());
                }
                put_varint(&mut out, h.first);
                put_varint(&mut out, h.dictionaries.len() as u64);
                h.dictionaries.iter().for_each(|d| put_dictionary(&mut out, d));
                HEADER
            }
            Frame::Chunk { number, dictionary, tuples } => {
                put_varint(&mut out, *number);
                put_varint(&mut out, u64::from(*dictionary));
                put_varint(&mut out, tuples.len() as u64);
                for (key, value) in tuples {
                    out.push(if value.is_some() { 1 } else { 2 });
                    put_bytes(&mut out, key);
                    value.iter().for_each(|v| put_bytes(&mut out, v));
                }
                CHUNK
            }
            Frame::End { chunks, tuples } => {
                put_varint(&mut out, *chunks);
                put_varint(&mut out, *tuples);
                END
            }
        };
        (kind, out)
    }

    pub(crate) fn decode(kind: u8, payload: &Bytes) -> Result<Frame> {
        let mut r = Decoder::new(payload, "a stream");
        let frame = match kind {
            HEADER => {
                let version = r.varint()?;
                if !(OLDEST_VERSION..=VERSION).contains(&version) {
                    return Err(r.corrupt(&format!(
                        "it has version {version}, this program reads {VERSION}: use a newer one"
                    )));
                }
                let mut uuid = [0; 16];
                uuid.copy_from_slice(r.take(16)?);
                let label = Label::decode(&mut r)?;
                let base = match r.u8()? {
                    0 => None,
                    _ => {
                        let mut id = [0; 16];
                        id.copy_from_slice(r.take(16)?);
                        Some((id, text(&mut r)?))
                    }
                };
                let first = r.varint()?;
                let dictionaries = (0..r.count(6)?)
                    .map(|_| dictionary(&mut r, String::new()))
                    .collect::<Result<_>>()?;
                Frame::Header(Box::new(StreamHeader { uuid, label, base, first, dictionaries }))
            }
            CHUNK => {
                let (number, dictionary) = (r.varint()?, r.varint_u32()?);
                let mut tuples = Vec::new();
                for _ in 0..r.count(2)? {
                    let put = r.u8()? == 1;
                    let key = payload.slice_ref(r.bytes()?);
                    let value = if put { Some(payload.slice_ref(r.bytes()?)) } else { None };
                    tuples.push((key, value));
                }
                Frame::Chunk { number, dictionary, tuples }
            }
            END => Frame::End { chunks: r.varint()?, tuples: r.varint()? },
            _ => return Err(r.corrupt(&format!("a frame of kind {kind} is unknown"))),
        };
        if !r.is_empty() {
            return Err(r.corrupt("something follows in a frame"));
        }
        Ok(frame)
    }

    /// Writes the frame and returns the number of bytes written.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<u64> {
        let (kind, payload) = self.encode();
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&payload);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        out.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    pub(crate) fn read(input: &mut dyn Read) -> Result<Frame> {
        let mut head = [0; HEAD];
        input.read_exact(&mut head).map_err(cut)?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        if len > LONGEST {
            return Err(Error::Corrupt(format!(
                "a stream: a frame of {len} bytes is longer than any"
            )));
        }
        // Grow the buffer as data arrives, so that a wrong length does not allocate that much
        // memory.
        let mut bytes = Vec::new();
        input.take(u64::from(len) + TAIL as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len as usize + TAIL {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        let crc = bytes.split_off(len as usize);
        let whole = [&head[..], &bytes].concat();
        if crc != crc32c(&whole).to_le_bytes() {
            return Err(Error::Corrupt(
                "a stream: a checksum does not match: it was damaged on its way".into(),
            ));
        }
        Frame::decode(head[0], &Bytes::from(bytes))
    }
}

fn cut(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            let what =
                "the stream was cut off: what came is kept, send it again or from where it ended";
            Error::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
        }
        _ => Error::Io(e),
    }
}

pub(crate) fn write_magic(out: &mut dyn Write) -> Result<u64> {
    out.write_all(MAGIC)?;
    Ok(MAGIC.len() as u64)
}

pub(crate) fn read_magic(input: &mut dyn Read) -> Result<()> {
    let mut magic = [0; 8];
    input.read_exact(&mut magic).map_err(cut)?;
    if magic != *MAGIC {
        return Err(Error::Invalid("this is no stream that `send` wrote".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::{DictionaryId, DictionaryOptions};
    use std::time::Duration;

    fn all() -> [Frame; 3] {
        let label = Label {
            name: "s".into(),
            branch: String::new(),
            id: [3; 16],
            created: Duration::from_secs(5),
            seq: 9,
        };
        let info = DictionaryInfo {
            id: DictionaryId(4),
            name: "d".into(),
            branch: String::new(),
            options: DictionaryOptions::default(),
            short_outside: false,
        };
        let base = Some(([7; 16], "before".to_owned()));
        let tuples = vec![
            (Bytes::from_static(b"k"), Some(Bytes::from_static(b"v"))),
            (Bytes::from_static(b"l"), None),
        ];
        [
            Frame::Header(Box::new(StreamHeader {
                uuid: [1; 16],
                label,
                base,
                first: 3,
                dictionaries: vec![info],
            })),
            Frame::Chunk { number: 3, dictionary: 0, tuples },
            Frame::End { chunks: 4, tuples: 300 },
        ]
    }

    #[test]
    fn frames_survive_the_way_there_and_back() {
        for frame in all() {
            let mut bytes = Vec::new();
            assert_eq!(frame.write(&mut bytes).unwrap(), bytes.len() as u64);
            assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), frame);
        }
        for base in [BuildsUpon::Unknown, BuildsUpon::Nothing, BuildsUpon::Snapshot([7; 16])] {
            let received = Received {
                id: [5; 16],
                chunks: 300,
                tuples: 1 << 40,
                dictionary: 2,
                key: Bytes::from_static(b"key"),
                base,
            };
            let bytes = received.to_bytes();
            assert_eq!(Received::from_bytes(&bytes).unwrap(), received);
            // Without its base it is a position of an older version.
            let older = Received { base: BuildsUpon::Unknown, ..received }.to_bytes().len();
            for at in (0..bytes.len()).filter(|&at| at != older) {
                assert!(Received::from_bytes(&bytes[..at]).is_err());
            }
        }
    }

    #[test]
    fn whatever_a_frame_holds_decoding_it_never_panics() {
        for (kind, payload) in all().iter().map(Frame::encode) {
            for at in 0..payload.len() {
                assert!(Frame::decode(kind, &Bytes::copy_from_slice(&payload[..at])).is_err());
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bad = payload.clone();
                    bad[at] = value;
                    for kind in 0..5 {
                        let _ = Frame::decode(kind, &Bytes::from(bad.clone()));
                    }
                }
            }
        }
        let long = [&[2, 0xff, 0xff, 0xff, 0xff][..], &[0; 100]].concat();
        assert!(Frame::read(&mut &long[..]).is_err());
    }
}
