//! The `-o` options of a mount: those of mount(8), those of FUSE, and a few of our own, which
//! `mount_table` lists.
//!
//! Words that are for others (mount(8), systemd, `/etc/fstab`) are skipped; any other unknown word
//! is an error that names it, for an option that silently does nothing is worse than none.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

pub use crate::support::mounting::mount_settings::Options;
pub use crate::support::mounting::mount_table::{help, parse_address};

use crate::support::mounting::mount_settings::Draft;
use crate::support::mounting::mount_table::{Kind, option};
use crate::support::mounting::mount_words::{is_for_others, split};
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// Reads the words of all `-o` in order; a later one wins.
pub fn parse(lists: &[OsString]) -> Outcome<Options> {
    let mut draft = Draft::default();
    for word in lists.iter().flat_map(|list| split(list.clone())) {
        take(&mut draft, &word)?;
    }
    draft.finish()
}

/// Returns the first word that only a mount of a store on this machine can have.
pub fn first_local(lists: &[OsString]) -> Option<OsString> {
    let mut words = lists.iter().flat_map(|list| split(list.clone()));
    words.find(|word| option(&parts(word).0).is_some_and(|row| row.local))
}

/// Returns the name of an option, and its value.
fn parts(word: &OsStr) -> (Cow<'_, str>, Option<&OsStr>) {
    let bytes = word.as_bytes();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (bytes, None),
    };
    (String::from_utf8_lossy(name), value)
}

