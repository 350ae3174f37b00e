//! The rights of clients: a client shows a token or a certificate, which has a role. Tokens are
//! stored as hashes, so that a reader of the list cannot use them. A line of the list also limits
//! the places that its clients take (`tenants`).

use sha2::{Digest, Sha256};

/// The rights of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Names of the snapshots that the client may read; `*` stands for any characters.
    pub reads: Vec<String>,
    /// Branches in which the client may begin transactions: `""` is the main branch, and `*` stands
    /// for any characters in the name of a clone.
    pub writes: Vec<String>,
    /// The client may take the lease of the main branch, even from another client.
    pub leases: bool,
    /// The client may drop snapshots, and make more of them and of clones than the limit for
    /// others.
    pub administers: bool,
}

impl Role {
    /// Returns the role of a client that may do everything.
    pub fn all() -> Role {
        let writes = vec![String::new(), "*".into()];
        Role { reads: vec!["*".into()], writes, leases: true, administers: true }
    }

    /// Returns whether the client may read a snapshot.
    pub fn may_read(&self, snapshot: &str) -> bool {
        self.reads.iter().any(|pattern| matches(pattern.as_bytes(), snapshot.as_bytes()))
    }

    /// Returns whether the client may begin and use transactions in a branch.
    pub fn may_write(&self, branch: &str) -> bool {
        self.writes.iter().any(|pattern| match branch {
            // A pattern for clones never matches the main branch.
            "" => pattern.is_empty(),
            branch => !pattern.is_empty() && matches(pattern.as_bytes(), branch.as_bytes()),
        })
    }

    /// Returns whether the client may change anything.
    pub fn may_change(&self) -> bool {
        !self.writes.is_empty() || self.leases
    }

    /// Returns whether the client may know that a snapshot of a branch exists.
    pub fn may_list(&self, snapshot: &str, branch: &str) -> bool {
        self.may_read(snapshot) || self.may_write(branch)
    }
}

/// Returns whether `text` matches a pattern.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // The position of the last `*`, and the end of the text that it has matched so far.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut t) = (0, 0);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, end)) => {
                    star = Some((at, end + 1));
                    (p, t) = (at + 1, end + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The kind of a hash in the list. A certificate is not secret, so its bytes never count as a
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shown {
    Token,
    Certificate,
}

/// Tells a line from all other lines: the kind of its hash, and the hash.
pub(crate) type LineId = (Shown, [u8; 32]);

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    shown: Shown,
    hash: [u8; 32],
    pub role: Role,
    /// Limit of the connections of its clients, and of their transactions. `None` means a share of
    /// those of the server.
    pub most: Option<usize>,
    /// Set if the list has no other line, so that its clients need not leave room for others.
    pub is_only: bool,
}

impl Line {
    pub fn id(&self) -> LineId {
        (self.shown, self.hash)
    }
}

/// The tokens and certificates that a server knows, by their hashes, each with its role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    all: Vec<Line>,
    /// The line of a client that has already proved its certificate. If it is set, tokens are
    /// ignored.
    certified: Option<Line>,
}

impl Tokens {
    /// Parses a list. Each line has the SHA-256 of a token in hexadecimal digits, or that of a
    /// certificate (its DER) after `cert:`, and the rights as words: `read=PATTERN`, `write`,
    /// `write=CLONE`, `lease`, `admin`. `most=N` limits its connections and its transactions. `#`
    /// begins a comment.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let mut all: Vec<Line> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            // A comment begins at a word: the name of a snapshot may contain a `#`.
            let words = line.split_ascii_whitespace();
            let mut words = words.take_while(|word| !word.starts_with('#'));
            let Some(hash) = words.next() else { continue };
            let wrong = |what: &str| Err(format!("line {}: {what}", number + 1));
            let (shown, digits) = match hash.strip_prefix("cert:") {
                Some(digits) => (Shown::Certificate, digits),
                None => (Shown::Token, hash),
            };
            let Some(hash) = hash_of_digits(digits) else {
                return wrong(
                    "it does not begin with the SHA-256 of a token, 64 digits, or with cert: and \
                     that of a certificate",
                );
            };
            let (mut role, mut most) = (Role::default(), None);
            for word in words {
                match word.split_once('=') {
                    None if word == "write" => role.writes.push(String::new()),
                    None if word == "lease" => role.leases = true,
                    None if word == "admin" => role = Role::all(),
                    Some(("read", pattern)) => role.reads.push(pattern.into()),
                    Some(("write", clone)) if !clone.is_empty() => role.writes.push(clone.into()),
                    Some(("most", number)) => match number.parse() {
                        Ok(number @ 1..) if most.is_none() => most = Some(number),
                        _ => return wrong("most= has one number, which is at least 1"),
                    },
                    _ => {
                        return wrong(
                            "a word is none of read=PATTERN, write, write=CLONE, lease, admin, \
                             most=N",
                        );
                    }
                }
            }
            if role == Role::default() {
                return wrong("it says not what the token lets do");
            }
            let line = Line { shown, hash, role, most, is_only: false };
            if all.iter().any(|earlier| earlier.id() == line.id()) {
                return wrong("it has the same hash as an earlier line");
            }
            all.push(line);
        }
        if let [line] = &mut all[..] {
            line.is_only = true;
        }
        Ok(Tokens { all, certified: None })
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether the list has tokens.
    pub fn has_tokens(&self) -> bool {
        self.all.iter().any(|line| line.shown == Shown::Token)
    }

    /// Returns whether the list has certificates.
    pub fn has_certificates(&self) -> bool {
        self.all.iter().any(|line| line.shown == Shown::Certificate)
    }

    /// Returns the list for a client that has proved to own this certificate, in DER: the client
    /// has the role of the certificate's line, whichever token it shows. Returns `None` if there is
    /// no such line.
    pub fn of_certificate(&self, der: &[u8]) -> Option<Tokens> {
        let line = self.find(Shown::Certificate, der)?;
        Some(Tokens { all: Vec::new(), certified: Some(line.clone()) })
    }

    /// Returns the role of the client that shows a token. Its running time reveals nothing about
    /// the tokens.
    pub fn role(&self, token: &[u8]) -> Option<Role> {
        self.line(token).map(|line| line.role.clone())
    }

    /// Returns the line of the client that shows a token, like [`Tokens::role`].
    pub(crate) fn line(&self, token: &[u8]) -> Option<&Line> {
        self.certified.as_ref().or_else(|| self.find(Shown::Token, token))
    }

    fn find(&self, shown: Shown, bytes: &[u8]) -> Option<&Line> {
        let hash: [u8; 32] = Sha256::digest(bytes).into();
        let mut found = None;
        for line in &self.all {
            let differs = line.hash.iter().zip(&hash).fold(0, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(differs) == 0 && line.shown == shown {
                found = Some(line);
            }
        }
        found
    }
}

