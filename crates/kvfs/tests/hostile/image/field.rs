//! Splits records into fields by their forms in `docs/format.md`, so that any number and any bytes
//! in them can be replaced, and assembles them again. This reader and writer shares no code with
//! the store's own.

use crate::content::Random;

/// One field of a record.
#[derive(Clone, Debug)]
pub enum Field {
    Varint(u64),
    Byte(u8),
    Four(u32),
    Eight(u64),
    Id([u8; 16]),
    Bytes(Vec<u8>),
    /// Bytes without a length prefix, up to the end of the record.
    Rest(Vec<u8>),
    /// A reference to a run, as bytes.
    Run(Vec<u8>),
    /// The stated count may differ.
    List(u64, Vec<Vec<Field>>),
}

/// A record or an edit: its first byte, and what follows.
#[derive(Clone, Debug)]
pub struct Record {
    pub kind: u8,
    pub fields: Vec<Field>,
}

/// Forms: `v` varint, `1` byte, `4` and `8` fixed, `i` an id, `b` bytes, `.` the rest, `r` a run,
/// `(…)` a list, `{` a list of changes.
const LABEL: &str = "bbivv";
const DICTIONARY: &str = "vbvv11v";

/// The form of an edit of the manifest.
pub fn edit(kind: u8) -> Option<String> {
    Some(match kind {
        1 => DICTIONARY.into(),
        2 | 8 | 12 => "v".into(),
        3 => "vvvr".into(),
        4 | 7 | 13 | 21 => "vv".into(),
        5 => "vvvv".into(),
        6 => "vv8".into(),
        9 => "(1v)".into(),
        10 => "vvv".into(),
        11 => String::new(),
        14 => format!("b{DICTIONARY}"),
        15 => format!("{LABEL}v"),
        16 | 19 => "b".into(),
        17 => "bbv".into(),
        18 | 22 => "bb".into(),
        20 => "bv".into(),
        23 => "r".into(),
        24 => format!("b{DICTIONARY}(vvv)"),
        25 => format!("{LABEL}(v)"),
        26 => "vvvv".into(),
        _ => return None,
    })
}

/// The form of a change in a commit.
fn change(op: u8, alone: bool) -> Option<&'static str> {
    Some(match (op, alone) {
        (1 | 4, true) => "vb.",
        (1 | 4, false) => "vbb",
        (2, _) => "vb844",
        (3, _) => "vb",
        (5, _) => "vb84441",
        _ => return None,
    })
}

/// The form of a record of the journal.
pub fn journal(kind: u8) -> Option<String> {
    Some(match kind {
        1 => "8".into(),
        2 => String::new(),
        3 => "{".into(),
        4 => "(v)(v(r))".into(),
        5 => format!("{LABEL}v"),
        17.. => change(kind - 16, true)?.into(),
        _ => return None,
    })
}

pub fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        n |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}

pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

/// Returns where the list ends that begins after `form`.
fn list(form: &str) -> usize {
    let mut depth = 1;
    form.bytes()
        .position(|c| {
            depth += i32::from(c == b'(') - i32::from(c == b')');
            depth == 0
        })
        .expect("lists are closed")
}

