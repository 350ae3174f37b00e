//! Writes the tar stream of an export.

use super::*;

pub struct Tar<'a> {
    pub builder: tar::Builder<Box<dyn Write + 'a>>,
    /// The first name of each file that has several.
    pub linked: HashMap<Ino, Vec<u8>>,
    /// True if each file is read before its header is written, since an entry cannot be taken back
    /// once it has begun.
    pub proof_read: bool,
    pub skipped: Skipped<'a>,
}

/// The records that precede the header of an entry: keys and values.
type Records = Vec<(String, Vec<u8>)>;

impl<'a> Tar<'a> {
    pub fn new(out: Box<dyn Write + 'a>, proof_read: bool, output: &'a Output) -> Self {
        Tar {
            builder: tar::Builder::new(out),
            linked: HashMap::new(),
            proof_read,
            skipped: Skipped::new(output),
        }
    }

    /// Returns the extents of a file, after reading all of it if it is to be proof-read.
    fn extents(&self, fs: &Fs, item: &Item<'_>) -> Outcome<Vec<(u64, u64)>> {
        let extents = tree::extents(fs, &item.attr)
            .map_err(|e| tree::failure(format!("cannot read {}", text::show(item.path)), e))?;
        if self.proof_read {
            let mut content = Content::new(fs, item.attr.ino, extents.clone(), None);
            io::copy(&mut content, &mut io::sink()).map_err(|e| cannot_write(item, e))?;
        }
        Ok(extents)
    }
}

/// The largest numbers that octal fields of the header can hold.
const SMALL: u64 = 0o7_777_777;
const LARGE: u64 = 0o77_777_777_777;

fn entry_type(kind: FileKind) -> tar::EntryType {
    match kind {
        FileKind::Dir => tar::EntryType::Directory,
        FileKind::Symlink => tar::EntryType::Symlink,
        FileKind::Fifo => tar::EntryType::Fifo,
        FileKind::CharDevice => tar::EntryType::Char,
        FileKind::BlockDevice => tar::EntryType::Block,
        FileKind::File | FileKind::Socket => tar::EntryType::Regular,
    }
}

/// Returns the map of a sparse file, which precedes its content. It ends with an empty extent at
/// the end of the file, so that it includes the last hole.
fn sparse_map(extents: &[(u64, u64)], size: u64) -> Vec<u8> {
    let mut parts = extents.to_vec();
    if parts.last().is_none_or(|(at, len)| at + len < size) {
        parts.push((size, 0));
    }
    let mut map = format!("{}\n", parts.len()).into_bytes();
    parts.iter().for_each(|(at, len)| map.extend_from_slice(format!("{at}\n{len}\n").as_bytes()));
    map.resize(map.len().next_multiple_of(512), 0);
    map
}

/// Returns the header of an entry, and adds records of what does not fit into it.
fn header(
    item: &Item<'_>,
    kind: tar::EntryType,
    (path, link): (&[u8], &[u8]),
    size: u64,
    records: &mut Records,
) -> Outcome<tar::Header> {
    let attr = &item.attr;
    let mut header = tar::Header::new_ustar();
    let fields = header.as_mut_bytes();
    for (text, at, most, key) in [(path, 0, 100, "path"), (link, 157, 100, "linkpath")] {
        let len = text.len().min(most);
        fields[at..at + len].copy_from_slice(&text[..len]);
        // Non-ASCII text also needs a record, which declares it as UTF-8; other bytes are used as
        // they are.
        if text.len() > most || !text.is_ascii() {
            records.push((key.into(), text.to_vec()));
        }
    }
    header.set_entry_type(kind);
    header.set_mode(u32::from(attr.perm));
    let mut number = |key: &str, value: u64, most: u64| {
        if value > most {
            records.push((key.into(), value.to_string().into_bytes()));
        }
        value.min(most)
    };
    header.set_uid(number("uid", u64::from(attr.uid), SMALL));
    header.set_gid(number("gid", u64::from(attr.gid), SMALL));
    header.set_size(number("size", size, LARGE));
    header.set_mtime(u64::try_from(attr.mtime.secs).unwrap_or(0).min(LARGE));
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = tree::device_numbers(attr.rdev);
        let fits = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
        fits.map_err(|e| Failure::io(format!("cannot write {}", text::show(item.path)), &e))?;
    }
    records.push(("mtime".into(), pax::time_record(attr.mtime).into_bytes()));
    records.push(("atime".into(), pax::time_record(attr.atime).into_bytes()));
    header.set_cksum();
    Ok(header)
}

