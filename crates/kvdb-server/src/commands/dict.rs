//! `DICT`: lists and changes dictionaries and their options. `COMPACT`: merges the runs of a
//! dictionary.

use kvdb::{ADAPTIVE, ADAPTIVE_SEPARATION, Compression, DictionaryInfo, DictionaryOptions, Join};

use super::ranges::bounds;
use super::tell::tell_all;
use super::{is, wrong_arity};
use crate::dictionaries::{Selected, listed_at};
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::types_name;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

pub const USAGE: &str = "LIST | INFO [name] | CREATE name [option value ...] | \
                         SET name option value ... | DROP name; options: separate-at bytes|adaptive|never, \
                         stitch-at bytes|adaptive|never, compression none|lz4|zstd, \
                         value-compression none|lz4|zstd, false-positives of-10000, \
                         merge none|add|max|min|union";

pub fn dict(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let Some(branch) = s.place.branch().map(String::from) else {
        return Err(Failure::request(
            "DICT works on the store or a clone: a snapshot does not change, leave it",
        ));
    };
    let pairs = args.len() >= 3 && args.len() % 2 == 1;
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "list") => {
            let all = listed_at(&s.place, s.db());
            out.array(all.len());
            all.iter().for_each(|(name, _)| out.bulk(name.as_bytes()));
            Ok(())
        }
        (c, 2 | 3) if is(c, "info") => {
            let name = args.get(2).map_or(s.dictionary.name().as_bytes().to_vec(), <[u8]>::to_vec);
            describe(&existing(s, &name)?, out);
            Ok(())
        }
        (c, _) if is(c, "create") && pairs => {
            let selected = Selected::choose(s.db(), args.at(2))?;
            let options = changed(DictionaryOptions::default(), args)?;
            if selected.existing_at(&s.place, s.db())?.is_some() {
                return Err(Failure::request("such a dictionary exists: DICT SET changes it"));
            }
            s.shared.owner.transactions().commit_written()?;
            s.db().create_dictionary_in(&branch, selected.name(), options)?;
            out.ok();
            Ok(())
        }
        (c, n) if is(c, "set") && pairs && n > 3 => {
            let info = existing(s, args.at(2))?;
            s.shared.owner.transactions().commit_written()?;
            s.db().set_dictionary_options(info.id, changed(info.options, args)?)?;
            out.ok();
            Ok(())
        }
        (c, 3) if is(c, "drop") => {
            // A copy of the dictionary's tuples may be in a file that was just written.
            s.shared.owner.transactions().commit_written()?;
            // Under these locks no command can find one of the two dictionaries without the
            // other, or write into them while they are dropped.
            let _held = s.shared.locks.all();
            let info = existing(s, args.at(2))?;
            // Both dictionaries are dropped in one change, because a types dictionary that was
            // left over would reappear in the next dictionary of that name.
            let types = s.db().dictionary_in(&branch, &types_name(&info.name));
            let both: Vec<_> = [info.id].into_iter().chain(types).collect();
            s.db().drop_dictionaries(&both)?;
            tell_all("delrange", &branch, [info.name], s);
            out.ok();
            Ok(())
        }
        _ => Err(Failure::request(format!("wrong arguments for 'dict'. DICT {USAGE}"))),
    }
}

/// `COMPACT [start end]`: merges the runs of the dictionary, or the parts of them in a range of
/// keys, and replies when the merge has finished. `COMPACT STORE` merges the runs of every
/// dictionary of the store, including the dictionaries of the file system. This does not read or
/// change any data that is closed to clients.
pub fn compact(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    if args.len() == 2 && is(args.at(1), "store") {
        for dictionary in s.db().dictionaries() {
            match s.db().compact(dictionary.id) {
                // The dictionary was dropped after it was listed.
                Err(kvdb::Error::NoDictionary(_)) => {}
                done => done?,
            }
        }
        out.ok();
        return Ok(());
    }
    let name = s.dictionary.name().as_bytes().to_vec();
    let info = existing(s, &name)?;
    match args.len() {
        1 => s.db().compact(info.id)?,
        3 => {
            let (start, end) = bounds(args, false);
            match end.is_empty() {
                true => s.db().compact_range(info.id, start..)?,
                false => s.db().compact_range(info.id, start..end)?,
            }
        }
        _ => return Err(wrong_arity("compact")),
    }
    out.ok();
    Ok(())
}

