//! The token of an answer, which git keeps in its index and sends with the next question.
//!
//! An index is a file as any other: it is copied with its work tree, brought back by a restore,
//! written in a transaction and committed, or carried to another store. So a token says which list
//! of changes it is a place in, and of which work tree; all else counts as no token.

use sha1::{Digest, Sha1};

/// How tokens of this form begin.
const BEGINS: &str = "kvfs1:";

/// Said where nothing that is known then can be gone on from. It is never taken for a token.
pub const NONE: &str = "kvfs1:none";

/// A place in a list of changes, as the answer for one work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// As `CHANGES` has it: the number of a commit, and a random number that names the list, which
    /// is of one opening of one store.
    pub position: String,
    /// The view and the path of the work tree in it, as a hash.
    pub tree: String,
}

impl Token {
    /// `view` and `path` name the work tree; a view that ends gets no token.
    pub fn new(position: &str, view: &str, path: &[u8]) -> Token {
        let mut hash = Sha1::new();
        hash.update(view.as_bytes());
        hash.update([0]);
        hash.update(path);
        let tree = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Token { position: position.into(), tree }
    }

    /// `None`: it is no token of this form.
    pub fn parse(bytes: &[u8]) -> Option<Token> {
        let text = std::str::from_utf8(bytes).ok()?.strip_prefix(BEGINS)?;
        let (position, tree) = text.split_once(':')?;
        number(position)?;
        Some(Token { position: position.into(), tree: tree.into() })
    }

    /// As git gets it.
    pub fn text(&self) -> String {
        format!("{BEGINS}{}:{}", self.position, self.tree)
    }

    /// Which list of changes it is a place in.
    pub fn list(&self) -> &str {
        self.position.split_once('-').map_or("", |(_, list)| list)
    }
}

/// The number of the commit in a position.
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