impl Target for Tar<'_> {
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64> {
        let attr = &item.attr;
        if attr.kind == FileKind::Socket {
            self.skipped.note(item.path, "tar has no sockets");
            return Ok(0);
        }
        let mut records = Records::new();
        let mut path = item.path.to_vec();
        if path.is_empty() {
            path = b".".to_vec();
        }
        if attr.kind == FileKind::Dir {
            path.push(b'/');
        }
        let (mut kind, mut link) = (entry_type(attr.kind), item.target.clone());
        let several = attr.nlink > 1 && attr.kind != FileKind::Dir;
        if several && let Some(first) = self.linked.get(&attr.ino) {
            (kind, link) = (tar::EntryType::Link, first.clone());
        }
        let first_name = path.clone();
        let (mut extents, mut map) = (Vec::new(), Vec::new());
        if kind == tar::EntryType::Regular {
            extents = self.extents(fs, item)?;
            let stored: u64 = extents.iter().map(|(_, len)| len).sum();
            if stored < attr.size {
                map = sparse_map(&extents, attr.size);
                records.push(("GNU.sparse.major".into(), b"1".to_vec()));
                records.push(("GNU.sparse.minor".into(), b"0".to_vec()));
                records.push(("GNU.sparse.name".into(), path.clone()));
                records.push(("GNU.sparse.realsize".into(), attr.size.to_string().into_bytes()));
                let (directory, name) = path.split_at(path.len() - item.name.len().min(path.len()));
                path = [directory, b"GNUSparseFile.0/", name].concat();
            }
        }
        let data: u64 = extents.iter().map(|(_, len)| len).sum();
        let size = data + map.len() as u64;
        let header = header(item, kind, (&path[..], &link[..]), size, &mut records)?;
        for (name, value) in &item.xattrs {
            match pax::xattr_key(name) {
                Some(key) => records.push((key, value.clone())),
                None => {
                    self.skipped.note(item.path, "an extended attribute's name cannot be written")
                }
            }
        }
        let records = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.builder.append_pax_extensions(records).map_err(|e| cannot_write(item, e))?;
        let content = Content::new(fs, attr.ino, extents, Some(bar));
        self.builder
            .append(&header, io::Read::chain(map.as_slice(), content))
            .map_err(|e| cannot_write(item, e))?;
        if several && kind != tar::EntryType::Link {
            self.linked.insert(attr.ino, first_name);
        }
        Ok(data)
    }

    fn leave(&mut self, _: &Item<'_>) -> Outcome {
        Ok(())
    }

    fn skipped(&self) -> u64 {
        self.skipped.count
    }
}

/// Converts an error of the tar writer. A read error of the store passes through the writer as an
/// I/O error.
fn cannot_write(item: &Item<'_>, error: io::Error) -> Failure {
    match error.downcast::<StoreError>() {
        Ok(StoreError(e)) => tree::failure(format!("cannot read {}", text::show(item.path)), e),
        Err(e) => Failure::io("cannot write the tar stream", &e),
    }
}

#[derive(Debug)]
struct StoreError(kvfs::Error);

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
impl std::error::Error for StoreError {}

/// Reads the stored extents of a file, one after the other.
struct Content<'a> {
    fs: &'a Fs,
    ino: Ino,
    extents: std::vec::IntoIter<(u64, u64)>,
    /// The (offset, length) of the rest of the current extent.
    now: (u64, u64),
    /// Bytes that were read from the store but not returned yet.
    piece: io::Cursor<Vec<u8>>,
    bar: Option<&'a ProgressBar>,
}

impl<'a> Content<'a> {
    fn new(fs: &'a Fs, ino: Ino, extents: Vec<(u64, u64)>, bar: Option<&'a ProgressBar>) -> Self {
        Content {
            fs,
            ino,
            extents: extents.into_iter(),
            now: (0, 0),
            piece: io::Cursor::default(),
            bar,
        }
    }
}

impl io::Read for Content<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = self.piece.read(out)?;
            if got > 0 || out.is_empty() {
                return Ok(got);
            }
            if self.now.1 == 0 {
                match self.extents.next() {
                    Some(next) => self.now = next,
                    None => return Ok(0),
                }
                continue;
            }
            let len = self.now.1.min(u64::from(tree::PIECE)) as u32;
            let piece = self
                .fs
                .read(self.ino, self.now.0, len)
                .map_err(|e| io::Error::other(StoreError(e)))?;
            if piece.len() != len as usize {
                return Err(io::Error::other("a file ended before its size"));
            }
            self.now = (self.now.0 + u64::from(len), self.now.1 - u64::from(len));
            self.bar.inspect(|bar| bar.inc(u64::from(len)));
            self.piece = io::Cursor::new(piece.to_vec());
        }
    }
}
