//! Names that git refuses in an index, since some file system would take them for `.git`. Files may
//! have such names, and git lists them as untracked, but it ignores them in an answer of the hook.

/// A name that git accepts, which stands for anything in a directory. If a file there has that
/// name, no harm is done: git examines that file, too.
pub const ANY: &[u8] = b"0";

/// Returns the last name of a path.
pub fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Returns whether git may refuse the name. (HFS+ ignores some non-ASCII characters; NTFS has short
/// names and streams, and drops full stops and blanks at the end; and a backslash may begin a
/// name.)
fn may_be_refused(name: &[u8]) -> bool {
    name.split(|&byte| byte == b'\\').any(|piece| {
        let seen: Vec<u8> =
            piece.iter().filter(|byte| byte.is_ascii()).map(u8::to_ascii_lowercase).collect();
        let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_git =
            seen.strip_prefix(b".git").is_some_and(|rest| !rest.first().is_some_and(goes_on));
        is_git || seen.starts_with(b"git~")
    })
}

/// Returns a path that git accepts and that makes it notice a change of this path. Returns `None`
/// if there is none, since the directory of the path has a name that git refuses.
pub fn told(path: &[u8]) -> Option<Vec<u8>> {
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    let Some(at) = names.iter().position(|name| may_be_refused(name)) else {
        return Some(path.to_vec());
    };
    // The content of a nested repository does not matter, only its existence.
    let is_told = at + 1 == names.len() || names[at] == b".git";
    is_told.then(|| [&names[..at], &[ANY]].concat().join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_does_not_take_is_told_by_another_name() {
        let same: [&[u8]; 6] =
            [b"a/b", b".gitignore", b"a/.github/b", b".gitmodules", b"a.git", b"\xff/legit~1"];
        for path in same {
            assert_eq!(told(path).as_deref(), Some(path), "{}", path.escape_ascii());
        }
        let others: [(&[u8], &[u8]); 8] = [
            (b"a/.git", b"a/0"),
            (b"a/.git/refs/x", b"a/0"),
            (b"a/GIT~1", b"a/0"),
            (b".Git ", b"0"),
            (b".git::$INDEX", b"0"),
            (b"a/x\\.git", b"a/0"),
            (b".g\xe2\x80\x8cit", b"0"),
            (b".git...", b"0"),
        ];
        for (path, want) in others {
            assert_eq!(told(path).as_deref(), Some(want), "{}", path.escape_ascii());
        }
        assert_eq!(told(b"a/git~1/b"), None);
        assert_eq!((last(b"a/b"), last(b"b")), (&b"b"[..], &b"b"[..]));
    }
}
