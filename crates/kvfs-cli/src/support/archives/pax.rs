//! PAX records for properties that a tar header cannot hold: times with nanoseconds, large numbers,
//! extended attributes, and the maps of sparse files (GNU's versions 0.0, 0.1 and 1.0).

use std::io::{self, Read};

use kvfs::Timestamp;

/// The limit of parts in the map that precedes the data of a sparse file.
const MOST_PARTS: u64 = 1 << 20;
const XATTR: &str = "SCHILY.xattr.";

#[derive(Default)]
pub struct Records {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Timestamp>,
    pub atime: Option<Timestamp>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The name of a sparse file; the header holds another one.
    pub sparse_name: Option<Vec<u8>>,
    /// The size of a sparse file including its holes.
    pub real_size: Option<u64>,
    /// (offset, length) of the data, if the records hold the map.
    map: Option<Vec<(u64, u64)>>,
    /// True if the map precedes the data.
    map_in_front: bool,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a malformed PAX header: {what}"))
}

impl Records {
    pub fn read<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Records> {
        let mut records = Records::default();
        let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
        let mut version = (0, 0);
        let Some(extensions) = entry.pax_extensions()? else { return Ok(records) };
        for record in extensions {
            let record = record?;
            let (key, value) = (record.key_bytes(), record.value_bytes());
            let number = || std::str::from_utf8(value).ok().and_then(|v| v.parse::<u64>().ok());
            let wanted = || number().ok_or_else(|| malformed("not a number"));
            match key {
                b"uid" => records.uid = number().and_then(|n| u32::try_from(n).ok()),
                b"gid" => records.gid = number().and_then(|n| u32::try_from(n).ok()),
                b"mtime" => records.mtime = time(value),
                b"atime" => records.atime = time(value),
                b"GNU.sparse.major" => version.0 = wanted()?,
                b"GNU.sparse.minor" => version.1 = wanted()?,
                b"GNU.sparse.name" => records.sparse_name = Some(value.to_vec()),
                b"GNU.sparse.realsize" | b"GNU.sparse.size" => records.real_size = Some(wanted()?),
                b"GNU.sparse.offset" => offsets.push(wanted()?),
                b"GNU.sparse.numbytes" => lengths.push(wanted()?),
                b"GNU.sparse.map" => {
                    let numbers: Option<Vec<u64>> =
                        value.split(|c| *c == b',').map(decimal).collect();
                    let numbers = numbers.ok_or_else(|| malformed("the map of a sparse file"))?;
                    records.map = Some(pairs(&numbers)?);
                }
                _ => {
                    if let Some(name) = key
                        .strip_prefix(XATTR.as_bytes())
                        .or(key.strip_prefix(b"LIBARCHIVE.xattr."))
                    {
                        // LIBARCHIVE values are encoded (percent and base 64); programs that write
                        // them write the SCHILY records as well.
                        if key.starts_with(XATTR.as_bytes()) {
                            records.xattrs.push((name.to_vec(), value.to_vec()));
                        }
                    }
                }
            }
        }
        if !offsets.is_empty() {
            if offsets.len() != lengths.len() {
                return Err(malformed("the map of a sparse file"));
            }
            records.map = Some(offsets.into_iter().zip(lengths).collect());
        }
        records.map_in_front = version == (1, 0);
        if let Some(map) = &records.map {
            check(map)?;
        }
        Ok(records)
    }

