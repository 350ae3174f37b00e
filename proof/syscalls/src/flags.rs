//! Flag words and their names in a history.

use std::fmt;

use crate::call::Word;

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident { $($word:literal = $bit:expr),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct $name(pub i32);

        impl $name {
            /// Longer ones, which contain others' bits, come first.
            const WORDS: &[(&str, i32)] = &[$(($word, $bit)),*];
        }

        impl Word for $name {
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut left = self.0;
                let mut mark = "";
                for &(word, bits) in Self::WORDS.iter().filter(|w| w.1 != 0) {
                    if left & bits == bits {
                        left &= !bits;
                        write!(f, "{mark}{word}")?;
                        mark = "|";
                    }
                }
                if mark.is_empty() {
                    f.write_str(Self::WORDS.iter().find(|w| w.1 == 0).map_or("0", |w| w.0))?;
                }
                Ok(())
            }
            fn read(text: &str) -> Option<Self> {
                let bits = |word: &str| Self::WORDS.iter().find(|w| w.0 == word).map(|w| w.1);
                text.split('|').try_fold(0, |all, word| if word == "0" { Some(all) } else { Some(all | bits(word)?) }).map($name)
            }
        }
    )*};
}

flags! {
    OpenFlags {
        "path" = libc::O_PATH,
        "tmpfile" = libc::O_TMPFILE,
        "directory" = libc::O_DIRECTORY,
        "sync" = libc::O_SYNC,
        "dsync" = libc::O_DSYNC,
        "rdwr" = libc::O_RDWR,
        "wronly" = libc::O_WRONLY,
        "creat" = libc::O_CREAT,
        "excl" = libc::O_EXCL,
        "trunc" = libc::O_TRUNC,
        "append" = libc::O_APPEND,
        "direct" = libc::O_DIRECT,
        "nofollow" = libc::O_NOFOLLOW,
        "noatime" = libc::O_NOATIME,
        "rdonly" = 0,
    }
    AllocMode {
        "alloc" = 0,
        "keep" = libc::FALLOC_FL_KEEP_SIZE,
        "punch" = libc::FALLOC_FL_PUNCH_HOLE,
        "zero" = libc::FALLOC_FL_ZERO_RANGE,
        "collapse" = libc::FALLOC_FL_COLLAPSE_RANGE,
        "insert" = libc::FALLOC_FL_INSERT_RANGE,
    }
    RenameFlags {
        "plain" = 0,
        "noreplace" = libc::RENAME_NOREPLACE as i32,
        "exchange" = libc::RENAME_EXCHANGE as i32,
        "whiteout" = libc::RENAME_WHITEOUT as i32,
    }
    XattrFlags {
        "any" = 0,
        "create" = libc::XATTR_CREATE,
        "replace" = libc::XATTR_REPLACE,
    }
}

macro_rules! one_of {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident $word:literal),* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];
        }

        impl Word for $name {
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $word),* })
            }
            fn read(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)* _ => None }
            }
        }
    )*};
}

one_of! {
    Whence { Set "set", Current "cur", End "end" }
    LockKind { Shared "shared", Exclusive "exclusive", Free "free" }
}
