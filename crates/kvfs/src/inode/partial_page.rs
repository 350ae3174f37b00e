//! A page of which only the bytes that small writes have changed are in memory. It hides bytes of
//! the page in the store, and is committed as an update of that page (the *upserts* of BetrFS 0.2),
//! so that a small write waits for no read and costs only its own bytes.

use kvdb::Update;

use crate::layout::PAGE;

/// The maximum number of pieces of a partial page. Each piece is an operation that every read of
/// the page applies until a merge has applied it.
const MOST_PIECES: usize = 16;
/// The maximum number of bytes in all pieces. With more bytes, a partial page saves little compared
/// with the whole page.
const MOST_BYTES: usize = PAGE as usize / 4;

/// The known bytes of a page.
pub(crate) struct PartialPage {
    /// Ascending pieces, separated by unknown bytes.
    pieces: Vec<Piece>,
}

struct Piece {
    at: usize,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> usize {
        self.at + self.bytes.len()
    }
}

impl PartialPage {
    /// Returns whether a partial page can hold `len` bytes.
    pub fn takes(len: usize) -> bool {
        len <= MOST_BYTES
    }

    /// Returns a partial page with these bytes. Call only if `takes` accepts their number.
    pub fn of(at: usize, bytes: &[u8]) -> PartialPage {
        PartialPage { pieces: vec![Piece { at, bytes: bytes.to_vec() }] }
    }

    /// Returns whether `write` can take `len` bytes at `at`.
    pub fn has_room(&self, at: usize, len: usize) -> bool {
        let (mut pieces, mut bytes) = (1, 0);
        let (mut from, mut to) = (at, at + len);
        for piece in &self.pieces {
            if piece.end() < at || piece.at > at + len {
                pieces += 1;
                bytes += piece.bytes.len();
            } else {
                (from, to) = (from.min(piece.at), to.max(piece.end()));
            }
        }
        pieces <= MOST_PIECES && bytes + (to - from) <= MOST_BYTES
    }

    /// Overwrites bytes. Call only if `has_room` accepts them.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(self.has_room(at, bytes.len()), "callers look before");
        let end = at + bytes.len();
        let first = self.pieces.partition_point(|piece| piece.end() < at);
        let behind = self.pieces.partition_point(|piece| piece.at <= end).max(first);
        let mut joined = Piece { at, bytes: bytes.to_vec() };
        // The new piece absorbs the pieces that it overlaps or touches: the start of the first one
        // and the end of the last one stay.
        if let Some(before) = self.pieces[first..behind].first().filter(|piece| piece.at < at) {
            joined.bytes.splice(..0, before.bytes[..at - before.at].iter().copied());
            joined.at = before.at;
        }
        if let Some(after) = self.pieces[first..behind].last().filter(|piece| piece.end() > end) {
            joined.bytes.extend_from_slice(&after.bytes[end - after.at..]);
        }
        self.pieces.splice(first..behind, [joined]);
    }

    /// Returns the whole page, if the store has `base`.
    pub fn over(&self, base: &[u8]) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE as usize);
        page.extend_from_slice(base);
        for piece in &self.pieces {
            if page.len() < piece.end() {
                page.resize(piece.end(), 0);
            }
            page[piece.at..piece.end()].copy_from_slice(&piece.bytes);
        }
        page
    }

    /// Returns the update of the page's value.
    pub fn update(&self) -> Update {
        let patch = |piece: &Piece| Update::patch(piece.at, &piece.bytes);
        let patches = self.pieces.iter().map(|p| patch(p).expect("pages are short for values"));
        patches.reduce(|all, next| all.then(&next)).expect("it begins with a piece and loses none")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_where_they_meet_and_the_newest_bytes_count() {
        let base = [b'.'; 40];
        let mut page = PartialPage::of(10, b"abcd");
        let mut model = base;
        model[10..14].copy_from_slice(b"abcd");
        let writes: [(usize, &[u8]); 8] = [
            (20, b"xy"),
            (14, b"e"),
            (9, b"0"),
            (12, b"CDEF"),
            (11, b"b"),
            (30, b"__"),
            (8, b"0123456789ABCDEFGHIJKLM"),
            (0, b"!"),
        ];
        for (n, (at, bytes)) in writes.into_iter().enumerate() {
            page.write(at, bytes);
            model[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(page.over(&base), model, "after write {n}");
            assert_eq!(page.update().apply(Some(&base)), model[..]);
        }
        assert_eq!(page.pieces.len(), 2, "one, and what touches none");
        assert_eq!(page.over(b"")[1..8], [0; 7], "what is missing is zero");
    }

    #[test]
    fn there_is_room_up_to_the_bounds() {
        assert!(PartialPage::takes(MOST_BYTES) && !PartialPage::takes(MOST_BYTES + 1));
        let mut page = PartialPage::of(0, b"x");
        for n in 1..MOST_PIECES {
            assert!(page.has_room(n * 10, 1));
            page.write(n * 10, b"x");
        }
        assert!(!page.has_room(4000, 1), "one piece too many");
        assert!(page.has_room(10, 1) && page.has_room(11, 9), "nor more than there are");
        let rest = MOST_BYTES - MOST_PIECES;
        assert!(page.has_room(151, rest) && !page.has_room(151, rest + 1));
    }
}
