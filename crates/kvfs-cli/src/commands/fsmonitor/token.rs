//! The token of an answer, which git keeps in its index and sends with the next request.
//!
//! An index is a file like any other: it may be copied with its work tree, restored, written in a
//! transaction and committed, or moved to another store. So a token identifies the list of changes
//! and the work tree that its position belongs to; anything else counts as no token.

use sha1::{Digest, Sha1};

/// The prefix of tokens in this format.
const BEGINS: &str = "kvfs1:";

/// Answered if git cannot continue from this answer. It is never accepted as a token.
pub const NONE: &str = "kvfs1:none";

/// A position in a list of changes, in the answer for one work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The position in the format of `CHANGES`: the number of a commit, and a random number that
    /// identifies the list, which belongs to one opening of one store.
    pub position: String,
    /// A hash of the view and of the path of the work tree in it.
    pub tree: String,
}

impl Token {
    /// Returns the token for the work tree at `path` in `view`. A view that ends gets no token.
    pub fn new(position: &str, view: &str, path: &[u8]) -> Token {
        let mut hash = Sha1::new();
        hash.update(view.as_bytes());
        hash.update([0]);
        hash.update(path);
        let tree = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Token { position: position.into(), tree }
    }

    /// Parses a token. Returns `None` if it is not in this format.
    pub fn parse(bytes: &[u8]) -> Option<Token> {
        let text = std::str::from_utf8(bytes).ok()?.strip_prefix(BEGINS)?;
        let (position, tree) = text.split_once(':')?;
        number(position)?;
        Some(Token { position: position.into(), tree: tree.into() })
    }

    /// Returns the text that git gets.
    pub fn text(&self) -> String {
        format!("{BEGINS}{}:{}", self.position, self.tree)
    }

    /// Returns the list of changes that the position belongs to.
    pub fn list(&self) -> &str {
        self.position.split_once('-').map_or("", |(_, list)| list)
    }
}

/// Returns the number of the commit in a position.
pub fn number(position: &str) -> Option<u64> {
    position.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_list_and_one_work_tree() {
        let token = Token::new("41-00ff", "the store", b"a/b");
        assert_eq!(Token::parse(token.text().as_bytes()), Some(token.clone()));
        assert_eq!((token.list(), number(&token.position)), ("00ff", Some(41)));
        for other in [
            Token::new("42-00ff", "the store", b"a/b"),
            Token::new("41-00fe", "the store", b"a/b"),
            Token::new("41-00ff", "snapshot s", b"a/b"),
            Token::new("41-00ff", "the store", b"a/c"),
        ] {
            assert_ne!(token, other);
        }
        for none in ["", NONE, "1700000000000000000", "kvfs1:41:x", "kvfs1:x-1:y", "kvfs2:1-1:x"] {
            assert_eq!(Token::parse(none.as_bytes()), None, "{none}");
        }
        assert_eq!(Token::parse(b"kvfs1:1-1:\xff"), None);
    }
}