/// Returns an existing dictionary of the user.
fn existing(s: &Session, name: &[u8]) -> Result<DictionaryInfo, Failure> {
    let selected = Selected::choose(s.db(), name)?;
    let there = selected.existing_at(&s.place, s.db())?;
    let info = there.and_then(|_| s.place.find(s.db(), selected.name()));
    info.ok_or_else(|| {
        let text = format!("there is no dictionary '{}'", selected.name());
        Failure::coded(ErrorCode::NoDictionary, text)
    })
}

/// Returns the options with the changes that the arguments from the fourth on specify.
fn changed(
    mut options: DictionaryOptions,
    args: Arguments<'_>,
) -> Result<DictionaryOptions, Failure> {
    for at in (3..args.len()).step_by(2) {
        let (option, value) = (args.at(at), args.at(at + 1));
        let wrong = || {
            let (option, value) = (String::from_utf8_lossy(option), String::from_utf8_lossy(value));
            Failure::request(format!(
                "option '{:.64}' cannot be '{:.64}'. DICT {USAGE}",
                option.escape_debug().to_string(),
                value.escape_debug().to_string()
            ))
        };
        let number = || integer(value).and_then(|n| u64::try_from(n).ok()).ok_or_else(wrong);
        let codec = || match value {
            v if is(v, "none") => Ok(Compression::None),
            v if is(v, "lz4") => Ok(Compression::Lz4),
            v if is(v, "zstd") => Ok(Compression::Zstd),
            _ => Err(wrong()),
        };
        match option {
            o if is(o, "separate-at") && is(value, "never") => options.separate_at = u32::MAX,
            o if is(o, "separate-at") && is(value, "adaptive") => {
                options.separate_at = ADAPTIVE_SEPARATION
            }
            o if is(o, "separate-at") => {
                // The two words are stored as the largest numbers, so these numbers are refused.
                let bytes = i32::try_from(number()?).map_err(|_| wrong())?;
                options.separate_at = bytes.unsigned_abs()
            }
            o if is(o, "stitch-at") && is(value, "adaptive") => options.stitch_at = ADAPTIVE,
            o if is(o, "stitch-at") && is(value, "never") => options.stitch_at = u64::MAX,
            o if is(o, "stitch-at") => options.stitch_at = number()?,
            o if is(o, "compression") => options.compression = codec()?,
            o if is(o, "value-compression") => options.compress_values = codec()?,
            o if is(o, "false-positives") => {
                let rate = u16::try_from(number()?).ok().filter(|rate| *rate <= 10_000);
                options.false_positives = rate.ok_or_else(wrong)?
            }
            o if is(o, "merge") => options.join = Join::named(value).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        }
    }
    Ok(options)
}

fn describe(info: &DictionaryInfo, out: &mut Output) {
    let options = &info.options;
    let codec = |c: Compression| match c {
        Compression::None => "none",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    };
    let mut fields: Vec<(&str, String)> = vec![
        (
            "separate-at",
            match options.separate_at {
                ADAPTIVE_SEPARATION => "adaptive".into(),
                u32::MAX => "never".into(),
                bytes => bytes.to_string(),
            },
        ),
        (
            "stitch-at",
            match options.stitch_at {
                ADAPTIVE => "adaptive".into(),
                u64::MAX => "never".into(),
                bytes => bytes.to_string(),
            },
        ),
        ("compression", codec(options.compression).into()),
        ("value-compression", codec(options.compress_values).into()),
        ("false-positives", options.false_positives.to_string()),
        ("merge", options.join.name().into()),
    ];
    if options.separate_at == ADAPTIVE_SEPARATION {
        let place = if info.short_outside { "outside" } else { "inside" };
        fields.insert(1, ("short-values", place.into()));
    }
    out.array(fields.len() * 2);
    for (name, value) in fields {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
}