fn parse_fields(form: &str, input: &mut &[u8]) -> Option<Vec<Field>> {
    let (mut fields, mut form) = (Vec::new(), form);
    while let Some(c) = form.bytes().next() {
        form = &form[1..];
        let bytes = |input: &mut &[u8]| {
            let len = take_varint(input)?;
            Some(take(input, usize::try_from(len).ok()?)?.to_vec())
        };
        fields.push(match c {
            b'v' => Field::Varint(take_varint(input)?),
            b'1' => Field::Byte(take(input, 1)?[0]),
            b'4' => Field::Four(u32::from_le_bytes(take(input, 4)?.try_into().ok()?)),
            b'8' => Field::Eight(u64::from_le_bytes(take(input, 8)?.try_into().ok()?)),
            b'i' => Field::Id(take(input, 16)?.try_into().ok()?),
            b'b' => Field::Bytes(bytes(input)?),
            b'r' => Field::Run(bytes(input)?),
            b'.' => Field::Rest(std::mem::take(input).to_vec()),
            b'{' => {
                let count = take_varint(input)?;
                let mut all = Vec::new();
                for _ in 0..count {
                    let op = take(input, 1)?[0];
                    let mut fields = parse_fields(change(op, false)?, input)?;
                    fields.insert(0, Field::Byte(op));
                    all.push(fields);
                }
                Field::List(count, all)
            }
            b'(' => {
                let end = list(form);
                let count = take_varint(input)?;
                let all =
                    (0..count).map(|_| parse_fields(&form[..end], input)).collect::<Option<_>>()?;
                form = &form[end + 1..];
                Field::List(count, all)
            }
            _ => unreachable!("no such form"),
        });
    }
    Some(fields)
}

/// Takes records off `input` until it is empty, as edits lie in a record of the manifest.
pub fn parse(form: fn(u8) -> Option<String>, mut input: &[u8]) -> Option<Vec<Record>> {
    let mut all = Vec::new();
    while let Some((&kind, mut rest)) = input.split_first() {
        let fields = parse_fields(&form(kind)?, &mut rest)?;
        all.push(Record { kind, fields });
        input = rest;
    }
    Some(all)
}

impl Field {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Field::Varint(n) => put_varint(out, *n),
            Field::Byte(n) => out.push(*n),
            Field::Four(n) => out.extend_from_slice(&n.to_le_bytes()),
            Field::Eight(n) => out.extend_from_slice(&n.to_le_bytes()),
            Field::Id(id) => out.extend_from_slice(id),
            Field::Bytes(bytes) | Field::Run(bytes) => {
                put_varint(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Field::Rest(bytes) => out.extend_from_slice(bytes),
            Field::List(count, all) => {
                put_varint(out, *count);
                all.iter().flatten().for_each(|field| field.encode(out));
            }
        }
    }

    /// Changes a field to another one of the same form. `seen` has numbers that have a meaning in
    /// this image.
    fn spoil(&mut self, random: &mut Random, seen: &[u64]) {
        match self {
            Field::Varint(n) | Field::Eight(n) => *n = number(random, *n, seen),
            Field::Four(n) => *n = number(random, u64::from(*n), seen) as u32,
            Field::Byte(n) => {
                *n = if random.one_in(2) { random.next() as u8 } else { n.wrapping_add(1) }
            }
            Field::Id(id) => id[random.below(16)] ^= 1 << random.below(8),
            Field::Bytes(bytes) | Field::Rest(bytes) | Field::Run(bytes) => {
                spoil_bytes(random, bytes)
            }
            Field::List(count, all) => match random.below(5) {
                0 => *count = number(random, *count, seen),
                1 if !all.is_empty() => {
                    all.remove(random.below(all.len()));
                    *count = all.len() as u64;
                }
                2 if !all.is_empty() => {
                    let one = all[random.below(all.len())].clone();
                    let times = *random.pick(&[1, 2, 5000]);
                    all.extend(std::iter::repeat_n(one, times));
                    *count = all.len() as u64;
                }
                3 if all.len() > 1 => {
                    let (a, b) = (random.below(all.len()), random.below(all.len()));
                    all.swap(a, b);
                }
                _ if !all.is_empty() => {
                    let at = random.below(all.len());
                    let one = &mut all[at];
                    if !one.is_empty() {
                        let at = random.below(one.len());
                        one[at].spoil(random, seen);
                    }
                }
                _ => *count = 1,
            },
        }
    }

    /// The numbers in it.
    fn numbers(&self, out: &mut Vec<u64>) {
        match self {
            Field::Varint(n) | Field::Eight(n) => out.push(*n),
            Field::Four(n) => out.push(u64::from(*n)),
            Field::List(_, all) => all.iter().flatten().for_each(|field| field.numbers(out)),
            _ => {}
        }
    }
}

