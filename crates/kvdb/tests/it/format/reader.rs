//! A reader of a store that was written from `docs/format.md` alone.

use std::collections::BTreeMap;

use super::dump::{At, Dump};

const ZONE: usize = 8 << 20;

/// CRC-32C, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

type Tuples = BTreeMap<Vec<u8>, Vec<u8>>;

struct Reader<'a> {
    image: &'a [u8],
    dump: Dump,
    tuples: Tuples,
}

/// Everything in the one dictionary of a store, and how it was found.
pub fn read(image: &[u8]) -> (Tuples, String) {
    assert_eq!(crc(b"123456789"), 0xe306_9283, "the checksum that the page names");
    let mut reader = Reader { image, dump: Dump::default(), tuples: Tuples::new() };
    let root = reader.superblock();
    let manifest = reader.manifest(root);
    for run in &manifest.runs {
        reader.run(*run);
    }
    reader.journal(&manifest);
    (reader.tuples, reader.dump.0)
}

/// The start of a stream: its zone, and the epoch of its chunks.
struct Stream {
    zone: u64,
    epoch: u64,
}

#[derive(Default)]
struct Manifest {
    /// Addresses of the references to runs.
    runs: Vec<usize>,
    /// Number, zone and epoch.
    segments: BTreeMap<u64, Stream>,
    /// Segment, offset and position.
    journal: (u64, u64, u64),
    closed: bool,
}

