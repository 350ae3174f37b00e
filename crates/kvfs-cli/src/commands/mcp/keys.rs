//! Keys as tools: read anywhere, changed in transactions.

use kvdb_server::Reply;

use super::arguments::{Arguments, Told, cut, shown};
use super::session::Session;
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The number of keys in one answer if no limit is passed.
const USUAL: u64 = 100;

/// Runs a command on the dictionary, and in the transaction, that the arguments name.
fn call(session: &mut Session, given: &Arguments<'_>, words: &[&[u8]]) -> Outcome<Reply> {
    let mounted = &mut session.mounted;
    let dictionary = given.text("dictionary").unwrap_or("0");
    let Some(id) = given.number("transaction") else {
        mounted.call(&[b"USE", dictionary.as_bytes()])?;
        return mounted.call(words);
    };
    mounted.txn(&["JOIN", &id.to_string()])?;
    let done = mounted.call(&[b"USE", dictionary.as_bytes()]).and_then(|_| mounted.call(words));
    mounted.txn(&["LEAVE"])?;
    mounted.use_branch()?;
    done
}

pub fn get(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let key = given.needed("key")?;
    match call(session, given, &[b"GET", key.as_bytes()])? {
        Reply::Bulk(value) => Ok(cut(&shown(&value), session.limits.output).into()),
        _ => Err(Failure::new(Exit::NotFound, format!("there is no key {key}"))),
    }
}

pub fn put(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let (key, value) = (given.needed("key")?, given.bytes("value")?);
    call(session, given, &[b"SET", key.as_bytes(), &value])?;
    Ok(format!("set {key} to {} bytes\n", value.len()).into())
}

pub fn delete(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let key = given.needed("key")?;
    match call(session, given, &[b"DEL", key.as_bytes()])? {
        Reply::Integer(0) => Err(Failure::new(Exit::NotFound, format!("there is no key {key}"))),
        _ => Ok(format!("deleted {key}\n").into()),
    }
}

pub fn range(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let limit = given.number("limit").unwrap_or(USUAL).clamp(1, 10_000);
    let text = |name| given.text(name).unwrap_or("").as_bytes();
    let limit_text = limit.to_string();
    let words = [b"RANGE", text("start"), text("end"), b"EXACT", b"LIMIT", limit_text.as_bytes()];
    let items = crate::support::mounts::replies::bulks(call(session, given, &words)?)?;
    let mut out = String::new();
    for tuple in items.chunks_exact(2) {
        out.push_str(&format!(
            "{}\t{}\n",
            crate::support::terminal::text::show(&tuple[0]),
            shown_in_line(&tuple[1])
        ));
    }
    let found = (items.len() / 2) as u64;
    if found == limit
        && let Some(last) = items.get(items.len().wrapping_sub(2))
    {
        out.push_str(&format!(
            "[{limit} keys are shown; there may be more behind {}]\n",
            crate::support::terminal::text::show(last)
        ));
    }
    if found == 0 {
        out.push_str("there are no keys there\n");
    }
    Ok(cut(&out, session.limits.output).into())
}

/// Formats a value on one line.
fn shown_in_line(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(_) => crate::support::terminal::text::show(value),
        Err(_) => shown(value),
    }
}
