//! Whole images with hostile content and valid checksums. Superblock, manifest, journal, and the
//! runs that they refer to are split by their forms, corrupted, and sealed again, from the blocks
//! of a run up to the superblock, so that no checksum reveals the change.

mod base;
mod exercise;
mod field;
mod tree;

use zones::{Device, MemoryDevice, Purpose, SECTOR, ZONE_SIZE, crc32c};

use crate::content::Random;
use field::{Field, Record};

pub use base::stores;
pub use exercise::all;

const COPIES: [u64; 2] = [0, 4 << 20];
const CHUNK_HEADER: usize = 40;
const MAX_PIECE: usize = (1 << 20) - CHUNK_HEADER;

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn read(device: &MemoryDevice, addr: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    device.read_at(Purpose::Superblock, addr, &mut bytes).ok()?;
    Some(bytes)
}

fn write(device: &MemoryDevice, addr: u64, bytes: &[u8]) {
    let end = addr.saturating_add(bytes.len() as u64);
    if end < 1 << 32 {
        if device.len().expect("memory") < end {
            device.grow(end.next_multiple_of(ZONE_SIZE)).expect("memory");
        }
        device.write_at(Purpose::Superblock, addr, bytes).expect("memory");
    }
}

/// Zone, epoch, and the offset of the first chunk.
type Place = (u64, u64, u64);

/// The superblock's root.
struct Root {
    format: u8,
    number: u64,
    epoch: u64,
    durable: u64,
    zones: Vec<u64>,
}

impl Root {
    fn read(block: &[u8]) -> Root {
        let len = u32::from_le_bytes(block[60..64].try_into().expect("four bytes")) as usize;
        let root = &block[72..72 + len];
        let mut rest = &root[25..];
        let count = field::take_varint(&mut rest).expect("a count");
        let zones = (0..count).map(|_| field::take_varint(&mut rest).expect("a zone")).collect();
        Root {
            format: root[0],
            number: u64_at(root, 1),
            epoch: u64_at(root, 9),
            durable: u64_at(root, 17),
            zones,
        }
    }

    fn encode(&self, count: u64) -> Vec<u8> {
        let mut out = vec![self.format];
        [self.number, self.epoch, self.durable]
            .iter()
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        field::put_varint(&mut out, count);
        self.zones.iter().for_each(|n| field::put_varint(&mut out, *n));
        out
    }
}

/// The pieces of a stream in one zone, each chunk once.
fn pieces(
    device: &MemoryDevice,
    zone: u64,
    epoch: u64,
    mut offset: u64,
    copies: u64,
) -> Option<(u64, Vec<u8>)> {
    let (mut first, mut stream) = (None, Vec::new());
    while offset + SECTOR <= ZONE_SIZE {
        let head = read(device, zone * ZONE_SIZE + offset, CHUNK_HEADER)?;
        if &head[..2] != b"KV" || u64_at(&head, 8) != epoch {
            break;
        }
        let len = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        first.get_or_insert(u64_at(&head, 16));
        stream.extend(read(device, zone * ZONE_SIZE + offset + CHUNK_HEADER as u64, len)?);
        offset += copies * ((CHUNK_HEADER + len) as u64).next_multiple_of(SECTOR);
    }
    Some((first?, stream))
}

/// Writes a stream as chunks. The data that followed them is lost. `odd` may change the header of a
/// chunk before it is sealed.
fn put_pieces(
    device: &MemoryDevice,
    magic: &[u8; 4],
    (zone, epoch, mut offset): Place,
    (mut position, synced): (u64, u64),
    stream: &[u8],
    odd: &mut dyn FnMut(&mut [u8]),
) {
    let copies = if magic == b"KVMC" { 2 } else { 1 };
    let mut rest = stream;
    while !rest.is_empty() && offset + SECTOR <= ZONE_SIZE {
        let room = ((ZONE_SIZE - offset) / copies / SECTOR * SECTOR) as usize;
        let Some(len) =
            room.checked_sub(CHUNK_HEADER).map(|room| room.min(MAX_PIECE).min(rest.len()))
        else {
            break;
        };
        let mut chunk = vec![0; CHUNK_HEADER];
        chunk.extend_from_slice(&rest[..len]);
        chunk.resize(chunk.len().next_multiple_of(SECTOR as usize), 0);
        chunk[..4].copy_from_slice(magic);
        chunk[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        chunk[8..16].copy_from_slice(&epoch.to_le_bytes());
        chunk[16..24].copy_from_slice(&position.to_le_bytes());
        chunk[24..32].copy_from_slice(&synced.min(position).to_le_bytes());
        odd(&mut chunk[4..32]);
        let body = crc32c(&chunk[CHUNK_HEADER..]);
        chunk[32..36].copy_from_slice(&body.to_le_bytes());
        let head = crc32c(&chunk[..36]);
        chunk[36..40].copy_from_slice(&head.to_le_bytes());
        for _ in 0..copies {
            write(device, zone * ZONE_SIZE + offset, &chunk);
            offset += chunk.len() as u64;
        }
        position += len as u64;
        rest = &rest[len..];
    }
    // These sectors still have the content that lay there before.
    while offset + SECTOR <= ZONE_SIZE
        && read(device, zone * ZONE_SIZE + offset, SECTOR as usize)
            .is_some_and(|s| s.iter().any(|b| *b != 0))
    {
        write(device, zone * ZONE_SIZE + offset, &[0; SECTOR as usize]);
        offset += SECTOR;
    }
}

/// Corrupts one header in many.
fn odd_header(random: &mut Random, one_in: usize, header: &mut [u8]) {
    if random.one_in(one_in) {
        match random.below(4) {
            0 => {
                let len = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
                header[..4].copy_from_slice(
                    &(field::number(random, u64::from(len), &[]) as u32).to_le_bytes(),
                );
            }
            n => {
                let at = 4 + (n - 1) * 8;
                let odd = field::number(random, u64_at(header, at), &[]);
                header[at..at + 8].copy_from_slice(&odd.to_le_bytes());
            }
        }
    }
}

/// An image whose manifest was read.
struct Image<'a> {
    device: &'a MemoryDevice,
    block: Vec<u8>,
    root: Root,
    /// The edits of all records of the manifest.
    edits: Vec<Record>,
}

