//! Colours on a terminal, as git has them.

use std::io::IsTerminal;

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// Colour lines on a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always colour lines.
    Always,
    /// Never colour lines.
    Never,
}

/// The kind of a line, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Plain,
    Added,
    Removed,
    Changed,
    Renamed,
    Header,
    Hunk,
}

impl Paint {
    pub(super) fn of(letter: char) -> Paint {
        match letter {
            'A' => Paint::Added,
            'D' => Paint::Removed,
            'R' => Paint::Renamed,
            _ => Paint::Changed,
        }
    }

    fn code(self) -> Option<&'static [u8]> {
        match self {
            Paint::Plain => None,
            Paint::Added => Some(b"\x1b[32m"),
            Paint::Removed => Some(b"\x1b[31m"),
            Paint::Changed => Some(b"\x1b[33m"),
            Paint::Renamed | Paint::Hunk => Some(b"\x1b[36m"),
            Paint::Header => Some(b"\x1b[1m"),
        }
    }
}

/// The style in which text is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Escape characters that would control a terminal.
    pub terminal: bool,
    /// Colour the lines.
    pub colour: bool,
}

impl Style {
    /// Returns the style for standard output.
    pub fn of_output(when: When) -> Style {
        Style::of(when, std::io::stdout().is_terminal())
    }

    /// Returns the style for a terminal, or for another output.
    pub fn of(when: When, terminal: bool) -> Style {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let wanted = || {
            terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
        };
        let colour = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => wanted(),
        };
        Style { terminal, colour }
    }

    /// Writes a line without its end.
    pub(super) fn put(self, paint: Paint, line: &[u8], out: &mut Vec<u8>) {
        match paint.code().filter(|_| self.colour) {
            Some(code) => {
                for part in [code, line, b"\x1b[m"] {
                    out.extend_from_slice(part);
                }
            }
            None => out.extend_from_slice(line),
        }
    }
}