/// Reads one word.
fn take(draft: &mut Draft, word: &OsStr) -> Outcome {
    let bad = |why: &str| {
        Failure::new(Exit::Usage, format!("mount option '{}': {why}", word.to_string_lossy()))
    };
    let (name, value) = parts(word);
    let Some(row) = option(&name) else {
        return match (&*name, value) {
            ("", None) => Ok(()),
            (name, _) if is_for_others(name) => Ok(()),
            _ => Err(bad("unknown").hint("`kvfs mount --help` lists the options")),
        };
    };
    match (&row.kind, value) {
        (Kind::Flag(set), None) => {
            set(draft);
            Ok(())
        }
        (Kind::Value { set, .. }, Some(value)) => set(draft, value).map_err(|why| bad(&why)),
        (Kind::Refused { why, hint }, None) => Err(bad(why).hint(*hint)),
        (Kind::Flag(_) | Kind::Refused { .. }, Some(_)) => Err(bad("takes no value")),
        (Kind::Value { example, .. }, None) => {
            Err(bad(&format!("needs a value, such as {name}={example}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvfs_fuse::{AccessTimes, TransportChoice};

    use super::*;
    use crate::support::mounting::mount_settings::Writing;
    use crate::support::mounting::mount_table::ROWS;

    fn read(text: &str) -> Outcome<Options> {
        parse(&[text.into()])
    }

    #[test]
    fn safe_unless_asked_otherwise() {
        let m = read("rw").expect("valid").mount;
        assert!(
            !m.suid && !m.dev && m.exec && m.default_permissions && !m.allow_other && !m.read_only
        );
        let m = read("suid,dev,noexec,ro").expect("valid").mount;
        assert!(m.suid && m.dev && !m.exec && m.read_only);
        assert!(!read("suid,nosuid").expect("valid").mount.suid, "the later one wins");
    }

    #[test]
    fn sharing_without_permission_checks_is_refused() {
        assert!(read("allow_other").is_ok());
        assert!(read("nodefault_permissions").is_ok());
        let refused = read("nodefault_permissions,allow_other").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
    }

    #[test]
    fn names_may_contain_commas_and_an_empty_subtype_is_one() {
        let o = read(r"fsname=a\,b\\c,subtype=").expect("valid");
        assert_eq!(o.source, Some(r"a,b\c".into()));
        assert_eq!(o.mount.subtype, "");
        assert!(read("subtype=a b").is_err());
    }

    #[test]
    fn words_for_others_are_skipped_and_unknown_ones_named() {
        assert!(
            read("defaults,_netdev,nofail,noauto,user,x-systemd.automount,x-gvfs-show,comment=a,")
                .is_ok()
        );
        assert!(read("frobnicate").expect_err("unknown").message.contains("frobnicate"));
        assert_eq!(read("memory=1G").expect("valid").memory, Some(1 << 30));
        assert!(read("threads=0").is_err());
        assert_eq!(read("zone_size=0").expect("valid").zone_size, Some(0));
        assert!(read("zone_size=large").is_err() && read("zone_size=-1").is_err());
        assert_eq!(read("compress=zstd").expect("valid").compress, Some(kvfs::Compress::Zstd));
        assert!(read("compress=gzip").expect_err("no way").message.contains("none, lz4, zstd"));
        assert!(read("metrics=127.0.0.1:9100").expect("valid").metrics.is_some());
        assert!(read("metrics=0.0.0.0:9100").is_err() && read("metrics").is_err());
        assert_eq!(read("threads=4").expect("valid").policy.threads, 4);
    }

    #[test]
    fn each_option_is_accepted_as_its_row_shows_it_and_refused_otherwise() {
        for row in ROWS {
            let names = [&[row.name][..], row.aliases].concat();
            for name in names {
                let first = option(name).map(|found| found.name);
                assert_eq!(first, Some(row.name), "{name} is there a second time");
                assert!(!is_for_others(name), "{name} is skipped, too");
                let with_value = format!("{name}=1");
                let said = |word: &str| read(word).expect_err(word);
                let (failure, wrong) = match &row.kind {
                    Kind::Flag(_) => {
                        read(name).unwrap_or_else(|e| panic!("{name}: {}", e.message));
                        (said(&with_value), "takes no value")
                    }
                    Kind::Value { example, .. } => {
                        let word = format!("{name}={example}");
                        read(&word).unwrap_or_else(|e| panic!("{word}: {}", e.message));
                        (said(name), "needs a value")
                    }
                    Kind::Refused { why, .. } => {
                        assert!(said(name).message.contains(why), "{name}");
                        (said(&with_value), "takes no value")
                    }
                };
                assert_eq!(failure.exit, Exit::Usage, "{name}");
                assert!(failure.message.contains(wrong), "{name}: {}", failure.message);
            }
        }
    }

    /// Options that a mount of a server's store has as well. A new option is put here, or its row
    /// is marked as `local`: one that does nothing there must be refused there.
    const ON_SERVERS: &str = "ro rw allow_other open_views default_permissions \
        nodefault_permissions suid nosuid dev nodev exec noexec sync async dirsync relatime noatime \
        strictatime diratime cache writeback nowriteback fsname subtype memory log snapshot clone \
        transport zone_size threads commit noscrub nohold nolay nokeeper xattr noxattr btime nobtime";

    #[test]
    fn each_option_works_on_mounts_of_servers_or_is_refused_there() {
        for row in ROWS {
            let works = ON_SERVERS.split_whitespace().any(|name| name == row.name);
            assert_ne!(works, row.local, "{}", row.name);
            for name in [&[row.name][..], row.aliases].concat() {
                let words = ["rw,noatime".into(), format!("nosuid,{name}=1,exec").into()];
                let found = first_local(&words).is_some();
                assert_eq!(found, row.local, "{name}");
            }
        }
    }

    #[test]
    fn each_option_has_help_that_is_shown_within_100_columns() {
        let help = help();
        for row in ROWS {
            assert!(!row.help.is_empty() && !row.help.ends_with('.'), "{}", row.name);
            let shown = help.lines().find(|line| {
                let form = line.strip_prefix("  ").and_then(|line| line.strip_prefix(row.name));
                form.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=', ',']))
            });
            assert!(shown.is_some(), "{} is not in the help", row.name);
        }
        for line in help.lines() {
            assert!(line.len() <= 100 && line == line.trim_end(), "{line}");
        }
    }

    #[test]
    fn a_scrub_by_itself_is_asked_for() {
        assert_eq!(read("rw").expect("valid").scrub, None);
        let day = std::time::Duration::from_secs(86400);
        let scrub = read("scrub=7").expect("valid").scrub.expect("asked for");
        assert_eq!((scrub.every, scrub.bytes_per_second), (7 * day, 16 << 20));
        let scrub = read("scrub_rate=3,scrub=0.5").expect("valid").scrub.expect("asked for");
        assert_eq!((scrub.every, scrub.bytes_per_second), (day / 2, 3 << 20));
        assert_eq!(read("scrub=7,noscrub").expect("valid").scrub, None);
        for wrong in
            ["scrub", "scrub=0", "scrub=-1", "scrub=x", "scrub_rate=0", "scrub_rate=", "scrub=nan"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_laid_while_the_store_is_quiet_if_asked_unless_they_would_be_published_again() {
        let lays = |text| read(text).expect("valid").budget().lay_when_quiet;
        assert!(lays("lay") && lays("nolay,lay"));
        assert!(!lays("rw") && !lays("lay,nolay") && !lays("lay,ro"));
        assert!(!lays("lay,publish=dir:/srv/stores/work"));
    }

    #[test]
    fn the_flush_interval_is_a_time_that_a_commit_waits_at_most() {
        let interval = |text| read(text).map(|options| options.budget().flush_interval);
        assert_eq!(interval("rw").expect("valid"), None);
        assert_eq!(interval("commit=30").expect("valid"), Some(Duration::from_secs(30)));
        assert_eq!(interval("commit=0.5").expect("valid"), Some(Duration::from_millis(500)));
        for wrong in ["commit=0", "commit=301", "commit=-1", "commit=x", "commit"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn where_a_store_is_published_is_a_place_and_not_a_snapshot_of_it() {
        let publish =
            read("publish_every=2.5,publish=dir:/srv/stores/work").expect("valid").publish;
        let publish = publish.expect("asked for");
        assert_eq!(publish.to.to_string(), "dir:/srv/stores/work");
        assert_eq!(publish.every, Duration::from_millis(2500));
        assert_eq!(read("rw").expect("valid").publish, None);
        for wrong in [
            "publish",
            "publish=/srv/stores/work",
            "publish=dir:/srv/stores/work@monday",
            "publish=dir:/srv/stores/work,ro",
            "publish=dir:/srv/stores/work,publish_every=0",
            "publish=dir:/srv/stores/work,publish_every=inf",
        ] {
            assert_eq!(read(wrong).expect_err(wrong).exit, Exit::Usage, "{wrong}");
        }
        // Options that belong together may come from a file, a line for each.
        let alone = read("publish_every=10").expect("valid by itself");
        assert_eq!(alone.check().expect_err("it says nowhere").exit, Exit::Usage);
        assert!(read("publish_every=10,write").expect("valid").check().is_ok());
    }

    #[test]
    fn a_store_is_written_at_its_address_when_asked_to() {
        assert_eq!(read("rw").expect("valid").writing, None);
        assert_eq!(read("write").expect("valid").writing, Some(Writing { take: false }));
        assert_eq!(read("take,write").expect("valid").writing, Some(Writing { take: true }));
        for wrong in ["write,ro", "write=1", "take=no"] {
            assert_eq!(read(wrong).expect_err(wrong).exit, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn writes_go_through_unless_asked_otherwise() {
        assert!(!read("rw").expect("valid").policy.write_back);
        assert!(read("writeback").expect("valid").policy.write_back);
        assert!(!read("writeback,nowriteback").expect("valid").policy.write_back);
        for (cache, gathers) in [("through", false), ("back", true), ("auto", false)] {
            assert_eq!(read(&format!("cache={cache}")).expect("valid").policy.write_back, gathers);
        }
        assert!(!read("cache=back,cache=auto").expect("valid").policy.write_back);
        for wrong in ["cache", "cache=", "cache=both", "transport=uring,cache=back"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_come_over_io_uring_when_asked_for_and_writes_are_not_gathered() {
        assert_eq!(read("rw").expect("valid").policy.transport, TransportChoice::Auto);
        assert_eq!(
            read("transport=device,writeback").expect("valid").policy.transport,
            TransportChoice::Device
        );
        assert_eq!(
            read("transport=uring").expect("valid").policy.transport,
            TransportChoice::Uring
        );
        assert!(read("transport=auto,writeback").is_ok());
        let refused = read("transport=uring,writeback").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("io_uring"), "{}", refused.message);
        assert!(read("transport").is_err() && read("transport=tcp").is_err());
    }

    #[test]
    fn access_times_are_kept_as_asked_or_refused() {
        assert_eq!(read("rw").expect("valid").mount.access_times, AccessTimes::Relative);
        assert_eq!(read("noatime").expect("valid").mount.access_times, AccessTimes::Never);
        let refused = read("strictatime").expect_err("refused");
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("cache"), "{}", refused.message);
    }

    #[test]
    fn only_addresses_of_this_machine_are_taken() {
        assert!(parse_address("127.0.0.1:9100").is_ok());
        assert!(parse_address("[::1]:0").is_ok());
        for wrong in
            ["0.0.0.0:9100", "10.0.0.1:9100", "[::]:9100", "9100", "localhost", "127.0.0.1", ""]
        {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