fn hash_of_digits(digits: &str) -> Option<[u8; 32]> {
    let digits = digits.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(token: &str, words: &str) -> String {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits} {words}\n")
    }

    #[test]
    fn a_token_lets_do_what_its_line_says() {
        let text = [
            "# those of the laboratory\n\n".into(),
            line("reader", "read=nightly-* read=monday # of the guests"),
            line("writer", "write"),
            line("guest", "write=attempt-* read=base"),
            line("root", "admin"),
            line("laptop", "lease"),
        ];
        let tokens = Tokens::parse(&text.concat()).unwrap();
        let role = |token: &str| tokens.role(token.as_bytes());
        let reader = role("reader").unwrap();
        for (snapshot, may) in [
            ("nightly-7", true),
            ("nightly-", true),
            ("monday", true),
            ("mondays", false),
            ("", false),
        ] {
            assert_eq!(reader.may_read(snapshot), may, "{snapshot}");
        }
        assert!(!reader.may_write("") && !reader.may_write("attempt-1"));
        let writer = role("writer").unwrap();
        assert!(writer.may_write("") && !writer.may_write("clone") && !writer.may_read("monday"));
        let guest = role("guest").unwrap();
        assert!(guest.may_write("attempt-1") && !guest.may_write("") && !guest.may_write("other"));
        let root = role("root").unwrap();
        assert!(root.may_write("") && root.may_write("any") && root.may_read("any"));
        assert!(root.administers && !writer.administers && !guest.administers);
        let laptop = role("laptop").unwrap();
        assert!(laptop.leases && root.leases && !writer.leases && !reader.leases);
        assert!(!laptop.may_write("") && !laptop.may_read("monday") && !laptop.administers);
        assert!(writer.may_list("monday", "") && !writer.may_list("monday", "attempt-1"));
        assert!(guest.may_list("base", "") && guest.may_list("monday", "attempt-1"));
        for wrong in ["", "reade", "readers", "Reader"] {
            assert_eq!(role(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_certificate_lets_do_what_its_line_says_and_its_bytes_are_no_token() {
        let text = [line("token", "read=*"), format!("cert:{}", line("certificate", "write"))];
        let tokens = Tokens::parse(&text.concat()).unwrap();
        assert!(tokens.has_tokens() && tokens.has_certificates());
        assert_eq!(tokens.role(b"certificate"), None);
        assert_eq!(tokens.of_certificate(b"token"), None);
        assert_eq!(tokens.of_certificate(b""), None);
        let certified = tokens.of_certificate(b"certificate").unwrap();
        for token in ["", "token", "wrong"] {
            let role = certified.role(token.as_bytes()).unwrap();
            assert!(role.may_write("") && !role.may_read("monday"), "{token:?}");
        }
        let tokens = Tokens::parse(&text[1]).unwrap();
        assert!(!tokens.has_tokens() && tokens.has_certificates() && !tokens.is_empty());
    }

    #[test]
    fn a_line_says_how_many_places_it_takes_and_whether_there_are_others() {
        let text = [line("few", "most=3 read=* write"), line("any", "admin")].concat();
        let tokens = Tokens::parse(&text).unwrap();
        let places = |tokens: &Tokens, token: &str| {
            let line = tokens.line(token.as_bytes()).unwrap();
            (line.most, line.is_only)
        };
        assert_eq!(places(&tokens, "few"), (Some(3), false));
        assert_eq!(places(&tokens, "any"), (None, false));
        let alone = Tokens::parse(&line("any", "admin")).unwrap();
        assert_eq!(places(&alone, "any"), (None, true));
    }

    #[test]
    fn a_list_that_says_something_else_is_refused() {
        for (text, what) in [
            ("secret admin\n".to_string(), "SHA-256"),
            (line("t", ""), "what the token lets do"),
            ("cert:12 admin\n".to_string(), "SHA-256"),
            (format!("cert: {}", line("t", "admin")), "SHA-256"),
            (line("t", "root"), "a word is none"),
            (line("t", "write="), "a word is none"),
            (line("t", "write most=0"), "at least 1"),
            (line("t", "write most=many"), "at least 1"),
            (line("t", "write most=2 most=3"), "one number"),
            (line("t", "most=2"), "what the token lets do"),
            (format!("\n{}", line("t", "read")), "line 2"),
            ([line("t", "write"), line("t", "admin")].concat(), "earlier line"),
        ] {
            let refused = Tokens::parse(&text).unwrap_err();
            assert!(refused.contains(what), "{refused}");
        }
        assert!(Tokens::parse("# none\n").unwrap().is_empty());
    }

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**a", "bab", false),
            ("ab", "abc", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
    }
}
