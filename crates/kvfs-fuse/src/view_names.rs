//! Encodes the names of snapshots and clones as single file names.
//!
//! Such a name may have slashes, as in `agents/7/try-2`. The directory of the view still has a
//! single name, `agents%2F7%2Ftry-2`, in which a slash is `%2F`: so a path determines the view to
//! which it leads, independently of other views. A percent sign before `2F` or `25` is encoded as
//! `%25`; every other character stands for itself.

/// Returns the name of a view's directory.
pub fn directory_name(view: &str) -> String {
    let mut name = String::with_capacity(view.len());
    let mut rest = view;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '/' => name.push_str("%2F"),
            '%' if after.starts_with("2F") || after.starts_with("25") => name.push_str("%25"),
            c => name.push(c),
        }
        rest = after;
    }
    name
}

/// Returns the name of the view whose directory has this name. Several directory names may decode
/// to one view; [`directory_name`] returns the one that is used.
pub fn view_name(directory: &str) -> String {
    let mut view = String::with_capacity(directory.len());
    let mut rest = directory;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let percent = |s: &str| s.starts_with("2F") || s.starts_with("25");
        rest = match (c, after.get(..2)) {
            ('%', Some("2F")) => {
                view.push('/');
                &after[2..]
            }
            ('%', Some("25")) if percent(&after[2..]) => {
                view.push('%');
                &after[2..]
            }
            _ => {
                view.push(c);
                after
            }
        };
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_went() {
        let parts = ["/", "%", "2", "5", "F", "2F", "25", "%2F", "%25", "a", "ü"];
        let mut all = vec![String::new()];
        for _ in 0..4 {
            let longer = all.iter().flat_map(|s| parts.map(|part| format!("{s}{part}")));
            all = longer.collect();
            for view in &all {
                let directory = directory_name(view);
                assert!(!directory.contains('/'), "{view}");
                assert_eq!(view_name(&directory), *view, "{directory}");
            }
        }
    }

    #[test]
    fn what_has_no_slash_is_written_as_it_is() {
        for name in ["monday", "100%", "50%off", "a%2", "%20"] {
            assert_eq!(directory_name(name), name);
        }
        assert_eq!(directory_name("agents/7/try-2"), "agents%2F7%2Ftry-2");
    }
}