/// Returns another number: a neighbour, an end of a range, or one that has a meaning elsewhere.
pub fn number(random: &mut Random, n: u64, seen: &[u64]) -> u64 {
    const ENDS: [u64; 22] = [
        0,
        1,
        2,
        63,
        64,
        255,
        4096,
        1 << 20,
        8 << 20,
        (8 << 20) + 1,
        u32::MAX as u64 - 1,
        u32::MAX as u64,
        1 << 32,
        (1 << 32) << 23,
        (u32::MAX as u64) << 16,
        1 << 40,
        1 << 56,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX - 4096,
        u64::MAX - 1,
        u64::MAX,
    ];
    match random.below(8) {
        0 => n.wrapping_add(1),
        1 => n.wrapping_sub(1),
        2 => n.wrapping_mul(2),
        3 => n ^ 1 << random.below(64),
        4 | 5 => *random.pick(&ENDS),
        6 if !seen.is_empty() => *random.pick(seen),
        _ => random.next() >> random.below(64),
    }
}

pub fn spoil_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(9) {
        0 => bytes.clear(),
        1 => bytes.truncate(random.below(bytes.len())),
        2 => bytes.push(random.next() as u8),
        3 => *bytes = vec![b'x'; *random.pick(&[1, 128, 256, 5000, 70_000])],
        4 => bytes.insert(0, *random.pick(b".\0/\xff")),
        _ if !bytes.is_empty() => {
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = match random.below(5) {
                    0 => 0,
                    1 => 0xff,
                    2 => 0x80,
                    3 => bytes[at] ^ 1 << random.below(8),
                    _ => random.next() as u8,
                };
            }
        }
        _ => bytes.push(0),
    }
}

impl Record {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind);
        self.fields.iter().for_each(|field| field.encode(out));
    }
}

pub fn numbers(all: &[Record]) -> Vec<u64> {
    let mut out = Vec::new();
    all.iter().flat_map(|record| &record.fields).for_each(|field| field.numbers(&mut out));
    out
}

/// Makes records that no correct writer makes: with changed fields, duplicated, missing, moved, or
/// of a kind that is not allowed here.
pub fn spoil(random: &mut Random, all: &mut Vec<Record>, form: fn(u8) -> Option<String>) {
    let mut seen = numbers(all);
    seen.truncate(200);
    for _ in 0..1 + random.below(3) {
        if all.is_empty() {
            return;
        }
        let at = random.below(all.len());
        match random.below(12) {
            0 => _ = all.remove(at),
            1 => all.insert(random.below(all.len()), all[at].clone()),
            2 => {
                let other = random.below(all.len());
                all.swap(at, other);
            }
            3 => {
                // Copies one record many times, each with another number.
                let one = all[at].clone();
                for n in 0..*random.pick(&[3, 40, 2000]) {
                    let mut more = one.clone();
                    for field in &mut more.fields {
                        match field {
                            Field::Varint(v) if random.one_in(2) => *v = v.wrapping_add(n + 1),
                            Field::Bytes(b) if random.one_in(2) => {
                                b.extend_from_slice(n.to_string().as_bytes())
                            }
                            _ => {}
                        }
                    }
                    all.push(more);
                }
            }
            4 => {
                // Makes a record of any kind, with the fields of another one.
                let kind = random.below(40) as u8;
                let Some(form) = form(kind) else { continue };
                let noise: Vec<u8> = (0..400)
                    .map(|_| (random.next() as u8) & if random.one_in(3) { 0xff } else { 3 })
                    .collect();
                if let Some(fields) = parse_fields(&form, &mut &noise[..]) {
                    all.insert(at, Record { kind, fields });
                }
            }
            _ => {
                let fields = &mut all[at].fields;
                if !fields.is_empty() {
                    let at = random.below(fields.len());
                    fields[at].spoil(random, &seen);
                }
            }
        }
    }
}