impl<'a> Reader<'a> {
    fn at(&self, at: usize) -> At<'a> {
        At { image: self.image, at }
    }

    fn superblock(&mut self) -> Stream {
        self.dump.heading("Superblock, copy A");
        let (mut at, d) = (self.at(0), &mut self.dump);
        assert_eq!(at.opaque(8, d, "magic").to_le_bytes(), *b"KVFS\r\n\x1a\n");
        at.int(4, d, "format version");
        let sum = at.opaque(4, d, "checksum of the 4096 bytes, with these four as zeros");
        let mut zeroed = self.image[..4096].to_vec();
        zeroed[12..16].fill(0);
        assert_eq!(u64::from(crc(&zeroed)), sum);
        at.int(8, d, "generation");
        at.opaque(16, d, "uuid");
        at.int(8, d, "capacity");
        assert_eq!(at.int(8, d, "address of this copy"), 0);
        at.int(4, d, "zones in the reserve");
        at.int(4, d, "length of the root");
        assert_eq!(at.int(8, d, "zone size"), ZONE as u64);
        assert_eq!(self.image[72 + 2048], 0, "profile: not known");
        at.int(1, d, "root: version of all above");
        at.int(8, d, "number of the manifest");
        let epoch = at.opaque(8, d, "epoch of its chunks");
        at.int(8, d, "durable up to position");
        assert_eq!(at.varint(d, "zones of the manifest"), 1);
        Stream { zone: at.varint(d, "the zone"), epoch }
    }

    /// Reads the header of one chunk; the content after it is left to be read. Returns `None` if
    /// there is no chunk of this stream.
    fn chunk(
        &mut self,
        magic: &[u8; 4],
        address: usize,
        epoch: u64,
        what: &str,
    ) -> Option<(usize, u64)> {
        if self.image.get(address..address + 4)? != magic
            || self.image[address + 8..address + 16] != epoch.to_le_bytes()
        {
            return None;
        }
        self.dump.heading(what);
        let (mut at, d) = (self.at(address), &mut self.dump);
        at.bytes(4, d, "magic");
        let len = at.int(4, d, "length of the piece") as usize;
        at.opaque(8, d, "epoch");
        let position = at.int(8, d, "position of its first byte");
        at.int(8, d, "synced up to position");
        let end = (address + 40 + len).next_multiple_of(4096);
        assert_eq!(
            u64::from(crc(&self.image[address + 40..end])),
            at.opaque(4, d, "checksum of piece and padding")
        );
        assert_eq!(
            u64::from(crc(&self.image[address..address + 36])),
            at.opaque(4, d, "checksum of the 36 bytes before it")
        );
        Some((len, position))
    }

    fn manifest(&mut self, root: Stream) -> Manifest {
        let mut manifest = Manifest::default();
        let mut address = root.zone as usize * ZONE;
        while let Some((len, _)) = self.chunk(b"KVMC", address, root.epoch, "Chunk of the manifest")
        {
            let size = (40 + len).next_multiple_of(4096);
            assert_eq!(
                self.image[address..address + size],
                self.image[address + size..address + 2 * size],
                "it lies there twice"
            );
            let mut at = self.at(address + 40);
            while at.at < address + 40 + len {
                let record = at.varint(&mut self.dump, "length of a record") as usize;
                let end = at.at + record;
                while at.at < end {
                    self.edit(&mut at, &mut manifest);
                }
                assert_eq!(at.at, end, "edits fill their record");
            }
            address += 2 * size;
        }
        assert!(manifest.closed, "the store was closed");
        manifest
    }

    fn edit(&mut self, at: &mut At<'a>, manifest: &mut Manifest) {
        let d = &mut self.dump;
        match self.image[at.at] {
            1 => {
                at.opaque(1, d, "edit: new dictionary");
                at.varint(d, "  number");
                at.counted(d, "name");
                at.varint(d, "  separate_at");
                at.varint(d, "  stitch_at");
                at.int(1, d, "  reserved");
                at.int(1, d, "  compression");
                at.varint(d, "  false positives of ten thousand");
            }
            3 => {
                at.opaque(1, d, "edit: add run");
                at.varint(d, "  dictionary");
                at.varint(d, "  level");
                at.varint(d, "  run number");
                let len = at.varint(d, "  length of the reference") as usize;
                manifest.runs.push(at.at);
                at.bytes(len, d, "  reference to the run: see below");
            }
            5 => {
                at.opaque(1, d, "edit: journal start");
                manifest.journal = (
                    at.varint(d, "  segment"),
                    at.varint(d, "  offset"),
                    at.varint(d, "  position"),
                );
                at.varint(d, "  sequence number");
            }
            6 => {
                at.opaque(1, d, "edit: new segment");
                let number = at.varint(d, "  number");
                let zone = at.varint(d, "  zone");
                manifest
                    .segments
                    .insert(number, Stream { zone, epoch: at.opaque(8, d, "  epoch") });
            }
            7 => {
                at.opaque(1, d, "edit: segment ends");
                at.varint(d, "  number");
                at.varint(d, "  position");
            }
            8 => {
                at.opaque(1, d, "edit: drop segments");
                let below = at.varint(d, "  below number");
                manifest.segments.retain(|number, _| *number >= below);
            }
            9 => {
                at.opaque(1, d, "edit: streams");
                for _ in 0..at.varint(d, "  count") {
                    at.int(1, d, "  stream");
                    at.varint(d, "  address");
                }
            }
            10 => {
                at.opaque(1, d, "edit: next numbers");
                at.varint(d, "  dictionary");
                at.varint(d, "  run");
                at.varint(d, "  segment");
            }
            11 => {
                at.opaque(1, d, "edit: closed");
                manifest.closed = true;
            }
            other => panic!("an edit that this example has not got: {other}"),
        }
    }

    /// A frame's payload, and where it ends.
    fn frame(&mut self, address: usize, len: usize, sum: u64, what: &str) -> (At<'a>, usize) {
        self.dump.heading(what);
        let (mut at, d) = (self.at(address), &mut self.dump);
        assert_eq!(
            at.opaque(4, d, "checksum of what follows"),
            sum,
            "the pointer means this frame"
        );
        assert_eq!(u64::from(crc(&self.image[address + 4..address + len])), sum);
        at.int(1, d, "kind");
        at.int(1, d, "codec");
        at.int(2, d, "level");
        assert_eq!(at.int(8, d, "address of the frame"), address as u64);
        (at, address + len)
    }

    fn run(&mut self, reference: usize) {
        self.dump.heading("Reference to a run");
        let mut at = self.at(reference);
        let level = at.varint(&mut self.dump, "level of the root node");
        at.varint(&mut self.dump, "length of the entry");
        let root = self.entry(&mut at, level);
        self.tree(root, level);
    }

    /// Returns the address of an entry's target. The entry is the first of its node or stands
    /// alone.
    fn entry(&mut self, at: &mut At<'a>, level: u64) -> (usize, usize, u64) {
        let d = &mut self.dump;
        for fence in ["low", "high"] {
            at.varint(d, &format!("{fence}: shared bytes"));
            at.counted(d, &format!("further bytes of {fence}"));
        }
        let target = (
            at.varint(d, "target: address"),
            at.varint(d, "  length"),
            at.opaque(4, d, "  checksum"),
        );
        at.int(1, d, "flags");
        let sums = [
            "items",
            "newest sequence number",
            "bytes of blocks",
            "spans of blocks",
            "bytes of extents",
            "spans of extents",
        ];
        for sum in sums {
            at.varint(d, sum);
        }
        at.varint(d, "filter: address");
        let filter = at.varint(d, "  length");
        at.opaque(4, d, "  checksum");
        assert!(filter == 0 || level == 1, "filters are those of leaf index nodes");
        let end = at.varint(d, "length of the zone use") as usize + at.at;
        for _ in 0..at.varint(d, "  number of zones") {
            at.varint(d, "  distance from the zone before");
            at.varint(d, "  bytes alive in it");
        }
        assert_eq!(at.at, end);
        (target.0 as usize, target.1 as usize, target.2)
    }

    fn tree(&mut self, (address, len, sum): (usize, usize, u64), level: u64) {
        if level == 0 {
            return self.block(address, len, sum);
        }
        let (mut at, end) = self.frame(address, len, sum, &format!("Index node of level {level}"));
        assert_eq!(at.varint(&mut self.dump, "entries"), 1, "this example is that small");
        let child = self.entry(&mut at, level - 1);
        assert_eq!(at.at, end, "entries fill their node");
        self.tree(child, level - 1);
    }

    fn block(&mut self, address: usize, len: usize, sum: u64) {
        let (mut at, end) = self.frame(address, len, sum, "Tuple block");
        let restarts =
            u32::from_le_bytes(self.image[end - 4..end].try_into().expect("four bytes")) as usize;
        let items_end = end - 4 - 4 * restarts;
        let mut key: Vec<u8> = Vec::new();
        let mut extents = Vec::new();
        while at.at < items_end {
            let d = &mut self.dump;
            let shared = at.varint(d, "bytes shared with the key before") as usize;
            let further = at.varint(d, "further bytes of the key") as usize;
            let kind = at.int(1, d, "kind and flags");
            key.truncate(shared);
            key.extend_from_slice(at.bytes(further, d, "key"));
            if kind & 8 != 0 {
                at.varint(d, "sequence number");
            }
            match kind & 7 {
                0 => {
                    let value = at.counted(d, "value").to_vec();
                    self.tuples.insert(key.clone(), value);
                }
                1 => {
                    let (address, len) =
                        (at.varint(d, "extent: address"), at.varint(d, "  length"));
                    extents.push((
                        key.clone(),
                        address as usize,
                        len as usize,
                        at.opaque(4, d, "  checksum"),
                    ));
                }
                other => panic!("a kind that this example has not got: {other}"),
            }
        }
        for _ in 0..restarts {
            at.int(4, &mut self.dump, "offset of a restart point");
        }
        at.int(4, &mut self.dump, "number of restart points");
        for (key, address, len, sum) in extents {
            self.dump.heading("Extent");
            let value =
                self.at(address).bytes(len, &mut self.dump, "the value of \"apricot\"").to_vec();
            assert_eq!(u64::from(crc(&value)), sum);
            self.tuples.insert(key, value);
        }
    }

    fn journal(&mut self, manifest: &Manifest) {
        let (segment, offset, start) = manifest.journal;
        for (number, stream) in manifest.segments.range(segment..) {
            let mut address =
                stream.zone as usize * ZONE + if *number == segment { offset as usize } else { 0 };
            while let Some((len, position)) =
                self.chunk(b"KVJC", address, stream.epoch, "Chunk of the journal")
            {
                let mut at = self.at(address + 40);
                assert!(position >= start, "what is before the start is in runs");
                while at.at < address + 40 + len {
                    self.record(&mut at);
                }
                address = (address + 40 + len).next_multiple_of(4096);
            }
        }
    }

    fn record(&mut self, at: &mut At<'a>) {
        let d = &mut self.dump;
        let end = at.varint(d, "length of a record") as usize + at.at;
        match at.int(1, d, "record: kind") {
            1 => {
                at.int(8, d, "  sequence number of the change that follows");
            }
            2 => {}
            // A commit of one change, a put. The value has no length prefix.
            17 => {
                at.varint(d, "  dictionary");
                let key = at.counted(d, "key").to_vec();
                let value = at.bytes(end - at.at, d, "value").to_vec();
                self.tuples.insert(key, value);
            }
            other => panic!("a record that this example has not got: {other}"),
        }
        assert_eq!(at.at, end, "fields fill their record");
    }
}