impl<'a> Image<'a> {
    fn read(device: &'a MemoryDevice) -> Image<'a> {
        let [a, b] = COPIES.map(|addr| read(device, addr, 4096).expect("two copies"));
        let block = if u64_at(&a, 16) >= u64_at(&b, 16) { a } else { b };
        let root = Root::read(&block);
        let (_, stream) = pieces(device, root.zones[0], root.epoch, 0, 2).expect("a manifest");
        let (mut rest, mut edits) = (&stream[..], Vec::new());
        while !rest.is_empty() {
            let len = field::take_varint(&mut rest).expect("a length") as usize;
            edits.extend(
                field::parse(field::edit, field::take(&mut rest, len).expect("a record"))
                    .expect("edits"),
            );
        }
        Image { device, block, root, edits }
    }

    /// Writes manifest and superblock.
    fn write(&mut self, random: &mut Random) {
        let mut record = Vec::new();
        self.edits.iter().for_each(|edit| edit.encode(&mut record));
        let mut stream = Vec::new();
        field::put_varint(&mut stream, record.len() as u64);
        stream.extend(record);
        self.root.durable = stream.len() as u64;
        let headers = random.one_in(15);
        let place = (self.root.zones[0], self.root.epoch, 0);
        put_pieces(self.device, b"KVMC", place, (0, 0), &stream, &mut |h| {
            odd_header(random, if headers { 2 } else { usize::MAX }, h)
        });
        self.seal(random);
    }

    /// Writes both superblocks, or one.
    fn seal(&mut self, random: &mut Random) {
        let mut count = self.root.zones.len() as u64;
        if random.one_in(8) {
            let root = &mut self.root;
            match random.below(7) {
                0 => root.number = field::number(random, root.number, &[]),
                1 => root.durable = field::number(random, root.durable, &[]),
                2 => root.epoch = field::number(random, root.epoch, &[]),
                3 => root.format = random.next() as u8,
                4 => count = field::number(random, count, &[]),
                5 => {
                    root.zones
                        .push(field::number(random, root.zones[0], &[]) & u64::from(u32::MAX));
                    count += 1;
                }
                _ => root.zones[0] = field::number(random, root.zones[0], &[]),
            }
        }
        let root = self.root.encode(count);
        let block = &mut self.block;
        block[60..64].copy_from_slice(&(root.len() as u32).to_le_bytes());
        block[72..].fill(0);
        block[72..72 + root.len()].copy_from_slice(&root);
        if random.one_in(12) {
            // Generation, uuid, capacity, reserve, length of the root.
            let (at, len) = *random.pick(&[(16, 8), (24, 8), (40, 8), (40, 8), (56, 4), (60, 4)]);
            let mut n = [0; 8];
            n[..len].copy_from_slice(&block[at..at + len]);
            let odd = field::number(random, u64::from_le_bytes(n), &[]);
            block[at..at + len].copy_from_slice(&odd.to_le_bytes()[..len]);
        }
        let copies = if random.one_in(10) { 1 } else { 2 };
        for addr in COPIES.into_iter().take(copies) {
            block[48..56].copy_from_slice(&addr.to_le_bytes());
            block[12..16].fill(0);
            let sum = crc32c(block);
            block[12..16].copy_from_slice(&sum.to_le_bytes());
            write(self.device, addr, block);
        }
    }

    /// Every reference to a run in the manifest.
    fn runs(&mut self) -> Vec<&mut Vec<u8>> {
        let fields = self.edits.iter_mut().flat_map(|edit| &mut edit.fields);
        fields
            .filter_map(|field| if let Field::Run(run) = field { Some(run) } else { None })
            .collect()
    }

    /// The journal's segments: number, zone, epoch.
    fn segments(&self) -> Vec<(u64, u64, u64)> {
        let segment = |edit: &Record| match (edit.kind, &edit.fields[..]) {
            (6, [Field::Varint(number), Field::Varint(zone), Field::Eight(epoch)]) => {
                Some((*number, *zone, *epoch))
            }
            _ => None,
        };
        self.edits.iter().filter_map(segment).collect()
    }

    /// Returns the segment and the offset at which the journal begins.
    fn start(&self) -> (u64, u64) {
        let start = |edit: &Record| match (edit.kind, &edit.fields[..]) {
            (5, [Field::Varint(segment), Field::Varint(offset), ..]) => Some((*segment, *offset)),
            _ => None,
        };
        self.edits.iter().rev().find_map(start).unwrap_or((0, 0))
    }

    /// The journal by segments: the start of the chunks, the position there, and whole records.
    fn journal(&self) -> Vec<(Place, u64, Vec<Record>)> {
        let (from, offset) = self.start();
        let mut all = Vec::new();
        for (number, zone, epoch) in
            self.segments().into_iter().filter(|(number, ..)| *number >= from)
        {
            let offset = if number == from { offset } else { 0 };
            let Some((position, stream)) = pieces(self.device, zone, epoch, offset, 1) else {
                continue;
            };
            let (mut rest, mut records) = (&stream[..], Vec::new());
            while let Some(bytes) = field::take_varint(&mut rest)
                .and_then(|len| field::take(&mut rest, usize::try_from(len).ok()?))
            {
                let Some(one) = field::parse(field::journal, bytes) else { break };
                records.extend(one);
            }
            all.push(((zone, epoch, offset), position, records));
        }
        all
    }

    /// Corrupts the journal's records, and sometimes the headers of their chunks.
    fn spoil_journal(&self, random: &mut Random) {
        for (place, position, mut records) in self.journal() {
            if random.one_in(2) {
                self.spoil_bound(random, &mut records);
            }
            field::spoil(random, &mut records, field::journal);
            let mut stream = Vec::new();
            for record in &records {
                let mut inside = Vec::new();
                record.encode(&mut inside);
                let len = if random.one_in(200) {
                    field::number(random, inside.len() as u64, &[])
                } else {
                    inside.len() as u64
                };
                field::put_varint(&mut stream, len);
                stream.extend(inside);
            }
            let headers = random.one_in(4);
            let synced = if random.one_in(2) { 0 } else { u64::MAX };
            put_pieces(self.device, b"KVJC", place, (position, synced), &stream, &mut |h| {
                odd_header(random, if headers { 3 } else { usize::MAX }, h);
            });
        }
    }

    /// Corrupts the runs that a record of the journal binds.
    fn spoil_bound(&self, random: &mut Random, records: &mut [Record]) {
        for record in records.iter_mut().filter(|record| record.kind == 4) {
            let Some(Field::List(_, dictionaries)) = record.fields.get_mut(1) else { continue };
            for field in dictionaries.iter_mut().flatten() {
                let Field::List(_, runs) = field else { continue };
                for run in runs.iter_mut().flatten() {
                    if let Field::Run(run) = run {
                        tree::spoil(random, self.device, run);
                    }
                }
            }
        }
    }
}

/// Corrupts a store on `device`.
pub fn spoil(random: &mut Random, device: &MemoryDevice) {
    let mut image = Image::read(device);
    let all = random.below(10);
    if all < 3 {
        image.spoil_journal(random);
    }
    if (2..7).contains(&all) {
        let mut runs = image.runs();
        for _ in 0..1 + random.below(2) {
            if !runs.is_empty() {
                let at = random.below(runs.len());
                tree::spoil(random, device, runs[at]);
            }
        }
    }
    if all >= 6 {
        field::spoil(random, &mut image.edits, field::edit);
    }
    image.write(random);
}

/// A store that is only split and sealed again stays the same, which shows that the generator knows
/// the whole format.
#[test]
fn a_store_that_is_taken_apart_and_sealed_again_is_sound() {
    let mut bound = 0;
    for (n, store) in stores().iter().enumerate() {
        let device = std::sync::Arc::new(store.clone());
        let mut image = Image::read(&device);
        assert!(image.runs().len() > 5);
        let journal = image.journal();
        let records: usize = journal.iter().map(|(.., records)| records.len()).sum();
        assert!(n == 3 || records > 5, "store {n} has {records} records in its journal");
        bound += journal
            .iter()
            .flat_map(|(.., records)| records)
            .filter(|record| record.kind == 4)
            .count();
        for (place, position, records) in &journal {
            let mut stream = Vec::new();
            for record in records {
                let mut inside = Vec::new();
                record.encode(&mut inside);
                field::put_varint(&mut stream, inside.len() as u64);
                stream.extend(inside);
            }
            put_pieces(&device, b"KVJC", *place, (*position, 0), &stream, &mut |_| {});
        }
        for run in image.runs() {
            tree::again(&device, run);
        }
        let mut quiet = Random::new(n as u64);
        quiet.silent();
        image.write(&mut quiet);
        let report = kvdb::check(device, &mut |_, _| {});
        assert!(report.is_clean(), "store {n}: {:?}", report.faults);
    }
    assert!(bound > 0, "runs that the journal binds");
}
