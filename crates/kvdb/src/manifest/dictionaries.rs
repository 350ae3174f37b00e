//! Encodes and decodes dictionaries and the labels of snapshots in edits. See `docs/format.md`,
//! section "Manifest".

use std::time::Duration;

use vt_tree::Compression;

use crate::dictionary::{
    ADAPTIVE_SEPARATION, DictionaryId, DictionaryInfo, DictionaryOptions, Join,
};
use crate::error::Result;
use crate::ids::Label;
use crate::log::codec::{Decoder, put_bytes, put_varint};

/// The stored `separate_at` of a dictionary with adaptive separation whose short values may
/// currently lie outside of their blocks. No value is this long, so a program that does not know
/// this number leaves all values in their blocks.
const SHORT_VALUES_OUTSIDE: u32 = ADAPTIVE_SEPARATION - 1;

pub(crate) fn put_dictionary(out: &mut Vec<u8>, d: &DictionaryInfo) {
    put_varint(out, u64::from(d.id.0));
    put_bytes(out, d.name.as_bytes());
    let separate_at = match d.short_outside {
        true => SHORT_VALUES_OUTSIDE,
        false => d.options.separate_at,
    };
    put_varint(out, u64::from(separate_at));
    put_varint(out, d.options.stitch_at);
    out.push(d.options.join.code() << 1 | u8::from(d.options.reserved));
    out.push(d.options.compress_values.code() << 4 | d.options.compression.code());
    put_varint(out, u64::from(d.options.false_positives));
}

impl Label {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.branch.as_bytes());
        out.extend_from_slice(&self.id);
        put_varint(out, self.created.as_nanos() as u64);
        put_varint(out, self.seq);
    }

    pub(crate) fn decode(r: &mut Decoder) -> Result<Label> {
        let (name, branch) = (text(r)?, text(r)?);
        let mut id = [0; 16];
        id.copy_from_slice(r.take(16)?);
        Ok(Label { name, branch, id, created: Duration::from_nanos(r.varint()?), seq: r.varint()? })
    }
}

pub(crate) fn text(r: &mut Decoder) -> Result<String> {
    let bytes = r.bytes()?;
    Ok(std::str::from_utf8(bytes).map_err(|_| r.corrupt("a name is not UTF-8"))?.to_owned())
}

pub(crate) fn dictionary(r: &mut Decoder, branch: String) -> Result<DictionaryInfo> {
    let id = DictionaryId(r.varint_u32()?);
    let name = text(r)?;
    let (coded, stitch_at, flags) = (r.varint_u32()?, r.varint()?, r.u8()?);
    let join = Join::of_code(flags >> 1)
        .ok_or_else(|| r.corrupt("how a dictionary joins changes is unknown"))?;
    let codecs = r.u8()?;
    let codec =
        |code| Compression::of_code(code).ok_or_else(|| r.corrupt("a compression is unknown"));
    let (compression, compress_values) = (codec(codecs & 15)?, codec(codecs >> 4)?);
    let false_positives =
        u16::try_from(r.varint()?).map_err(|_| r.corrupt("a rate is above one"))?;
    let short_outside = coded == SHORT_VALUES_OUTSIDE;
    let separate_at = if short_outside { ADAPTIVE_SEPARATION } else { coded };
    let options = DictionaryOptions {
        separate_at,
        stitch_at,
        reserved: flags & 1 == 1,
        compression,
        compress_values,
        false_positives,
        join,
    };
    Ok(DictionaryInfo { id, name, branch, options, short_outside })
}