    /// Returns the extents of a sparse file's data, or `None` if it is not sparse. Leaves `entry`
    /// at the start of the data.
    pub fn sparse_map(&self, entry: &mut impl Read) -> io::Result<Option<Vec<(u64, u64)>>> {
        if !self.map_in_front {
            return Ok(self.map.clone());
        }
        let (mut lines, mut line, mut wanted) = (Vec::new(), Vec::new(), None);
        let mut block = [0; 512];
        while wanted.is_none_or(|wanted| lines.len() < wanted) {
            entry.read_exact(&mut block)?;
            for c in block {
                if wanted.is_some_and(|wanted| lines.len() >= wanted) {
                    break;
                }
                if c != b'\n' {
                    line.push(c);
                    if line.len() > 20 {
                        return Err(malformed("the map of a sparse file"));
                    }
                    continue;
                }
                let n = decimal(&line).ok_or_else(|| malformed("the map of a sparse file"))?;
                line.clear();
                match wanted {
                    None if n > MOST_PARTS => {
                        return Err(malformed("a sparse file of too many parts"));
                    }
                    None => wanted = Some(n as usize * 2),
                    Some(_) => lines.push(n),
                }
            }
        }
        let map = pairs(&lines)?;
        check(&map)?;
        Ok(Some(map))
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn pairs(numbers: &[u64]) -> io::Result<Vec<(u64, u64)>> {
    let (pairs, rest) = numbers.as_chunks::<2>();
    if rest.is_empty() {
        Ok(pairs.iter().map(|[at, len]| (*at, *len)).collect())
    } else {
        Err(malformed("the map of a sparse file"))
    }
}

/// Checks that the extents of a map do not overflow.
fn check(map: &[(u64, u64)]) -> io::Result<()> {
    let fits =
        map.iter().all(|(at, len)| at.checked_add(*len).is_some_and(|end| end <= i64::MAX as u64));
    if fits { Ok(()) } else { Err(malformed("the map of a sparse file")) }
}

/// Parses a time like "1700000000.123456789", which may be before 1970.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let (negative, digits) = whole.strip_prefix('-').map_or((false, whole), |w| (true, w));
    let secs = digits.parse::<i64>().ok().filter(|_| digits.bytes().all(|c| c.is_ascii_digit()))?;
    if !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(match (negative, nanos) {
        (false, nanos) => Timestamp { secs, nanos },
        (true, 0) => Timestamp { secs: -secs, nanos: 0 },
        (true, nanos) => Timestamp { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
    })
}

/// Formats a time; the inverse of `time`.
pub fn time_record(time: Timestamp) -> String {
    let (secs, nanos) = (time.secs, time.nanos);
    let text = match (secs < 0, nanos) {
        (_, 0) => return secs.to_string(),
        (false, _) => format!("{secs}.{nanos:09}"),
        (true, _) => format!("-{}.{:09}", (secs + 1).unsigned_abs(), 1_000_000_000 - nanos),
    };
    text.trim_end_matches('0').to_string()
}

/// Returns the key of the record of an extended attribute, or `None` if PAX cannot represent the
/// name.
pub fn xattr_key(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok().filter(|n| !n.contains('='))?;
    Some(format!("{XATTR}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_their_record() {
        for (secs, nanos) in [
            (0, 0),
            (1, 5),
            (1_700_000_000, 123_456_789),
            (-1, 0),
            (-1, 999_999_999),
            (-2, 500_000_000),
            (5, 100_000_000),
        ] {
            let t = Timestamp { secs, nanos };
            assert_eq!(time(time_record(t).as_bytes()), Some(t), "{}", time_record(t));
        }
        assert_eq!(time_record(Timestamp { secs: -2, nanos: 500_000_000 }), "-1.5");
        assert_eq!(time(b"1.5000000009"), Some(Timestamp { secs: 1, nanos: 500_000_000 }));
        for bad in ["", "x", "1.x", "--1", "1.-5", "+1"] {
            assert_eq!(time(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_map_in_front_of_the_data_is_read_in_whole_blocks() {
        let mut bytes = b"2\n0\n10\n4096\n20\n".to_vec();
        bytes.resize(512, 0);
        bytes.extend_from_slice(b"data");
        let records = Records { map_in_front: true, ..Records::default() };
        let mut rest = bytes.as_slice();
        assert_eq!(records.sparse_map(&mut rest).expect("a map"), Some(vec![(0, 10), (4096, 20)]));
        assert_eq!(rest, b"data");
        for hostile in [
            "99999999999\n",
            "1\n-1\n5\n",
            "1\n18446744073709551615\n1\n",
            "aaaaaaaaaaaaaaaaaaaaaaaa",
        ] {
            let mut block = hostile.as_bytes().to_vec();
            block.resize(512, 0);
            assert!(records.sparse_map(&mut block.as_slice()).is_err(), "{hostile:?}");
        }
    }
}
