//! The decoders of a file system's tuples as functions of bytes, for the fuzz targets under `fuzz/`
//! and the test below. Each takes any bytes, and must neither panic nor loop. Decoded values are
//! encoded again, and must decode to the same. Normal builds do not have them.

use bytes::Bytes;

use crate::layout::counter::{
    Reserved, branch_key, decode_bound, decode_branch_key, decode_mark, encode_number,
};
use crate::layout::{
    ImapKey, Super, bases_key, decode_imap_key, decode_name, decode_name_key, decode_node,
    decode_page_key, encode_name, encode_node, loss_key, name_key, node_key, orphan_key, page_key,
    promise_key, xattr_key,
};
use crate::space::promises::Ranges;

/// Decodes the node of an inode, extended attributes and small content included.
pub fn node(data: &[u8]) {
    let value = Bytes::copy_from_slice(data);
    let Ok((attr, xattrs, content)) = decode_node(7, &value) else { return };
    let _ = std::hint::black_box(attr.public(7));
    let again = encode_node(&attr, xattrs.as_ref(), &content);
    assert_eq!(decode_node(7, &again).ok(), Some((attr, xattrs, content)));
}

/// Decodes the keys and small values of all three dictionaries.
pub fn keys(data: &[u8]) {
    if let Ok((parent, name)) = decode_name_key(data) {
        assert_eq!(name_key(parent, name), data);
    }
    if let Ok((ino, kind)) = decode_name(7, data) {
        assert_eq!(decode_name(7, &encode_name(ino, kind)).ok(), Some((ino, kind)));
    }
    match decode_imap_key(data) {
        Ok(ImapKey::Node(ino)) => assert_eq!(node_key(ino), data),
        Ok(ImapKey::Xattr(ino, name)) => assert_eq!(xattr_key(ino, name), data),
        Ok(ImapKey::Orphan(ino)) => assert_eq!(orphan_key(ino), data),
        Ok(ImapKey::Promise(ino)) => assert_eq!(promise_key(ino), data),
        Ok(ImapKey::Bases(clone)) => {
            assert_eq!(bases_key(kvdb::DictionaryId(clone)), data)
        }
        Ok(ImapKey::Loss(number)) => assert_eq!(loss_key(number), data),
        Ok(
            ImapKey::Super | ImapKey::Moves | ImapKey::Scrub | ImapKey::Numbers | ImapKey::Reserved,
        ) => assert_eq!(data.len(), 9),
        Err(_) => {}
    }
    if let Ok((ino, block)) = decode_page_key(data) {
        assert_eq!(page_key(ino, block), data);
    }
    if let Some(ranges) = Ranges::decode(data) {
        assert_eq!(Ranges::decode(&ranges.encode()), Some(ranges));
    }
    if let Some(reserved) = Reserved::decode(data) {
        assert_eq!(reserved.encode(), data);
    }
    if let Some(number) = decode_bound(data).or(decode_mark(data)) {
        assert_eq!(encode_number(number), data);
    }
    if let Some(imap) = decode_branch_key(data) {
        assert_eq!(branch_key(imap), data);
    }
    if let Ok(own) = Super::decode(data) {
        assert_eq!(Super::decode(&own.encode()).ok(), Some(own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::FileKind;
    use env::Random;

    #[test]
    fn no_bytes_make_a_reader_panic() {
        let mut paged = vec![1, 32 | 64, 0, 0xff, 0x01, 1, 0, 0, 200, 1, 5, 0, 0, 0, 0];
        paged.extend_from_slice(&[1, 1, 1, b'a', 0, 2, b'v', b'w']);
        assert!(decode_node(7, &paged.clone().into()).is_ok());
        let own = Super { hash_key: [5; 16], zone_size: Some(1 << 20) }.encode();
        let entry = encode_name(1 << 40, FileKind::Dir);
        let whole = [
            paged,
            own,
            entry,
            name_key(7, b"name"),
            xattr_key(7, b"user.a"),
            orphan_key(9),
            promise_key(9),
            vec![0, 0x80, 1, 5, 7],
            page_key(1, 2).to_vec(),
            Reserved { mark: 9, first: 7, end: 20 }.encode(),
            encode_number(1 << 40),
            branch_key(kvdb::DictionaryId(7)),
        ];
        let mut random = Random::new(5);
        for n in 0..60_000 {
            let mut bytes = whole[n % whole.len()].clone();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] =
                    [0, 1, 0x7f, 0x80, 0xff, random.number() as u8][random.below(6) as usize];
            }
            if random.one_in(4) {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            node(&bytes);
            keys(&bytes);
        }
    }
}
